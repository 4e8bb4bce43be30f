"""The whole way of a row, from append to a merged and compacted base, with a fault at every call of every step.

Store, registry and the seam to Lance share one numbering. Each run starts from the table as the steps before left it;
after the fault a fresh process recovers; if a write lands only then, another one recovers. Here one fault is tried at
each call, in turn; all of them, and the rest of the story behind them, under `long`.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import lance
import pytest

from lancelsm.errors import Contended, Invalid
from lancelsm.wal.claim import claim
from tests.simulation import seam
from tests.simulation.faults import (
    CRASH_AFTER,
    CRASH_BEFORE,
    DENY,
    FAIL_AFTER,
    FAIL_BEFORE,
    Call,
    Crash,
    Fault,
    FaultPlan,
    late,
    stall,
)
from tests.simulation.situations import noted
from tests.simulation.table_log import keys
from tests.simulation.table_world import WRITING, TableWorld, lease
from tests.simulation.world import OWNER, PASSING, told

LEFT, RIGHT = keys(0)[:8], keys(1)[:8]
LOADED = (*LEFT[:3], *RIGHT[:3])

Step = Callable[[TableWorld, str], object]


def _claims(world: TableWorld, process: str) -> None:
    with world.at(process):
        for region in world.table(process).regions():
            claim(region, owner=OWNER)


def _reads(world: TableWorld, process: str) -> None:
    with world.at(process):
        table = world.table(process)
        world.read(table)
        world.read(table, get=[*LEFT, *RIGHT])


STORY: dict[str, Step] = {
    "create": lambda world, process: world.create(process, loaded=LOADED),
    "upsert in both regions": lambda world, process: world.write(
        process, upsert=[LEFT[0], RIGHT[0], LEFT[3], RIGHT[3], LEFT[4]]
    ),
    "delete": lambda world, process: world.write(process, delete=[LEFT[1], LEFT[3], LEFT[7]]),
    "flush": lambda world, process: world.flush(process),
    "upsert again": lambda world, process: world.write(process, upsert=[LEFT[1], LEFT[0]]),
    "claim": _claims,
    "delete in both regions": lambda world, process: world.write(process, delete=[RIGHT[1], LEFT[2], RIGHT[3]]),
    "flush again": lambda world, process: world.flush(process),
    "merge": lambda world, process: world.merge(process),
    "upsert what was deleted": lambda world, process: world.write(process, upsert=[RIGHT[3], LEFT[3]]),
    "flush a third time": lambda world, process: world.flush(process),
    "read": _reads,
    "index": lambda world, process: world.index(),
    "merge again": lambda world, process: world.merge(process),
    "optimize": lambda world, process: world.optimize(process),
    "delete all": lambda world, process: world.write(process, delete=[*LEFT, *RIGHT]),
}
STEPS = [name for name in STORY if name != "index"]  # what another tool does has no faults of ours
OFTEN = ["create", "upsert in both regions", "flush", "claim", "merge", "read", "merge again", "optimize"]
READ = (FAIL_BEFORE, CRASH_BEFORE)
WRITE = (
    FAIL_AFTER,
    CRASH_BEFORE,
    late(1),
    CRASH_AFTER,
    FAIL_BEFORE,
    late(3),
    DENY,
    late(1_000_000),
    stall(5.0),
    stall(200.0),
)
OTHERS: dict[str, Step] = {
    "flushes": lambda world, process: world.flush(process),
    "upserts": lambda world, process: world.write(process, upsert=[LEFT[0], RIGHT[5], LEFT[5]]),
    "merges": lambda world, process: world.merge(process),
    "deletes, flushes, merges": lambda world, process: (
        world.write(process, delete=[LEFT[0], RIGHT[0]]),
        world.flush(process),
        world.merge(process),
    ),
    "optimizes": lambda world, process: world.optimize(process),
    "claims": _claims,
    "appends to the base": lambda world, process: world.foreign_commit(lance.dataset(world.place), "append"),
    "appends to the base, deletes it": lambda world, process: (
        world.foreign_commit(lance.dataset(world.place), "append"),
        world.foreign_commit(lance.dataset(world.place), "delete"),
    ),
    "compacts the base": lambda world, process: world.foreign_commit(lance.dataset(world.place), "compact"),
    "configures the base": lambda world, process: world.foreign_commit(lance.dataset(world.place), "configure"),
}
BESIDE = ["flush", "merge", "read", "optimize"]


def faults_of(call: Call) -> tuple[Fault, ...]:
    return WRITE if call.method in WRITING else READ


def before(step: str, place: Path) -> TableWorld:
    """The table as the steps before this one leave it."""
    world = TableWorld(place)
    with world:
        for name, act in STORY.items():
            if name == step:
                break
            act(world, name)
    return world


def calls(start: TableWorld, step: str, place: Path) -> list[Call]:
    """What a step asks of store, registry and Lance when all goes well."""
    with start.fork(place) as world:
        STORY[step](world, "victim")
        return world.plan.calls


def run(start: TableWorld, step: str, place: Path, call: Call, fault: Fault, *, rest: bool) -> None:
    """A step with one fault, then recovery; with `rest` of the story before it."""
    with noted(step, call, fault), contextlib.redirect_stdout(io.StringIO()), start.fork(place) as world:
        world.plan = FaultPlan.at(call.index, fault, clock=world.schedule.clock)
        heard = told(lambda: STORY[step](world, "victim"))
        assert heard is None or isinstance(heard, (Crash, *PASSING)), heard
        if step == "create":
            again = told(lambda: world.create("creator", loaded=LOADED))
            assert again is None or (isinstance(again, Invalid) and "exists" in again.message), again
        if rest:
            following = list(STORY)[list(STORY).index(step) + 1 :]
            for name in following:
                world.schedule.clock.advance(61.0)  # the lease of the dead
                STORY[name](world, name)
        world.recover("first to recover")
        if fault.kind == "late":
            world.plan.land()
            world.recover("second to recover")


def sampled(found: Iterable[Call]) -> list[tuple[Call, Fault]]:
    """One fault for each call, another one each time that the same method is called."""
    turns: dict[str, int] = {}
    chosen = []
    for call in found:
        turn = turns[call.method] = turns.get(call.method, -1) + 1
        chosen.append((call, faults_of(call)[turn % len(faults_of(call))]))
    return chosen


@pytest.mark.parametrize("step", OFTEN)
def test_a_fault_at_any_call_loses_nothing_doubles_nothing_and_brings_nothing_back(step: str, tmp_path: Path) -> None:
    start = before(step, tmp_path / "start")
    for number, (call, fault) in enumerate(sampled(calls(start, step, tmp_path / "well"))):
        run(start, step, tmp_path / str(number), call, fault, rest=False)


def interrupt(start: TableWorld, step: str, place: Path, call: Call, other: str, fault: Fault | None = None) -> None:
    """A step, and another's whole operation right before one of its calls; the write before that may meet a fault."""

    def decide(now: Call) -> Fault | None:
        if now.index == call.index:
            done = told(lambda: OTHERS[other](world, "other"))
            assert done is None or isinstance(done, PASSING), done
        return fault if now.index == call.index - 1 and now.method in WRITING else None

    with (
        noted(step, call, other, fault),
        contextlib.redirect_stdout(io.StringIO()),
        start.fork(place) as world,
        lease(held=False),
    ):
        world.plan = FaultPlan(decide, clock=world.schedule.clock)
        heard = told(lambda: STORY[step](world, "victim"))
        assert heard is None or isinstance(heard, (Crash, *PASSING) if fault else Contended), heard
        world.recover("recoverer")


@pytest.mark.parametrize("step", BESIDE)
def test_another_operation_before_any_call_changes_nothing_but_what_it_does(step: str, tmp_path: Path) -> None:
    start = before(step, tmp_path / "start")
    others = itertools.cycle(OTHERS)
    for call, other in zip(calls(start, step, tmp_path / "well"), others, strict=False):
        interrupt(start, step, tmp_path / str(call.index), call, other)


@pytest.mark.long
@pytest.mark.parametrize("fault", [None, FAIL_AFTER, late(2)], ids=str)
@pytest.mark.parametrize("step", STEPS[1:])
def test_any_operation_before_any_call_changes_nothing_but_what_it_does(
    step: str, fault: Fault | None, tmp_path: Path
) -> None:
    start = before(step, tmp_path / "start")
    for call in calls(start, step, tmp_path / "well"):
        for other in OTHERS:
            interrupt(start, step, tmp_path / f"{call.index} {other}", call, other, fault)


@pytest.mark.long
@pytest.mark.parametrize("rest", [False, True], ids=["recovery", "the rest of the story"])
@pytest.mark.parametrize("step", STEPS)
def test_every_fault_at_any_call_loses_nothing_doubles_nothing_and_brings_nothing_back(
    step: str, rest: bool, tmp_path: Path
) -> None:
    start = before(step, tmp_path / "start")
    for call in calls(start, step, tmp_path / "well"):
        for number, fault in enumerate(faults_of(call)):
            run(start, step, tmp_path / f"{call.index} {number}", call, fault, rest=rest)


def test_every_function_of_the_seam_is_known_to_the_simulation() -> None:
    listed = [
        *(seam.READS, seam.STREAMS, seam.WRITES, seam.OUTER_WRITES, seam.COMPOSED, seam.PURE, seam.ASIDE),
        *(seam.COLLECTING_READS, seam.COLLECTING_WRITES),
    ]
    public = {name for name in set().union(*listed) if "._" not in name}

    assert seam.functions() == public
    assert sum(len(names) for names in listed) == len(set().union(*listed)), "a function is in two sets"


def test_the_story_makes_every_call_of_the_seam(tmp_path: Path) -> None:
    with TableWorld(tmp_path / "table") as world:
        for name, act in STORY.items():
            act(world, name)
        world.recover("reader")
        made = {call.method for call in world.plan.calls if call.port == "lance"}

    assert made == seam.READS | seam.STREAMS | seam.WRITES | seam.OUTER_WRITES
