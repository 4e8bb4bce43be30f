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
from tests.simulation.world import OWNER, RIVAL, World, a_nonce, collect, row, told

STALLS = (stall(5.0), stall(60.0))  # within and beyond the budget
NO_ANSWER = (DENY, FAIL_BEFORE, FAIL_AFTER, late(1_000_000))


@dataclass(frozen=True, slots=True)
class Situation:
    """What happened before, without faults, and the operation that is tried then."""

    prepare: Callable[[World], Any]
    act: Callable[[World, Region, Any], object]


def _nothing(world: World) -> None:
    pass


def _one_row(world: World) -> Any:
    return world.write(world.region("earlier", faulty=False), 10).head


def half_claim(region: Region, *, owner: str = OWNER) -> None:
    """A claimer that died right after the swap of its epoch."""
    region.swap(claimed(region.head(), owner=owner, nonce=region.storage.ids.nonce()))


def _half_claimed(world: World) -> None:
    _one_row(world)
    half_claim(world.region("claimer", faulty=False))


def _put_but_not_committed(world: World) -> None:
    """A sibling that died between put and swap."""
    head = _one_row(world)
    orphan(world, 11, position=head.next_position, epoch=head.epoch)


def _left_over(world: World) -> None:
    _put_but_not_committed(world)
    half_claim(world.region("claimer", faulty=False))


def orphan(world: World, number: int, *, position: Any, epoch: Any) -> bytes:
    """Put a writer's object and no more."""
    body = encode(row(number), position=position, epoch=epoch, nonce=a_nonce(number)).body
    world.writers[number], world.floors[number] = OWNER, 0
    world.store.create(wal_entry(world.id, position), body)
    return body


APPENDS = {
    "without a head": Situation(_nothing, lambda world, region, _: world.write(region, 1)),
    "with a held head": Situation(_one_row, lambda world, region, head: world.write(region, 1, held=head)),
    "a claim to finish": Situation(_half_claimed, lambda world, region, _: world.write(region, 1)),
    "an entry to help": Situation(_put_but_not_committed, lambda world, region, _: world.write(region, 1)),
    "an older entry in the way": Situation(_left_over, lambda world, region, _: world.write(region, 1)),
}
CLAIMS = {
    "claim": Situation(_one_row, lambda world, region, _: claim(region, owner=OWNER)),
    "claim over leftovers": Situation(_left_over, lambda world, region, _: claim(region, owner=OWNER)),
    "seal": Situation(_one_row, lambda world, region, _: seal(region)),
}
COMMITS = {
    "commit": Situation(_one_row, lambda world, region, _: world.commit(region)),
}

OTHERS: dict[str, Callable[[World, Region], object]] = {
    "appends": lambda world, region: world.write(region, 50),
    "claims": lambda world, region: claim(region, owner=OWNER),
    "claims and dies": lambda world, region: half_claim(region),
    "takes over": lambda world, region: (claim(region, owner=RIVAL), world.write(region, 50, owner=RIVAL)),
    "takes over and dies": lambda world, region: half_claim(region, owner=RIVAL),
    "seals": lambda world, region: seal(region),
    "collects": collect,
    "appends, collects": lambda world, region: (world.write(region, 50), collect(world, region)),
    "appends, collects, appends": lambda world, region: (
        world.write(region, 50),
        collect(world, region),
        world.write(region, 51),
    ),
    "commits": World.commit,
    "commits twice": lambda world, region: (world.commit(region), world.commit(region)),
}


def run(situation: Situation, plan_for: Callable[[World], FaultPlan]) -> tuple[World, BaseException | None]:
    """Try the operation under a plan, let others go on, audit. Returns what the operation was told."""
    with contextlib.redirect_stdout(io.StringIO()):
        world = World()
        prepared = situation.prepare(world)
        world.plan = plan_for(world)
        heard = told(lambda: situation.act(world, world.region("actor"), prepared))
        world.plan.stop()
        told(lambda: world.write(world.region("next", faulty=False), 90))
        world.plan.land()
        told(lambda: world.write(world.region("last", faulty=False), 91))
        world.audit()
    return world, heard


def calls(situation: Situation) -> list[Call]:
    """What the operation asks of its ports when all goes well."""

    def alone(plan: FaultPlan) -> None:
        world = World()
        prepared = situation.prepare(world)
        world.plan = plan
        situation.act(world, world.region("actor"), prepared)

    return calls_of(alone)


def one_fault_each(situation: Situation) -> Iterator[tuple[World, BaseException | None]]:
    for call in calls(situation):
        for fault in (*EVERY_FAULT, *STALLS):
            with noted(call, fault):
                yield run(
                    situation,
                    lambda world, call=call, fault=fault: FaultPlan.at(call.index, fault, clock=world.schedule.clock),
                )


def outages(situation: Situation) -> Iterator[tuple[World, BaseException | None]]:
    """From each call on no answer, of both ports or of one."""
    for call in calls(situation):
        for fault in NO_ANSWER:
            for ports in (("objects", "registry"), ("objects",), ("registry",)):

                def decide(now: Call, first=call.index, fault=fault, ports=ports) -> Fault | None:
                    return fault if now.index >= first and now.port in ports else None

                with noted(call, fault, *ports):
                    yield run(situation, lambda world, decide=decide: FaultPlan(decide, clock=world.schedule.clock))


def interruptions(
    situation: Situation, *, before: tuple[Fault | None, ...] = (None,)
) -> Iterator[tuple[World, BaseException | None]]:
    """Another's whole operation right before each call; the write before that may have met a fault."""
    for call in calls(situation):
        for name, other in OTHERS.items():
            for fault in before:

                def plan_for(world: World, at=call.index, other=other, fault=fault) -> FaultPlan:
                    def decide(now: Call) -> Fault | None:
                        if now.index == at - 1 and now.writes:
                            return fault
                        if now.index == at:
                            told(lambda: other(world, world.region("other", faulty=False)))
                        return None

                    return FaultPlan(decide, clock=world.schedule.clock)

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
