"""The rows of a shard are moved once and in order in every interleaving, and every guard is needed for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.foreign_shard import ForeignShard, Guard
from tests.model.verdicts import check_broken, check_clean

SMALL = ForeignShard()
CAUGHT = {
    Guard.ABOVE_APPLIED: "appended twice",
    Guard.EVERY_HEAD: "appended twice",
    Guard.ONE_SWAP: "appended twice",
    Guard.APPEND_FIRST: "row lost",
}


@pytest.mark.rest
def test_rows_of_a_shard_are_moved_once_and_in_order() -> None:
    check_clean(SMALL, states=25_480)


def test_rows_of_a_small_shard_are_moved_once_and_in_order() -> None:
    check_clean(replace(SMALL, rows=2), states=7_258)


@pytest.mark.parametrize("guard", Guard, ids=lambda guard: guard.name.lower())
def test_a_row_is_lost_or_doubled_without_the_guard(guard: Guard) -> None:
    check_broken(replace(SMALL, without=guard), kind=CAUGHT[guard], guard=guard)
