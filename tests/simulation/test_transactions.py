"""Transactions are linearizable beside writers, readers, flushes, merges and collections, with faults at any call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.errors import Ambiguous, Contended, Unavailable
from tests.simulation.environment import raised
from tests.simulation.faults import EVERY_FAULT, Call, Crash, Fault, FaultPlan
from tests.simulation.linearizable import NEVER, Read, Transact
from tests.simulation.situations import note_on_failure
from tests.simulation.transactors import Transactors
from tests.unit.tables import faulty

SEEDS = 24


def run(seeds: range) -> Counter[str]:
    met: Counter[str] = Counter()
    for seed in seeds:
        with note_on_failure(seed):
            actors = Transactors(seed, long_turns=seed % 2 == 1).run()
        history = actors.table_env.history
        transactions = [one for one in history if isinstance(one, Transact)]
        met += actors.met
        met["transactions"] += len(transactions)
        met["without an answer"] += sum(one.answered == NEVER for one in transactions)
        met["without a change"] += sum(isinstance(one, Read) and one.actor.startswith("transactor") for one in history)
    return met


@pytest.mark.rest
def test_transactions_are_linearizable() -> None:
    met = run(range(SEEDS))

    assert met["transactions"] > 5 * SEEDS
    assert min(met[name] for name in ("without an answer", "without a change", "a function runs again")) > 2, met


@pytest.mark.long
def test_transactions_are_linearizable_in_many_more_seeds() -> None:
    run(range(SEEDS, 50 * SEEDS))


def increment(table: lancelsm.Table) -> object:
    return table.transact([1], lambda current: [{**one, "n": one["n"] + 1} for one in current.to_pylist()])


CALLS: dict[str, Callable[[lancelsm.Table], object]] = {
    "transact": increment,
    "update": lambda table: table.update(where="n >= 0", set={"n": "n + 1"}),
    "partial": lambda table: table.upsert([{"id": 1, "n": table.get([1])["n"][0].as_py() + 1}], partial=True),
}


class Run:
    """One call on a table with a fault at one of its calls, or another increment right before it."""

    def __init__(self, path: Path, act: Callable[[lancelsm.Table], object], *, at: int = -1, fault: Any = None) -> None:
        table = lancelsm.create(path, [{"id": 1, "n": 0, "s": "a"}, {"id": 2, "n": 0, "s": "b"}], primary_key="id")
        table.upsert([{"id": 1, "n": 1, "s": "a"}, {"id": 2, "n": -9, "s": "b"}])

        def decide(call: Call) -> Fault | None:
            if at >= 0 and call.index == first + at and fault is None:
                table.update(where="id = 1", set={"n": "n + 10"})
                table.run(engine="inprocess")
            return fault if at >= 0 and call.index == first + at else None

        opening = FaultPlan()
        lancelsm.open.on(faulty(opening))(table.uri)
        first = len(opening.calls)  # of the call, after those that open the table
        plan = FaultPlan(decide)
        victim = lancelsm.open.on(faulty(plan))(table.uri)
        self.error = raised(lambda: act(victim))
        self.calls = len(plan.calls) - first
        plan.land()
        plan.stop()
        self.value = table.get([1])["n"][0].as_py()
        increment(table)
        # The next append commits the entry of a writer that crashed between put and swap.
        late = {1, 2} if isinstance(self.error, Crash) and self.value == 1 else {1}
        assert table.get([1])["n"][0].as_py() - self.value in late
        assert table.get([1, 2])["s"].to_pylist() in (["a", "b"], ["b", "a"])


@pytest.mark.rest
@pytest.mark.parametrize("name", CALLS)
def test_a_fault_at_any_call_neither_loses_nor_doubles_an_increment(tmp_path: Path, name: str) -> None:
    calls = Run(tmp_path / "well", CALLS[name]).calls
    assert calls > 4
    for number in range(calls):
        for kind, fault in enumerate(EVERY_FAULT):
            with note_on_failure(name, number, fault):
                run = Run(tmp_path / f"{number} {kind}", CALLS[name], at=number, fault=fault)
                assert run.error is None or isinstance(run.error, (Crash, Ambiguous, Contended, Unavailable))
                unknown = isinstance(run.error, (Crash, Ambiguous))
                assert run.value in ({2} if run.error is None else {1, 2} if unknown else {1})


@pytest.mark.rest
@pytest.mark.parametrize("name", ["transact", "update"])
def test_another_increment_and_a_merge_before_any_call_are_counted(tmp_path: Path, name: str) -> None:
    for number in range(Run(tmp_path / "well", CALLS[name]).calls):
        with note_on_failure(name, number):
            run = Run(tmp_path / str(number), CALLS[name], at=number)
            assert (run.error, run.value) == (None, 12)
