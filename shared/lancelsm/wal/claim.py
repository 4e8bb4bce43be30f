"""Who holds a region: creation, claim, seal.

A claim is a swap of the head, fences in the log and a manifest with the new epoch, in this order. Whoever finds a
claim of its own owner half-way finishes it before it appends, so that a crash of the claimer blocks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from lancelsm.errors import Ambiguous, Contended, Corrupt, Invalid, Unavailable
from lancelsm.region import head as heads
from lancelsm.region import manifest as manifests
from lancelsm.region.catalog import Region, TableContext, catalog_record, check_writable
from lancelsm.region.compare_and_swap import CommittedManifest, Staged, commit, ensure_unused, newest, publish, stage
from lancelsm.region.head import Head, LogTotals, RegionState, Summary
from lancelsm.region.manifest import Manifest
from lancelsm.registry import SwapUnknown
from lancelsm.wal.entry import fence
from lancelsm.wal.replay import tail
from lancelsm.wal.slot import Appended, contended, try_slot


def create_region(context: TableContext, *, spec_id: int, values: RegionValues, owner: str) -> Region:
    """The region with these values, made if there is none.

    Catalog record, then manifest, then head, each if absent: two creators make one region, and a creator that crashed
    is finished by the next. Readers list the catalog first, and a record without a head is an empty region.

    Raises:
        Invalid: the region is sealed.
        Unavailable: the store or the registry gave no answer.
        Corrupt: another manifest stands where the first one goes.
    """
    identity = region_id(table=context.table, spec_id=spec_id, values=values)
    region = Region(context=context, id=identity, spec_id=spec_id, values=values)
    if _is_made(region):
        return region
    budget = context.budget()
    catalogue(region, budget=budget)
    first = Manifest(
        region=region.id,
        spec_id=spec_id,
        values=tuple((name, value) for name, value in values if value is not None),
        version=Version(1),
        epoch=Epoch(1),
    )
    try:
        ensure_unused(region)
        staged = stage(region, first, after=None, budget=budget)
        publish(region, staged, budget=budget)
    except Corrupt:
        if _is_made(region):  # by another creator, and written to since
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
) -> Head:
    """The head that names a manifest and has committed the entries that follow its replay point."""
    manifest, nonce = staged.manifest, region.context.ids.nonce
    totals = manifest.totals.after(entries)
    return Head(
        epoch=epoch,
        owner=heads.NOBODY if manifest.sealed else owner,
        status=RegionState.SEALED if manifest.sealed else RegionState.OPEN,
        next_position=Position(manifest.replay_after + len(entries) + 1),
        entry_setsum=totals.entry_setsum,
        wal_rows=totals.wal_rows,
        wal_bytes=totals.wal_bytes,
        applied_sequences=totals.applied_sequences,
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
    )


def create_head(region: Region, head: Head, *, budget: Budget) -> None:
    """Make sure that the region has a head, this one if there is none; raises `Unavailable` if there was no answer."""
    for _ in budget.attempts():
        if not isinstance(region.swap(heads.created(head)), SwapUnknown):
            return
    raise Unavailable("the region's head could not be created", remedy="Run it again", **region.where)


def catalogue(region: Region, *, budget: Budget) -> None:
    """Make sure that the catalog has the region; raises `Unavailable` if the registry gave no answer."""
    context = region.context
    for _ in budget.attempts():
        key = region_key(context.table, region.id)
        if not isinstance(context.registry.swap(key, expect=None, change=catalog_record(region)), SwapUnknown):
            return
    raise Unavailable("the region could not be catalogued", remedy="Retry", **region.where)


def _is_made(region: Region) -> bool:
    head = region.find_head()
    if head is not None:
        check_writable(region, head, owner=head.owner)
    return head is not None


def claim(region: Region, *, owner: str, held_by: tuple[str, ...] = ()) -> Head:
    """Take the region for `owner` in a fresh epoch: whoever held it is fenced. Nobody goes on from a damaged log.

    Args:
        held_by: take it from these owners only, if any are given, so that a claim of another's stands.

    Returns:
        The head once the claim is finished and confirmed: the log has a fence, the manifest has the epoch.

    Raises:
        Invalid: the region is sealed, or `owner` is no name.
        Fenced: another claim came right after this one, or none of `held_by` holds the region.
        Corrupt: head, manifest and the log between them don't add up, as `wal.replay.tail` tells. Nothing was claimed.
        Contended, Unavailable, Ambiguous, Corrupt: as `wal.append.append`.

    A crash at any line leaves the old epoch, or the new one with a claim that the owner's next append finishes.
    """
    heads.check_owner(owner)
    head = _summed(region, held_by=held_by)
    return finish_claim(region, _swap_epoch(region, head, owner=owner, held_by=held_by), owner=owner)


def claim_held(region: Region, *, owner: str, held_by: tuple[str, ...]) -> Head:
    """As `claim`, of a region that the caller holds, and summed when it took it: for itself again, or for another."""
    return finish_claim(region, _swap_epoch(region, region.head(), owner=owner, held_by=held_by), owner=owner)


def _summed(region: Region, *, held_by: tuple[str, ...]) -> Head:
    """A head whose log adds up, from the replay point on; one under which nothing can be claimed as it was read."""
    for _ in region.context.budget().attempts():
        head = region.head()
        if head.status is RegionState.SEALED or (held_by and head.owner not in held_by):
            return head
        head, manifest = newest(region, head)
        entries = tail(region, head, manifest)
        if entries is not None:
            _check_counts(region, head, manifest.totals.after(entry.summary for entry in entries))
            return head
    raise Contended("the log was collected faster than it could be read", remedy="Claim it again", **region.where)


def _check_counts(region: Region, head: Head, counted: LogTotals) -> None:
    """Whether the head has counted as many rows and bytes as manifest and log have; raises `Corrupt` if not."""
    for name in ("wal_rows", "wal_bytes"):
        if getattr(head, name) != getattr(counted, name):
            raise Corrupt(
                f"{name} is {getattr(head, name)} in the head, {getattr(counted, name)} in manifest and log",
                remedy=f"Stop all writers, then: lancelsm registry rebuild {region.context.uri}",
                **region.where,
                position=Position(head.next_position - 1),
                object=head.manifest_key,
            )


def finish_claim(region: Region, head: Head, *, owner: str) -> Head:
    """Bring the claim of `owner` that this head shows to its end; does nothing if it is there.

    So is a later claim of the same owner that comes meanwhile. Fences fill the log through the highest object above
    the head: Lance's own writer fills gaps, and would replay behind them what was never committed.

    Raises:
        Fenced, Invalid: another owner's claim, or a seal, came meanwhile.
        Contended, Unavailable, Ambiguous, Corrupt: as `claim`.
    """
    while head.manifest_epoch < head.epoch:
        epoch = head.epoch
        head = _fence(region, head, owner=owner, through=max(_highest_object(region), head.next_position))
        if head.epoch == epoch:
            last_seen = Position(head.next_position - 1)
            committed = commit(region, partial(manifests.with_epoch, epoch=epoch, last_seen=last_seen))
            assert isinstance(committed, CommittedManifest)
            head = committed.head
            check_writable(region, head, owner=owner)
    return head


def _fence(region: Region, head: Head, *, owner: str, through: Position) -> Head:
    """Append sentinels through this position, unless the claim is finished or overtaken."""
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
        check_writable(region, head, owner=owner)
    return head


def seal(region: Region) -> Head:
    """End the region for writes, for ever: appends, claims and creation refuse it; flush, merge and collection go on.

    Raises:
        Contended, Unavailable, Ambiguous: as `region.compare_and_swap.commit`; it may be sealed then. Sealing again
            finishes what was begun.
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
        "the region may or may not be sealed: the registry gave no answer that proves anything",
        remedy="Seal it again",
        **region.where,
    )


def _swap_epoch(region: Region, head: Head, *, owner: str, held_by: tuple[str, ...]) -> Head:
    context = region.context
    for _ in context.budget().attempts():
        if head.status is RegionState.SEALED:
            raise Invalid(
                "the region is sealed: nobody can hold it any more",
                remedy="Leave it: flush and merge need no owner",
                **region.where,
            )
        if held_by and head.owner not in held_by:
            check_writable(region, head, owner=held_by[-1])
        outcome = region.swap(heads.claimed(head, owner=owner, nonce=context.ids.nonce()))
        if isinstance(outcome, Head):
            return outcome
        now = region.head_after(outcome)
        if now.epoch == head.epoch + 1 and now.owner == owner:
            return now  # ours with a lost reply, or a sibling's, which is as good: siblings share the epoch
        head = now
    raise Ambiguous(
        "the region may or may not be claimed: the registry gave no answer that proves anything",
        remedy="Claim it again",
        **region.where,
    )


def _highest_object(region: Region) -> Position:
    listed = region.context.objects.list(wal_prefix(region.id))
    return max((wal_position(item.key) or Position(0) for item in listed), default=Position(0))
