"""Snapshots, cursors, collectors and everybody else at once, with faults, as seeds decide: nobody is told a lie.

Each run's history of appends, reads and heads is checked for linearizability; each snapshot shows what there was when
it was made; each cursor's consumer gets every entry once, in order; nothing that anybody needs is deleted, and what
nobody needs is. An operation is one call of storage, registry or base: between any two of them anybody may go on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.simulation import whole_crowd as crowds
from tests.simulation.linearizable import Look, Read
from tests.simulation.whole_crowd import HOUR, WholeCrowd, whole_crowd

SEEDS = 20  # in one test
OPERATIONS = 10_000  # that such a test makes at least
OFTEN, LONG = 10, 100


def operations(seeds: Iterable[int]) -> int:
    return sum(whole_crowd(seed).calls for seed in seeds)


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


def test_a_shared_cursor_that_is_dropped_while_the_other_one_makes_it_begins_anew() -> None:
    assert max(len(whole_crowd(seed).shared) for seed in (308, 385, 837)) > 1


@pytest.mark.parametrize("seed", [1318, 1717, 1736])
def test_who_makes_saves_or_drops_a_cursor_beside_others_is_told_nothing_wrong(seed: int) -> None:
    whole_crowd(seed)


def test_two_runs_of_a_seed_are_one() -> None:
    first, second = whole_crowd(5), whole_crowd(5)

    assert first.schedule.choices == second.schedule.choices
    assert first.lake.world.plan.calls == second.lake.world.plan.calls
    assert first.lake.world.plan.injected == second.lake.world.plan.injected
    assert first.lake.history == second.lake.history
    assert first.sink == second.sink
    assert first.lake.stored() == second.lake.stored()


def test_a_seed_that_fails_says_how_to_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(crowd: WholeCrowd) -> None:
        raise AssertionError("something is wrong")

    monkeypatch.setattr(WholeCrowd, "_finish", fails)
    with pytest.raises(AssertionError, match="something is wrong") as raised:
        whole_crowd(17)

    assert any(
        re.fullmatch(r"replay: \S+python -m tests\.simulation\.whole_crowd 17", n) for n in raised.value.__notes__
    )
    assert crowds.__name__ == "tests.simulation.whole_crowd"


@pytest.mark.long
@pytest.mark.parametrize("block", range(1, 21))
def test_nobody_is_told_what_is_not_so_when_whole_operations_come_between_two_calls(block: int) -> None:
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        whole_crowd(seed, long_turns=True)


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
    "delivered",
    "a read",
    "a head",
    "unanswered",
    "rounds",
    "versions of the base",
}


def test_a_few_seeds_meet_every_fault_and_every_circumstance() -> None:
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        for long_turns in (False, True):
            met += circumstances(whole_crowd(seed, long_turns=long_turns))

    assert met.keys() == FAULTS | CIRCUMSTANCES
    assert all(count >= 5 for count in met.values()), met


def circumstances(crowd: WholeCrowd) -> Counter[str]:
    """How often it met what."""
    lake = crowd.lake
    met = Counter(fault.kind for _, fault in lake.world.plan.injected)
    met += crowd.met
    met["a clock is an hour ahead"] = list(lake.skews.values()).count(HOUR)
    met["a clock is an hour behind"] = list(lake.skews.values()).count(-HOUR)
    met["a stall that is longer than a collection"] = crowd.slept_through_collections()
    met["a snapshot has expired"] = crowd.expired
    met["a cursor's consumer has read"] = sum(map(len, crowd.sink.values()))
    met["delivered"] = sum(bool(entry.summary.source) for entry in lake.world.log.values())
    met["a read"] = sum(isinstance(one, Read) for one in lake.history)
    met["a head"] = sum(isinstance(one, Look) for one in lake.history)
    met["unanswered"] = sum(one.may_never_happen for one in lake.history)
    met["rounds"] = lake.region("reader").head().collector_round
    met["versions of the base"] = lake.base.newest
    return met
