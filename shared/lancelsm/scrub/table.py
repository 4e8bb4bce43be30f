"""Scrub a table, one of its regions or one of its snapshots."""

from __future__ import annotations

from collections.abc import Mapping
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
    snapshots,
    table_key,
)
from lancelsm.dataset.base_table import BaseTable, find_base
from lancelsm.errors import Corrupt, Invalid, LsmError
from lancelsm.history import pins
from lancelsm.history.pins import Pin, RegionPin
from lancelsm.history.snapshot import find_snapshot
from lancelsm.region.catalog import Region, check_there, region_from_record, resolve_region
from lancelsm.region.handle import Ports, TableHandle, canonical, open_configured
from lancelsm.registry import Record, number, text
from lancelsm.scrub.base import open_version, scrub_facts, scrub_files, scrub_list, scrub_origin, scrub_tags
from lancelsm.scrub.region import RegionScrub
from lancelsm.scrub.report import ObjectKind, Report, Tally, problem_of, record_path


def scrub_place(
    uri: str | Path,
    *,
    region: str | None = None,
    at: str | None = None,
    limit: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    ports: Ports | None = None,
) -> Report:
    """As `scrub` of the table at a place, also if its configuration can't be read.

    Raises:
        Invalid: no table is there; and as `scrub`.
    """
    ports = ports or Ports()
    tally = _tally(limit, canonical(uri))
    try:
        handle = open_configured(uri, storage_options=storage_options, ports=ports)
    except (Corrupt, Invalid) as error:
        place = canonical(uri)
        base = find_base(uri=place, storage_options=storage_options)
        if base is None or base.facts is None:
            raise
        problem = "it is gone" if ports.store(place, storage_options).get(CONFIG) is None else problem_of(error)
        tally.take()
        tally.add(CONFIG, ObjectKind.CONFIG, problem)
        return tally.report()
    return scrub(handle, region=region, at=at, limit=limit)


def scrub(handle: TableHandle, *, region: str | None = None, at: str | None = None, limit: int | None = None) -> Report:
    """Read what a table consists of, and say of each object that is wrong what is wrong with it.

    Args:
        region: only this one, by its id or the start of it, without the base's rows.
        at: only what this snapshot needs.
        limit: read so many objects at most, beside the registry's records and the manifests that they name.

    Raises:
        Invalid: no such region or snapshot, a limit below 1, or the table was dropped.
        Unavailable: a store or the registry did not answer.
    """
    tally = _tally(limit, handle.context.uri)
    tally.take()  # the configuration
    record = _table_record(handle, tally)
    named = _catalog(handle, tally)
    if region is not None:
        named = [resolve_region(named, region, table=handle.context.uri)]
    states = {one.id: RegionScrub(one, handle=handle, tally=tally) for one in named}
    if at is not None:
        _only(handle, at, states, tally, files=region is None)
        return tally.report()
    for state in states.values():
        state.run()
    base = open_version(handle, None, tally)
    if base is not None:
        scrub_facts(handle, base, states.values(), tally)
    if region is None:
        if record is not None:
            scrub_list(handle, record, tally)
        _whole(handle, base, states, tally)
    return tally.report()


def _tally(limit: int | None, table: str) -> Tally:
    if limit is not None and limit < 1:
        raise Invalid(f"the limit is {limit}", remedy="Give 1 or more", table=table, field="limit")
    return Tally(limit=limit)


def _only(handle: TableHandle, name: str, states: Mapping[RegionId, RegionScrub], tally: Tally, *, files: bool) -> None:
    """What one snapshot needs; raises `Invalid` if there is none of this name."""
    partition = snapshots(handle.context.table)
    found = _pins(handle, partition, ObjectKind.SNAPSHOT, tally)
    pin = next((pin for pin in found if pin.name == name and pin.confirmed), None)
    if pin is not None:
        _snapshot(handle, pin, states, tally, files=files)
    elif not tally.names(record_path(pin_key(partition, name))):  # of a record that can't be read
        find_snapshot(handle.context, name)


def _whole(handle: TableHandle, base: BaseTable | None, states: Mapping[RegionId, RegionScrub], tally: Tally) -> None:
    """What no single region has: rows of the base, and what pins need besides."""
    if base is not None:
        scrub_origin(handle, base, tally)
        scrub_files(handle, base, tally)
    table = handle.context.table
    _leases(handle, tally)
    found = _pins(handle, snapshots(table), ObjectKind.SNAPSHOT, tally)
    kept = [pin for pin in found if pin.confirmed and not pin.clone]
    if base is not None:
        scrub_tags(handle, kept, tally)
    for pin in kept:
        _snapshot(handle, pin, states, tally, files=base is None or pin.base_version != base.version)
    for pin in _pins(handle, cursors(table), ObjectKind.CURSOR, tally):
        if pin.confirmed:
            _cursor(handle, pin, states)


def _table_record(handle: TableHandle, tally: Tally) -> Record | None:
    """The catalog's record of the table."""
    tally.take()
    key = table_key(handle.context.table)
    try:
        record = handle.context.registry.read(key)
    except Corrupt as error:
        tally.add(record_path(key), ObjectKind.CATALOG, problem_of(error))
        return None
    if record is None:
        check_there(handle.context)
        tally.add(record_path(key), ObjectKind.CATALOG, "the registry does not know the table")
    return record


def _catalog(handle: TableHandle, tally: Tally) -> list[Region]:
    """Regions in the catalog; problems of its records, and regions that are missing there."""
    context = handle.context
    partition = region_key(context.table, RegionId("")).partition
    try:
        records = context.registry.list(partition)
    except Corrupt as error:
        tally.add(_path(error) or partition, ObjectKind.CATALOG, problem_of(error))
        return []
    found = [region for key, record in records if (region := _catalogued(handle, key, record, tally)) is not None]
    known = {region.id for region in found}
    for name in regions_of_table(handle):
        key = region_key(context.table, name)
        # Read again: a region that was created meanwhile has its record first.
        if name not in known and _is_region(handle, name) and not _exists(handle, key):
            tally.add(record_path(key), ObjectKind.CATALOG, "it is gone, its region is there")
    return found


def _catalogued(handle: TableHandle, key: Key, record: Record, tally: Tally) -> Region | None:
    tally.take()
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
    """Whether a directory below `_mem_wal` is a region's: it has a head or a manifest."""
    context = handle.context
    return _exists(handle, head_key(context.table, name)) or (
        context.objects.get(published_manifest(name, Version(1))) is not None
    )


def _leases(handle: TableHandle, tally: Tally) -> None:
    """The advisory locks: whoever needs one that can't be read removes it."""
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


def _pins(handle: TableHandle, partition: str, kind: ObjectKind, tally: Tally) -> list[Pin]:
    """The pins of one kind that can be read; problems of the records of others."""
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
            found += pins.pins_of(group)
        except Corrupt as error:
            for key in [key for key, record in group if _is_broken(key, record)] or [pin_key(partition, name)]:
                tally.add(record_path(key), kind, problem_of(error))
    return found


def _is_broken(key: Key, record: Record) -> bool:
    """Whether it is a pin's record of a region, and none that can be read."""
    try:
        if "#" in key.sort:
            RegionPin.from_record(record)
    except (Corrupt, ValueError):
        return True
    return False


def _snapshot(
    handle: TableHandle, pin: Pin, states: Mapping[RegionId, RegionScrub], tally: Tally, *, files: bool = True
) -> None:
    """What a snapshot needs: a version of the base, and of each region its manifest, generations and tail."""
    context = handle.context
    for region, needs in sorted(pin.regions.items()):
        if (state := states.get(region)) is not None:
            state.run_pinned(needs, record=_part(handle, pin, region))
            state.settle_pinned(held=pins.held(context, pin))
    found = tally.apart()  # of what no region has
    if not pin.complete:
        own = record_path(pin_key(pin.partition(context.table), pin.name))
        found.add(own, ObjectKind.SNAPSHOT, "records of its regions are missing")
        for region in states.keys() - pin.regions.keys():
            text = "it is gone, unless the region is newer than the snapshot"
            found.add(_part(handle, pin, region), ObjectKind.SNAPSHOT, text)
    base = open_version(handle, pin.base_version, found)
    if base is not None and files:
        scrub_files(handle, base, found)
    tally.adopt(found, held=pins.held(context, pin))


def _cursor(handle: TableHandle, pin: Pin, states: Mapping[RegionId, RegionScrub]) -> None:
    """Where a cursor stands there is a log, and all of it from there on."""
    context = handle.context
    for region, state in sorted(states.items()):
        needs = pin.of(region)
        if needs is None or state.head is None:
            continue
        records = [_part(handle, pin, region)]
        if region not in pin.regions:  # then it begins with the first entry
            records.append(record_path(pin_key(pin.partition(context.table), pin.name)))
        state.run_followed(state.head, needs, records=records)
        now = context.registry.read(region_pin_key(pin.partition(context.table), pin.name, pin.nonce, region))
        moved = needs.version != (0 if now is None else int(now["version"]))
        state.settle_pinned(held=not moved and pins.held(context, pin))


def _part(handle: TableHandle, pin: Pin, region: RegionId) -> str:
    """The record of what a pin needs of a region."""
    return record_path(region_pin_key(pin.partition(handle.context.table), pin.name, pin.nonce, region))


def _path(error: LsmError) -> str:
    """The record that an error of the registry names, if it names one."""
    return str(error.where.get("record") or error.where.get("object") or "")
