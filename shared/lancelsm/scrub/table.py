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
from lancelsm.region.catalog import Region, check_there, region_from_record, the_one
from lancelsm.region.handle import Opened, Ports, canonical, open_configured
from lancelsm.registry import Record, number, text
from lancelsm.scrub.base import open_version, scrub_facts, scrub_files, scrub_list, scrub_origin, scrub_tags
from lancelsm.scrub.region import RegionScrub
from lancelsm.scrub.report import Kind, Report, Tally, record_path, told


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
        opened = open_configured(uri, storage_options=storage_options, ports=ports)
    except (Corrupt, Invalid) as error:
        place = canonical(uri)
        base = find_base(uri=place, storage_options=storage_options)
        if base is None or base.facts is None:
            raise
        problem = "it is gone" if ports.store(place, storage_options).get(CONFIG) is None else told(error)
        tally.take()
        tally.add(CONFIG, Kind.CONFIG, problem)
        return tally.report()
    return scrub(opened, region=region, at=at, limit=limit)


def scrub(opened: Opened, *, region: str | None = None, at: str | None = None, limit: int | None = None) -> Report:
    """Read what a table consists of, and say of each object that is wrong what is wrong with it.

    Args:
        region: only this one, by its id or the start of it, without the base's rows.
        at: only what this snapshot needs.
        limit: read so many objects at most, beside the registry's records and the manifests that they name.

    Raises:
        Invalid: no such region or snapshot, a limit below 1, or the table was dropped.
        Unavailable: a store or the registry did not answer.
    """
    tally = _tally(limit, opened.storage.uri)
    tally.take()  # the configuration
    record = _table_record(opened, tally)
    named = _catalog(opened, tally)
    if region is not None:
        named = [the_one(named, region, table=opened.storage.uri)]
    states = {one.id: RegionScrub(one, opened=opened, tally=tally) for one in named}
    if at is not None:
        _only(opened, at, states, tally, files=region is None)
        return tally.report()
    for state in states.values():
        state.run()
    base = open_version(opened, None, tally)
    if base is not None:
        scrub_facts(opened, base, states.values(), tally)
    if region is None:
        if record is not None:
            scrub_list(opened, record, tally)
        _whole(opened, base, states, tally)
    return tally.report()


def _tally(limit: int | None, table: str) -> Tally:
    if limit is not None and limit < 1:
        raise Invalid(f"the limit is {limit}", remedy="Give 1 or more", table=table, field="limit")
    return Tally(limit=limit)


def _only(opened: Opened, name: str, states: Mapping[RegionId, RegionScrub], tally: Tally, *, files: bool) -> None:
    """What one snapshot needs; raises `Invalid` if there is none of this name."""
    partition = snapshots(opened.storage.table)
    found = _pins(opened, partition, Kind.SNAPSHOT, tally)
    pin = next((pin for pin in found if pin.name == name and pin.confirmed), None)
    if pin is not None:
        _snapshot(opened, pin, states, tally, files=files)
    elif not tally.names(record_path(pin_key(partition, name))):  # of a record that can't be read
        find_snapshot(opened.storage, name)


def _whole(opened: Opened, base: BaseTable | None, states: Mapping[RegionId, RegionScrub], tally: Tally) -> None:
    """What no single region has: rows of the base, and what pins need besides."""
    if base is not None:
        scrub_origin(opened, base, tally)
        scrub_files(opened, base, tally)
    table = opened.storage.table
    _leases(opened, tally)
    found = _pins(opened, snapshots(table), Kind.SNAPSHOT, tally)
    kept = [pin for pin in found if pin.confirmed and not pin.clone]
    if base is not None:
        scrub_tags(opened, kept, tally)
    for pin in kept:
        _snapshot(opened, pin, states, tally, files=base is None or pin.base_version != base.version)
    for pin in _pins(opened, cursors(table), Kind.CURSOR, tally):
        if pin.confirmed:
            _cursor(opened, pin, states)


def _table_record(opened: Opened, tally: Tally) -> Record | None:
    """The catalog's record of the table."""
    tally.take()
    key = table_key(opened.storage.table)
    try:
        record = opened.storage.registry.read(key)
    except Corrupt as error:
        tally.add(record_path(key), Kind.CATALOG, told(error))
        return None
    if record is None:
        check_there(opened.storage)
        tally.add(record_path(key), Kind.CATALOG, "the registry does not know the table")
    return record


def _catalog(opened: Opened, tally: Tally) -> list[Region]:
    """Regions in the catalog; problems of its records, and regions that are missing there."""
    storage = opened.storage
    partition = region_key(storage.table, RegionId("")).partition
    try:
        records = storage.registry.list(partition)
    except Corrupt as error:
        tally.add(_path(error) or partition, Kind.CATALOG, told(error))
        return []
    found = [region for key, record in records if (region := _catalogued(opened, key, record, tally)) is not None]
    known = {region.id for region in found}
    for name in regions_of_table(opened):
        key = region_key(storage.table, name)
        # Read again: a region that was created meanwhile has its record first.
        if name not in known and _is_region(opened, name) and not _exists(opened, key):
            tally.add(record_path(key), Kind.CATALOG, "it is gone, its region is there")
    return found


def _catalogued(opened: Opened, key: Key, record: Record, tally: Tally) -> Region | None:
    tally.take()
    path, storage = record_path(key), opened.storage
    try:
        region = region_from_record(storage, RegionId(key.sort), record)
    except Corrupt as error:
        tally.add(path, Kind.CATALOG, error.message)
        return None
    derived = region_id(table=storage.table, spec_id=region.spec_id, values=region.values)
    twin = region_key(storage.table, derived)
    if derived != region.id and _exists(opened, twin):
        tally.add(path, Kind.CATALOG, f"it has the values of region {derived}")
        return None
    return region


def _exists(opened: Opened, key: Key) -> bool:
    return opened.storage.registry.read(key) is not None


def _is_region(opened: Opened, name: RegionId) -> bool:
    """Whether a directory below `_mem_wal` is a region's: it has a head or a manifest."""
    storage = opened.storage
    return _exists(opened, head_key(storage.table, name)) or (
        storage.objects.get(published_manifest(name, Version(1))) is not None
    )


def _leases(opened: Opened, tally: Tally) -> None:
    """The advisory locks: whoever needs one that can't be read removes it."""
    partition = lease_key(opened.storage.table, "").partition
    try:
        records = opened.storage.registry.list(partition)
    except Corrupt as error:
        tally.add(_path(error) or partition, Kind.LEASE, told(error))
        return
    tally.checked += len(records)
    for key, record in records:
        try:
            text(record, "holder"), float(text(record, "expires")), number(record, "version")
        except ValueError as error:
            tally.add(record_path(key), Kind.LEASE, f"it is unreadable: {error!r}")


def _pins(opened: Opened, partition: str, kind: Kind, tally: Tally) -> list[Pin]:
    """The pins of one kind that can be read; problems of the records of others."""
    try:
        records = opened.storage.registry.list(partition)
    except Corrupt as error:
        tally.add(_path(error) or partition, kind, told(error))
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
                tally.add(record_path(key), kind, told(error))
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
    opened: Opened, pin: Pin, states: Mapping[RegionId, RegionScrub], tally: Tally, *, files: bool = True
) -> None:
    """What a snapshot needs: a version of the base, and of each region its manifest, generations and tail."""
    storage = opened.storage
    for region, needs in sorted(pin.regions.items()):
        if (state := states.get(region)) is not None:
            state.run_pinned(needs, record=_part(opened, pin, region))
            state.settle_pinned(held=pins.held(storage, pin))
    found = tally.apart()  # of what no region has
    if not pin.whole:
        own = record_path(pin_key(pin.partition(storage.table), pin.name))
        found.add(own, Kind.SNAPSHOT, "records of its regions are missing")
        for region in states.keys() - pin.regions.keys():
            text = "it is gone, unless the region is newer than the snapshot"
            found.add(_part(opened, pin, region), Kind.SNAPSHOT, text)
    base = open_version(opened, pin.base_version, found)
    if base is not None and files:
        scrub_files(opened, base, found)
    tally.adopt(found, held=pins.held(storage, pin))


def _cursor(opened: Opened, pin: Pin, states: Mapping[RegionId, RegionScrub]) -> None:
    """Where a cursor stands there is a log, and all of it from there on."""
    storage = opened.storage
    for region, state in sorted(states.items()):
        needs = pin.of(region)
        if needs is None or state.head is None:
            continue
        records = [_part(opened, pin, region)]
        if region not in pin.regions:  # then it begins with the first entry
            records.append(record_path(pin_key(pin.partition(storage.table), pin.name)))
        state.run_followed(state.head, needs, records=records)
        now = storage.registry.read(region_pin_key(pin.partition(storage.table), pin.name, pin.nonce, region))
        moved = needs.version != (0 if now is None else int(now["version"]))
        state.settle_pinned(held=not moved and pins.held(storage, pin))


def _part(opened: Opened, pin: Pin, region: RegionId) -> str:
    """The record of what a pin needs of a region."""
    return record_path(region_pin_key(pin.partition(opened.storage.table), pin.name, pin.nonce, region))


def _path(error: LsmError) -> str:
    """The record that an error of the registry names, if it names one."""
    return str(error.where.get("record") or error.where.get("object") or "")
