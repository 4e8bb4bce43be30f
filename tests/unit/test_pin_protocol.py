"""The pin protocol under crashes, lost replies, stalls, concurrent callers and a concurrent collector."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import lancelsm
from lancelsm.common.layout import Position, cursors, head_key, pin_key, snapshots, table_key
from lancelsm.errors import Contended, Corrupt, Invalid, LsmError
from lancelsm.gc import sweep
from lancelsm.history import pins
from lancelsm.history.cursor import create_cursor, find_cursor, save_cursor
from lancelsm.history.pin_records import RegionPin
from lancelsm.history.pins import read_pins
from lancelsm.history.snapshot import (
    create_snapshot,
    drop_snapshot,
    ensure_kept,
    find_snapshot,
    holding_snapshot,
    list_snapshots,
    refresh_snapshot,
    snapshot_view,
)
from lancelsm.read import reader
from lancelsm.region.catalog import regions
from lancelsm.region.handle import TableHandle, open_table
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, FAIL_AFTER, Crash, FakeClock, Fault, FaultPlan, late
from tests.unit.pin_scenarios import (
    listing_lacks_records_of_a_snapshot,
    snapshot_is_dropped_while_listings_lack_records,
)
from tests.unit.tables import COLUMNS, NEWEST, by_key, faulty, three_levels

SKEW = 300.0
FAULTS = (CRASH_BEFORE, CRASH_AFTER, FAIL_AFTER, late(3))


@pytest.fixture(scope="module", params=["sqlite", "object"])
def template(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    location = tmp_path_factory.mktemp("template") / "table"
    three_levels(location, registry=request.param)
    return location


@pytest.fixture
def location(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "table"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def handle(location: Path, clock: FakeClock) -> TableHandle:
    return process(location, clock, "quiet")


def process(location: Path, clock: FakeClock, name: str, plan: FaultPlan | None = None) -> TableHandle:
    return open_table(location, ports=faulty(plan or FaultPlan(clock=clock), process=name, clock=clock))


def values(handle: TableHandle, name: str) -> dict[int, int]:
    view = snapshot_view(handle, find_snapshot(handle.context, name))
    return by_key(reader.scan(view, uri=handle.context.uri).read_all())


def with_each_fault(location: Path, clock: FakeClock, act: Callable[[TableHandle, str], Any]) -> list[tuple[str, bool]]:
    """Run `act` once for each fault at each of its calls. Return the name of each run, and whether `act` succeeded."""
    plan = FaultPlan()
    undisturbed = process(location, clock, "undisturbed", plan)
    before = len(plan.calls)
    act(undisturbed, "undisturbed")
    number = len(plan.calls) - before
    done = []
    for fault in FAULTS:
        for index in range(number):
            name = f"{fault.kind.replace(' ', '-')}-{fault.calls}-{index}"
            done.append((name, with_fault(location, clock, name, fault, index, act)))
    return done


def with_fault(
    location: Path, clock: FakeClock, name: str, fault: Fault, index: int, act: Callable[[TableHandle, str], Any]
) -> bool:
    plan = FaultPlan(clock=clock)
    acting = process(location, clock, name, plan)
    plan.meet(fault, after=index)
    try:
        act(acting, name)
    except (Crash, LsmError):
        return False
    finally:
        plan.stop()
        plan.land()
    return True


@pytest.mark.rest
def test_a_fault_at_any_call_of_a_snapshot_leaves_it_complete_or_nothing_that_lasts(location, handle, clock):
    done = with_each_fault(location, clock, lambda acting, name: create_snapshot(acting, name, ttl_seconds=None))

    kept = {pin.name for pin in list_snapshots(handle.context)}
    assert {name for name, succeeded in done if succeeded} <= kept
    assert len(done) > 40
    assert len(kept) > 10
    for name in kept:
        assert values(handle, name) == NEWEST, name
    clock.advance(7200)
    sweep.expire_pins(handle.context, skew_seconds=SKEW)
    sweep.sweep_leftovers(handle.context)
    left = handle.context.registry.list(snapshots(handle.context.table))
    assert {key.sort.partition("#")[0] for key, _ in left} == kept


@pytest.mark.rest
def test_a_fault_at_any_call_of_a_drop_leaves_the_snapshot_complete_or_dropped(location, handle, clock):
    def make_and_drop(acting: TableHandle, name: str) -> None:
        if name not in created:
            created.append(name)
            create_snapshot(handle, name, ttl_seconds=None)
        drop_snapshot(acting, name)

    created: list[str] = []
    done = with_each_fault(location, clock, make_and_drop)

    kept = {pin.name for pin in list_snapshots(handle.context)}
    assert not {name for name, succeeded in done if succeeded} & kept
    for name in kept:
        assert values(handle, name) == NEWEST, name
        drop_snapshot(handle, name)
    sweep.sweep_leftovers(handle.context)
    assert handle.context.registry.list(snapshots(handle.context.table)) == []


def test_a_fault_at_any_call_of_a_save_leaves_each_region_at_its_old_or_its_new_position(location, handle, clock):
    ids = [region.id for region in regions(handle.context)]
    created: dict[str, Any] = {}

    def save(acting: TableHandle, name: str) -> None:
        created[name] = create_cursor(handle.context, name, start=lambda region, head: head.first_position)
        save_cursor(acting.context, created[name], dict.fromkeys(ids, Position(2)))

    done = with_each_fault(location, clock, save)

    for name, saved in done:
        pin = find_cursor(handle.context, name)
        assert pin is not None
        found = {pin.of(region).first_position for region in ids}
        assert found == {2} if saved else found <= {1, 2}, name


def test_a_merge_between_the_reads_of_heads_and_base_does_not_mix_two_states(location, handle, monkeypatch):
    """Otherwise the pinned log would hide newer rows of the pinned base with older ones."""
    newest, writer, calls = lancelsm.history.snapshot.newest, lancelsm.open(location), []

    def newest_then_merge(region, head):
        found = newest(region, head)
        calls.append(region)
        if len(calls) == 2:
            writer.upsert([{"id": 0, "v": 3}, {"id": 1, "v": 3}])
            writer.flush()
            writer.merge()
        return found

    monkeypatch.setattr("lancelsm.history.snapshot.newest", newest_then_merge)
    create_snapshot(handle, "monday", ttl_seconds=None)

    assert len(calls) == 4
    assert values(handle, "monday") == {0: 3, 1: 3, 2: 1}


def test_a_stalled_creator_changes_nothing_of_a_later_snapshot_with_its_name(handle, clock):
    stalled = pins.begin(handle.context, "snapshot", "monday")
    clock.advance(7200)
    sweep.expire_pins(handle.context, skew_seconds=SKEW)
    pin = create_snapshot(handle, "monday", ttl_seconds=None)

    needs = {region.id: RegionPin(first_position=Position(9)) for region in regions(handle.context)}
    late_write = replace(stalled, regions=pins.pin_regions(handle.context, stalled, needs))
    with pytest.raises(Contended):
        pins.update_pin(handle.context, late_write)
    pins.forget(handle.context, late_write)

    assert read_pins(handle.context) == [pin]
    assert values(handle, "monday") == NEWEST


def test_an_unconfirmed_snapshot_without_expiry_is_removed_after_its_creator_crashed(handle, clock):
    pins.begin(handle.context, "snapshot", "monday")

    with pytest.raises(Invalid, match="being created"):
        create_snapshot(handle, "monday", ttl_seconds=None)
    assert len(sweep.expire_pins(handle.context, skew_seconds=SKEW)) == 1
    clock.advance(7200)
    assert sweep.expire_pins(handle.context, skew_seconds=SKEW) == ()
    create_snapshot(handle, "monday", ttl_seconds=None)


def test_an_unconfirmed_snapshot_can_be_dropped_and_then_cannot_be_confirmed(handle):
    unconfirmed = pins.begin(handle.context, "snapshot", "monday")
    drop_snapshot(handle, "monday")

    with pytest.raises(Contended, match="changed or removed"):
        pins.confirm(handle.context, unconfirmed, ttl_seconds=None)
    assert list_snapshots(handle.context) == []


def test_a_renewal_before_the_collector_deletes_the_snapshot_keeps_it(handle, clock, monkeypatch):
    create_snapshot(handle, "monday", ttl_seconds=60)
    clock.advance(3600)
    read = sweep.read_pins

    def read_then_renew(context):
        found = read(context)
        refresh_snapshot(handle, "monday", ttl_seconds=60)
        return found

    monkeypatch.setattr(sweep, "read_pins", read_then_renew)
    counting = sweep.expire_pins(handle.context, skew_seconds=SKEW)

    assert [pin.name for pin in counting] == ["monday"]
    assert values(handle, "monday") == NEWEST


def test_a_renewal_after_the_collector_deleted_the_snapshot_fails(handle, clock):
    pin = create_snapshot(handle, "monday", ttl_seconds=60)
    clock.advance(3600)
    assert sweep.expire_pins(handle.context, skew_seconds=SKEW) == ()

    for renew in (
        lambda: refresh_snapshot(handle, "monday", ttl_seconds=60),
        lambda: ensure_kept(handle, pin),
        lambda: snapshot_view(handle, pin),
    ):
        with pytest.raises(Invalid, match="dropped or have expired"):
            renew()


def test_two_concurrent_renewals_both_succeed(handle, monkeypatch):
    create_snapshot(handle, "monday", ttl_seconds=60)
    step, raced = pins.update_pin, []

    def step_after_another(context, following):
        if not raced:
            raced.append(following)
            refresh_snapshot(handle, "monday", ttl_seconds=600)
        return step(context, following)

    monkeypatch.setattr(pins, "update_pin", step_after_another)
    renewed = refresh_snapshot(handle, "monday", ttl_seconds=6000)

    assert list_snapshots(handle.context) == [renewed]
    assert renewed.version == raced[0].version + 2


def test_a_holder_of_an_expired_snapshot_does_not_drop_a_later_snapshot_with_its_name(handle, clock):
    with holding_snapshot(handle, "job", ttl_seconds=60) as pin:
        clock.advance(3600)
        sweep.expire_pins(handle.context, skew_seconds=SKEW)
        other = create_snapshot(handle, "job", ttl_seconds=60)
        with pytest.raises(Invalid, match="dropped or have expired"):
            snapshot_view(handle, pin)
        with pytest.raises(Invalid, match="dropped or have expired"):
            ensure_kept(handle, pin)

    assert list_snapshots(handle.context) == [other]


def test_a_listing_that_lacks_records_of_a_snapshot_is_read_again_and_then_corrupt(handle, monkeypatch):
    listing_lacks_records_of_a_snapshot(handle, monkeypatch)


def test_a_snapshot_that_is_dropped_while_listings_lack_records_is_not_found_and_not_corrupt(handle, monkeypatch):
    snapshot_is_dropped_while_listings_lack_records(handle, monkeypatch)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_an_hour_off_may_end_a_snapshot_but_never_shows_wrong_rows(location, handle, hours):
    create_snapshot(handle, "monday", ttl_seconds=60)
    other = process(location, FakeClock(1_800_000_000.0 + 3600 * hours), "other")

    if hours < 0:
        assert values(other, "monday") == NEWEST
    else:
        with pytest.raises(Invalid, match="the snapshot has expired"):
            values(other, "monday")
    sweep.expire_pins(other.context, skew_seconds=SKEW)
    assert len(list_snapshots(handle.context)) == (hours < 0)


def test_a_cursor_is_not_confirmed_if_the_start_of_a_region_was_collected_meanwhile(handle, monkeypatch):
    """A region that is created after the cursor listed the regions is pinned from its first entry."""
    region = regions(handle.context)[0]
    context, tried = handle.context, []
    inner = pins.pin_regions

    def without_the_region(context, pin, needs):
        tried.append(pin)
        if len(tried) == 1:
            needs = {one: needed for one, needed in needs.items() if one != region.id}
            context.registry.swap(head_key(context.table, region.id), expect={}, change={"first_position": 2})
        return inner(context, pin, needs)

    monkeypatch.setattr(pins, "pin_regions", without_the_region)
    pin = create_cursor(context, "sink", start=lambda region, head: head.first_position)

    assert len(tried) == 2
    assert pin.of(region.id).first_position == 2
    assert {key.sort.split("#")[0] for key, _ in context.registry.list(cursors(context.table))} == {"sink"}


def test_a_snapshot_is_not_confirmed_against_a_damaged_floor(handle):
    context = handle.context
    pin = create_snapshot(handle, "monday", ttl_seconds=None)
    record = {**(context.registry.read(table_key(context.table)) or {}), "base_floor": "x"}
    with (
        mock.patch.object(type(context.registry), "read", return_value=record),
        pytest.raises(Corrupt, match="base_floor is 'x'"),
    ):
        pins.overtaken(context, pin)


@pytest.mark.parametrize("time", ["yesterday", "nan", "1e17"])
def test_an_unreadable_snapshot_record_stops_collection_until_the_snapshot_is_dropped(handle, time):
    create_snapshot(handle, "monday", ttl_seconds=None)
    key = pin_key(snapshots(handle.context.table), "monday")
    handle.context.registry.swap(key, expect={}, change={"created": time})

    for act in (lambda: sweep.expire_pins(handle.context, skew_seconds=SKEW), lambda: list_snapshots(handle.context)):
        with pytest.raises(Corrupt, match="the record of snapshot 'monday' is unreadable"):
            act()
    drop_snapshot(handle, "monday")
    assert handle.context.registry.list(snapshots(handle.context.table)) == []


def test_dropped_pins_leave_one_registry_object_for_each_name(tmp_path):
    table = lancelsm.create(tmp_path / "table", COLUMNS, primary_key="id", regions="bucket(id, 4)", registry="object")
    registry = tmp_path / "table" / "_lancelsm" / "registry"

    def objects() -> int:
        return sum(1 for path in registry.rglob("*.json") if path.parent.name[:1] in "SC")

    for _ in range(3):
        for name in ("monday", "tuesday"):
            table.snapshot(name)
            table.set_cursor(name)
            assert objects() > 5
            table.drop_snapshot(name)
            table.drop_cursor(name)

    assert objects() == 4
