"""A head remembers producers long enough in every interleaving, and needs every guard for it."""

from __future__ import annotations

import pytest

from tests.model.producers import Guard, Producers
from tests.model.verdicts import check_broken, check_clean


def test_no_message_is_applied_twice_in_any_interleaving() -> None:
    check_clean(Producers(), states=18_765)


@pytest.mark.parametrize("guard", Guard, ids=lambda guard: guard.name.lower())
def test_a_message_is_applied_twice_without_the_guard(guard: Guard) -> None:
    check_broken(Producers(without=guard), kind="applied twice", guard=guard)
