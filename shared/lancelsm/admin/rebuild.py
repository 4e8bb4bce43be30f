"""Derive heads from what lies in storage: for a registry that was lost, or restored from a backup and is behind.

Heads are never restored. With all writers stopped, the newest published manifest and the entries that follow it say all
that was acknowledged: every acknowledged entry is an object, and was committed in order of positions and epochs. A
staged manifest proves nothing, since its swap may have lost. Model: tests/model/registry_rebuild.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lancelsm.common.layout import (
    MEM_WAL,
    Epoch,
    Generation,
    Position,
    RegionId,
    RegionValues,
    Version,
    head_key,
    manifest_prefix,
    published_manifest,
    published_version,
    region_id,
    region_key,
    table_key,
)
from lancelsm.errors import Contended, Corrupt, Unavailable
from lancelsm.region import head as heads
from lancelsm.region import manifest as manifests
from lancelsm.region.catalog import Region, TableContext, region_from_record
from lancelsm.region.compare_and_swap import Staged, load, publish, stage
from lancelsm.region.handle import TableHandle, catalogue_table, check_base
from lancelsm.region.head import Head, RegionState, Swap
from lancelsm.region.manifest import Manifest
from lancelsm.registry import Fields, SwapUnknown
from lancelsm.wal.claim import catalogue, derived_head, finish_claim, seal
from lancelsm.wal.recovery import recover_log


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A region with its new head.

    `left` is where objects lay above the last entry that counts, which were not acknowledged as far as anybody can
    tell: they are fenced off.
    """

    region: Region
    head: Head
    left: tuple[Position, ...]


def rebuild(handle: TableHandle, only: Iterable[RegionId] | None = None) -> list[Rebuilt]:
    """Make the registry say what storage says, for every region that has a manifest. All writers must be stopped.

    A record that can't be read is as one that is lost. A region of another table, whose maker stalled until that one
    was dropped, is left alone.

    Args:
        only: these regions; all by default.

    Returns:
        The regions with their new heads, each in a fresh epoch of the table's ordinary owner; a sealed one stays
        sealed.

    Raises:
        Corrupt: objects that were acknowledged are damaged or gone, as `wal.recovery.recover_log` tells. Or the base is
            another table's.
        Contended: somebody writes.
        Unavailable: a store or the registry did not answer. Run it again.

    A crash at any line leaves some heads rebuilt; running it again finishes.
    """
    base = handle.read_base()
    check_base(base, handle.config)
    _discard_unreadable_table(handle.context)
    catalogue_table(handle)
    rebuilt = []
    for identity in regions_of_table(handle) if only is None else only:
        probe = Region(context=handle.context, id=identity, spec_id=0, values=())
        _discard_unreadable(probe)
        newest = _newest_proven(probe)
        if newest is not None:
            region = replace(probe, spec_id=newest.manifest.spec_id, values=_values(handle, newest.manifest))
            counter = base.counters.get(identity, Generation(0))
            rebuilt.append(_rebuild_region(region, newest, counter, owner=handle.config.owner))
    return rebuilt


def _discard_unreadable_table(context: TableContext) -> None:
    key = table_key(context.table)
    try:
        context.registry.read(key)
    except Corrupt:
        context.registry.discard(key)


def _discard_unreadable(region: Region) -> None:
    """Remove records of the region that nobody can read: what they said is derived like that of a lost one."""
    context = region.context
    key = region_key(context.table, region.id)
    try:
        record = context.registry.read(key)
        if record is not None:
            region_from_record(context, region.id, record)
    except Corrupt:
        context.registry.discard(key)
    try:
        region.find_head()
    except Corrupt:
        context.registry.discard(head_key(context.table, region.id))


def newest_published(region: Region) -> Staged | None:
    """The newest manifest that stands under a name where Lance's readers look; None if there is none."""
    listed = region.context.objects.list(manifest_prefix(region.id))
    versions = [version for item in listed if (version := published_version(item.key)) is not None]
    return load(region, published_manifest(region.id, max(versions))) if versions else None


def _newest_proven(region: Region) -> Staged | None:
    """The newest published manifest, or the one that a present head names: its committer crashed before publishing."""
    published, head = newest_published(region), region.find_head()
    if head is None or (published is not None and published.manifest.version >= head.manifest_version):
        return published
    return load(region, head.manifest_key) or published


def _rebuild_region(region: Region, newest: Staged, counter: Generation, *, owner: str) -> Rebuilt:
    context, manifest = region.context, newest.manifest
    budget = context.budget()
    log = recover_log(region, manifest)
    if counter >= manifest.current_generation:
        # The base holds a generation whose manifest was never published: its entries are in the tail once more.
        manifest = _passed(manifest, counter)
        staged = stage(region, manifest, after=newest.manifest, budget=budget)
    else:
        staged = stage(region, manifest, after=None, budget=budget, body=newest.body)
    publish(region, staged, budget=budget)
    epoch = Epoch(max([manifest.epoch, *(entry.epoch for entry in log.entries)]) + 1)
    head = derived_head(region, staged, log.entries, epoch=epoch, owner=owner, merged=counter)
    written = _write(region, head)
    sealed = written.status is RegionState.SEALED
    head = seal(region) if sealed else finish_claim(region, written, owner=owner)
    return Rebuilt(region=region, head=head, left=log.left)


def _write(region: Region, head: Head) -> Head:
    """Catalog record, then head; a head that is there is replaced, and never goes back."""
    context = region.context
    budget = context.budget()
    catalogue(region, budget=budget)
    for _ in budget.attempts():
        present = region.find_head()
        if present is not None:
            head = replace(head, epoch=Epoch(max(head.epoch, present.epoch + 1)))
            if present.status is RegionState.SEALED:  # by a seal whose manifest was not published
                head = replace(head, owner=heads.NOBODY, status=RegionState.SEALED)
            expect: Fields = {
                "epoch": present.epoch,
                "next_position": present.next_position,
                "nonce": present.nonce,
            }
            outcome = region.swap(Swap(expect=expect, change=heads.to_record(head)))
        else:
            outcome = region.swap(heads.created(head))
        if isinstance(outcome, Head):
            return outcome
        if not isinstance(outcome, SwapUnknown):
            raise Contended("somebody writes to the region", remedy="Stop all writers first", **region.where)
    raise Unavailable("the head could not be written", remedy="Run it again", **region.where)


def _passed(manifest: Manifest, counter: Generation) -> Manifest:
    """The manifest of a region all of whose generations are in the base."""
    entries, rows = manifest.collected_entries, manifest.collected_rows
    for generation in manifest.generations:
        if generation.folded:
            entries += generation.folded.entry_setsum
            rows += generation.folded.row_setsum
    return replace(
        manifest,
        version=Version(manifest.version + 1),
        current_generation=Generation(counter + 1),
        generations=(),
        collected_entries=entries,
        collected_rows=rows,
    )


def _values(handle: TableHandle, manifest: Manifest) -> RegionValues:
    """The region's values; fields that the manifest lacks are null."""
    known: dict[str, bytes] = dict(manifest.values)
    spec = handle.config.regions
    fields = spec.fields if spec else ()
    if set(known) <= {field.field_id for field in fields}:
        return tuple((field.field_id, known.get(field.field_id)) for field in fields)
    return manifest.values


def regions_of_table(handle: TableHandle) -> list[RegionId]:
    """The ids of the regions that have any object, without those that another table's maker left."""
    return [one for one in regions_in_storage(handle.context) if not _is_foreign(handle, one)]


def _is_foreign(handle: TableHandle, identity: RegionId) -> bool:
    """Whether a region that the catalog lacks was made for another table.

    Who makes one names it by its table and writes the first manifest. A region that was adopted has another name, and
    Lance wrote its first manifest, if that is there still.
    """
    context = handle.context
    probe = Region(context=context, id=identity, spec_id=0, values=())
    try:
        first = load(probe, published_manifest(identity, Version(1)))
        if first is None or manifests.written_by_lance(first.body):
            return False
        manifest = first.manifest
        values = _values(handle, manifest)
        derived = region_id(table=context.table, spec_id=manifest.spec_id, values=values)
        return derived != identity and context.registry.read(region_key(context.table, identity)) is None
    except Corrupt:  # a manifest that proves nothing, or a record that is there
        return False


def regions_in_storage(context: TableContext) -> list[RegionId]:
    """The ids of all regions that have any object."""
    names = {item.key.split("/")[1] for item in context.objects.list(f"{MEM_WAL}/")}
    return sorted(RegionId(name) for name in names)
