"""Queue delivery and redrive keep their promises in every interleaving, and need every guard for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.redelivery import Guard, Redelivery
from tests.model.verdicts import check_broken, check_clean

FIRST = frozenset({1})
BOTH = frozenset({1, 2})

CLEAN = {
    "a bad row in the middle": (Redelivery(deliveries=2), 12_616),
    "a message without a valid row": (Redelivery(messages=2, bad=FIRST, all_bad=FIRST), 19_211),
    "two messages without a valid row": (Redelivery(messages=2, bad=BOTH, all_bad=BOTH), 46_984),
}
LONG = {
    "three deliveries": (Redelivery(), 79_323),
    "two bad messages": (Redelivery(messages=2, bad=BOTH), 234_972),
    "two bad messages, one without a valid row": (Redelivery(messages=2, bad=BOTH, all_bad=FIRST), 152_453),
}
MIDDLE, ALL_BAD, TWO_ALL_BAD = (model for model, _ in CLEAN.values())
CAUGHT = {
    Guard.APPLIED_DROPPED: (MIDDLE, "applied twice"),
    Guard.EVERY_HEAD: (MIDDLE, "applied twice"),
    Guard.ONE_SWAP: (MIDDLE, "applied twice"),
    Guard.LATER_WAIT: (MIDDLE, "row lost"),
    Guard.DEAD_LETTER_FIRST: (MIDDLE, "row lost"),
    Guard.IN_TURN: (MIDDLE, "dropped for an older row"),
    Guard.NEWER_WINS: (MIDDLE, "an older row wins"),
    Guard.UNDER_THAT_HEAD: (MIDDLE, "an older row wins"),
    Guard.MARKED: (TWO_ALL_BAD, "dropped for an older row"),
    Guard.SETTLED: (MIDDLE, "row lost"),
    Guard.RAISES_SEQUENCE: (ALL_BAD, "applied twice"),
}


@pytest.mark.one_case
@pytest.mark.parametrize(("model", "states"), CLEAN.values(), ids=CLEAN)
def test_delivery_keeps_its_promises_in_every_interleaving(model: Redelivery, states: int) -> None:
    check_clean(model, states=states)


@pytest.mark.long
@pytest.mark.parametrize(("model", "states"), LONG.values(), ids=LONG)
def test_delivery_keeps_its_promises_in_larger_models(model: Redelivery, states: int) -> None:
    check_clean(model, states=states)


@pytest.mark.parametrize("guard", Guard, ids=lambda guard: guard.name.lower())
def test_a_promise_of_delivery_breaks_without_the_guard(guard: Guard) -> None:
    model, kind = CAUGHT[guard]
    check_broken(replace(model, without=guard), kind=kind, guard=guard)
