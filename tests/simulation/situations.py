"""Run one operation in one situation many times: with a fault, an outage or another operation at each of its calls.

After each run a fresh process writes, late writes land, another process writes, and an audit follows.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lancelsm.common.layout import wal_entry
from lancelsm.region.catalog import Region
from lancelsm.region.head import claimed
from lancelsm.wal.claim import claim, seal
from lancelsm.wal.entry import encode
from tests.simulation.environment import OWNER, RIVAL, Environment, a_nonce, collect, raised, row
from tests.simulation.faults import (
    DENY,
    EVERY_FAULT,
    FAIL_AFTER,
    FAIL_BEFORE,
    Call,
    Fault,
    FaultPlan,
    calls_of,
    late,
    stall,
)

STALLS = (stall(5.0), stall(60.0))  # within and beyond the budget
NO_ANSWER = (DENY, FAIL_BEFORE, FAIL_AFTER, late(1_000_000))


@dataclass(frozen=True, slots=True)
class Situation:
    """The history of a region, without faults, and the operation that is tried then."""

    prepare: Callable[[Environment], Any]
    act: Callable[[Environment, Region, Any], object]


def _nothing(environment: Environment) -> None:
    pass


def _one_row(environment: Environment) -> Any:
    return environment.write(environment.region("earlier", faulty=False), 10).head


def half_claim(region: Region, *, owner: str = OWNER) -> None:
    """Claim the region, but crash right after the swap of the epoch."""
    region.swap(claimed(region.head(), owner=owner, nonce=region.context.ids.nonce()))


def _half_claimed(environment: Environment) -> None:
    _one_row(environment)
    half_claim(environment.region("claimer", faulty=False))


def _put_but_not_committed(environment: Environment) -> None:
    """A sibling has crashed between put and swap."""
    head = _one_row(environment)
    orphan(environment, 11, position=head.next_position, epoch=head.epoch)


def _left_over(environment: Environment) -> None:
    _put_but_not_committed(environment)
    half_claim(environment.region("claimer", faulty=False))


def orphan(environment: Environment, number: int, *, position: Any, epoch: Any) -> bytes:
    """Put the object of an entry whose writer then crashes."""
    body = encode(row(number), position=position, epoch=epoch, nonce=a_nonce(number)).body
    environment.writers[number], environment.floors[number] = OWNER, 0
    environment.store.create(wal_entry(environment.id, position), body)
    return body


APPENDS = {
    "without a head": Situation(_nothing, lambda environment, region, _: environment.write(region, 1)),
    "with a held head": Situation(_one_row, lambda environment, region, head: environment.write(region, 1, held=head)),
    "an unfinished claim": Situation(_half_claimed, lambda environment, region, _: environment.write(region, 1)),
    "an entry that is not committed": Situation(
        _put_but_not_committed, lambda environment, region, _: environment.write(region, 1)
    ),
    "an entry of an older epoch": Situation(_left_over, lambda environment, region, _: environment.write(region, 1)),
}
CLAIMS = {
    "claim": Situation(_one_row, lambda environment, region, _: claim(region, owner=OWNER)),
    "claim above leftovers": Situation(_left_over, lambda environment, region, _: claim(region, owner=OWNER)),
    "seal": Situation(_one_row, lambda environment, region, _: seal(region)),
}
COMMITS = {
    "commit": Situation(_one_row, lambda environment, region, _: environment.commit(region)),
}

OTHERS: dict[str, Callable[[Environment, Region], object]] = {
    "appends": lambda environment, region: environment.write(region, 50),
    "claims": lambda environment, region: claim(region, owner=OWNER),
    "claims and crashes": lambda environment, region: half_claim(region),
    "takes over": lambda environment, region: (claim(region, owner=RIVAL), environment.write(region, 50, owner=RIVAL)),
    "takes over and crashes": lambda environment, region: half_claim(region, owner=RIVAL),
    "seals": lambda environment, region: seal(region),
    "collects": collect,
    "appends, collects": lambda environment, region: (environment.write(region, 50), collect(environment, region)),
    "appends, collects, appends": lambda environment, region: (
        environment.write(region, 50),
        collect(environment, region),
        environment.write(region, 51),
    ),
    "commits": Environment.commit,
    "commits twice": lambda environment, region: (environment.commit(region), environment.commit(region)),
}


def run(situation: Situation, plan_for: Callable[[Environment], FaultPlan]) -> tuple[Environment, BaseException | None]:
    """Run the operation under a plan, let others continue, audit. Return the environment and the operation's error."""
    with contextlib.redirect_stdout(io.StringIO()):
        environment = Environment()
        prepared = situation.prepare(environment)
        environment.plan = plan_for(environment)
        error = raised(lambda: situation.act(environment, environment.region("actor"), prepared))
        environment.plan.stop()
        raised(lambda: environment.write(environment.region("next", faulty=False), 90))
        environment.plan.land()
        raised(lambda: environment.write(environment.region("last", faulty=False), 91))
        environment.audit()
    return environment, error


def calls(situation: Situation) -> list[Call]:
    """Return the port calls of the operation without faults."""

    def alone(plan: FaultPlan) -> None:
        environment = Environment()
        prepared = situation.prepare(environment)
        environment.plan = plan
        situation.act(environment, environment.region("actor"), prepared)

    return calls_of(alone)


def one_fault_each(situation: Situation) -> Iterator[tuple[Environment, BaseException | None]]:
    """Run the operation once for each call and each fault."""
    for call in calls(situation):
        for fault in (*EVERY_FAULT, *STALLS):
            with note_on_failure(call, fault):
                yield run(
                    situation,
                    lambda environment, call=call, fault=fault: FaultPlan.at(
                        call.index, fault, clock=environment.schedule.clock
                    ),
                )


def outages(situation: Situation) -> Iterator[tuple[Environment, BaseException | None]]:
    """Run the operation with an outage from each call on, of both ports or of one."""
    for call in calls(situation):
        for fault in NO_ANSWER:
            for ports in (("objects", "registry"), ("objects",), ("registry",)):

                def decide(now: Call, first=call.index, fault=fault, ports=ports) -> Fault | None:
                    return fault if now.index >= first and now.port in ports else None

                with note_on_failure(call, fault, *ports):
                    yield run(
                        situation,
                        lambda environment, decide=decide: FaultPlan(decide, clock=environment.schedule.clock),
                    )


def interruptions(
    situation: Situation, *, before: tuple[Fault | None, ...] = (None,)
) -> Iterator[tuple[Environment, BaseException | None]]:
    """Run another operation as a whole right before each call. The write before that call may meet a fault."""
    for call in calls(situation):
        for name, other in OTHERS.items():
            for fault in before:

                def plan_for(environment: Environment, at=call.index, other=other, fault=fault) -> FaultPlan:
                    def decide(now: Call) -> Fault | None:
                        if now.index == at - 1 and now.writes:
                            return fault
                        if now.index == at:
                            raised(lambda: other(environment, environment.region("other", faulty=False)))
                        return None

                    return FaultPlan(decide, clock=environment.schedule.clock)

                with note_on_failure(call, name, fault):
                    yield run(situation, plan_for)


@contextlib.contextmanager
def note_on_failure(*circumstances: object) -> Iterator[None]:
    """Add the circumstances to a failure as a note."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"at {circumstances}")
        raise
