"""Everybody at once on one region, as a seed decides: siblings, a rival, claimers, a collector, a seal, and faults."""

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
from tests.simulation.rates import by_rate
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


def actors(seed: int) -> Environment:
    """Run everybody to their end and audit; raises at the first violation. The seed decides who takes part."""
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
        actors[name] = lambda: _raised(lambda: act(region))

    cast = dice.choice(["siblings", "claims", "rival", "collection", "seal", "everybody"])
    for index in range(dice.choice([2, 3])):
        first, hold = 100 * (index + 1), dice.random() < 0.6
        add(
            f"sibling {index}",
            lambda region, first=first, hold=hold: _appends(environment, region, first, 2, hold=hold),
        )
    if cast in ("rival", "everybody"):
        add("rival", lambda region: _takes_over(environment, region))
    if cast in ("claims", "everybody"):
        for index in range(2):
            add(f"claimer {index}", lambda region: claim(region, owner=OWNER))
    if cast in ("collection", "everybody"):
        for index in range(dice.choice([1, 2])):
            add(f"collector {index}", lambda region: [_raised(lambda: collect(environment, region)) for _ in range(4)])
    if cast == "seal":
        add("sealer", seal)
    if cast != "siblings" and dice.random() < 0.5:
        add("committer", lambda region: [_raised(lambda: environment.commit(region)) for _ in range(3)])
    return actors


def _raised(act: Callable[[], object]) -> BaseException | None:
    heard = raised(act)
    assert heard is None or isinstance(heard, (Crash, *PASSING)), heard
    return heard


def _appends(
    environment: Environment, region: Region, first: int, rows: int, *, owner: str = OWNER, hold: bool = False
) -> None:
    """One writer: a row after the other, whatever it is told, with the head of the last one if it holds it."""
    held: Head | None = None
    for number in range(first, first + rows):
        try:
            appended = environment.write(region, number, owner=owner, held=held)
        except LsmError:
            held = None
        else:
            held = appended.head if hold else None


def _takes_over(environment: Environment, region: Region) -> None:
    if _raised(lambda: claim(region, owner=RIVAL)) is None:
        _appends(environment, region, 900, 2, owner=RIVAL, hold=True)
