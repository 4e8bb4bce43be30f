"""Snapshots, cursors, collectors and everybody else at once, with faults, as seeds decide: nobody is told a lie.

Each run's history of appends, reads and heads is checked for linearizability; each snapshot shows what there was when
it was made; each cursor's consumer gets every entry once, in order; nothing that anybody needs is deleted, and what
nobody needs is. An operation is one call of storage, registry or base: between any two of them anybody may go on.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from tests.simulation import whole_actors as actor_runs
from tests.simulation.consumers import Consumers
from tests.simulation.faults import Call, FaultPlan
from tests.simulation.linearizable import Look, Read
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.situations import noted
from tests.simulation.whole_actors import HOUR, WholeActors, whole_actors
from tests.simulation.whole_table_env import WholeTableEnv

SEEDS = 20  # in one test
OPERATIONS = 10_000  # that such a test makes at least
OFTEN, LONG = 10, 100


def operations(seeds: Iterable[int]) -> int:
    return sum(whole_actors(seed).calls for seed in seeds)


@pytest.mark.parametrize("block", range(OFTEN))
def test_nobody_is_told_what_is_not_so(block: int) -> None:
    assert operations(range(block * SEEDS, (block + 1) * SEEDS)) >= OPERATIONS


@pytest.mark.long
@pytest.mark.parametrize("block", range(OFTEN, OFTEN + LONG))
def test_nobody_is_told_what_is_not_so_in_many_more_seeds(block: int) -> None:
    assert operations(range(block * SEEDS, (block + 1) * SEEDS)) >= OPERATIONS


def test_these_are_a_hundred_thousand_operations_and_a_million_long_ones() -> None:
    assert OFTEN * OPERATIONS >= 100_000
    assert LONG * OPERATIONS >= 1_000_000


class Sharers(WholeActors):
    """Consumers of two cursors, one shared, at each other's heels; few others, who write and collect."""

    def _actors(self) -> dict[str, Callable[[], object]]:
        acts = {
            **{f"sharer {number}": (self.consumers.shares, 5) for number in range(3)},
            "consumer": (self.consumers.follows("c"), 8),
            "writer": (self._writes(), 12),
            "flusher": (self._flushes, 6),
            "merger": (self._merges, 6),
            "collector": (self._collects, 6),
        }
        return {name: self._often(name, *act, random.Random(self.dice.random())) for name, act in acts.items()}


def test_consumers_who_make_set_save_or_drop_a_cursor_beside_others_are_told_nothing_wrong() -> None:
    met: Counter[str] = Counter()
    for seed in range(2 * SEEDS):
        with noted(seed):
            met += Sharers(seed).run().met

    # One that was dropped while another consumer made it, and is made again, begins anew.
    assert met.keys() > {"a cursor is dropped that was read", "a cursor to drop is gone", "a cursor is set"}


@pytest.mark.long
@pytest.mark.parametrize("long_turns", [False, True])
def test_consumers_beside_others_are_told_nothing_wrong_in_many_more_seeds(long_turns: bool) -> None:
    for seed in range(2 * SEEDS, 40 * SEEDS):
        with noted(seed):
            Sharers(seed, long_turns=long_turns).run()


def test_saves_of_a_shared_cursor_that_are_answered_in_another_order_have_nothing_in_common() -> None:
    table_env, met = WholeTableEnv(), Counter[str]()
    consumers = Consumers(table_env, met)
    with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(table_env.base):
        for key in range(3):
            table_env.put("writer", {key: True})

        def overtaken(call: Call) -> None:
            if call.process == "slow" and call.method == "read" and call.key.startswith("C#"):
                table_env.environment.plan = FaultPlan()
                consumers.takes_its_share("fast", limit=1)

        table_env.environment.plan = FaultPlan(overtaken)
        consumers.takes_its_share("slow", limit=1)
        consumers.catch_up()

    assert met["saves are answered in another order"] == 1
    assert [shared.saved for shared in consumers.shared.values()] == [[2, 1]]


def test_two_runs_of_a_seed_are_one() -> None:
    first, second = whole_actors(5), whole_actors(5)

    assert first.schedule.choices == second.schedule.choices
    assert first.table_env.environment.plan.calls == second.table_env.environment.plan.calls
    assert first.table_env.environment.plan.injected == second.table_env.environment.plan.injected
    assert first.table_env.history == second.table_env.history
    assert first.consumers.kept == second.consumers.kept
    assert first.table_env.stored() == second.table_env.stored()


def test_a_seed_that_fails_says_how_to_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(actors: WholeActors) -> None:
        raise AssertionError("something is wrong")

    monkeypatch.setattr(WholeActors, "_finish", fails)
    with pytest.raises(AssertionError, match="something is wrong") as raised:
        whole_actors(17)

    assert any(
        re.fullmatch(r"replay: \S+python -m tests\.simulation\.whole_actors 17", n) for n in raised.value.__notes__
    )
    assert actor_runs.__name__ == "tests.simulation.whole_actors"


@pytest.mark.long
@pytest.mark.parametrize("block", range(1, 21))
def test_nobody_is_told_what_is_not_so_when_whole_operations_come_between_two_calls(block: int) -> None:
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        whole_actors(seed, long_turns=True)


FAULTS = {"deny", "fail before", "fail after", "crash before", "crash after", "late", "stall"}
CIRCUMSTANCES = {
    "a stale head",
    "a listing that shows less",
    "a listing that breaks off",
    "a batch again",
    "a batch that is cut otherwise",
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
    "a cursor to drop is gone",
    "a set is refused",
    "saves are answered in another order",
}


def test_a_few_seeds_meet_every_fault_and_every_circumstance() -> None:
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        for long_turns in (False, True):
            met += circumstances(whole_actors(seed, long_turns=long_turns))

    assert met.keys() - RARE == FAULTS | CIRCUMSTANCES
    assert all(met[circumstance] >= 5 for circumstance in met.keys() - RARE), met


def circumstances(actors: WholeActors) -> Counter[str]:
    """How often it met what."""
    table_env = actors.table_env
    met = Counter(fault.kind for _, fault in table_env.environment.plan.injected)
    met += actors.met
    met["a clock is an hour ahead"] = list(table_env.skews.values()).count(HOUR)
    met["a clock is an hour behind"] = list(table_env.skews.values()).count(-HOUR)
    met["a stall that is longer than a collection"] = actors.slept_through_collections()
    met["a snapshot has expired"] = actors.expired
    met["delivered"] = sum(bool(entry.summary.applied_sequences) for entry in table_env.environment.log.values())
    met["a read"] = sum(isinstance(one, Read) for one in table_env.history)
    met["a head"] = sum(isinstance(one, Look) for one in table_env.history)
    met["unanswered"] = sum(one.may_never_happen for one in table_env.history)
    met["rounds"] = table_env.region("reader").head().collector_round
    met["versions of the base"] = table_env.base.newest
    return met
