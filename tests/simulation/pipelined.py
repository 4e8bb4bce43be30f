"""A pipelined writer of one region in a schedule: what its caller does, what happens around it, and what must hold.

Its threads are actors, so a seed replays every race among them.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa

from lancelsm.common.committed import CommittedEntry
from lancelsm.common.layout import Position
from lancelsm.common.settings import Settings
from lancelsm.errors import Fenced, LsmError
from lancelsm.region.head import Status
from lancelsm.wal import pipeline, region_writer
from lancelsm.wal.claim import claim
from lancelsm.wal.pipeline import Pipeline
from lancelsm.wal.region_writer import RegionWriter
from tests.simulation.faults import Call, Crash, Fault, FaultPlan
from tests.simulation.schedule import Schedule
from tests.simulation.threads import Threads
from tests.simulation.world import OWNER, SCHEMA, World, numbers_in, row, told

ME = "default-alone"


@dataclass(kw_only=True)
class PipelinedWorld(World):
    """Also watches whom this writer takes the region from."""

    acknowledgements: list[int] = field(default_factory=list)
    given_back: BaseException | None = None

    def committed(self, old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> None:
        super().committed(old, new)
        if old is not None and old["epoch"] < new["epoch"] and new["owner"] == ME:
            assert old["owner"] in (OWNER, ME), f"taken from {old['owner']!r}"

    def heard(self, number: int, outcome: CommittedEntry | BaseException) -> None:
        assert number not in self.acknowledged, f"row {number} was answered twice"
        assert number not in self.told, f"row {number} was answered twice"
        if isinstance(outcome, BaseException):
            self.told[number] = outcome
        else:
            self.acknowledged[number] = outcome.position
            self.acknowledgements.append(number)

    @property
    def crashed(self) -> bool:
        return "actor" in self.plan.crashed


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One life of a writer."""

    seed: int = 0
    depth: int = 3
    rows: int = 6
    budget_seconds: float = 5.0
    mutant: type[Pipeline] = Pipeline

    def world(self) -> PipelinedWorld:
        return PipelinedWorld(schedule=Schedule(self.seed), budget_seconds=self.budget_seconds)


Decide = Callable[[PipelinedWorld, Call], Fault | None]


def live(run: Run, decide: Decide = lambda world, call: None, **others: Callable[[PipelinedWorld], object]) -> Any:
    """Open, write, close, with faults and other actors; then others go on, late writes land, and all is audited."""
    with contextlib.redirect_stdout(io.StringIO()):
        world = run.world()
        world.plan = plan = FaultPlan(lambda call: decide(world, call), clock=world.schedule.clock)
        threads = Threads(world.schedule)
        drafted = {"Pipeline": run.mutant, "draft": lambda rows, at: row(rows.column("id")[0].as_py())}
        with threads.instead_of(pipeline), mock.patch.multiple(region_writer, **drafted):
            target: Any = SimpleNamespace(settings=Settings(), owner=OWNER)
            writer = RegionWriter(world.region("actor"), target, owner=ME, lenders=(target.owner,), depth=run.depth)
            actors = {name: lambda other=other: told(lambda: other(world)) for name, other in others.items()}
            world.schedule.run({"actor": lambda: _use(world, writer, run), **threads.workers(), **actors})
        plan.stop()
        after(world)
        plan.land()
        told(lambda: world.write(world.region("last", faulty=False), 92))
        audit(world, run)
    return world


def _use(world: PipelinedWorld, writer: RegionWriter, run: Run) -> None:
    dice = random.Random(f"caller {run.seed}")
    for number in range(1, run.rows + 1):
        world.writers[number] = ME
        world.floors[number] = max(world.acknowledged.values(), default=Position(0))
        try:
            writer.start(
                pa.table([[number], [False]], schema=SCHEMA), lambda outcome, n=number: world.heard(n, outcome)
            )
        except (LsmError, Crash) as error:
            world.heard(number, error)
        while dice.random() < 0.1 and number not in world.acknowledged and number not in world.told:
            world.schedule.switch()
    world.given_back = told(writer.give_back)


def after(world: PipelinedWorld) -> None:
    """The table's ordinary writers come back."""
    region = world.region("next", faulty=False)
    heard = told(lambda: world.write(region, 90))
    holder = region.head().owner
    if holder == ME:
        assert world.crashed or world.given_back is not None, "closed, but the region was not given back"
        assert isinstance(heard, Fenced)
        assert ME in str(heard)
        assert f"lancelsm region claim memory://t --region {region.id}" in str(heard)
        claim(region, owner=OWNER)
        world.write(region, 91)
    elif holder == OWNER and region.head().status is Status.OPEN:
        assert heard is None


def audit(world: PipelinedWorld, run: Run) -> None:
    ours = set(range(1, run.rows + 1))
    assert ours <= {*world.acknowledged, *world.told}, f"never answered: {ours - {*world.acknowledged, *world.told}}"
    in_log = [number for _, entry in sorted(world.log.items()) for number in numbers_in(entry) if number in ours]
    assert in_log == sorted(in_log), f"not in the order of submission: {in_log}"
    assert world.acknowledgements == sorted(world.acknowledgements), f"not in order: {world.acknowledgements}"
    _audit_epochs(world)
    world.audit()


def _audit_epochs(world: PipelinedWorld) -> None:
    """Between an entry that was given up and a later one that was not lies a claim."""
    epochs = {n: entry.summary.epoch for entry in world.log.values() for n in numbers_in(entry) if n in world.writers}
    for given_up, later in itertools.product(world.told, world.acknowledged):
        if given_up < later < 50 and given_up in epochs:
            assert epochs[given_up] < epochs[later], f"{later} follows {given_up}, which was given up, in one epoch"
