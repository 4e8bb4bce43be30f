"""Adopt what Lance's own writer wrote: a whole table, or regions of one of our tables. Ids, files and rows are kept.

Lance is fenced first, by Lance's own protocol: a manifest with a higher epoch, then a sentinel in the log. Only then
are the entries counted. Counters come from Lance's marker and are committed to the base before any head exists. The
configuration is written last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lancelsm.admin.create import check_free
from lancelsm.admin.foreign import first_foreign_data, not_free
from lancelsm.admin.rebuild import newest_published, rebuild, regions_in_storage
from lancelsm.common.layout import Epoch, Generation, Position, Version, published_manifest, table_id, wal_entry
from lancelsm.compaction.maintenance import flush_table, merge_table
from lancelsm.dataset.adoption import read_adoptable, take_over, write_facts
from lancelsm.dataset.base_table import REGIONS, BaseFacts
from lancelsm.errors import Contended, Corrupt, Invalid, error_context
from lancelsm.objects import PreconditionFailed, Written
from lancelsm.read.status import read_status
from lancelsm.record.admission import check_columns
from lancelsm.record.key import check_primary_key
from lancelsm.region import config as configs
from lancelsm.region import manifest as manifests
from lancelsm.region.catalog import Region, regions
from lancelsm.region.compare_and_swap import load, stage
from lancelsm.region.config import Config
from lancelsm.region.handle import (
    DEFAULT_OWNER,
    Ports,
    TableHandle,
    add_table_to_catalog,
    canonical,
    open_table,
    table_handle,
)
from lancelsm.region.head import check_owner
from lancelsm.region.manifest import Manifest
from lancelsm.registry.open import default_registry
from lancelsm.routing.route import all_values
from lancelsm.routing.spec import RegionSpec, from_lance, parse_regions
from lancelsm.wal.claim import add_to_catalog, create_head, create_region, derived_head, seal
from lancelsm.wal.entry import decode, encode, fence
from lancelsm.wal.recovery import recover_log


def adopt(
    uri: str | Path,
    *,
    registry: str | None = None,
    owner: str = DEFAULT_OWNER,
    storage_options: Mapping[str, str] | None = None,
    ports: Ports | None = None,
) -> TableHandle:
    """Turn a Lance table with a MemWAL index into a lancelsm table. Running writers of Lance are fenced.

    If the table is a lancelsm table already, adopt the regions again that Lance's writer wrote to: what it wrote is
    kept, and the heads of these regions are derived from storage (`admin.rebuild.rebuild`).

    Args:
        registry: `sqlite`, `object` or `dynamodb:NAME`, as for `table.create`.

    Returns:
        The opened table. If Lance's index does not say which region a key is in (Lance's spec 0), the table can be
        read, flushed, merged and sealed, but takes no rows until `set_regions`.

    Raises:
        Invalid: no such table is there, it has no primary key or a column that a table can't have
            (`record.admission`), it has files below `data/` that Lance did not write, or it is a lancelsm table that
            Lance's writer did not change.
        Corrupt: an entry or a manifest is unreadable, or the log has a hole.
        Contended: a writer of Lance kept claiming a region.
        Unavailable: a store or the registry did not answer. Run it again.

    A crash at any line leaves a table that Lance's writer can write as before, or one that the same call finishes.
    """
    location = canonical(uri)
    ports = ports or Ports()
    store = ports.store(location, storage_options)
    if configs.read(store, uri=location) is not None:
        return _adopt_again(open_table(location, storage_options=storage_options, ports=ports))
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
        schema_version=1,
        regions=None,
    )
    table = table_handle(config, store, location, storage_options=storage_options, ports=ports)
    lance_spec = None if adoptable.spec is None else from_lance(adoptable.spec, schema=schema)
    known = adoptable.base.facts is not None
    fenced = [_fence_lance(region, lance_spec, known=known) for region in _regions(table)]
    spec = _usable_spec(lance_spec, [manifest for _, manifest in fenced])
    # Read the markers again behind the fences: a merge by Lance may have raised them in between.
    adoptable = read_adoptable(uri=location, objects=store, storage_options=storage_options)
    take_over(adoptable, replace(facts, regions=configs.regions_text(spec)))
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
            remedy="Leave --regions out: a region spec can't be changed",
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


def _adopt_again(table: TableHandle) -> TableHandle:
    location = table.context.uri
    taken = [region for region in _regions(table) if _was_written_by_lance(region)]
    if not taken:
        raise Invalid(
            "it is a lancelsm table already, and Lance's writer did not change it", remedy="Open it", table=location
        )
    for region in taken:
        _fence_lance(region, table.config.regions, known=True)
    rebuild(table, [region.id for region in taken])
    return table


def _was_written_by_lance(region: Region) -> bool:
    """Return whether a published manifest exists that the head does not know. Lance publishes one before it appends."""
    head, published = region.find_head(), newest_published(region)
    if published is None:
        return False
    if head is None:
        return manifests.written_by_lance(published.body)
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
    """Fence the writer of Lance that holds the region: write a manifest with the next epoch, then a sentinel.

    From then on the manifest is ours. Its sums start at zero, since the sums of what Lance flushed are unknown.

    Args:
        known: the table was a lancelsm table before, so the region may have been collected. Lance's writer does not
            keep the floor and the number of the round. They are in the head or, without a head, in our newest manifest.
    """
    for _ in region.context.budget().attempts():
        found = newest_published(region)
        if found is None:
            raise Corrupt("the region has no manifest", **region.where)
        manifest = found.manifest
        written = not manifests.written_by_lance(found.body)  # True: an earlier call wrote it
        if not written:
            ours = (region.find_head() or _newest_own_manifest(region, below=manifest.version)) if known else None
            manifest = replace(
                manifest,
                version=Version(manifest.version + 1),
                epoch=Epoch(manifest.epoch + 1),  # guard: writer of Lance is fenced
                values=manifest.values or _values_of_single_region(spec),
                first_position=ours.first_position if ours else manifest.first_position,
                collector_round=ours.collector_round if ours else 0,
            )
            key = published_manifest(region.id, manifest.version)
            written = isinstance(region.context.objects.create(key, manifests.encode(manifest)), Written)
        if written:
            _append_sentinel(region, manifest)
            return replace(region, spec_id=manifest.spec_id, values=manifest.values), manifest
    raise Contended("writers of Lance kept claiming the region", remedy="Stop these writers", **region.where)


def _newest_own_manifest(region: Region, *, below: Version) -> Manifest | None:
    """Return the newest manifest of ours below `below`: the manifest that Lance's writer started from."""
    for version in range(below - 1, 0, -1):
        found = load(region, published_manifest(region.id, Version(version)))
        if found is None or not manifests.written_by_lance(found.body):
            return found.manifest if found else None
    return None


def _values_of_single_region(spec: RegionSpec | None) -> tuple[tuple[str, bytes], ...]:
    """Return the region values of an unsharded table's only region. Lance's Python writer leaves them out."""
    possible = [] if spec is None else all_values(spec) or []
    return tuple((name, value) for name, value in possible[0] if value is not None) if len(possible) == 1 else ()


def _append_sentinel(region: Region, manifest: Manifest) -> None:
    """Append a fence with the manifest's epoch after everything in the log. Do nothing if there already is one."""
    objects = region.context.objects
    for _ in region.context.budget().attempts():
        log = recover_log(region, manifest)
        newest = log.entries[-1].epoch if log.entries else Epoch(0)
        if newest == manifest.epoch:
            return
        if newest > manifest.epoch:
            break
        position = Position(log.end + 1)
        sentinel = encode(
            fence(),
            position=position,
            epoch=manifest.epoch,
            nonce=region.context.ids.nonce(),
        )
        key = wal_entry(region.id, position)
        if (
            isinstance(objects.create(key, sentinel.body), PreconditionFailed)
            and (found := objects.get(key)) is not None
        ):
            decode(found.body, position=position, key=key)  # raises if unreadable: retries could never pass the object
    raise Contended("writers of Lance kept appending to the region", remedy="Stop these writers", **region.where)


def _create_head(region: Region, manifest: Manifest, counter: Generation, *, owner: str) -> None:
    """Sum up the log after the manifest's replay point, then create the catalog record and the head."""
    budget = region.context.budget()
    log = recover_log(region, manifest)
    staged = stage(region, manifest, after=None, budget=budget)
    head = derived_head(region, staged, log.entries, epoch=manifest.epoch, owner=owner, merged=counter)
    add_to_catalog(region, budget=budget)
    create_head(region, head, budget=budget)
