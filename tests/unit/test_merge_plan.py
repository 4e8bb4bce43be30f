"""Plan a merge from heads and counters, without I/O."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancelsm.common.layout import Generation, RegionId
from lancelsm.compaction.plan import MergePlan, RegionPending, StaleHeads, balanced, index_pays, plan_merge
from lancelsm.errors import Corrupt

A, B = RegionId("a"), RegionId("b")


def pending(region: RegionId, newest: int, listed: range) -> RegionPending:
    generations = tuple((Generation(number), f"{region}/{number}") for number in listed)
    return RegionPending(region=region, newest=Generation(newest), generations=generations)


def test_all_generations_above_the_counters_of_all_regions_are_planned_in_order() -> None:
    plan = plan_merge([pending(B, 2, range(1, 3)), pending(A, 5, range(2, 6))], {A: Generation(3)}, table="t")

    assert isinstance(plan, MergePlan)
    assert [(one.region, one.after, [number for number, _ in one.generations]) for one in plan.regions] == [
        (A, 3, [4, 5]),
        (B, 0, [1, 2]),
    ]


def test_merged_generations_that_are_still_listed_are_not_planned() -> None:
    assert plan_merge([pending(A, 2, range(1, 3))], {A: Generation(2)}, table="t") is None


def test_a_region_without_generations_has_nothing_to_merge() -> None:
    assert plan_merge([pending(A, 0, range(0))], {}, table="t") is None


@pytest.mark.parametrize("listed", [range(2, 4), range(1, 3), range(0)])
def test_a_pending_generation_that_is_not_listed_is_corrupt(listed: range) -> None:
    with pytest.raises(Corrupt, match="manifest does not list"):
        plan_merge([pending(A, 3, listed)], {}, table="t")


def test_a_counter_above_the_newest_generation_means_stale_heads() -> None:
    assert plan_merge([pending(A, 1, range(1, 2))], {A: Generation(2)}, table="t") == StaleHeads(A)


def test_counters_of_other_regions_are_kept_and_no_counter_decreases() -> None:
    before = {A: Generation(1), B: Generation(7)}
    plan = plan_merge([pending(A, 2, range(1, 3))], before, table="t")

    assert isinstance(plan, MergePlan)
    assert plan.counters(before) == {A: 2, B: 7}
    with pytest.raises(ValueError, match="counter moved"):
        plan.counters({A: Generation(2), B: Generation(7)})


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 9))
def test_balanced_groups_hold_every_item_once_in_order(weights: list[int], groups: int) -> None:
    result = balanced(list(range(len(weights))), weights, groups)

    assert [item for group in result for item in group] == list(range(len(weights)))
    assert len(result) <= groups
    assert all(result)


def test_balanced_groups_of_equal_items_are_equal() -> None:
    assert [len(group) for group in balanced(list(range(8)), [10] * 8, 4)] == [2, 2, 2, 2]


def test_an_index_is_used_only_if_it_reads_less_than_the_key_column() -> None:
    billion = 10**9
    assert index_pays(keys=1_000, rows=billion, key_bytes=8)
    assert not index_pays(keys=500_000, rows=billion, key_bytes=8)
    assert not index_pays(keys=10, rows=0, key_bytes=8)
