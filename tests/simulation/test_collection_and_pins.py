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
from lancelsm.registry import SwapApplied
from tests.simulation.collected import LONG, collected_by, expired, run, small
from tests.simulation.collecting import TTL, TableEnv, filled
from tests.simulation.faults import Call, FaultPlan
from tests.simulation.situations import noted
from tests.simulation.whole_table_env import SkewedClock


def test_slatedb_604_and_487_what_only_a_pin_refers_to_stays_until_the_pin_is_gone() -> None:
    table_env = filled(tail_rows=0)
    pin = table_env.pin("reader")
    for round_ in range(3):
        table_env.merge()
        table_env.collect()
        table_env.audit_pin(pin)
        table_env.write(300 + 2 * round_, 301 + 2 * round_)
        table_env.flush()
    table_env.unpin("reader")
    table_env.merge()
    table_env.collect()
    table_env.collect()

    assert [key for key in table_env.stored() if "_gen_" in key] == []
    table_env.audit()


def test_what_an_expired_pin_kept_goes_and_the_pin_with_it() -> None:
    table_env = expired(filled())
    context = table_env.region("reader").context

    run(table_env, FaultPlan())

    assert context.registry.list(snapshots(context.table)) == []
    assert not any("_gen_1/" in item.key for item in context.objects.list("_mem_wal/"))


def renewed_before(port: str) -> None:
    """A collection, and right before its first deletion there the renewal of a pin that has expired."""
    table_env = expired(filled())
    context = table_env.region("holder").context
    (pin,) = pins_of(context.registry.list(snapshots(context.table)))
    later = replace(pin, version=pin.version + 1, expires=context.clock.now() + TTL)

    def renews(call: Call) -> None:
        if call.process == "victim" and call.port == port and call.method == "delete" and not table_env.pinned:
            key = pin_key(pin.partition(context.table), pin.name)
            witness = {"version": pin.version, "nonce": pin.nonce}
            if isinstance(
                table_env.environment.registry.swap(key, expect=witness, change=later.to_record()), SwapApplied
            ):
                table_env.pinned.append(later)

    run(table_env, FaultPlan(renews))
    assert bool(table_env.pinned) == (port == "registry")


def test_a_pin_that_is_renewed_while_it_is_judged_expired_counts() -> None:
    renewed_before("registry")


def test_slatedb_1888_a_pin_that_was_judged_expired_can_not_be_renewed_once_something_is_deleted() -> None:
    renewed_before("objects")


def test_a_pin_that_has_expired_is_told_by_the_step_that_removes_it() -> None:
    table_env = expired(small())

    with table_env.collecting():
        first, second = (collection.mark(table_env.handle("collector", faulty=False)) for _ in range(2))

    (raised,) = (one for one in first.candidates if one.kind == "snapshot")
    assert (raised.path, raised.why, first.deleted) == ("expired", "it has expired", 1)
    assert all(one.kind != "snapshot" for one in second.candidates)
    assert second.deleted == 0


def test_a_pin_that_expires_before_the_sweep_is_told_by_that() -> None:
    table_env = small()
    table_env.pin("late")
    table_env.merge()
    (key,) = table_env.collect(interval=60.0).rounds
    table_env.pinned.clear()
    table_env.environment.schedule.clock.advance(LONG)

    swept = table_env.sweep(key)

    assert [(one.path, one.why) for one in swept.candidates] == [("late", "it has expired")]
    assert swept.deleted > 1
    assert table_env.sweep(key).candidates == ()


@pytest.mark.parametrize("flushed", range(4))
def test_chroma_4772_and_its_kin_every_boundary_of_log_generations_and_pins(flushed: int) -> None:
    for merged in range(flushed + 1):
        for pinned in range(1, 2 * flushed + 3):
            with noted(flushed, merged, pinned):
                table_env = filled(flushed=flushed, merged=merged, tail_rows=1)
                context = table_env.region("holder").context
                pin = pin_from(table_env, Position(pinned))
                end = 2 * flushed + 1
                table_env.collect()
                table_env.collect()
                table_env.audit()

                head = table_env.region("reader").head()
                left = [position for position in range(1, end + 1) if _there(table_env, position)]
                assert left == list(range(min(pinned, end), end + 1))
                assert head.first_position in (1, min(pinned, end))
                generations = {int(k.partition("/")[0].rpartition("_")[2]) for k in table_env.stored() if "_gen_" in k}
                gone = min(merged, (min(pinned, end) - 1) // 2)
                assert generations == set(range(gone + 1, flushed + 1))
                assert context.registry.read(pin) is not None


def pin_from(table_env: TableEnv, position: Position) -> Key:
    """A cursor that has yet to read from this position on."""
    context = table_env.region("cursor").context
    pin = pins.begin(context, "cursor", "c")
    needs = pins.pin_regions(context, pin, {table_env.environment.id: RegionPin(first_position=position)})
    pin = pins.step(context, replace(pin, regions=needs))
    pins.confirm(context, pin, ttl_seconds=None)
    return pin_key(pin.partition(context.table), pin.name)


def _there(table_env: TableEnv, position: int) -> bool:
    return table_env.environment.store.get(wal_entry(table_env.environment.id, Position(position))) is not None


def test_the_records_of_regions_of_a_pin_that_is_gone_go_and_no_others() -> None:
    table_env = filled()
    dropped, kept = table_env.begin_pin("dropped"), table_env.pin("kept")
    context = table_env.region("holder").context
    own = next(key for key, _ in context.registry.list(snapshots(context.table)) if key.sort == "dropped")
    context.registry.delete(own, expect={"nonce": dropped.nonce})

    assert sweep_leftovers(context) == 1
    assert sweep_leftovers(context) == 0
    assert [pin.regions.keys() for pin in pins_of(context.registry.list(snapshots(context.table)))] == [
        kept.regions.keys()
    ]


def test_a_pin_that_is_begun_while_leftovers_are_listed_keeps_its_records() -> None:
    table_env = filled()
    context = table_env.region("holder").context

    class Torn:
        """A listing in two pages, between which a pin is begun."""

        def __init__(self, inner) -> None:
            self._inner = inner

        def __getattr__(self, name: str):
            return getattr(self._inner, name)

        def list(self, partition: str):
            first = self._inner.list(partition)
            if partition == snapshots(context.table) and not first:
                table_env.begin_pin("begun")
                return [line for line in self._inner.list(partition) if "#" in line[0].sort]
            return first

    assert sweep_leftovers(replace(context, registry=Torn(context.registry))) == 0
    assert [len(pin.regions) for pin in pins_of(context.registry.list(snapshots(context.table)))] == [1]


def test_a_pin_that_expires_before_the_sweep_and_is_renewed_while_that_judges_it_counts() -> None:
    table_env = small()
    needed = table_env.needs(table_env.region("holder"))
    table_env.merge()
    context = table_env.region("holder").context
    renewed = []

    def made_then_renewed(call: Call) -> None:
        if call.process != "victim":
            return
        if call.method == "create" and "/manifest/staged/" in call.key and not table_env.pinned:
            assert table_env.end_pin(table_env.begin_pin("held", needed))  # verified without it, committed with it
            table_env.environment.schedule.clock.advance(LONG)
        if call.port == "registry" and call.method == "delete" and table_env.pinned and not renewed:
            pin = table_env.pinned.pop()
            renewed.append(pins.step(context, replace(pin, expires=context.clock.now() + TTL)))
            table_env.pinned += renewed

    run(table_env, FaultPlan(made_then_renewed))
    assert renewed


def test_a_snapshot_whose_maker_looked_before_the_round_is_confirmed_and_kept_or_neither() -> None:
    kept = 0

    def looked_at() -> tuple[TableEnv, RegionPin]:
        table_env = small()
        needed = table_env.needs(table_env.region("maker"))
        table_env.merge()
        return table_env, needed

    for call in collected_by(looked_at()[0]):
        table_env, needed = looked_at()

        def pins_late(
            now: Call, table_env: TableEnv = table_env, needed: RegionPin = needed, at: int = call.index
        ) -> None:
            if now.index == at:
                table_env.end_pin(table_env.begin_pin("late", needed))

        with noted(call):
            run(table_env, FaultPlan(pins_late))
        kept += len(table_env.pinned)
    assert 0 < kept < call.index


def _collected_before_it_expires(table_env: TableEnv, *, skew: float) -> list[Pin]:
    """What stands of the pins when a collector whose clock is wrong by `skew` came a minute before they expire."""
    table_env.merge()
    table_env.environment.schedule.clock.advance(TTL - 60)
    handle = table_env.handle("collector", faulty=False)
    handle.context = replace(handle.context, clock=SkewedClock(handle.context.clock, skew))
    with table_env.collecting():
        collection.collect(handle, yes=True, interval_seconds=0)
    context = table_env.region("holder").context
    return pins_of(context.registry.list(snapshots(context.table)))


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_a_clock_that_is_an_hour_off_costs_a_pin_its_life_at_most_and_its_holder_is_told(skew: float) -> None:
    table_env = filled()
    pin = table_env.pin("held")

    left = _collected_before_it_expires(table_env, skew=skew)

    if skew < 0:
        assert len(left) == 1
    else:
        assert left == []
        table_env.pinned.clear()
        context = table_env.region("holder").context
        with pytest.raises(Contended, match="changed or removed"):
            pins.step(context, replace(pin, expires=context.clock.now() + TTL))
    table_env.audit()


def test_a_clock_that_is_ahead_by_less_than_the_allowance_costs_no_pin_its_life() -> None:
    table_env = small()
    table_env.pin("held")

    assert len(_collected_before_it_expires(table_env, skew=120.0)) == 1
    table_env.audit()
