"""Collections and the pins of snapshots and cursors: what one needs stays as long as it stands, and then goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lancelsm import pins
from lancelsm.gc import collect as collection
from lancelsm.gc.sweep import sweep_leftovers
from lancelsm.layout import Key, Position, pin_key, snapshots, wal_entry
from lancelsm.pins import RegionPin, pins_of
from lancelsm.registry import Applied
from tests.simulation.collected import LONG, expired, run, small
from tests.simulation.collecting import TTL, Lake, filled
from tests.simulation.faults import Call, FaultPlan
from tests.simulation.situations import noted


def test_slatedb_604_what_only_a_pin_refers_to_stays_until_the_pin_is_gone() -> None:
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
