"""One operation in one situation, with a fault, an outage or another's whole operation at each of its calls in turn.

After each run a fresh process goes on, late writes land, another goes on, and the audit follows.
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
    """What happened before, without faults, and the operation that is tried then."""

    prepare: Callable[[Environment], Any]
    act: Callable[[Environment, Region, Any], object]


def _nothing(environment: Environment) -> None:
    pass


def _one_row(environment: Environment) -> Any:
    return environment.write(environment.region("earlier", faulty=False), 10).head


def half_claim(region: Region, *, owner: str = OWNER) -> None:
    """A claimer that died right after the swap of its epoch."""
    region.swap(claimed(region.head(), owner=owner, nonce=region.context.ids.nonce()))


def _half_claimed(environment: Environment) -> None:
    _one_row(environment)
    half_claim(environment.region("claimer", faulty=False))


def _put_but_not_committed(environment: Environment) -> None:
    """A sibling that died between put and swap."""
    head = _one_row(environment)
    orphan(environment, 11, position=head.next_position, epoch=head.epoch)


def _left_over(environment: Environment) -> None:
    _put_but_not_committed(environment)
    half_claim(environment.region("claimer", faulty=False))


def orphan(environment: Environment, number: int, *, position: Any, epoch: Any) -> bytes:
    """Put a writer's object and no more."""
    body = encode(row(number), position=position, epoch=epoch, nonce=a_nonce(number)).body
    environment.writers[number], environment.floors[number] = OWNER, 0
    environment.store.create(wal_entry(environment.id, position), body)
    return body


APPENDS = {
    "without a head": Situation(_nothing, lambda environment, region, _: environment.write(region, 1)),
    "with a held head": Situation(_one_row, lambda environment, region, head: environment.write(region, 1, held=head)),
    "a claim to finish": Situation(_half_claimed, lambda environment, region, _: environment.write(region, 1)),
    "an entry to help": Situation(_put_but_not_committed, lambda environment, region, _: environment.write(region, 1)),
    "an older entry in the way": Situation(_left_over, lambda environment, region, _: environment.write(region, 1)),
}
CLAIMS = {
    "claim": Situation(_one_row, lambda environment, region, _: claim(region, owner=OWNER)),
    "claim over leftovers": Situation(_left_over, lambda environment, region, _: claim(region, owner=OWNER)),
    "seal": Situation(_one_row, lambda environment, region, _: seal(region)),
}
COMMITS = {
    "commit": Situation(_one_row, lambda environment, region, _: environment.commit(region)),
}

OTHERS: dict[str, Callable[[Environment, Region], object]] = {
    "appends": lambda environment, region: environment.write(region, 50),
    "claims": lambda environment, region: claim(region, owner=OWNER),
    "claims and dies": lambda environment, region: half_claim(region),
    "takes over": lambda environment, region: (claim(region, owner=RIVAL), environment.write(region, 50, owner=RIVAL)),
    "takes over and dies": lambda environment, region: half_claim(region, owner=RIVAL),
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
    """Try the operation under a plan, let others go on, audit. Returns what the operation was told."""
    with contextlib.redirect_stdout(io.StringIO()):
        environment = Environment()
        prepared = situation.prepare(environment)
        environment.plan = plan_for(environment)
        heard = raised(lambda: situation.act(environment, environment.region("actor"), prepared))
        environment.plan.stop()
        raised(lambda: environment.write(environment.region("next", faulty=False), 90))
        environment.plan.land()
        raised(lambda: environment.write(environment.region("last", faulty=False), 91))
        environment.audit()
    return environment, heard


def calls(situation: Situation) -> list[Call]:
    """What the operation asks of its ports when all goes well."""

    def alone(plan: FaultPlan) -> None:
        environment = Environment()
        prepared = situation.prepare(environment)
        environment.plan = plan
        situation.act(environment, environment.region("actor"), prepared)

    return calls_of(alone)


def one_fault_each(situation: Situation) -> Iterator[tuple[Environment, BaseException | None]]:
    for call in calls(situation):
        for fault in (*EVERY_FAULT, *STALLS):
            with noted(call, fault):
                yield run(
                    situation,
                    lambda environment, call=call, fault=fault: FaultPlan.at(
                        call.index, fault, clock=environment.schedule.clock
                    ),
                )


def outages(situation: Situation) -> Iterator[tuple[Environment, BaseException | None]]:
    """From each call on no answer, of both ports or of one."""
    for call in calls(situation):
        for fault in NO_ANSWER:
            for ports in (("objects", "registry"), ("objects",), ("registry",)):

                def decide(now: Call, first=call.index, fault=fault, ports=ports) -> Fault | None:
                    return fault if now.index >= first and now.port in ports else None

                with noted(call, fault, *ports):
                    yield run(
                        situation,
                        lambda environment, decide=decide: FaultPlan(decide, clock=environment.schedule.clock),
                    )


def interruptions(
    situation: Situation, *, before: tuple[Fault | None, ...] = (None,)
) -> Iterator[tuple[Environment, BaseException | None]]:
    """Another's whole operation right before each call; the write before that may have met a fault."""
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

                with noted(call, name, fault):
                    yield run(situation, plan_for)


@contextlib.contextmanager
def noted(*circumstances: object) -> Iterator[None]:
    """What failed is said with the failure."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"at {circumstances}")
        raise
