"""The object registry under lost replies and concurrent writers: a swap happens once or not at all."""

from __future__ import annotations

import json

import pytest

from lancelsm.common.clock import SeededIds
from lancelsm.common.layout import Key
from lancelsm.errors import Contended, Corrupt, Invalid, Unavailable
from lancelsm.objects import PreconditionFailed, WriteUnknown
from lancelsm.registry import SwapApplied, SwapLost, SwapUnknown
from lancelsm.registry.object import ObjectRegistry, object_key
from tests.simulation.faults import (
    DENY,
    EVERY_FAULT,
    FAIL_AFTER,
    FAIL_BEFORE,
    FakeClock,
    FaultPlan,
    FaultyStore,
    MemoryStore,
    calls_of,
    late,
)
from tests.simulation.schedule import Schedule, ScheduledStore

KEY = Key(partition="H#t#r", sort="head")
GONE = Key(partition="S#t", sort="monday#nonce#region")  # never written again after it is discarded


def over(store, *, clock=None, seed=1):
    return ObjectRegistry(store, clock=clock or FakeClock(), ids=SeededIds(seed))


class Meddling(MemoryStore):
    """Before each of the first `spoil` conditional writes, another writer swaps."""

    def __init__(self, spoil: int) -> None:
        super().__init__()
        self.spoil = 0
        over(self, seed="create").swap(KEY, expect=None, change={"n": 1, "others": 0})
        self.spoil = spoil

    def replace(self, key, body, *, expect):
        if self.spoil:
            remaining, self.spoil = self.spoil - 1, 0
            other = over(self, seed=f"other {remaining}")
            other.swap(KEY, expect={}, change={"others": other.read(KEY)["others"] + 1})
            self.spoil = remaining
        return super().replace(key, body, expect=expect)


@pytest.mark.parametrize("fault", [FAIL_AFTER, FAIL_BEFORE, late(1), late(2), late(3), late(1_000)])
@pytest.mark.parametrize("create", [True, False])
def test_a_swap_whose_reply_is_lost_is_applied_once(fault, create):
    inner = MemoryStore()
    if not create:
        over(inner, seed="before").swap(KEY, expect=None, change={"n": 0})
    plan = FaultPlan.at(1, fault)  # call 0 reads, call 1 writes
    outcome = over(FaultyStore(inner, plan)).swap(KEY, expect=None if create else {"n": 0}, change={"n": 1})
    plan.land()

    assert [call.method for call, _ in plan.injected] == ["create" if create else "replace"]
    assert outcome == SwapApplied(record={"n": 1})
    assert over(inner).read(KEY) == {"n": 1}
    assert json.loads(inner.get(object_key(KEY)).body)["version"] == (1 if create else 2)


@pytest.mark.parametrize("first_lands_after", [2, 3, 4, 5, 6, 7])
def test_two_lost_replies_of_one_swap_write_once(first_lands_after):
    inner = MemoryStore()
    over(inner, seed="before").swap(KEY, expect=None, change={"n": 0})
    plan = FaultPlan.of({1: late(first_lands_after), 3: FAIL_BEFORE})

    outcome = over(FaultyStore(inner, plan)).swap(KEY, expect={"n": 0}, change={"n": 1})
    plan.land()

    assert outcome == SwapApplied(record={"n": 1})
    assert json.loads(inner.get(object_key(KEY)).body)["version"] == 2


def test_after_any_fault_at_any_call_the_outcome_of_a_swap_is_reported_correctly():
    def run(plan):
        registry = over(FaultyStore(inner, plan))
        return registry.swap(KEY, expect={"n": 0}, change={"n": 1})

    inner = MemoryStore()
    over(inner, seed="before").swap(KEY, expect=None, change={"n": 0})
    for call in calls_of(run):
        for fault in EVERY_FAULT:
            if "crash" in fault.kind:
                continue
            inner = MemoryStore()
            over(inner, seed="before").swap(KEY, expect=None, change={"n": 0})
            plan = FaultPlan.at(call.index, fault)
            try:
                assert run(plan) == SwapApplied(record={"n": 1}), (call, fault)
                expected = 1
            except Unavailable:
                expected = 0
            plan.land()
            assert over(inner).read(KEY) == {"n": expected}, (call, fault)


def test_a_lost_reply_hidden_by_later_writes_is_unknown():
    class Hidden(MemoryStore):
        armed = False

        def replace(self, key, body, *, expect):
            written = super().replace(key, body, expect=expect)
            if not self.armed:
                return written
            self.armed = False
            over(self, seed="hides").swap(KEY, expect={"n": 2}, change={"n": 3})
            return WriteUnknown(cause="reply lost")

    store = Hidden()
    over(store, seed="create").swap(KEY, expect=None, change={"n": 1})
    store.armed = True

    outcome = over(store).swap(KEY, expect={"n": 1}, change={"n": 2})

    assert isinstance(outcome, SwapUnknown)
    assert "later writes hide" in outcome.cause


def test_a_lost_reply_whose_version_another_write_took_is_decided_again():
    class Taken(MemoryStore):
        armed = False

        def replace(self, key, body, *, expect):
            if self.armed:
                self.armed = False
                over(self, seed="other").swap(KEY, expect={}, change={"n": 5})
                assert super().replace(key, body, expect=expect) == PreconditionFailed()
                return WriteUnknown(cause="reply lost")
            return super().replace(key, body, expect=expect)

    store = Taken()
    over(store, seed="create").swap(KEY, expect=None, change={"n": 1, "x": 0})
    store.armed = True
    assert over(store).swap(KEY, expect={"n": 1}, change={"n": 2}) == SwapLost(record={"n": 5, "x": 0})

    store.armed = True
    assert over(store, seed=2).swap(KEY, expect={"x": 0}, change={"x": 1}) == SwapApplied(record={"n": 5, "x": 1})


def test_writes_of_other_fields_only_make_a_swap_retry():
    store = Meddling(5)

    assert over(store).swap(KEY, expect={"n": 1}, change={"n": 2}) == SwapApplied(record={"n": 2, "others": 5})


def test_a_swap_that_is_always_overtaken_is_contended_and_has_no_effect():
    store, clock = Meddling(1_000_000), FakeClock()

    with pytest.raises(Contended):
        over(store, clock=clock).swap(KEY, expect={"n": 1}, change={"n": 2})
    assert over(store).read(KEY)["n"] == 1
    assert 30 <= clock.monotonic() < 40


def test_a_write_is_unknown_if_the_store_stops_answering_after_it():
    inner = MemoryStore()
    plan = FaultPlan.of({1: FAIL_AFTER, 2: DENY})

    assert isinstance(over(FaultyStore(inner, plan)).swap(KEY, expect=None, change={"n": 1}), SwapUnknown)


def test_a_store_that_does_not_answer_at_all_is_unavailable():
    plan = FaultPlan.of(dict.fromkeys(range(10), FAIL_BEFORE))
    registry = over(FaultyStore(MemoryStore(), plan))

    for call in (
        lambda: registry.read(KEY),
        lambda: registry.list("H#t#r"),
        lambda: registry.swap(KEY, expect=None, change={}),
    ):
        with pytest.raises(Unavailable):
            call()


def test_a_write_without_any_reply_is_unknown_after_the_budget():
    clock = FakeClock()
    plan = FaultPlan(lambda call: FAIL_BEFORE if call.writes else None)

    outcome = over(FaultyStore(MemoryStore(), plan), clock=clock).swap(KEY, expect=None, change={"n": 1})

    assert isinstance(outcome, SwapUnknown)
    assert 30 <= clock.monotonic() < 40


def test_a_counter_under_faults_has_all_applied_swaps_and_no_refused_ones():
    rates = {FAIL_AFTER: 0.06, FAIL_BEFORE: 0.06, late(2): 0.04, late(9): 0.04}
    unknown = 0
    for seed in range(30):
        schedule, inner = Schedule(seed), MemoryStore()
        over(inner, seed="create").swap(KEY, expect=None, change={"n": 0})
        plan = FaultPlan.seeded(seed, rates, clock=schedule.clock)
        raised = {"applied": 0, "unknown": 0}

        def count(name, schedule=schedule, inner=inner, plan=plan, raised=raised, seed=seed):
            store = FaultyStore(ScheduledStore(inner, schedule), plan, process=name)
            registry = over(store, clock=schedule.clock, seed=f"{seed} {name}")
            for _ in range(6):
                try:
                    record = registry.read(KEY)
                    outcome = registry.swap(KEY, expect={"n": record["n"]}, change={"n": record["n"] + 1})
                except (Unavailable, Contended):
                    continue
                raised["applied"] += isinstance(outcome, SwapApplied)
                raised["unknown"] += isinstance(outcome, SwapUnknown)

        schedule.run({name: lambda name=name, count=count: count(name) for name in ("a", "b", "c")})
        plan.land()
        n = over(inner).read(KEY)["n"]
        unknown += raised["unknown"]
        assert raised["applied"] <= n <= raised["applied"] + raised["unknown"], f"seed {seed}"
    assert unknown > 0


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": "x"}', b"\xff"])
def test_an_object_that_is_not_a_record_is_corrupt_and_named(body):
    store = MemoryStore()
    store.create(object_key(KEY), body)

    with pytest.raises(Corrupt) as raised:
        over(store).read(KEY)
    assert raised.value.where == {"object": "_lancelsm/registry/H=23t=23r/head.json"}


def test_a_newer_format_is_refused():
    store = MemoryStore()
    store.create(object_key(KEY), b'{"format": 2}')

    with pytest.raises(Invalid, match="format 2"):
        over(store).swap(KEY, expect={}, change={"n": 1})


def test_a_partition_read_in_parallel_is_complete():
    store = MemoryStore()
    keys = [Key(partition="T#t", sort=f"{number:02}") for number in range(40)]
    for key in keys:
        over(store, seed=key.sort).swap(key, expect=None, change={"name": key.sort})

    registry = ObjectRegistry(store, clock=FakeClock(), ids=SeededIds(1), parallel=16)

    assert registry.list("T#t") == [(key, {"name": key.sort}) for key in keys]


def test_a_second_swap_of_a_process_is_one_write_without_a_read():
    # Given a registry that has just written a record
    store = FaultyStore(MemoryStore(), plan := FaultPlan())
    registry = over(store)
    registry.swap(KEY, expect=None, change={"n": 1})
    before = len(plan.calls)

    # When it swaps again with the correct expectation, and then with a wrong one
    assert registry.swap(KEY, expect={"n": 1}, change={"n": 2}) == SwapApplied(record={"n": 2})
    lost = registry.swap(KEY, expect={"n": 1}, change={"n": 3})

    # Then the first swap is one request, and the second is lost only after a read
    assert [call.method for call in plan.calls[before:]] == ["replace", "get"]
    assert lost == SwapLost(record={"n": 2})


def test_a_cached_record_that_another_process_replaced_is_read_again():
    # Given two registries on one store; the first caches its write
    store = MemoryStore()
    ours, theirs = over(store, seed="ours"), over(store, seed="theirs")
    ours.swap(KEY, expect=None, change={"n": 1, "m": 1})
    theirs.swap(KEY, expect={"n": 1}, change={"n": 2})

    # Then a swap of another field keeps what the second registry wrote
    assert ours.swap(KEY, expect={"m": 1}, change={"m": 2}) == SwapApplied(record={"n": 2, "m": 2})


def test_a_deleted_record_leaves_an_object_and_a_discarded_one_does_not():
    store = MemoryStore()
    registry = over(store)
    for key in (KEY, GONE):
        registry.swap(key, expect=None, change={"n": 1})

    registry.delete(KEY, expect={"n": 1})
    registry.discard(GONE)

    assert [line.key for line in store.list("")] == [object_key(KEY)]


@pytest.mark.parametrize("fault", [FAIL_AFTER, FAIL_BEFORE, late(1), late(1_000)])
def test_a_swap_with_a_lost_reply_is_unknown_if_the_record_was_discarded(fault):
    class Discarding(MemoryStore):
        def get(self, key):
            if self.armed and plan.injected:
                over(self, seed="other").discard(GONE)
            return super().get(key)

    inner = Discarding()
    inner.armed = False
    over(inner, seed="before").swap(GONE, expect=None, change={"n": 0})
    inner.armed = True
    plan = FaultPlan.at(1, fault)

    outcome = over(FaultyStore(inner, plan)).swap(GONE, expect={"n": 0}, change={"n": 1})
    plan.land()

    assert isinstance(outcome, SwapUnknown)
    assert over(inner).read(GONE) is None
