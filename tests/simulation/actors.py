"""Run many actors on one region as a seed decides: siblings, a rival, claimers, collectors, a sealer, and faults."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable

from lancelsm.errors import LsmError
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.wal.claim import claim, seal
from tests.simulation.environment import OWNER, PASSING, RIVAL, Environment, collect, raised
from tests.simulation.fault_rates import by_rate
from tests.simulation.faults import (
    CRASH_AFTER,
    CRASH_BEFORE,
    DENY,
    FAIL_AFTER,
    FAIL_BEFORE,
    Crash,
    Fault,
    FaultPlan,
    late,
    stall,
)
from tests.simulation.schedule import Schedule

QUIET: dict[Fault, float] = {}
ROUGH: dict[Fault, float] = {
    FAIL_AFTER: 0.05,
    FAIL_BEFORE: 0.03,
    late(2): 0.03,
    late(9): 0.03,
    late(40): 0.02,
    DENY: 0.01,
    CRASH_BEFORE: 0.003,
    CRASH_AFTER: 0.003,
    stall(3.0): 0.02,
}


def run_actors(seed: int) -> Environment:
    """Run all actors to their end, then audit. The first violation raises. The seed decides which actors take part."""
    dice = random.Random(f"crowd {seed}")
    schedule = Schedule(seed)
    rates = dice.choice([QUIET, ROUGH, ROUGH, {fault: rate * 3 for fault, rate in ROUGH.items()}])
    with contextlib.redirect_stdout(io.StringIO()):
        environment = Environment(schedule=schedule, budget_seconds=dice.choice([0.2, 5.0]))
        environment.plan = FaultPlan(by_rate(random.Random(f"faults {seed}"), rates), clock=schedule.clock)
        schedule.run(_actors(environment, dice))
        environment.plan.forget() if dice.random() < 0.3 else environment.plan.land()
        environment.audit()
    return environment


def _actors(environment: Environment, dice: random.Random) -> dict[str, Callable[[], object]]:
    actors: dict[str, Callable[[], object]] = {}

    def add(name: str, act: Callable[[Region], object]) -> None:
        region = environment.region(name)
        actors[name] = lambda: _run(lambda: act(region))

    scenario = dice.choice(["siblings", "claims", "rival", "collection", "seal", "everybody"])
    for index in range(dice.choice([2, 3])):
        first, hold = 100 * (index + 1), dice.random() < 0.6
        add(
            f"sibling {index}",
            lambda region, first=first, hold=hold: _append_rows(environment, region, first, 2, hold=hold),
        )
    if scenario in ("rival", "everybody"):
        add("rival", lambda region: _take_over(environment, region))
    if scenario in ("claims", "everybody"):
        for index in range(2):
            add(f"claimer {index}", lambda region: claim(region, owner=OWNER))
    if scenario in ("collection", "everybody"):
        for index in range(dice.choice([1, 2])):
            add(f"collector {index}", lambda region: [_run(lambda: collect(environment, region)) for _ in range(4)])
    if scenario == "seal":
        add("sealer", seal)
    if scenario != "siblings" and dice.random() < 0.5:
        add("committer", lambda region: [_run(lambda: environment.commit(region)) for _ in range(3)])
    return actors


def _run(act: Callable[[], object]) -> BaseException | None:
    """Run an operation and return its error, which must be one that any operation may raise."""
    error = raised(act)
    assert error is None or isinstance(error, (Crash, *PASSING)), error
    return error


def _append_rows(
    environment: Environment, region: Region, first: int, rows: int, *, owner: str = OWNER, hold: bool = False
) -> None:
    """Append one row after the other, despite errors. With `hold`, start each append from the head of the last one."""
    held: Head | None = None
    for number in range(first, first + rows):
        try:
            appended = environment.write(region, number, owner=owner, held=held)
        except LsmError:
            held = None
        else:
            held = appended.head if hold else None


def _take_over(environment: Environment, region: Region) -> None:
    if _run(lambda: claim(region, owner=RIVAL)) is None:
        _append_rows(environment, region, 900, 2, owner=RIVAL, hold=True)
