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
from lancelsm.region.head import RegionState
from lancelsm.wal import pipeline, region_writer
from lancelsm.wal.claim import claim
from lancelsm.wal.pipeline import Pipeline
from lancelsm.wal.region_writer import RegionWriter
from tests.simulation.environment import OWNER, SCHEMA, Environment, numbers_in, raised, row
from tests.simulation.faults import Call, Crash, Fault, FaultPlan
from tests.simulation.schedule import Schedule
from tests.simulation.threads import Threads

ME = "default-alone"


@dataclass(kw_only=True)
class PipelinedEnvironment(Environment):
    """Also watches whom this writer takes the region from."""

    acknowledgements: list[int] = field(default_factory=list)
    given_back: BaseException | None = None

    def committed(self, old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> None:
        super().committed(old, new)
        if old is not None and old["epoch"] < new["epoch"] and new["owner"] == ME:
            assert old["owner"] in (OWNER, ME), f"taken from {old['owner']!r}"

    def heard(self, number: int, outcome: CommittedEntry | BaseException) -> None:
        assert number not in self.acknowledged, f"row {number} was answered twice"
        assert number not in self.raised, f"row {number} was answered twice"
        if isinstance(outcome, BaseException):
            self.raised[number] = outcome
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

    def environment(self) -> PipelinedEnvironment:
        return PipelinedEnvironment(schedule=Schedule(self.seed), budget_seconds=self.budget_seconds)


Decide = Callable[[PipelinedEnvironment, Call], Fault | None]


def live(
    run: Run, decide: Decide = lambda environment, call: None, **others: Callable[[PipelinedEnvironment], object]
) -> Any:
    """Open, write, close, with faults and other actors; then others go on, late writes land, and all is audited."""
    with contextlib.redirect_stdout(io.StringIO()):
        environment = run.environment()
        environment.plan = plan = FaultPlan(lambda call: decide(environment, call), clock=environment.schedule.clock)
        threads = Threads(environment.schedule)
        drafted = {"Pipeline": run.mutant, "draft": lambda rows, at: row(rows.column("id")[0].as_py())}
        with threads.instead_of(pipeline), mock.patch.multiple(region_writer, **drafted):
            target: Any = SimpleNamespace(settings=Settings(), owner=OWNER)
            writer = RegionWriter(
                environment.region("actor"), target, owner=ME, previous_owners=(target.owner,), depth=run.depth
            )
            actors = {name: lambda other=other: raised(lambda: other(environment)) for name, other in others.items()}
            environment.schedule.run({"actor": lambda: _use(environment, writer, run), **threads.workers(), **actors})
        plan.stop()
        after(environment)
        plan.land()
        raised(lambda: environment.write(environment.region("last", faulty=False), 92))
        audit(environment, run)
    return environment


def _use(environment: PipelinedEnvironment, writer: RegionWriter, run: Run) -> None:
    dice = random.Random(f"caller {run.seed}")
    for number in range(1, run.rows + 1):
        environment.writers[number] = ME
        environment.floors[number] = max(environment.acknowledged.values(), default=Position(0))
        try:
            writer.start(
                pa.table([[number], [False]], schema=SCHEMA), lambda outcome, n=number: environment.heard(n, outcome)
            )
        except (LsmError, Crash) as error:
            environment.heard(number, error)
        while dice.random() < 0.1 and number not in environment.acknowledged and number not in environment.raised:
            environment.schedule.switch()
    environment.given_back = raised(writer.release)


def after(environment: PipelinedEnvironment) -> None:
    """The table's ordinary writers come back."""
    region = environment.region("next", faulty=False)
    heard = raised(lambda: environment.write(region, 90))
    holder = region.head().owner
    if holder == ME:
        assert environment.crashed or environment.given_back is not None, "closed, but the region was not given back"
        assert isinstance(heard, Fenced)
        assert ME in str(heard)
        assert f"lancelsm region claim memory://t --region {region.id}" in str(heard)
        claim(region, owner=OWNER)
        environment.write(region, 91)
    elif holder == OWNER and region.head().status is RegionState.OPEN:
        assert heard is None


def audit(environment: PipelinedEnvironment, run: Run) -> None:
    ours = set(range(1, run.rows + 1))
    assert ours <= {*environment.acknowledged, *environment.raised}, (
        f"never answered: {ours - {*environment.acknowledged, *environment.raised}}"
    )
    in_log = [number for _, entry in sorted(environment.log.items()) for number in numbers_in(entry) if number in ours]
    assert in_log == sorted(in_log), f"not in the order of submission: {in_log}"
    assert environment.acknowledgements == sorted(environment.acknowledgements), (
        f"not in order: {environment.acknowledgements}"
    )
    _audit_epochs(environment)
    environment.audit()


def _audit_epochs(environment: PipelinedEnvironment) -> None:
    """Between an entry that was given up and a later one that was not lies a claim."""
    epochs = {
        n: entry.summary.epoch
        for entry in environment.log.values()
        for n in numbers_in(entry)
        if n in environment.writers
    }
    for given_up, later in itertools.product(environment.raised, environment.acknowledged):
        if given_up < later < 50 and given_up in epochs:
            assert epochs[given_up] < epochs[later], f"{later} follows {given_up}, which was given up, in one epoch"
