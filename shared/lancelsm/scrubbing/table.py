"""Scrub a table, one of its regions or one of its snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from lancelsm.admin.rebuild import regions_of_table
from lancelsm.common.layout import (
    CONFIG,
    Key,
    RegionId,
    Version,
    cursors,
    head_key,
    lease_key,
    pin_key,
    published_manifest,
    region_id,
    region_key,
    region_pin_key,
    region_prefix,
    snapshots,
    table_key,
)
from lancelsm.dataset.base_table import BaseTable, find_base
from lancelsm.errors import Corrupt, Invalid, LsmError
from lancelsm.history import pin_records, pins
from lancelsm.history.pin_records import Pin, RegionPin
from lancelsm.history.snapshot import find_snapshot
from lancelsm.region.catalog import Region, check_not_dropped, region_from_record, resolve_region
from lancelsm.region.handle import Ports, TableHandle, canonical, open_configured
from lancelsm.region.shards import foreign_shards, list_shards
from lancelsm.registry import Record, number, text
from lancelsm.scrubbing.base import open_version, scrub_facts, scrub_files, scrub_lineage, scrub_list, scrub_tags
from lancelsm.scrubbing.reachable import ReachableStore
from lancelsm.scrubbing.region import RegionScrub
from lancelsm.scrubbing.report import ObjectKind, Report, Tally, problem_of, record_path


def scrub_location(
    uri: str | Path,
    *,
    region: str | None = None,
    at: str | None = None,
    limit: int | None = None,
    has_time: Callable[[], bool] | None = None,
    after: str = "",
    storage_options: Mapping[str, str] | None = None,
    ports: Ports | None = None,
) -> Report:
    """Scrub the table at a location, even if its configuration can't be read.

    Args: those of `scrub`.

    Raises:
        Invalid: table, region or snapshot not found, a limit below 1, or the table was dropped.
        Unavailable: a store or the registry did not answer.
    """
    ports = ports or Ports()
    tally = _tally(limit, has_time, after, canonical(uri))
    try:
        handle = open_configured(uri, storage_options=storage_options, ports=ports)
    except (Corrupt, Invalid) as error:
        location = canonical(uri)
        base = find_base(uri=location, storage_options=storage_options)
        if base is None or base.facts is None:
            raise
        problem = "it is gone" if ports.store(location, storage_options).get(CONFIG) is None else problem_of(error)
        tally.count()
        tally.add(CONFIG, ObjectKind.CONFIG, problem)
        return tally.report()
    return scrub(handle, region=region, at=at, limit=limit, has_time=has_time, after=after)


def scrub(
    handle: TableHandle,
    *,
    region: str | None = None,
    at: str | None = None,
    limit: int | None = None,
    has_time: Callable[[], bool] | None = None,
    after: str = "",
) -> Report:
    """Read all objects and records of a table, and report the problem of each wrong one.

    Args:
        region: scrub only this region, given by its id or the start of it; leaves out the rows of the base.
        at: scrub only what this snapshot needs.
        limit: maximum number of objects to read, besides records of the registry and the objects that they name.
        has_time: called before each of these objects; if it is false, the scrub ends and is not complete.
        after: `Report.next` of a scrub that ended early: leave out the objects up to there. An object that exists
            during a whole cycle of such scrubs is read once, whatever else changes.

    Raises:
        Invalid: region or snapshot not found, a limit below 1, or the table was dropped.
        Unavailable: a store or the registry did not answer.
    """
    tally = _tally(limit, has_time, after, handle.context.uri)
    objects = ReachableStore(inner=handle.context.objects, tally=tally)
    handle = replace(handle, context=replace(handle.context, objects=objects))
    tally.count()  # the configuration
    record = _table_record(handle, tally)
    named = _scrub_catalog(handle, tally)
    if region is not None:
        named = [resolve_region(named, region, table=handle.context.uri)]
    states = {
        one.id: RegionScrub(one, handle=handle, tally=tally) for one in sorted(named, key=lambda region: region.id)
    }
    if at is not None:
        _scrub_named_snapshot(handle, at, states, tally, files=region is None)
        return tally.report()
    for name, state in states.items():
        tally.section = f"1/{name}"
        state.run()
    base = open_version(handle, None, tally)
    if base is not None:
        scrub_facts(handle, base, states.values(), tally)
    if region is None:
        if record is not None:
            scrub_list(handle, record, tally)
        _scrub_beyond_regions(handle, base, states, tally)
    return tally.report()


def _tally(limit: int | None, has_time: Callable[[], bool] | None, after: str, table: str) -> Tally:
    if limit is not None and limit < 1:
        raise Invalid(f"the limit is {limit}", remedy="Give 1 or more", table=table, field="limit")
    return Tally(limit=limit, has_time=has_time or (lambda: True), after=after)


def _scrub_named_snapshot(
    handle: TableHandle, name: str, states: Mapping[RegionId, RegionScrub], tally: Tally, *, files: bool
) -> None:
    """Check what one snapshot needs; raise `Invalid` if it does not exist."""
    partition = snapshots(handle.context.table)
    found = _read_pins(handle, partition, ObjectKind.SNAPSHOT, tally)
    pin = next((pin for pin in found if pin.name == name and pin.confirmed), None)
    if pin is not None:
        _scrub_snapshot(handle, pin, states, tally, files=files)
    elif not tally.names(record_path(pin_key(partition, name))):  # unless its record can't be read
        find_snapshot(handle.context, name)


def _scrub_beyond_regions(
    handle: TableHandle, base: BaseTable | None, states: Mapping[RegionId, RegionScrub], tally: Tally
) -> None:
    """Check everything outside of regions: rows of the base, leases, and what pins need."""
    if base is not None:
        scrub_lineage(handle, base, tally)
        tally.section = "2"
        scrub_files(handle, base, tally, is_newest=True)
    table = handle.context.table
    _scrub_leases(handle, tally)
    found = _read_pins(handle, snapshots(table), ObjectKind.SNAPSHOT, tally)
    kept = [pin for pin in found if pin.confirmed and not pin.clone]
    if base is not None:
        scrub_tags(handle, kept, tally)
    for pin in sorted(kept, key=_section):
        _scrub_snapshot(handle, pin, states, tally, files=base is None or pin.base_version != base.version)
    for pin in sorted(_read_pins(handle, cursors(table), ObjectKind.CURSOR, tally), key=_section):
        if pin.confirmed:
            _scrub_cursor(handle, pin, states, tally)


def _section(pin: Pin) -> str:
    return f"{'3' if pin.kind == 'snapshot' else '4'}/{pin.name}/"


def _table_record(handle: TableHandle, tally: Tally) -> Record | None:
    """Read the record of the table in the catalog."""
    tally.count()
    key = table_key(handle.context.table)
    try:
        record = handle.context.registry.read(key)
    except Corrupt as error:
        tally.add(record_path(key), ObjectKind.CATALOG, problem_of(error))
        return None
    if record is None:
        check_not_dropped(handle.context)
        tally.add(record_path(key), ObjectKind.CATALOG, "the registry does not know the table")
    return record


def _scrub_catalog(handle: TableHandle, tally: Tally) -> list[Region]:
    """Read the regions in the catalog; report damaged records, and regions that are missing in the catalog."""
    context = handle.context
    partition = region_key(context.table, RegionId("")).partition
    try:
        records = context.registry.list(partition)
    except Corrupt as error:
        tally.add(_path(error) or partition, ObjectKind.CATALOG, problem_of(error))
        return []
    found = [region for key, record in records if (region := _region_of_record(handle, key, record, tally)) is not None]
    known = {region.id for region in found}
    for name in regions_of_table(handle):
        key = region_key(context.table, name)
        # Read again: a new region gets its record before its objects.
        if name not in known and _is_region(handle, name) and not _exists(handle, key):
            tally.add(record_path(key), ObjectKind.CATALOG, "it is gone, but its region exists")
    for shard in foreign_shards(context, list_shards(context), known):
        if not _exists(handle, region_key(context.table, shard.region.id)):
            problem = f"another tool writes to this shard; take its rows over: lancelsm region adopt {context.uri}"
            tally.add(region_prefix(shard.region.id), ObjectKind.FOREIGN, problem)
    return found


def _region_of_record(handle: TableHandle, key: Key, record: Record, tally: Tally) -> Region | None:
    tally.count()
    path, context = record_path(key), handle.context
    try:
        region = region_from_record(context, RegionId(key.sort), record)
    except Corrupt as error:
        tally.add(path, ObjectKind.CATALOG, error.message)
        return None
    derived = region_id(table=context.table, spec_id=region.spec_id, values=region.values)
    twin = region_key(context.table, derived)
    if derived != region.id and _exists(handle, twin):
        tally.add(path, ObjectKind.CATALOG, f"it has the values of region {derived}")
        return None
    return region


def _exists(handle: TableHandle, key: Key) -> bool:
    return handle.context.registry.read(key) is not None


def _is_region(handle: TableHandle, name: RegionId) -> bool:
    """Return whether a directory in `_mem_wal` is that of a region: it has a head or a manifest."""
    context = handle.context
    return _exists(handle, head_key(context.table, name)) or (
        context.objects.get(published_manifest(name, Version(1))) is not None
    )


def _scrub_leases(handle: TableHandle, tally: Tally) -> None:
    """Check the records of leases. A damaged one is harmless: the next process that needs the lease removes it."""
    partition = lease_key(handle.context.table, "").partition
    try:
        records = handle.context.registry.list(partition)
    except Corrupt as error:
        tally.add(_path(error) or partition, ObjectKind.LEASE, problem_of(error))
        return
    tally.checked += len(records)
    for key, record in records:
        try:
            text(record, "holder"), float(text(record, "expires")), number(record, "version")
        except ValueError as error:
            tally.add(record_path(key), ObjectKind.LEASE, f"it is unreadable: {error!r}")


def _read_pins(handle: TableHandle, partition: str, kind: ObjectKind, tally: Tally) -> list[Pin]:
    """Read the pins of one kind; report records that can't be read."""
    try:
        records = handle.context.registry.list(partition)
    except Corrupt as error:
        tally.add(_path(error) or partition, kind, problem_of(error))
        return []
    tally.checked += len(records)
    groups: dict[str, list[tuple[Key, Record]]] = {}
    for key, record in records:
        groups.setdefault(key.sort.split("#")[0], []).append((key, record))
    found = []
    for name, group in groups.items():
        try:
            found += pin_records.pins_of(group)
        except Corrupt as error:
            for key in [key for key, record in group if _is_broken(key, record)] or [pin_key(partition, name)]:
                tally.add(record_path(key), kind, problem_of(error))
    return found


def _is_broken(key: Key, record: Record) -> bool:
    """Return whether this is a pin's record of a region that can't be read."""
    try:
        if "#" in key.sort:
            RegionPin.from_record(record, region=RegionId(key.sort.rpartition("#")[2]))
    except (Corrupt, ValueError):
        return True
    return False


def _scrub_snapshot(
    handle: TableHandle, pin: Pin, states: Mapping[RegionId, RegionScrub], tally: Tally, *, files: bool = True
) -> None:
    """Check what a snapshot needs: a version of the base, and for each region a manifest, generations and the tail."""
    context = handle.context
    for region, needs in sorted(pin.regions.items()):
        if (state := states.get(region)) is not None:
            tally.section = f"{_section(pin)}{region}"
            state.run_pinned(needs, record=_part(handle, pin, region))
            state.settle_pinned(held=pins.held(context, pin))
    tally.section = f"{_section(pin)}~"  # after the regions
    found = tally.separate()  # for everything outside of regions
    if not pin.complete:
        own = record_path(pin_key(pin.partition(context.table), pin.name))
        found.add(own, ObjectKind.SNAPSHOT, "records of its regions are missing")
        for region in states.keys() - pin.regions.keys():
            text = "it is gone, or its region is newer than the snapshot"
            found.add(_part(handle, pin, region), ObjectKind.SNAPSHOT, text)
    base = open_version(handle, pin.base_version, found)
    if base is not None and files:
        scrub_files(handle, base, found, is_newest=False)
    tally.merge(found, held=pins.held(context, pin))


def _scrub_cursor(handle: TableHandle, pin: Pin, states: Mapping[RegionId, RegionScrub], tally: Tally) -> None:
    """Check that each position of a cursor is in the log, and all entries from there on."""
    context = handle.context
    for region, state in sorted(states.items()):
        needs = pin.of(region)
        if needs is None or state.head is None:
            continue
        records = [_part(handle, pin, region)]
        if region not in pin.regions:  # it starts at the first entry
            records.append(record_path(pin_key(pin.partition(context.table), pin.name)))
        tally.section = f"{_section(pin)}{region}"
        state.run_cursor(state.head, needs, records=records)
        now = context.registry.read(region_pin_key(pin.partition(context.table), pin.name, pin.nonce, region))
        moved = needs.version != (0 if now is None else int(now["version"]))
        state.settle_pinned(held=not moved and pins.held(context, pin))


def _part(handle: TableHandle, pin: Pin, region: RegionId) -> str:
    """Return the path of a pin's record of a region."""
    return record_path(region_pin_key(pin.partition(handle.context.table), pin.name, pin.nonce, region))


def _path(error: LsmError) -> str:
    """Return the path of the record that an error names; empty if it names no record."""
    return str(error.where.get("record") or error.where.get("object") or "")
