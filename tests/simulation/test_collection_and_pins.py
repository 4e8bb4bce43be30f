"""Collections keep every object that a pin of a snapshot or cursor needs until the pin ends, and delete it then.

Tests that begin with the name of another project show that its bug can't happen here. The numbers are its issues.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lancelsm.common.layout import Key, Position, pin_key, snapshots, wal_entry
from lancelsm.errors import Contended
from lancelsm.gc import collect as collection
from lancelsm.gc.sweep import sweep_leftovers
from lancelsm.history import pins
from lancelsm.history.pin_records import RegionPin, pins_of
from lancelsm.registry import SwapApplied
from tests.simulation import pin_scenarios
from tests.simulation.collecting import TTL, TableEnv, filled
from tests.simulation.collection_faults import LONG, run, small, with_expired_pin
from tests.simulation.faults import Call, FaultPlan
from tests.simulation.pin_scenarios import collected_before_it_expires
from tests.simulation.situations import note_on_failure


def test_slatedb_604_and_487_objects_that_only_a_pin_needs_are_kept_until_the_pin_ends() -> None:
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


def test_a_collection_deletes_an_expired_pin_and_the_objects_that_it_kept() -> None:
    table_env = with_expired_pin(filled())
    context = table_env.region("reader").context

    run(table_env, FaultPlan())

    assert context.registry.list(snapshots(context.table)) == []
    assert not any("_gen_1/" in item.key for item in context.objects.list("_mem_wal/"))


def renewed_before_first_deletion(port: str) -> None:
    """Renew an expired pin right before the first deletion of a collection in this port."""
    table_env = with_expired_pin(filled())
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


def test_an_expired_pin_that_is_renewed_before_its_removal_counts() -> None:
    renewed_before_first_deletion("registry")


def test_slatedb_1888_a_pin_that_a_collector_has_removed_can_not_be_renewed() -> None:
    renewed_before_first_deletion("objects")


def test_the_step_that_removes_an_expired_pin_reports_it() -> None:
    table_env = with_expired_pin(small())

    with table_env.collecting():
        first, second = (collection.mark(table_env.handle("collector", faulty=False)) for _ in range(2))

    (reported,) = (one for one in first.candidates if one.kind == "snapshot")
    assert (reported.path, reported.why, first.deleted) == ("expired", "it has expired", 1)
    assert all(one.kind != "snapshot" for one in second.candidates)
    assert second.deleted == 0


def test_a_sweep_reports_a_pin_that_expired_before_it() -> None:
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
def test_chroma_4772_a_collection_is_right_at_every_boundary_of_log_generations_and_pins(flushed: int) -> None:
    for merged in range(flushed + 1):
        for pinned in range(1, 2 * flushed + 3):
            with note_on_failure(flushed, merged, pinned):
                table_env = filled(flushed=flushed, merged=merged, tail_rows=1)
                context = table_env.region("holder").context
                pin = pin_from(table_env, Position(pinned))
                end = 2 * flushed + 1
                table_env.collect()
                table_env.collect()
                table_env.audit()

                head = table_env.region("reader").head()
                left = [position for position in range(1, end + 1) if _exists(table_env, position)]
                assert left == list(range(min(pinned, end), end + 1))
                assert head.first_position in (1, min(pinned, end))
                generations = {int(k.partition("/")[0].rpartition("_")[2]) for k in table_env.stored() if "_gen_" in k}
                gone = min(merged, (min(pinned, end) - 1) // 2)
                assert generations == set(range(gone + 1, flushed + 1))
                assert context.registry.read(pin) is not None


def pin_from(table_env: TableEnv, position: Position) -> Key:
    """Create a cursor at this position and return its key."""
    context = table_env.region("cursor").context
    pin = pins.begin(context, "cursor", "c")
    needs = pins.pin_regions(context, pin, {table_env.environment.id: RegionPin(first_position=position)})
    pin = pins.update_pin(context, replace(pin, regions=needs))
    pins.confirm(context, pin, ttl_seconds=None)
    return pin_key(pin.partition(context.table), pin.name)


def _exists(table_env: TableEnv, position: int) -> bool:
    return table_env.environment.store.get(wal_entry(table_env.environment.id, Position(position))) is not None


def test_only_the_region_records_of_a_removed_pin_are_leftovers() -> None:
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
    pin_scenarios.begun_while_leftovers_are_listed()


def test_a_pin_that_expires_before_the_sweep_and_is_renewed_during_the_sweep_counts() -> None:
    pin_scenarios.renewed_during_the_sweep()


@pytest.mark.rest
def test_a_snapshot_from_before_a_round_is_either_confirmed_and_kept_or_not_confirmed() -> None:
    pin_scenarios.snapshot_from_before_the_round()


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_a_collector_clock_that_is_an_hour_off_can_at_most_end_a_pin_and_its_renewal_then_fails(skew: float) -> None:
    table_env = filled()
    pin = table_env.pin("held")

    left = collected_before_it_expires(table_env, skew=skew)

    if skew < 0:
        assert len(left) == 1
    else:
        assert left == []
        table_env.pinned.clear()
        context = table_env.region("holder").context
        with pytest.raises(Contended, match="changed or removed"):
            pins.update_pin(context, replace(pin, expires=context.clock.now() + TTL))
    table_env.audit()


def test_a_collector_whose_clock_is_ahead_within_the_allowance_keeps_a_pin() -> None:
    pin_scenarios.clock_ahead_within_the_allowance()
