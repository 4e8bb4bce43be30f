"""The schedule interleaves actors at every switch point, replays runs, and keeps virtual time."""

from __future__ import annotations

import pytest

from lancelsm.common.layout import Key
from lancelsm.errors import Contended
from lancelsm.registry import SwapApplied
from tests.simulation.faults import CRASH_AFTER, Crash, FaultPlan, FaultyStore, MemoryRegistry, MemoryStore
from tests.simulation.schedule import Schedule, ScheduledRegistry, ScheduledStore

KEY = Key(partition="C", sort="counter")


def race(schedule: Schedule) -> tuple[int, dict[str, object]]:
    """Run three actors. Each adds 1 five times by compare-and-swap."""
    registry = ScheduledRegistry(MemoryRegistry(), schedule)
    registry.swap(KEY, expect=None, change={"n": 0})

    def add() -> int:
        tries = 0
        for _ in range(5):
            while True:
                tries += 1
                n = registry.read(KEY)["n"]
                if isinstance(registry.swap(KEY, expect={"n": n}, change={"n": n + 1}), SwapApplied):
                    break
        return tries

    outcomes = schedule.run({"a": add, "b": add, "c": add})
    return registry.inner.read(KEY)["n"], {name: outcome.value for name, outcome in outcomes.items()}


def test_interleaved_actors_lose_no_swap():
    contended = 0
    for seed in range(20):
        total, tries = race(Schedule(seed))
        assert total == 15, f"seed {seed}"
        contended += sum(tries.values()) > 15
    assert contended > 10


def test_an_unconditional_write_after_a_read_loses_an_update_under_some_schedules():
    def lost(seed: int) -> bool:
        schedule = Schedule(seed)
        registry = ScheduledRegistry(MemoryRegistry(), schedule)
        registry.swap(KEY, expect=None, change={"n": 0})

        def add() -> None:
            registry.swap(KEY, expect={}, change={"n": registry.read(KEY)["n"] + 1})

        schedule.run({"a": add, "b": add})
        return registry.inner.read(KEY)["n"] == 1

    assert 0 < sum(lost(seed) for seed in range(50)) < 50


def test_a_seed_replays_a_run_and_so_do_its_choices():
    first, again = Schedule(7), Schedule(7)
    assert race(first) == race(again)
    assert first.choices == again.choices

    replayed = Schedule(seed="another", choices=first.choices)
    race(replayed)
    assert replayed.choices == first.choices


def test_time_moves_only_when_a_sleeper_wakes_and_no_sleeper_wakes_early():
    for seed in range(20):
        schedule = Schedule(seed)
        store = ScheduledStore(MemoryStore(), schedule)
        woken = []

        def sleeper(seconds: float, schedule=schedule, woken=woken) -> None:
            deadline = schedule.clock.monotonic() + seconds
            schedule.clock.sleep(seconds)
            assert schedule.clock.monotonic() >= deadline
            woken.append(deadline)

        def busy(store=store) -> None:
            for number in range(5):
                store.create(str(number), b"x")

        schedule.run({"long": lambda s=sleeper: s(60.0), "short": lambda s=sleeper: s(5.0), "busy": busy})
        assert len(woken) == 2
        assert woken == sorted(woken), f"seed {seed}"
        assert schedule.clock.monotonic() == woken[-1], f"seed {seed}"


def test_a_crash_or_an_error_ends_only_its_own_actor():
    schedule, plan = Schedule(3), FaultPlan.at(0, CRASH_AFTER)
    inner = MemoryStore()
    doomed = FaultyStore(ScheduledStore(inner, schedule), plan, process="doomed")
    healthy = FaultyStore(ScheduledStore(inner, schedule), FaultPlan(), process="healthy")

    def give_up() -> None:
        raise Contended("too many others")

    outcomes = schedule.run(
        {
            "doomed": lambda: [doomed.create("a", b"x"), doomed.create("b", b"x")],
            "healthy": lambda: [healthy.create("c", b"x"), healthy.create("d", b"x")],
            "giving up": give_up,
        }
    )

    assert isinstance(outcomes["doomed"].error, Crash)
    assert isinstance(outcomes["giving up"].error, Contended)
    assert outcomes["healthy"].error is None
    assert [line.key for line in inner.list("")] == ["a", "c", "d"]


def test_a_failed_assertion_ends_the_run_and_reports_the_schedule():
    schedule = Schedule(1)
    store = ScheduledStore(MemoryStore(), schedule)

    def wrong() -> None:
        assert store.get("k") is not None

    with pytest.raises(AssertionError) as raised:
        schedule.run({"wrong": wrong, "idle": lambda: [store.get("k") for _ in range(100)]})
    assert "replay with Schedule(seed=1" in raised.value.__notes__[0]


def test_an_endless_run_is_stopped():
    schedule = Schedule(1, limit=50)

    def forever() -> None:
        while True:
            schedule.clock.sleep(1.0)

    with pytest.raises(AssertionError, match="no end after 50"):
        schedule.run({"forever": forever})
