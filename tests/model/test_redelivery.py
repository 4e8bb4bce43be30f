"""Delivery of a queue, and redrive: what the design chose is clean, and no guard of it is there for nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.redelivery import Guard, Redelivery
from tests.model.verdicts import check_broken, check_clean

ALL_OF_IT = frozenset({1})
BOTH = frozenset({1, 2})

CLEAN = {
    "a bad row in the middle": (Redelivery(deliveries=2), 12_616),
    "a message that is bad as a whole": (Redelivery(messages=2, bad=ALL_OF_IT, whole=ALL_OF_IT), 19_211),
    "two messages bad as a whole": (Redelivery(messages=2, bad=BOTH, whole=BOTH), 46_984),
}
LONG = {
    "three deliveries": (Redelivery(), 79_323),
    "two bad rows": (Redelivery(messages=2, bad=BOTH), 234_972),
    "two bad rows, one of them alone": (Redelivery(messages=2, bad=BOTH, whole=ALL_OF_IT), 152_453),
}
MIDDLE, WHOLE, TWO_WHOLE = (model for model, _ in CLEAN.values())
CAUGHT = {
    Guard.SOURCE: (MIDDLE, "applied twice"),
    Guard.EVERY_HEAD: (MIDDLE, "applied twice"),
    Guard.ONE_SWAP: (MIDDLE, "applied twice"),
    Guard.LATER_WAIT: (MIDDLE, "row lost"),
    Guard.ASIDE_FIRST: (MIDDLE, "row lost"),
    Guard.IN_TURN: (MIDDLE, "dropped for an older row"),
    Guard.NEWER_WINS: (MIDDLE, "an older row wins"),
    Guard.UNDER_THAT_HEAD: (MIDDLE, "an older row wins"),
    Guard.MARKED: (TWO_WHOLE, "dropped for an older row"),
    Guard.SETTLED: (MIDDLE, "row lost"),
    Guard.MOVES_SOURCE: (WHOLE, "applied twice"),
}


@pytest.mark.parametrize(("model", "states"), CLEAN.values(), ids=CLEAN)
def test_delivery_keeps_its_promises_in_every_interleaving(model: Redelivery, states: int) -> None:
    check_clean(model, states=states)


@pytest.mark.long
@pytest.mark.parametrize(("model", "states"), LONG.values(), ids=LONG)
def test_delivery_keeps_its_promises_with_more_of_everything(model: Redelivery, states: int) -> None:
    check_clean(model, states=states)


@pytest.mark.parametrize("guard", Guard, ids=lambda guard: guard.name.lower())
def test_without_a_guard_of_delivery_a_promise_breaks(guard: Guard) -> None:
    model, kind = CAUGHT[guard]
    check_broken(replace(model, without=guard), kind=kind, guard=guard)
