"""Reads with a cursor and pins of clones keep every promise in every interleaving, and need every guard for it."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from tests.model import clone_pin, cursor_read
from tests.model.clone_pin import ClonePin
from tests.model.cursor_read import CursorRead
from tests.model.engine import Model
from tests.model.verdicts import check_broken, check_clean

CAUGHT: dict[Enum, tuple[Any, str]] = {
    cursor_read.Guard.HEAD_AFTER_ENTRY: (CursorRead, "uncommitted change read"),
    cursor_read.Guard.CURSOR_AFTER_ENTRY: (CursorRead, "uncommitted change read"),
    cursor_read.Guard.CURSOR_BELOW_FLOOR: (CursorRead, "uncommitted change read"),
    cursor_read.Guard.KEPT_IS_READ: (CursorRead, "kept change refused"),
    **dict.fromkeys(clone_pin.Guard, (ClonePin, "pinned object missing")),
}


@pytest.mark.one_case
@pytest.mark.parametrize(("model", "states"), [(CursorRead(), 71), (ClonePin(), 62)], ids=["cursor", "clone"])
def test_a_protocol_keeps_its_promises_in_every_interleaving(model: Model[Any], states: int) -> None:
    check_clean(model, states=states)


@pytest.mark.one_case
@pytest.mark.parametrize(
    "guard", CAUGHT, ids=lambda guard: f"{guard.__module__.rpartition('.')[2]}-{guard.name.lower()}"
)
def test_a_promise_breaks_without_the_guard(guard: Enum) -> None:
    model, kind = CAUGHT[guard]
    check_broken(model(without=guard), kind=kind, guard=guard)


def test_every_guard_has_a_test() -> None:
    assert set(CAUGHT) == {*cursor_read.Guard, *clone_pin.Guard}
