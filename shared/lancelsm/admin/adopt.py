"""Adopt what Lance's own writer wrote: a whole table, or regions of one of our tables. Ids, files and rows are kept.

Lance is fenced first, by Lance's own protocol: a manifest with a higher epoch, then a sentinel in the log. Only then
are the entries counted. Counters come from Lance's marker and are committed to the base before any head exists. The
configuration is written last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lancelsm.admin.create import check_free, sharding_of
from lancelsm.admin.fencing import fence_lance
from lancelsm.admin.foreign_files import first_foreign_data, not_free
from lancelsm.admin.foreign_shards import OnConflict, adopt_shards, check_placed
from lancelsm.admin.rebuild import newest_published, rebuild, regions_in_storage
from lancelsm.admin.reshard import install_spec
from lancelsm.common.layout import Generation, table_id
from lancelsm.compaction.maintenance import flush_table, merge_table
from lancelsm.dataset.adoption import read_adoptable, take_over, write_facts
from lancelsm.dataset.base_table import REGIONS, BaseFacts, Sharding, replace_mem_wal
from lancelsm.dataset.merged_generations import repair_markers
from lancelsm.errors import Contended, Invalid, error_context
from lancelsm.read.problems import has_foreign_index
from lancelsm.read.status import read_status
from lancelsm.record.admission import check_columns
from lancelsm.record.key import check_primary_key
from lancelsm.region import config as configs
from lancelsm.region import manifest_codec
from lancelsm.region.catalog import Region, regions, with_heads
from lancelsm.region.compare_and_swap import Staged, load, stage
from lancelsm.region.config import Config
from lancelsm.region.drift import drift, resume
from lancelsm.region.handle import (
    DEFAULT_OWNER,
    Ports,
    TableHandle,
    add_table_to_catalog,
    canonical,
    check_base,
    open_table,
    table_handle,
)
from lancelsm.region.head import check_owner
from lancelsm.region.manifest import Manifest, with_spans
from lancelsm.region.shards import is_foreign, newest_own_manifest
from lancelsm.registry.open import default_registry
from lancelsm.routing.route import all_values
from lancelsm.routing.spec import RegionSpec, from_lance, has_mem_wal_index, parse_regions
from lancelsm.wal.claim import add_to_catalog, create_head, create_region, derived_head, seal
from lancelsm.wal.recovery import recover_log


def adopt(
    uri: str | Path,
    *,
    registry: str | None = None,
    owner: str = DEFAULT_OWNER,
    on_conflict: OnConflict = "refuse",
    storage_options: Mapping[str, str] | None = None,
    ports: Ports | None = None,
) -> TableHandle:
    """Turn a Lance table with a MemWAL index into a lancelsm table. Running writers of Lance are fenced.

    If the table is a lancelsm table already, take over what other tools did to it. Regions that Lance's writer wrote to
    keep what it wrote, and their heads are derived from storage (`admin.rebuild.rebuild`). The rows of a shard that is
    not a region, such as one of LanceDB, are routed to the regions that they belong to (`admin.foreign_shards`). The
    MemWAL index is installed again if it was dropped or replaced. Then the table takes rows again.

    Args:
        registry: `sqlite`, `object` or `dynamodb:NAME`, as for `table.create`.
        on_conflict: what to do with keys of a shard that our log has too, so that it can't be known which row is newer.
            `refuse`: raise `Invalid`. `theirs`: append their rows behind ours. `ours`: leave their rows out.

    Returns:
        The opened table. If Lance's index does not say which region a key is in (Lance's spec 0), the table can be
        read, flushed, merged and sealed, but takes no rows until `set_regions`.

    Raises:
        Invalid: no such table is there, it has no primary key or a column that a table can't have
            (`record.admission`), it has files below `data/` that Lance did not write, or it is a lancelsm table that
            no other tool changed. Or the order of some keys can't be known, a row belongs to another region or does
            not fit the table, or the columns of the base changed.
        Corrupt: an entry or a manifest is unreadable, or the log has a hole.
        Contended: a writer of Lance kept claiming a region.
        Unavailable: a store or the registry did not answer. Run it again.

    A crash at any line leaves a table that Lance's writer can write as before, or one that the same call finishes.
    """
    location = canonical(uri)
    ports = ports or Ports()
    store = ports.store(location, storage_options)
    if configs.read(store, uri=location) is not None:
        table = open_table(location, storage_options=storage_options, ports=ports)
        return _adopt_again(table, on_conflict=on_conflict)
    check_owner(owner)
    check_free(store, uri=location)
    adoptable = read_adoptable(uri=location, objects=store, storage_options=storage_options)
    schema = adoptable.base.schema
    with error_context(table=location):
        check_primary_key(schema)
        check_columns(schema.columns, file_version=adoptable.base.data_storage_version)
    if (foreign := first_foreign_data(store)) is not None:
        raise not_free(foreign, uri=location)
    facts = adoptable.base.facts or BaseFacts(
        table=table_id(ports.ids.nonce()),
        registry=registry or default_registry(location),
        owner=owner,
        regions="",
    )
    config = Config(
        table=facts.table,
        registry=facts.registry,
        owner=facts.owner,
        schema=schema,
        regions=None,
    )
    table = table_handle(config, store, location, storage_options=storage_options, ports=ports)
    lance_spec = None if adoptable.spec is None else from_lance(adoptable.spec, schema=schema)
    known = adoptable.base.facts is not None
    fenced = [_fence_lance(region, lance_spec, known=known) for region in _regions(table)]
    spec = _usable_spec(lance_spec, [manifest for _, manifest in fenced])
    # Read the markers again behind the fences: a merge by Lance may have raised them in between.
    adoptable = read_adoptable(uri=location, objects=store, storage_options=storage_options)
    take_over(adoptable, replace(facts, regions=configs.regions_text(spec)), objects=store)
    add_table_to_catalog(table)
    for region, manifest in fenced:
        _create_head(region, manifest, adoptable.markers.get(region.id, Generation(0)), owner=facts.owner)
    config = replace(config, regions=spec)
    configs.create(store, config, uri=location)
    return replace(table, config=config)


def set_regions(table: TableHandle, text: str) -> TableHandle:
    """Give an adopted table a region spec so that it takes rows. Its old regions are sealed, flushed and merged first.

    Args:
        text: the region spec, as for `table.create`.

    Raises:
        Invalid: the table already has a region spec, or the text does not fit its key.
        Contended, Ambiguous, Unavailable, Corrupt: the same errors as `wal.claim.seal`,
            `compaction.maintenance.flush_table` and `compaction.maintenance.merge_table`.

    A crash at any line leaves a table that still takes no rows. The same call continues.
    """
    if table.config.regions is not None:
        raise Invalid(
            f"the table has the region spec {table.config.regions}",
            remedy=f"Leave --regions out. To change it: lancelsm reshard {table.context.uri} SPEC",
            table=table.context.uri,
            field="regions",
        )
    # Lance's index does not know this spec, so it gets number 0, which means "unknown" to Lance.
    with error_context(table=table.context.uri):
        spec = replace(parse_regions(text, schema=table.config.schema), spec_id=0)
    for region in regions(table.context):
        if region.find_head() is not None:
            seal(region)
    flush_table(table)
    merge_table(table)
    if any(region.wal_rows or region.generations for region in read_status(table).regions):
        raise Contended("rows arrived while the regions were sealed", remedy="Run it again", table=table.context.uri)
    write_facts(table.read_base(), {REGIONS: configs.regions_text(spec)})
    config = replace(table.config, regions=spec)
    configs.rewrite(table.context.objects, config, uri=table.context.uri)
    for values in all_values(spec) or []:
        create_region(table.context, spec_id=spec.spec_id, values=values, owner=config.owner)
    return replace(table, config=config)


def _adopt_again(table: TableHandle, *, on_conflict: OnConflict) -> TableHandle:
    location = table.context.uri
    installed = _install_index(table)
    if (wrong := drift(table.read_base(), table.config)) is not None:
        raise wrong
    taken = [region for region in _regions(table) if _was_written_by_lance(region, table.config.regions)]
    for region in taken:
        check_placed(table, region)
    for region in taken:
        _fence_lance(region, table.config.regions, known=True)
    if taken:
        rebuild(table, [region.id for region in taken])
    shards = adopt_shards(table, on_conflict=on_conflict) if table.config.regions is not None else []
    stopped = [(region, head) for region, head in with_heads(table.context, regions(table.context)) if head.stopped]
    for region, head in stopped:
        resume(region, head)
    if not (installed or taken or shards or stopped):
        raise Invalid(
            "it is a lancelsm table already, and Lance's writer did not change it", remedy="Open it", table=location
        )
    return table


def _install_index(table: TableHandle) -> bool:
    """Install the MemWAL index again if another tool dropped or replaced it. Return whether it was."""
    base, spec, schema = table.read_base(), table.config.regions, table.config.schema
    check_base(base, table.config)
    if not has_foreign_index(table, base, regions(table.context)):
        return False
    without_spec = Sharding() if has_mem_wal_index(schema) else None
    replace_mem_wal(base, sharding=without_spec if spec is None else sharding_of(spec, schema))
    if spec is not None and spec.number > 1:
        install_spec(table, table.read_base(), spec)  # Lance numbers every spec 1
    repair_markers(base=table.read_base(), objects=table.context.objects)
    return True


def _was_written_by_lance(region: Region, spec: RegionSpec | None) -> bool:
    """Return whether a published manifest exists that the head does not know. Lance publishes one before it appends."""
    head, published = region.find_head(), newest_published(region)
    if published is None:
        return False
    if head is None:
        # Without a region spec, each shard may be a region of its own.
        return manifest_codec.written_by_lance(published.body) and not (spec and is_foreign(region, published))
    staged = load(region, head.manifest_key)
    ahead = published.manifest.version - head.manifest_version
    return ahead > 0 or (ahead == 0 and staged is not None and staged.body != published.body)


def _regions(table: TableHandle) -> list[Region]:
    return [Region(context=table.context, id=name, spec_id=0, values=()) for name in regions_in_storage(table.context)]


def _usable_spec(spec: RegionSpec | None, found: Sequence[Manifest]) -> RegionSpec | None:
    """Return the spec if it routes keys to the regions that exist; None if the region of a key can't be known."""
    if spec is None:
        return None
    fields = [field.field_id for field in spec.fields]
    values = {manifest.values for manifest in found}
    known = all([name for name, _ in manifest.values] == fields for manifest in found)
    return spec if known and len(values) == len(found) else None


def _fence_lance(region: Region, spec: RegionSpec | None, *, known: bool) -> tuple[Region, Manifest]:
    """Fence the writer of Lance that holds the region.

    From then on the manifest is ours. Its sums start at zero, since the sums of what Lance flushed are unknown.

    Args:
        known: the table was a lancelsm table before, so the region may have been collected. Lance's writer does not
            keep the floor and the number of the round. They are in the head or, without a head, in our newest manifest.
            Nor does it keep which numbers a compacted generation replaces. They are in the manifest that the head names
            or, without a head, in our newest one.
    """

    def claimed(found: Staged) -> Manifest:
        head = region.find_head() if known else None
        named = None if head is None else load(region, head.manifest_key)
        before = named.manifest if named else newest_own_manifest(region, found) if known and head is None else None
        ours = head or before
        return replace(
            found.manifest,
            values=found.manifest.values or _values_of_single_region(spec),
            first_position=ours.first_position if ours else found.manifest.first_position,
            collector_round=ours.collector_round if ours else 0,
            compactions=before.compactions if before else 0,
            generations=with_spans(found.manifest.generations, before.generations if before else ()),
        )

    manifest = fence_lance(region, claimed).manifest
    return replace(region, spec_id=manifest.spec_id, values=manifest.values), manifest


def _values_of_single_region(spec: RegionSpec | None) -> tuple[tuple[str, bytes], ...]:
    """Return the region values of an unsharded table's only region. Lance's Python writer leaves them out."""
    possible = [] if spec is None else all_values(spec) or []
    return tuple((name, value) for name, value in possible[0] if value is not None) if len(possible) == 1 else ()


def _create_head(region: Region, manifest: Manifest, counter: Generation, *, owner: str) -> None:
    """Sum up the log after the manifest's replay point, then create the catalog record and the head."""
    budget = region.context.budget()
    log = recover_log(region, manifest)
    staged = stage(region, manifest, after=None, budget=budget)
    head = derived_head(region, staged, log.entries, epoch=manifest.epoch, owner=owner, merged=counter)
    add_to_catalog(region, budget=budget)
    create_head(region, head, budget=budget)
