"""Rebuild a registry: derive heads from storage when the registry was lost or restored from an old backup.

With all writers stopped, the newest published manifest and the entries after it show what was acknowledged: every
acknowledged entry is an object, and entries were committed in order of positions and epochs. A staged manifest proves
nothing, since its swap may have failed. Only if a head is left and names a newer one, that one is used: its committer
crashed before it published it. No sum or position of a head is used. Model: tests/model/registry_rebuild.py.
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
    is_id,
    manifest_prefix,
    published_manifest,
    published_version,
    region_id,
    region_key,
    table_key,
)
from lancelsm.errors import Contended, Corrupt, Unavailable
from lancelsm.region import head as heads
from lancelsm.region import manifest_codec
from lancelsm.region.catalog import Region, TableContext, region_from_record
from lancelsm.region.compare_and_swap import Staged, load, publish, stage
from lancelsm.region.config import Config
from lancelsm.region.handle import TableHandle, add_table_to_catalog, check_base
from lancelsm.region.head import Head, RegionState, Swap
from lancelsm.region.manifest import Manifest, with_spans
from lancelsm.region.resharding import record_resharded
from lancelsm.region.shards import is_foreign, newest_own_manifest
from lancelsm.registry import Fields, SwapUnknown
from lancelsm.wal.claim import add_to_catalog, derived_head, finish_claim, seal
from lancelsm.wal.recovery import recover_log


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A region with its new head.

    `orphans` are positions of objects above the end of the log. As far as storage can tell, they were not acknowledged;
    they are fenced off.
    """

    region: Region
    head: Head
    orphans: tuple[Position, ...]


def rebuild(handle: TableHandle, only: Iterable[RegionId] | None = None) -> list[Rebuilt]:
    """Derive the registry records of every region that has a manifest. All writers must be stopped.

    Records that can't be read are treated as lost. Regions of another table are skipped: a writer that stalled may have
    created them after the other table was dropped.

    Args:
        only: rebuild only these regions; all by default.

    Returns:
        The regions with their new heads. Each head has a new epoch and the table's ordinary owner. A sealed region
        stays sealed.

    Raises:
        Corrupt: acknowledged objects are damaged or missing (see `wal.recovery.recover_log`), or the base belongs to
            another table.
        Contended: a writer is still running.
        Unavailable: a store or the registry did not answer. Run it again.

    A crash at any line leaves some heads rebuilt. Running it again finishes the rest.
    """
    base = handle.read_base()
    check_base(base, handle.config)
    handle = handle.with_columns_of(base)
    _discard_unreadable_table(handle.context)
    add_table_to_catalog(handle)
    if handle.config.regions is not None:
        record_resharded(handle.context, handle.config.regions)
    rebuilt = []
    for identity in regions_of_table(handle) if only is None else only:
        probe = Region(context=handle.context, id=identity, spec_id=0, values=())
        _discard_unreadable(probe)
        newest = _newest_committed(probe)
        if newest is not None:
            region = replace(probe, spec_id=newest.manifest.spec_id, values=_values(handle, newest.manifest))
            counter = base.counters.get(identity, Generation(0))
            rebuilt.append(_rebuild_region(region, newest, counter, handle.config))
    return rebuilt


def _discard_unreadable_table(context: TableContext) -> None:
    key = table_key(context.table)
    try:
        context.registry.read(key)
    except Corrupt:
        context.registry.discard(key)


def _discard_unreadable(region: Region) -> None:
    """Delete unreadable records of the region: they are derived again, like lost ones."""
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
    """Return the newest manifest under a published name, where Lance's readers look; None if there is none."""
    listed = region.context.objects.list(manifest_prefix(region.id))
    versions = [version for item in listed if (version := published_version(item.key)) is not None]
    return load(region, published_manifest(region.id, max(versions))) if versions else None


def _newest_committed(region: Region) -> Staged | None:
    """Return the newest published manifest, or the head's manifest if its committer crashed before publishing."""
    published, head = newest_published(region), region.find_head()
    if head is None or (published is not None and published.manifest.version >= head.manifest_version):
        return published
    return load(region, head.manifest_key) or published


def _rebuild_region(region: Region, newest: Staged, counter: Generation, config: Config) -> Rebuilt:
    context, manifest, owner = region.context, newest.manifest, config.owner
    budget = context.budget()
    log = recover_log(region, manifest)
    spanned = _with_spans(region, newest)
    if counter >= manifest.current_generation:
        # The base has a generation whose manifest was never published. So its entries are still in the tail.
        manifest = _with_all_merged(manifest, counter)
        staged = stage(region, manifest, after=newest.manifest, budget=budget)
    elif spanned is not None:
        manifest = spanned
        staged = stage(region, manifest, after=None, budget=budget)
    else:
        staged = stage(region, manifest, after=None, budget=budget, body=newest.body)
    publish(region, staged, budget=budget)
    epoch = Epoch(max([manifest.epoch, *(entry.epoch for entry in log.entries)]) + 1)
    version = config.schema.version
    head = derived_head(region, staged, log.entries, epoch=epoch, owner=owner, merged=counter, schema_version=version)
    written = _write(region, head)
    sealed = written.status is RegionState.SEALED
    head = seal(region) if sealed else finish_claim(region, written, owner=owner)
    return Rebuilt(region=region, head=head, orphans=log.orphans)


def _write(region: Region, head: Head) -> Head:
    """Write the catalog record, then the head. An existing head is replaced; its epoch never decreases."""
    context = region.context
    budget = context.budget()
    add_to_catalog(region, budget=budget)
    for _ in budget.attempts():
        present = region.find_head()
        if present is not None:
            head = replace(head, epoch=Epoch(max(head.epoch, present.epoch + 1)))
            if present.status is RegionState.SEALED:  # the manifest of the seal was not published
                head = replace(head, owner=heads.NO_OWNER, status=RegionState.SEALED)
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
            raise Contended("a writer is writing to the region", remedy="Stop all writers first", **region.where)
    raise Unavailable("the head could not be written", remedy="Run it again", **region.where)


def _with_spans(region: Region, newest: Staged) -> Manifest | None:
    """Return the manifest after one of Lance's writer that lost the spans of compacted generations; else None."""
    if not manifest_codec.written_by_lance(newest.body):
        return None
    own = newest_own_manifest(region, newest)
    generations = with_spans(newest.manifest.generations, own.generations if own else ())
    if own is None or generations == newest.manifest.generations:
        return None
    version = Version(newest.manifest.version + 1)
    return replace(newest.manifest, version=version, generations=generations, compactions=own.compactions)


def _with_all_merged(manifest: Manifest, counter: Generation) -> Manifest:
    """Return the manifest of a region whose generations are all in the base."""
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
    """Return the region's values. Fields that the manifest does not have are null."""
    known: dict[str, bytes] = dict(manifest.values)
    config = handle.config
    possible = [
        tuple((field.field_id, known.get(field.field_id)) for field in spec.fields)
        for spec in (config.regions, *config.earlier_regions)
        if spec is not None and set(known) <= {field.field_id for field in spec.fields}
    ]

    def is_its_own(values: RegionValues) -> bool:
        return region_id(table=config.table, spec_id=manifest.spec_id, values=values) == manifest.region

    return next(filter(is_its_own, possible), possible[0] if possible else manifest.values)


def regions_of_table(handle: TableHandle) -> list[RegionId]:
    """Return the ids of all regions that have any object, except regions created for another table."""
    return [one for one in regions_in_storage(handle.context) if not _is_foreign(handle, one)]


def _is_foreign(handle: TableHandle, identity: RegionId) -> bool:
    """Return whether a directory that the catalog lacks was created for another table, or by another tool.

    The creator derives the region id from its table's id and writes the first manifest. An adopted region has a
    different id, and its first manifest, if still there, was written by Lance. A shard of another tool has no manifest
    of ours, or one that says so.
    """
    context = handle.context
    probe = Region(context=context, id=identity, spec_id=0, values=())
    try:
        listed = context.registry.read(region_key(context.table, identity)) is not None
        newest = newest_published(probe)
        if not listed and newest is not None and handle.config.regions is not None and is_foreign(probe, newest):
            return True
        first = load(probe, published_manifest(identity, Version(1)))
        if first is None or manifest_codec.written_by_lance(first.body):
            return False
        manifest = first.manifest
        values = _values(handle, manifest)
        derived = region_id(table=context.table, spec_id=manifest.spec_id, values=values)
        return derived != identity and not listed
    except Corrupt:  # an unreadable manifest proves nothing; an unreadable record exists
        return False


def regions_in_storage(context: TableContext) -> list[RegionId]:
    """Return the ids of all regions that have any object."""
    names = {item.key.split("/")[1] for item in context.objects.list(f"{MEM_WAL}/") if item.key.count("/") > 1}
    return sorted(RegionId(name) for name in names if is_id(name))
