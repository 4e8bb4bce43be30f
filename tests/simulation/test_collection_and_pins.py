"""Collections and the pins of snapshots and cursors: what one needs stays as long as it stands, and then goes.

Bugs that others had are tests by name; the numbers are those of their issues.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lancelsm.common.layout import Key, Position, pin_key, snapshots, wal_entry
from lancelsm.errors import Contended
from lancelsm.gc import collect as collection
from lancelsm.gc.sweep import sweep_leftovers
from lancelsm.history import pins
from lancelsm.history.pins import Pin, RegionPin, pins_of
from lancelsm.registry import Applied
from tests.simulation.collected import LONG, collected_by, expired, run, small
from tests.simulation.collecting import TTL, Lake, filled
from tests.simulation.faults import Call, FaultPlan
from tests.simulation.situations import noted
from tests.simulation.whole_lake import SkewedClock


def test_slatedb_604_and_487_what_only_a_pin_refers_to_stays_until_the_pin_is_gone() -> None:
    lake = filled(tail_rows=0)
    pin = lake.pin("reader")
    for round_ in range(3):
        lake.merge()
        lake.collect()
        lake.audit_pin(pin)
        lake.write(300 + 2 * round_, 301 + 2 * round_)
        lake.flush()
    lake.unpin("reader")
    lake.merge()
    lake.collect()
    lake.collect()

    assert [key for key in lake.stored() if "_gen_" in key] == []
    lake.audit()


def test_what_an_expired_pin_kept_goes_and_the_pin_with_it() -> None:
    lake = expired(filled())
    storage = lake.region("reader").storage

    run(lake, FaultPlan())

    assert storage.registry.list(snapshots(storage.table)) == []
    assert not any("_gen_1/" in item.key for item in storage.objects.list("_mem_wal/"))


def renewed_before(port: str) -> None:
    """A collection, and right before its first deletion there the renewal of a pin that has expired."""
    lake = expired(filled())
    storage = lake.region("holder").storage
    (pin,) = pins_of(storage.registry.list(snapshots(storage.table)))
    later = replace(pin, version=pin.version + 1, expires=storage.clock.now() + TTL)

    def renews(call: Call) -> None:
        if call.process == "victim" and call.port == port and call.method == "delete" and not lake.pinned:
            key = pin_key(pin.partition(storage.table), pin.name)
            witness = {"version": pin.version, "nonce": pin.nonce}
            if isinstance(lake.world.registry.swap(key, expect=witness, change=later.to_record()), Applied):
                lake.pinned.append(later)

    run(lake, FaultPlan(renews))
    assert bool(lake.pinned) == (port == "registry")


def test_a_pin_that_is_renewed_while_it_is_judged_expired_counts() -> None:
    renewed_before("registry")


def test_slatedb_1888_a_pin_that_was_judged_expired_can_not_be_renewed_once_something_is_deleted() -> None:
    renewed_before("objects")


def test_a_pin_that_has_expired_is_told_by_the_step_that_removes_it() -> None:
    lake = expired(small())

    with lake.collecting():
        first, second = (collection.mark(lake.opened("collector", faulty=False)) for _ in range(2))

    (told,) = (one for one in first.candidates if one.kind == "snapshot")
    assert (told.path, told.why, first.deleted) == ("expired", "it has expired", 1)
    assert all(one.kind != "snapshot" for one in second.candidates)
    assert second.deleted == 0


def test_a_pin_that_expires_before_the_sweep_is_told_by_that() -> None:
    lake = small()
    lake.pin("late")
    lake.merge()
    (key,) = lake.collect(interval=60.0).rounds
    lake.pinned.clear()
    lake.world.schedule.clock.advance(LONG)

    swept = lake.sweep(key)

    assert [(one.path, one.why) for one in swept.candidates] == [("late", "it has expired")]
    assert swept.deleted > 1
    assert lake.sweep(key).candidates == ()


@pytest.mark.parametrize("flushed", range(4))
def test_chroma_4772_and_its_kin_every_boundary_of_log_generations_and_pins(flushed: int) -> None:
    for merged in range(flushed + 1):
        for pinned in range(1, 2 * flushed + 3):
            with noted(flushed, merged, pinned):
                lake = filled(flushed=flushed, merged=merged, tail_rows=1)
                storage = lake.region("holder").storage
                pin = pin_from(lake, Position(pinned))
                end = 2 * flushed + 1
                lake.collect()
                lake.collect()
                lake.audit()

                head = lake.region("reader").head()
                left = [position for position in range(1, end + 1) if _there(lake, position)]
                assert left == list(range(min(pinned, end), end + 1))
                assert head.first_position in (1, min(pinned, end))
                generations = {int(k.partition("/")[0].rpartition("_")[2]) for k in lake.stored() if "_gen_" in k}
                gone = min(merged, (min(pinned, end) - 1) // 2)
                assert generations == set(range(gone + 1, flushed + 1))
                assert storage.registry.read(pin) is not None


def pin_from(lake: Lake, position: Position) -> Key:
    """A cursor that has yet to read from this position on."""
    storage = lake.region("cursor").storage
    pin = pins.begin(storage, "cursor", "c")
    needs = pins.pin_regions(storage, pin, {lake.world.id: RegionPin(first_position=position)})
    pin = pins.step(storage, replace(pin, regions=needs))
    pins.confirm(storage, pin, ttl_seconds=None)
    return pin_key(pin.partition(storage.table), pin.name)


def _there(lake: Lake, position: int) -> bool:
    return lake.world.store.get(wal_entry(lake.world.id, Position(position))) is not None


def test_the_records_of_regions_of_a_pin_that_is_gone_go_and_no_others() -> None:
    lake = filled()
    dropped, kept = lake.begin_pin("dropped"), lake.pin("kept")
    storage = lake.region("holder").storage
    own = next(key for key, _ in storage.registry.list(snapshots(storage.table)) if key.sort == "dropped")
    storage.registry.delete(own, expect={"nonce": dropped.nonce})

    assert sweep_leftovers(storage) == 1
    assert sweep_leftovers(storage) == 0
    assert [pin.regions.keys() for pin in pins_of(storage.registry.list(snapshots(storage.table)))] == [
        kept.regions.keys()
    ]


def test_a_pin_that_is_begun_while_leftovers_are_listed_keeps_its_records() -> None:
    lake = filled()
    storage = lake.region("holder").storage

    class Torn:
        """A listing in two pages, between which a pin is begun."""

        def __init__(self, inner) -> None:
            self._inner = inner

        def __getattr__(self, name: str):
            return getattr(self._inner, name)

        def list(self, partition: str):
            first = self._inner.list(partition)
            if partition == snapshots(storage.table) and not first:
                lake.begin_pin("begun")
                return [line for line in self._inner.list(partition) if "#" in line[0].sort]
            return first

    assert sweep_leftovers(replace(storage, registry=Torn(storage.registry))) == 0
    assert [len(pin.regions) for pin in pins_of(storage.registry.list(snapshots(storage.table)))] == [1]


def test_a_pin_that_expires_before_the_sweep_and_is_renewed_while_that_judges_it_counts() -> None:
    lake = small()
    needed = lake.needs(lake.region("holder"))
    lake.merge()
    storage = lake.region("holder").storage
    renewed = []

    def made_then_renewed(call: Call) -> None:
        if call.process != "victim":
            return
        if call.method == "create" and "/manifest/staged/" in call.key and not lake.pinned:
            assert lake.end_pin(lake.begin_pin("held", needed))  # verified without it, committed with it
            lake.world.schedule.clock.advance(LONG)
        if call.port == "registry" and call.method == "delete" and lake.pinned and not renewed:
            pin = lake.pinned.pop()
            renewed.append(pins.step(storage, replace(pin, expires=storage.clock.now() + TTL)))
            lake.pinned += renewed

    run(lake, FaultPlan(made_then_renewed))
    assert renewed


def test_a_snapshot_whose_maker_looked_before_the_round_is_confirmed_and_kept_or_neither() -> None:
    kept = 0

    def looked_at() -> tuple[Lake, RegionPin]:
        lake = small()
        needed = lake.needs(lake.region("maker"))
        lake.merge()
        return lake, needed

    for call in collected_by(looked_at()[0]):
        lake, needed = looked_at()

        def pins_late(now: Call, lake: Lake = lake, needed: RegionPin = needed, at: int = call.index) -> None:
            if now.index == at:
                lake.end_pin(lake.begin_pin("late", needed))

        with noted(call):
            run(lake, FaultPlan(pins_late))
        kept += len(lake.pinned)
    assert 0 < kept < call.index


def _collected_before_it_expires(lake: Lake, *, skew: float) -> list[Pin]:
    """What stands of the pins when a collector whose clock is wrong by `skew` came a minute before they expire."""
    lake.merge()
    lake.world.schedule.clock.advance(TTL - 60)
    opened = lake.opened("collector", faulty=False)
    opened.storage = replace(opened.storage, clock=SkewedClock(opened.storage.clock, skew))
    with lake.collecting():
        collection.collect(opened, yes=True, interval_seconds=0)
    storage = lake.region("holder").storage
    return pins_of(storage.registry.list(snapshots(storage.table)))


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_a_clock_that_is_an_hour_off_costs_a_pin_its_life_at_most_and_its_holder_is_told(skew: float) -> None:
    lake = filled()
    pin = lake.pin("held")

    left = _collected_before_it_expires(lake, skew=skew)

    if skew < 0:
        assert len(left) == 1
    else:
        assert left == []
        lake.pinned.clear()
        storage = lake.region("holder").storage
        with pytest.raises(Contended, match="changed or removed"):
            pins.step(storage, replace(pin, expires=storage.clock.now() + TTL))
    lake.audit()


def test_a_clock_that_is_ahead_by_less_than_the_allowance_costs_no_pin_its_life() -> None:
    lake = small()
    lake.pin("held")

    assert len(_collected_before_it_expires(lake, skew=120.0)) == 1
    lake.audit()
