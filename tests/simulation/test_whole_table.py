"""All steps of a row, from append to a merged and compacted base, with a fault at every call of every step.

The calls of store, registry and Lance share one numbering. Each run starts from the table after the earlier steps.
After the fault a fresh process recovers. If a write lands only then, another process recovers. Each call meets one
fault, in turn. The tests under `long` try every fault at each call, and also the rest of the scenario after it.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import lance
import pytest

from lancelsm.errors import Contended, Invalid
from lancelsm.wal.claim import claim
from tests.simulation import seam
from tests.simulation.environment import OWNER, PASSING, raised
from tests.simulation.faults import (
    FAIL_AFTER,
    Call,
    Crash,
    Fault,
    FaultPlan,
    late,
)
from tests.simulation.situations import note_on_failure
from tests.simulation.table_environment import READ_FAULTS, WRITE_FAULTS, WRITING, TableEnvironment, lease
from tests.simulation.table_log import keys

LEFT, RIGHT = keys(0)[:8], keys(1)[:8]
LOADED = (*LEFT[:3], *RIGHT[:3])

Step = Callable[[TableEnvironment, str], object]


def _claim(environment: TableEnvironment, process: str) -> None:
    with environment.at(process):
        for region in environment.table(process).list_regions():
            claim(region, owner=OWNER)


def _read(environment: TableEnvironment, process: str) -> None:
    with environment.at(process):
        table = environment.table(process)
        environment.read(table)
        environment.read(table, get=[*LEFT, *RIGHT])


SCENARIO: dict[str, Step] = {
    "create": lambda environment, process: environment.create(process, loaded=LOADED),
    "upsert in both regions": lambda environment, process: environment.write(
        process, upsert=[LEFT[0], RIGHT[0], LEFT[3], RIGHT[3], LEFT[4]]
    ),
    "delete": lambda environment, process: environment.write(process, delete=[LEFT[1], LEFT[3], LEFT[7]]),
    "flush": lambda environment, process: environment.flush(process),
    "upsert again": lambda environment, process: environment.write(process, upsert=[LEFT[1], LEFT[0]]),
    "change the columns": lambda environment, process: [environment.change_columns(process) for _ in range(2)],
    "claim": _claim,
    "delete in both regions": lambda environment, process: environment.write(
        process, delete=[RIGHT[1], LEFT[2], RIGHT[3]]
    ),
    "flush again": lambda environment, process: environment.flush(process),
    "compact": lambda environment, process: environment.compact(process),
    "merge": lambda environment, process: environment.merge(process),
    "upsert what was deleted": lambda environment, process: environment.write(process, upsert=[RIGHT[3], LEFT[3]]),
    "flush a third time": lambda environment, process: environment.flush(process),
    "read": _read,
    "index": lambda environment, process: environment.index(),
    "merge again": lambda environment, process: environment.merge(process),
    "optimize": lambda environment, process: environment.optimize(process),
    "delete all": lambda environment, process: environment.write(process, delete=[*LEFT, *RIGHT]),
}
STEPS = [name for name in SCENARIO if name != "index"]  # another tool makes this step, so it has no faults
OFTEN = [
    "create",
    "upsert in both regions",
    "flush",
    "change the columns",
    "claim",
    "compact",
    "merge",
    "read",
    "merge again",
    "optimize",
]
# The long tests take every call. These take one of so many calls of a step that makes most calls.
SHARE = {"change the columns": 2, "compact": 3, "optimize": 4}
OTHERS: dict[str, Step] = {
    "flushes": lambda environment, process: environment.flush(process),
    "upserts": lambda environment, process: environment.write(process, upsert=[LEFT[0], RIGHT[5], LEFT[5]]),
    "merges": lambda environment, process: environment.merge(process),
    "deletes, flushes, merges": lambda environment, process: (
        environment.write(process, delete=[LEFT[0], RIGHT[0]]),
        environment.flush(process),
        environment.merge(process),
    ),
    "optimizes": lambda environment, process: environment.optimize(process),
    "claims": _claim,
    "changes the columns": lambda environment, process: environment.change_columns(process),
    "appends to the base": lambda environment, process: environment.foreign_commit(
        lance.dataset(environment.path), "append"
    ),
    "appends to the base, deletes a row": lambda environment, process: (
        environment.foreign_commit(lance.dataset(environment.path), "append"),
        environment.foreign_commit(lance.dataset(environment.path), "delete"),
    ),
    "compacts the base": lambda environment, process: environment.foreign_commit(
        lance.dataset(environment.path), "compact"
    ),
    "configures the base": lambda environment, process: environment.foreign_commit(
        lance.dataset(environment.path), "configure"
    ),
}
BESIDE = ["flush", "merge", "read", "optimize"]


def faults_of(call: Call) -> tuple[Fault, ...]:
    return WRITE_FAULTS if call.method in WRITING else READ_FAULTS


def before(step: str, path: Path) -> TableEnvironment:
    """Create the table as the earlier steps leave it."""
    environment = TableEnvironment(path)
    with environment:
        for name, act in SCENARIO.items():
            if name == step:
                break
            act(environment, name)
    return environment


def calls(start: TableEnvironment, step: str, path: Path) -> list[Call]:
    """Return the calls of a step to store, registry and Lance without faults."""
    with start.fork(path) as environment:
        SCENARIO[step](environment, "victim")
        return environment.plan.calls


def run(start: TableEnvironment, step: str, path: Path, call: Call, fault: Fault, *, rest: bool) -> None:
    """Run a step with one fault, then recover. With `rest`, run the rest of the scenario before the recovery."""
    with (
        note_on_failure(step, call, fault),
        contextlib.redirect_stdout(io.StringIO()),
        start.fork(path) as environment,
    ):
        environment.plan = FaultPlan.at(call.index, fault, clock=environment.schedule.clock)
        error = raised(lambda: SCENARIO[step](environment, "victim"))
        assert error is None or isinstance(error, (Crash, *PASSING)), error
        if step == "create":
            again = raised(lambda: environment.create("creator", loaded=LOADED))
            assert again is None or (isinstance(again, Invalid) and "exists" in again.message), again
        if rest:
            following = list(SCENARIO)[list(SCENARIO).index(step) + 1 :]
            for name in following:
                environment.schedule.clock.advance(61.0)  # the lease of a crashed process
                SCENARIO[name](environment, name)
        environment.recover("first to recover")
        if fault.kind == "late":
            environment.plan.land()
            environment.recover("second to recover")


def sampled(found: Iterable[Call]) -> list[tuple[Call, Fault]]:
    """Choose one fault for each call: the next one for each call of the same method."""
    turns: dict[str, int] = {}
    chosen = []
    for call in found:
        turn = turns[call.method] = turns.get(call.method, -1) + 1
        chosen.append((call, faults_of(call)[turn % len(faults_of(call))]))
    return chosen


@pytest.mark.rest
@pytest.mark.parametrize("step", OFTEN)
def test_a_fault_at_a_call_neither_loses_nor_duplicates_nor_revives_a_row(step: str, tmp_path: Path) -> None:
    start = before(step, tmp_path / "start")
    chosen = calls(start, step, tmp_path / "well")[:: SHARE.get(step, 1)]
    for number, (call, fault) in enumerate(sampled(chosen)):
        run(start, step, tmp_path / str(number), call, fault, rest=False)


def interrupt(
    start: TableEnvironment, step: str, path: Path, call: Call, other: str, fault: Fault | None = None
) -> None:
    """Run a step with another operation right before one of its calls. The write before that call may meet a fault."""

    def decide(now: Call) -> Fault | None:
        if now.index == call.index:
            done = raised(lambda: OTHERS[other](environment, "other"))
            assert done is None or isinstance(done, PASSING), done
        return fault if now.index == call.index - 1 and now.method in WRITING else None

    with (
        note_on_failure(step, call, other, fault),
        contextlib.redirect_stdout(io.StringIO()),
        start.fork(path) as environment,
        lease(held=False),
    ):
        environment.plan = FaultPlan(decide, clock=environment.schedule.clock)
        error = raised(lambda: SCENARIO[step](environment, "victim"))
        assert error is None or isinstance(error, (Crash, *PASSING) if fault else Contended), error
        environment.recover("recoverer")


@pytest.mark.rest
@pytest.mark.parametrize("step", BESIDE)
def test_another_operation_before_a_call_has_only_its_own_effect(step: str, tmp_path: Path) -> None:
    start = before(step, tmp_path / "start")
    chosen = calls(start, step, tmp_path / "well")[:: 2 * SHARE.get(step, 1)]
    for call, other in zip(chosen, itertools.cycle(OTHERS), strict=False):
        interrupt(start, step, tmp_path / str(call.index), call, other)


@pytest.mark.long
@pytest.mark.parametrize("fault", [None, FAIL_AFTER, late(2)], ids=str)
@pytest.mark.parametrize("step", STEPS[1:])
def test_every_operation_before_any_call_has_only_its_own_effect(
    step: str, fault: Fault | None, tmp_path: Path
) -> None:
    start = before(step, tmp_path / "start")
    for call in calls(start, step, tmp_path / "well"):
        for other in OTHERS:
            interrupt(start, step, tmp_path / f"{call.index} {other}", call, other, fault)


@pytest.mark.long
@pytest.mark.parametrize("rest", [False, True], ids=["recovery", "the rest of the scenario"])
@pytest.mark.parametrize("step", STEPS)
def test_every_fault_at_any_call_neither_loses_nor_duplicates_nor_revives_a_row(
    step: str, rest: bool, tmp_path: Path
) -> None:
    start = before(step, tmp_path / "start")
    for call in calls(start, step, tmp_path / "well"):
        for number, fault in enumerate(faults_of(call)):
            run(start, step, tmp_path / f"{call.index} {number}", call, fault, rest=rest)


def test_the_simulation_knows_every_function_of_the_seam() -> None:
    listed = [
        *(seam.READS, seam.STREAMS, seam.EXPIRING, seam.WRITES, seam.OUTER_WRITES),
        *(seam.COMPOSED, seam.PURE, seam.ASIDE, seam.INDEXES),
        *(seam.COLLECTING_READS, seam.COLLECTING_WRITES),
    ]
    public = {name for name in set().union(*listed) if "._" not in name}

    assert seam.functions() == public
    assert sum(len(names) for names in listed) == len(set().union(*listed)), "a function is in two sets"


def test_no_module_keeps_the_calls_of_a_simulation_that_has_ended(tmp_path: Path) -> None:
    with TableEnvironment(tmp_path / "table") as environment:
        for name, act in SCENARIO.items():
            act(environment, name)

    library = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "lancelsm"}
    kept = [
        f"{name}.{attribute}"
        for name, module in library.items()
        for attribute, value in vars(module).items()
        if getattr(value, "__module__", None) == seam.__name__
    ]
    assert kept == []


def test_the_scenario_makes_every_call_of_the_seam(tmp_path: Path) -> None:
    with TableEnvironment(tmp_path / "table") as environment:
        for name, act in SCENARIO.items():
            act(environment, name)
        environment.recover("reader")
        made = {call.method for call in environment.plan.calls if call.port == "lance"}

    assert made == seam.READS | seam.STREAMS | seam.WRITES | seam.OUTER_WRITES
