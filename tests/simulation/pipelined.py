"""Run a pipelined writer of one region in a schedule, with other actors and faults, and check what must hold.

The threads of the writer are actors, so a seed replays every race among them.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa

from lancelsm.common.layout import Position
from lancelsm.common.settings import Settings
from lancelsm.common.write_result import CommittedEntry
from lancelsm.errors import Fenced, LsmError
from lancelsm.region.catalog import Region
from lancelsm.region.head import RegionState
from lancelsm.wal import pipeline, region_writer
from lancelsm.wal.claim import claim, seal
from lancelsm.wal.pipeline import Pipeline
from lancelsm.wal.region_writer import RegionWriter
from tests.simulation.actors import ROUGH
from tests.simulation.environment import OWNER, RIVAL, SCHEMA, Environment, collect, numbers_in, raised, row
from tests.simulation.faults import Call, Crash, Fault, FaultPlan
from tests.simulation.schedule import Schedule
from tests.simulation.situations import half_claim
from tests.simulation.threads import Threads

ME = "default-alone"
DEPTHS = (3, 2, 5, 8)


@dataclass(kw_only=True)
class PipelinedEnvironment(Environment):
    """Also checks from which owners this writer claims the region."""

    acknowledgements: list[int] = field(default_factory=list)
    release_error: BaseException | None = None

    def committed(self, old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> None:
        super().committed(old, new)
        if old is not None and old["epoch"] < new["epoch"] and new["owner"] == ME:
            assert old["owner"] in (OWNER, ME), f"claimed from {old['owner']!r}"

    def record_outcome(self, number: int, outcome: CommittedEntry | BaseException) -> None:
        assert number not in self.acknowledged, f"row {number} has two outcomes"
        assert number not in self.raised, f"row {number} has two outcomes"
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
    """The parameters of one run."""

    seed: int = 0
    depth: int = 3
    rows: int = 6
    budget_seconds: float = 5.0
    mutant: type[Pipeline] = Pipeline

    def environment(self) -> PipelinedEnvironment:
        return PipelinedEnvironment(schedule=Schedule(self.seed), budget_seconds=self.budget_seconds)


def _append_row(environment: Environment, region: Region, owner: str) -> None:
    environment.write(region, 50 + len(environment.writers), owner=owner)


def take_over(environment: Environment, region: Region) -> None:
    claim(region, owner=RIVAL)
    _append_row(environment, region, RIVAL)


OTHERS: dict[str, Callable[[PipelinedEnvironment, Region], object]] = {
    "takes over": take_over,
    "takes over and crashes": lambda environment, region: half_claim(region, owner=RIVAL),
    "takes over, releases": lambda environment, region: (
        take_over(environment, region),
        claim(region, owner=OWNER),
    ),
    "claims for ordinary writers": lambda environment, region: (
        claim(region, owner=OWNER),
        _append_row(environment, region, OWNER),
    ),
    "seals": lambda environment, region: seal(region),
    "collects": collect,
    "takes over, collects": lambda environment, region: (
        take_over(environment, region),
        collect(environment, region),
    ),
    "commits": lambda environment, region: environment.commit(region),
}


Decide = Callable[[PipelinedEnvironment, Call], Fault | None]


def run_writer(
    run: Run, decide: Decide = lambda environment, call: None, **others: Callable[[PipelinedEnvironment], object]
) -> Any:
    """Run a writer with faults and other actors. Then let others write, land late writes, and audit."""
    with contextlib.redirect_stdout(io.StringIO()):
        environment = run.environment()
        environment.plan = plan = FaultPlan(lambda call: decide(environment, call), clock=environment.schedule.clock)
        threads = Threads(environment.schedule)
        drafted = {"Pipeline": run.mutant, "draft": lambda rows, at: row(rows.column("id")[0].as_py())}
        with threads.replacing(pipeline), mock.patch.multiple(region_writer, **drafted):
            target: Any = SimpleNamespace(settings=Settings(), owner=OWNER)
            writer = RegionWriter(
                environment.region("actor"), target, owner=ME, previous_owners=(target.owner,), depth=run.depth
            )
            actors = {name: lambda other=other: raised(lambda: other(environment)) for name, other in others.items()}
            environment.schedule.run({"actor": lambda: _use(environment, writer, run), **threads.workers(), **actors})
        plan.stop()
        write_after(environment)
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
                pa.table([[number], [False]], schema=SCHEMA),
                lambda outcome, n=number: environment.record_outcome(n, outcome),
            )
        except (LsmError, Crash) as error:
            environment.record_outcome(number, error)
        while dice.random() < 0.1 and number not in environment.acknowledged and number not in environment.raised:
            environment.schedule.switch()
    environment.release_error = raised(writer.release)


def write_after(environment: PipelinedEnvironment) -> None:
    """Write with an ordinary writer, after a claim if the pipelined writer still owns the region."""
    region = environment.region("next", faulty=False)
    error = raised(lambda: environment.write(region, 90))
    holder = region.head().owner
    if holder == ME:
        assert environment.crashed or environment.release_error is not None, (
            "the writer is closed, but did not release the region"
        )
        assert isinstance(error, Fenced)
        assert ME in str(error)
        assert f"lancelsm region claim memory://t --region {region.id}" in str(error)
        claim(region, owner=OWNER)
        environment.write(region, 91)
    elif holder == OWNER and region.head().status is RegionState.OPEN:
        assert error is None


def audit(environment: PipelinedEnvironment, run: Run) -> None:
    ours = set(range(1, run.rows + 1))
    assert ours <= {*environment.acknowledged, *environment.raised}, (
        f"rows without an outcome: {ours - {*environment.acknowledged, *environment.raised}}"
    )
    in_log = [number for _, entry in sorted(environment.log.items()) for number in numbers_in(entry) if number in ours]
    assert in_log == sorted(in_log), f"the log is not in the order of submission: {in_log}"
    assert environment.acknowledgements == sorted(environment.acknowledgements), (
        f"acknowledgements are not in order: {environment.acknowledgements}"
    )
    _audit_epochs(environment)
    environment.audit()


def _audit_epochs(environment: PipelinedEnvironment) -> None:
    """There is a claim between an entry that was given up and a later entry that was acknowledged."""
    epochs = {
        n: entry.summary.epoch
        for entry in environment.log.values()
        for n in numbers_in(entry)
        if n in environment.writers
    }
    for given_up, later in itertools.product(environment.raised, environment.acknowledged):
        if given_up < later < 50 and given_up in epochs:
            assert epochs[given_up] < epochs[later], (
                f"{later} follows {given_up}, which was given up, in the same epoch"
            )


def run_pipelined_actors(seed: int, mutant: type[Pipeline] = Pipeline) -> PipelinedEnvironment:
    """Run a pipelined writer, other operations and faults, as a seed decides."""
    dice = random.Random(f"pipelined {seed}")
    factor = dice.choice([0, 1, 1, 3])
    faults, weights = [None, *ROUGH], [1.0, *(factor * rate for rate in ROUGH.values())]

    def decide(environment: PipelinedEnvironment, call: Call) -> Fault | None:
        fault = dice.choices(faults, weights)[0]
        return fault if call.writes or dice.random() < 0.1 else None

    names = dice.sample(sorted(OTHERS), dice.choice([0, 1, 1, 2]))

    def other(name: str, pause: int, environment: PipelinedEnvironment) -> None:
        for _ in range(pause):
            environment.schedule.switch()
        OTHERS[name](environment, environment.region(name))

    others = {name: partial(other, name, dice.randrange(60)) for name in names}
    budget = dice.choice([0.2, 5.0])
    run = Run(seed=seed, depth=dice.choice(DEPTHS), rows=dice.choice([4, 9]), budget_seconds=budget, mutant=mutant)
    return run_writer(run, decide, **others)
