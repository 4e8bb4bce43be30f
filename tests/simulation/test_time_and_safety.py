"""Actors of every role on one table, with faults, as seeds decide: every result is right.

The history of appends, reads and heads of each run is checked for linearizability. Each snapshot shows the state at its
creation. The consumer of each cursor gets every entry once and in order. Objects that are needed are kept, all others
are deleted. An operation is one call of storage, registry or base: between any two of them any actor may continue.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from tests.simulation import whole_table_actors
from tests.simulation.consumers import Consumers
from tests.simulation.faults import Call, FaultPlan
from tests.simulation.linearizable import Read, ReadHead
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.situations import note_on_failure
from tests.simulation.whole_table_actors import HOUR, WholeTableActors, run_whole_table_actors
from tests.simulation.whole_table_env import WholeTableEnv

SEEDS = 20  # seeds in one test
OPERATIONS = 10_000  # operations that such a test makes at least
OFTEN, LONG = 10, 100


def operations(seeds: Iterable[int]) -> int:
    return sum(run_whole_table_actors(seed).calls for seed in seeds)


@pytest.mark.rest
@pytest.mark.parametrize("block", range(OFTEN))
def test_every_result_is_right(block: int) -> None:
    assert operations(range(block * SEEDS, (block + 1) * SEEDS)) >= OPERATIONS


@pytest.mark.long
@pytest.mark.parametrize("block", range(OFTEN, OFTEN + LONG))
def test_every_result_is_right_in_many_more_seeds(block: int) -> None:
    assert operations(range(block * SEEDS, (block + 1) * SEEDS)) >= OPERATIONS


def test_the_tests_make_a_hundred_thousand_operations_and_the_long_ones_a_million() -> None:
    assert OFTEN * OPERATIONS >= 100_000
    assert LONG * OPERATIONS >= 1_000_000


class Sharers(WholeTableActors):
    """Consumers of two cursors, one of them shared, with few other actors that write and collect."""

    def _actors(self) -> dict[str, Callable[[], object]]:
        acts = {
            **{f"sharer {number}": (self.consumers.share, 5) for number in range(3)},
            "consumer": (self.consumers.consumer("c"), 8),
            "writer": (self._writer(), 12),
            "flusher": (self._flush, 6),
            "merger": (self._merge, 6),
            "collector": (self._collect, 6),
        }
        return {name: self._repeat(name, *act, random.Random(self.dice.random())) for name, act in acts.items()}


@pytest.mark.rest
def test_consumers_that_create_set_save_and_drop_cursors_get_right_results() -> None:
    met: Counter[str] = Counter()
    for seed in range(2 * SEEDS):
        with note_on_failure(seed):
            met += Sharers(seed).run().met

    # A cursor that was dropped while another consumer created it, and is created again, starts from the beginning.
    assert met.keys() > {"a cursor is dropped that was read", "a cursor to drop does not exist", "a cursor is set"}


@pytest.mark.long
@pytest.mark.parametrize("long_turns", [False, True])
def test_consumers_of_cursors_get_right_results_in_many_more_seeds(long_turns: bool) -> None:
    for seed in range(2 * SEEDS, 40 * SEEDS):
        with note_on_failure(seed):
            Sharers(seed, long_turns=long_turns).run()


def test_saves_of_a_shared_cursor_that_are_answered_in_another_order_share_no_entry() -> None:
    table_env, met = WholeTableEnv(), Counter[str]()
    consumers = Consumers(table_env, met)
    with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(table_env.base):
        for key in range(3):
            table_env.put("writer", {key: True})

        def overtakes(call: Call) -> None:
            if call.process == "slow" and call.method == "read" and call.key.startswith("C#"):
                table_env.environment.plan = FaultPlan()
                consumers.read_share("fast", limit=1)

        table_env.environment.plan = FaultPlan(overtakes)
        consumers.read_share("slow", limit=1)
        consumers.catch_up()

    assert met["saves are answered in another order"] == 1
    assert [shared.saved for shared in consumers.shared.values()] == [[2, 1]]


def test_two_runs_of_a_seed_are_identical() -> None:
    first, second = run_whole_table_actors(5), run_whole_table_actors(5)

    assert first.schedule.choices == second.schedule.choices
    assert first.table_env.environment.plan.calls == second.table_env.environment.plan.calls
    assert first.table_env.environment.plan.injected == second.table_env.environment.plan.injected
    assert first.table_env.history == second.table_env.history
    assert first.consumers.by_cursor == second.consumers.by_cursor
    assert first.table_env.stored() == second.table_env.stored()


def test_a_failed_seed_reports_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(actors: WholeTableActors) -> None:
        raise AssertionError("a violation")

    monkeypatch.setattr(WholeTableActors, "_finish", fails)
    with pytest.raises(AssertionError, match="a violation") as raised:
        run_whole_table_actors(17)

    assert any(
        re.fullmatch(r"replay: \S+python -m tests\.simulation\.whole_table_actors 17", n)
        for n in raised.value.__notes__
    )
    assert whole_table_actors.__name__ == "tests.simulation.whole_table_actors"


@pytest.mark.long
@pytest.mark.parametrize("block", range(1, 21))
def test_every_result_is_right_when_whole_operations_come_between_two_calls(block: int) -> None:
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        run_whole_table_actors(seed, long_turns=True)


FAULTS = {"deny", "fail before", "fail after", "crash before", "crash after", "late", "stall"}
CIRCUMSTANCES = {
    "a stale head",
    "a listing that ends early",
    "a listing that fails",
    "a batch again",
    "a batch with other bounds",
    "a compaction",
    "a clock is an hour ahead",
    "a clock is an hour behind",
    "a stall that is longer than a collection",
    "a snapshot has expired",
    "a cursor's consumer has read",
    "a cursor is set",
    "a set without an answer",
    "delivered",
    "a read",
    "a head",
    "unanswered",
    "rounds",
    "versions of the base",
}
RARE = {
    "a cursor is dropped that was read",
    "a cursor to drop does not exist",
    "a set is refused",
    "saves are answered in another order",
}


@pytest.mark.rest
def test_a_few_seeds_cover_every_fault_and_every_circumstance() -> None:
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        for long_turns in (False, True):
            met += circumstances(run_whole_table_actors(seed, long_turns=long_turns))

    assert met.keys() - RARE == FAULTS | CIRCUMSTANCES
    assert all(met[circumstance] >= 5 for circumstance in met.keys() - RARE), met


def circumstances(actors: WholeTableActors) -> Counter[str]:
    """Return how often a run met each fault and each circumstance."""
    table_env = actors.table_env
    met = Counter(fault.kind for _, fault in table_env.environment.plan.injected)
    met += actors.met
    met["a clock is an hour ahead"] = list(table_env.skews.values()).count(HOUR)
    met["a clock is an hour behind"] = list(table_env.skews.values()).count(-HOUR)
    met["a stall that is longer than a collection"] = actors.slept_through_collections()
    met["a snapshot has expired"] = actors.expired
    met["delivered"] = sum(bool(entry.summary.applied_sequences) for entry in table_env.environment.log.values())
    met["a read"] = sum(isinstance(one, Read) for one in table_env.history)
    met["a head"] = sum(isinstance(one, ReadHead) for one in table_env.history)
    met["unanswered"] = sum(one.may_never_happen for one in table_env.history)
    met["rounds"] = table_env.region("reader").head().collector_round
    met["versions of the base"] = table_env.base.newest
    return met
