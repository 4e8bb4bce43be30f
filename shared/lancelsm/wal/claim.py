"""Create, claim and seal a region.

A claim has three steps: swap the head to a new epoch, append fences to the log, commit a manifest with the new epoch.
A writer that finds an unfinished claim of its own owner finishes it before it appends. So a crash during a claim blocks
no other writer. Model: tests/model/claim.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from lancelsm.common.clock import Budget
from lancelsm.common.layout import (
    NO_GENERATION,
    Epoch,
    Generation,
    Position,
    RegionValues,
    Version,
    region_id,
    region_key,
    wal_position,
    wal_prefix,
)
from lancelsm.errors import Ambiguous, Contended, Corrupt, Unavailable
from lancelsm.record.schema_history import FIRST_VERSION
from lancelsm.region import head as heads
from lancelsm.region import manifest as manifests
from lancelsm.region.catalog import Region, SealedRegion, TableContext, catalog_record, check_writable
from lancelsm.region.compare_and_swap import CommittedManifest, Staged, commit, ensure_unused, newest, publish, stage
from lancelsm.region.head import Head, LogTotals, RegionState, Summary
from lancelsm.region.manifest import Manifest
from lancelsm.region.resharding import check_not_resharded
from lancelsm.region.since import Since
from lancelsm.registry import SwapUnknown
from lancelsm.wal.entry import fence
from lancelsm.wal.replay import LogCollected, stream_tail
from lancelsm.wal.slot import Appended, contended, try_slot


def create_region(
    context: TableContext, *, spec_id: int, values: RegionValues, owner: str, resharding: bool = False
) -> Region:
    """Return the region with these values; create it if it does not exist.

    The catalog record is written first, then the manifest, then the head; each only if it is absent. So two concurrent
    creators create one region, and a later creator finishes the work of one that crashed. Readers list the catalog
    first, and treat a catalog record without a head as an empty region.

    Args:
        resharding: the caller creates the region for a reshard, or for a table that nobody can open yet.

    Raises:
        SealedRegion: the region is sealed, or the table was resharded to other regions.
        Unavailable: the store or the registry did not answer.
        Corrupt: another manifest has the name of the first one.
    """
    identity = region_id(table=context.table, spec_id=spec_id, values=values)
    region = Region(context=context, id=identity, spec_id=spec_id, values=values)
    if _exists(region):
        return region
    budget = context.budget()
    add_to_catalog(region, budget=budget)  # guard: region is in the catalog before it has a head
    if not resharding:
        check_not_resharded(region)
    first = Manifest(
        region=region.id,
        spec_id=spec_id,
        values=tuple((name, value) for name, value in values if value is not None),
        version=Version(1),
        epoch=Epoch(1),
    )
    try:
        ensure_unused(region)  # guard: region with a lost head is not created again
        staged = stage(region, first, after=None, budget=budget)
        publish(region, staged, budget=budget)  # guard: manifest is published before the region has a head
    except Corrupt:
        # Another creator was faster, and the region was written to since.
        if _exists(region):  # guard: region of another creator is used
            return region
        raise
    create_head(region, derived_head(region, staged, (), epoch=first.epoch, owner=owner), budget=budget)
    return region


def derived_head(
    region: Region,
    staged: Staged,
    entries: Sequence[Summary],
    *,
    epoch: Epoch,
    owner: str,
    merged: Generation = NO_GENERATION,
    schema_version: int = FIRST_VERSION,
) -> Head:
    """Derive a head that names this manifest and has committed these entries, which follow its replay point.

    Args:
        schema_version: the version of the table's columns.
    """
    manifest, nonce, now = staged.manifest, region.context.ids.nonce, int(region.context.clock.now())
    totals = manifest.totals.after(entries)
    return Head(
        epoch=epoch,
        owner=heads.NO_OWNER if manifest.sealed else owner,
        status=RegionState.SEALED if manifest.sealed else RegionState.OPEN,
        next_position=Position(manifest.replay_after + len(entries) + 1),
        entry_setsum=totals.entry_setsum,
        wal_rows=totals.wal_rows,
        wal_bytes=totals.wal_bytes,
        producers=totals.producers,
        nonce=nonce(),
        first_position=manifest.first_position,
        manifest_version=manifest.version,
        manifest_key=staged.key,
        manifest_epoch=manifest.epoch,
        current_generation=manifest.current_generation,
        collector_round=manifest.collector_round,
        manifest_nonce=nonce(),
        merged=merged,
        dirty=heads.SINCE_UNKNOWN if entries or manifest.newest > merged else "",
        compacted=manifests.live_numbers(manifest, above=merged),
        log_since=Since(first=manifest.replay_after + 1, at=now).text if any(one.rows for one in entries) else "",
        merge_since=Since(first=merged + 1, at=now).text if manifest.newest > merged else "",
        ordered="1" if region.context.ordered else "",
        schema_version=max([schema_version, *(entry.schema_version for entry in entries)]),
    )


def create_head(region: Region, head: Head, *, budget: Budget) -> None:
    """Create the head if the region has none; raise `Unavailable` if the registry did not answer."""
    for _ in budget.attempts():
        if not isinstance(region.swap(heads.created(head)), SwapUnknown):
            return
    raise Unavailable("the head of the region could not be created", remedy="Run it again", **region.where)


def add_to_catalog(region: Region, *, budget: Budget) -> None:
    """Add the region to the catalog if it is absent; raise `Unavailable` if the registry did not answer."""
    context = region.context
    for _ in budget.attempts():
        key = region_key(context.table, region.id)
        if not isinstance(context.registry.swap(key, expect=None, change=catalog_record(region)), SwapUnknown):
            return
    raise Unavailable("the region could not be added to the catalog", **region.where)


def _exists(region: Region) -> bool:
    head = region.find_head()
    if head is not None:
        check_writable(region, head, owner=head.owner)  # guard: sealed region is not created again
    return head is not None


def claim(region: Region, *, owner: str, held_by: tuple[str, ...] = ()) -> Head:
    """Take the region for `owner` in a new epoch. The previous owner is fenced.

    The tail of the log is verified first, so that the new owner never continues a damaged log.

    Args:
        held_by: if not empty, take the region only from these owners, so that a claim of any other owner stays valid.

    Returns:
        The head after the claim is finished: the log has a fence and the manifest has the new epoch.

    Raises:
        Invalid: the region is sealed, or `owner` is not a valid name.
        Fenced: another claim followed this one, or none of `held_by` holds the region.
        Corrupt: head, manifest and tail do not add up (see `wal.replay.tail`). Nothing was claimed.
        Contended, Unavailable, Ambiguous, Corrupt: for the same reasons as in `wal.append.append`.

    A crash at any line leaves the old epoch, or the new epoch with a claim that the next append of the owner finishes.
    """
    heads.check_owner(owner)
    head = _verified_head(region, held_by=held_by)  # guard: claim checks the sum of the log
    return finish_claim(region, _swap_epoch(region, head, owner=owner, held_by=held_by), owner=owner)


def claim_held(region: Region, *, owner: str, held_by: tuple[str, ...]) -> Head:
    """Claim a region that the caller holds, for itself or for another owner.

    The tail is not verified again: the caller verified it when it took the region. Raises: the same errors as `claim`.
    """
    return finish_claim(region, _swap_epoch(region, region.head(), owner=owner, held_by=held_by), owner=owner)


def _verified_head(region: Region, *, held_by: tuple[str, ...]) -> Head:
    """Read a head and verify the log after its replay point. A head that can't be claimed is returned unverified."""
    for _ in region.context.budget().attempts():
        head = region.head()
        if head.status is RegionState.SEALED or (held_by and head.owner not in held_by):
            return head
        head, manifest = newest(region, head)
        entries = stream_tail(region, head, manifest, size=head.wal_bytes - manifest.wal_bytes)
        with suppress(LogCollected):
            _check_counts(region, head, manifest.totals.after(entry.summary for entry in entries))
            return head
    raise Contended("the log was collected faster than it could be read", remedy="Claim it again", **region.where)


def _check_counts(region: Region, head: Head, totals: LogTotals) -> None:
    """Raise `Corrupt` if the head counts other numbers of rows or bytes than manifest and log."""
    for name in ("wal_rows", "wal_bytes"):
        if getattr(head, name) != getattr(totals, name):  # guard: claim checks the counts of the head
            raise Corrupt(
                f"{name} is {getattr(head, name)} in the head, {getattr(totals, name)} in manifest and log",
                remedy=region.context.rebuild_remedy,
                **region.where,
                position=Position(head.next_position - 1),
                object=head.manifest_key,
            )


def finish_claim(region: Region, head: Head, *, owner: str) -> Head:
    """Finish the claim of `owner` that this head shows, and any later claim of the same owner. Idempotent.

    Fences fill the log through the highest object above the head. Otherwise Lance's own writer would fill the gaps and
    then replay objects behind them that were never committed.

    Raises:
        Fenced: another owner claimed the region meanwhile.
        Invalid: the region was sealed meanwhile.
        Contended, Unavailable, Ambiguous, Corrupt: for the same reasons as in `claim`.
    """
    while head.manifest_epoch < head.epoch:  # guard: every claim is finished
        epoch = head.epoch
        head = _fence(region, head, owner=owner, through=max(_highest_object(region), head.next_position))
        if head.epoch == epoch:
            last_seen = Position(head.next_position - 1)
            committed = commit(region, partial(manifests.with_epoch, epoch=epoch, last_seen=last_seen))
            assert isinstance(committed, CommittedManifest)
            head = committed.head
            check_writable(region, head, owner=owner)  # guard: claimer owns the region after its commit
    return head


def _fence(region: Region, head: Head, *, owner: str, through: Position) -> Head:
    """Append fences through this position. Stop early if the claim was finished or superseded by another process."""
    epoch = head.epoch
    budget = region.context.budget()
    tries = budget.attempts()
    while head.epoch == epoch and head.manifest_epoch < epoch and head.next_position <= through:
        outcome = try_slot(region, fence(), head, budget=budget, fencing=True)
        if isinstance(outcome, Appended):
            head = outcome.head
        elif next(tries, None) is None:
            raise contended(region, head.next_position)
        else:
            head = outcome
        check_writable(region, head, owner=owner)  # guard: claimer owns the region after each fence
    return head


def seal(region: Region) -> Head:
    """End the region for writes, permanently: it can't be appended to, claimed or created again.

    Flush, merge and garbage collection continue. Sealing a sealed region again is safe, and finishes an interrupted
    seal.

    Raises:
        Contended, Unavailable, Ambiguous, Corrupt: for the same reasons as in `region.compare_and_swap.commit`. The
            region may be sealed or not: seal it again.
        Invalid: the table was dropped.
    """
    context = region.context
    for _ in context.budget().attempts():
        head = region.head()
        if head.status is RegionState.OPEN:
            outcome = region.swap(heads.sealed(head, nonce=context.ids.nonce()))
            head = outcome if isinstance(outcome, Head) else region.head_after(outcome)
        if head.status is RegionState.SEALED:
            last_seen = Position(head.next_position - 1)
            committed = commit(region, partial(manifests.with_seal, epoch=head.epoch, last_seen=last_seen))
            assert isinstance(committed, CommittedManifest)
            return committed.head
    raise Ambiguous(
        "the region may or may not be sealed: the registry gave no conclusive answer",
        remedy="Seal it again",
        **region.where,
    )


def _swap_epoch(region: Region, head: Head, *, owner: str, held_by: tuple[str, ...]) -> Head:
    context = region.context
    for _ in context.budget().attempts():
        if head.status is RegionState.SEALED:  # guard: sealed region is not claimed
            raise SealedRegion(
                "the region is sealed: it can't have an owner any more",
                remedy="Do not claim it: flush and merge need no owner",
                **region.where,
            )
        if held_by and head.owner not in held_by:  # guard: region is claimed from its previous owners
            check_writable(region, head, owner=held_by[-1])
        outcome = region.swap(heads.claimed(head, owner=owner, nonce=context.ids.nonce()))
        if isinstance(outcome, Head):
            return outcome
        now = region.head_after(outcome)
        if (
            now.epoch == head.epoch + 1  # guard: claim with a lost reply has the next epoch
            and now.owner == owner  # guard: claim with a lost reply has our owner
        ):
            return now  # our own swap with a lost reply, or one of a writer with the same owner, who shares the epoch
        head = now
    raise Ambiguous(
        "the region may or may not be claimed: the registry gave no conclusive answer",
        remedy="Claim it again",
        **region.where,
    )


def _highest_object(region: Region) -> Position:
    """Return the highest position that has an object; 0 if the log is empty."""
    listed = region.context.objects.list(wal_prefix(region.id))
    return max(  # guard: fences reach the highest object
        (wal_position(item.key) or Position(0) for item in listed),
        default=Position(0),
    )
