"""The wrappers that crash tests rely on inject exactly the faults of a plan."""

from __future__ import annotations

import pytest

from lancelsm.common.layout import Key
from lancelsm.errors import Unavailable
from lancelsm.objects import PreconditionFailed, WriteUnknown, Written
from lancelsm.registry import SwapApplied, SwapLost, SwapUnknown
from tests.simulation.faults import (
    CRASH_AFTER,
    CRASH_BEFORE,
    DENY,
    FAIL_AFTER,
    FAIL_BEFORE,
    Call,
    Crash,
    FakeClock,
    FaultPlan,
    FaultyRegistry,
    FaultyStore,
    MemoryRegistry,
    MemoryStore,
    calls_of,
    late,
    stall,
)

KEY = Key(partition="H#t#r", sort="head")


@pytest.mark.parametrize(("fault", "applied"), [(FAIL_BEFORE, False), (FAIL_AFTER, True)])
def test_an_unanswered_write_is_unknown_and_applied_only_if_the_fault_came_after_it(fault, applied):
    store, registry = MemoryStore(), MemoryRegistry()

    written = FaultyStore(store, FaultPlan.at(0, fault)).create("k", b"x")
    swapped = FaultyRegistry(registry, FaultPlan.at(0, fault)).swap(KEY, expect=None, change={"n": 1})

    assert isinstance(written, WriteUnknown)
    assert isinstance(swapped, SwapUnknown)
    assert (store.get("k") is not None, registry.read(KEY) is not None) == (applied, applied)


@pytest.mark.parametrize("fault", [DENY, FAIL_BEFORE, FAIL_AFTER, late(1)])
def test_an_unanswered_read_raises(fault):
    plan = FaultPlan.of(dict.fromkeys(range(4), fault))
    store, registry = FaultyStore(MemoryStore(), plan), FaultyRegistry(MemoryRegistry(), plan)

    for read in (
        lambda: store.get("k"),
        lambda: store.list(""),
        lambda: registry.read(KEY),
        lambda: registry.list("H#t#r"),
    ):
        with pytest.raises(Unavailable):
            read()


def test_a_denied_write_raises_and_changes_nothing():
    store = FaultyStore(MemoryStore(), FaultPlan.at(0, DENY))

    with pytest.raises(Unavailable):
        store.create("k", b"x")

    assert store.get("k") is None


@pytest.mark.parametrize(("fault", "applied"), [(CRASH_BEFORE, False), (CRASH_AFTER, True)])
def test_a_crashed_process_makes_no_more_calls_and_others_go_on(fault, applied):
    inner, plan = MemoryStore(), FaultPlan.at(0, fault)
    one, other = FaultyStore(inner, plan, process="one"), FaultyStore(inner, plan, process="other")
    registry = FaultyRegistry(MemoryRegistry(), plan, process="one")

    with pytest.raises(Crash):
        one.create("k", b"x")
    with pytest.raises(Crash):
        registry.read(KEY)

    assert (other.get("k") is not None) == applied
    assert [call.process for call in plan.calls] == ["one", "other"]


def test_a_late_write_lands_at_the_chosen_call_and_checks_its_condition_then():
    plan = FaultPlan.of({0: late(2), 1: late(2)})
    store = FaultyStore(MemoryStore(), plan)

    assert isinstance(store.create("first", b"late"), WriteUnknown)
    assert isinstance(store.create("second", b"late"), WriteUnknown)
    assert isinstance(store.create("second", b"early"), Written)
    assert isinstance(store.create("first", b"too late"), PreconditionFailed)

    assert store.get("first").body == b"late"
    assert store.get("second").body == b"early"


def test_late_writes_land_on_demand_or_never():
    inner, registry, plan = MemoryStore(), MemoryRegistry(), FaultPlan.of({0: late(99), 1: late(99), 2: late(99)})
    store = FaultyStore(inner, plan)
    store.create("a", b"x")
    FaultyRegistry(registry, plan).swap(KEY, expect=None, change={"n": 1})
    plan.land()
    store.create("b", b"x")
    plan.forget()
    plan.land()

    assert [line.key for line in inner.list("")] == ["a"]
    assert registry.read(KEY) == {"n": 1}


def test_a_stalled_call_takes_effect_after_the_stall():
    clock = FakeClock()
    store = FaultyStore(MemoryStore(), FaultPlan.at(0, stall(7.5), clock=clock))

    assert isinstance(store.create("k", b"x"), Written)
    assert clock.monotonic() == 7.5


def test_calls_are_numbered_over_store_and_registry():
    def run(plan: FaultPlan) -> None:
        FaultyStore(MemoryStore(), plan).create("k", b"x")
        FaultyRegistry(MemoryRegistry(), plan).swap(KEY, expect=None, change={"n": 1})

    assert calls_of(run) == [
        Call(0, "objects", "create", "k"),
        Call(1, "registry", "swap", "H#t#r/head"),
    ]


def test_a_seeded_plan_injects_the_same_faults_again_and_can_be_replayed():
    def run(plan: FaultPlan) -> list[str]:
        store = FaultyStore(MemoryStore(), plan)
        return [type(store.create(f"{number}", b"x")).__name__ for number in range(200)]

    rates = {FAIL_AFTER: 0.1, FAIL_BEFORE: 0.1, late(3): 0.1}
    first, second = FaultPlan.seeded(5, rates), FaultPlan.seeded(5, rates)

    assert run(first) == run(second)
    assert first.injected == second.injected
    assert 20 < len(first.injected) < 120
    assert {fault for _, fault in first.injected} == set(rates)
    replayed = FaultPlan.of({call.index: fault for call, fault in first.injected})
    assert run(replayed) == run(FaultPlan.seeded(5, rates))
    assert run(FaultPlan.seeded(6, rates)) != run(FaultPlan.seeded(5, rates))


def test_a_faulty_registry_passes_on_a_lost_swap():
    registry = FaultyRegistry(MemoryRegistry(), FaultPlan())
    assert registry.swap(KEY, expect=None, change={"n": 1}) == SwapApplied(record={"n": 1})
    assert registry.swap(KEY, expect={"n": 0}, change={"n": 2}) == SwapLost(record={"n": 1})
