"""Which generations become one: few are left, and no row is rewritten often."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancelsm.compaction.tiers import choose_run

MOST = 8


def flushed(sizes: list[int], *, distinct: int | None = None) -> tuple[list[int], int, int]:
    """Flush generations of these sizes and compact after each one. Return what is left, the bytes written, the peak.

    Args:
        distinct: the bytes of all keys; a generation never has more, since it has each key once.
    """
    live: list[int] = []
    written = peak = 0
    for size in sizes:
        live.append(size)
        while (run := choose_run(live, most=MOST)) is not None:
            made = sum(live[run.start : run.stop])
            made = made if distinct is None else min(made, distinct)
            live[run.start : run.stop] = [made]
            written += made
        peak = max(peak, len(live))
    return live, written, peak


def test_nothing_is_compacted_while_a_region_has_few_generations() -> None:
    assert choose_run([1] * MOST, most=MOST) is None
    assert choose_run([], most=MOST) is None
    assert choose_run([1], most=1) is None
    assert choose_run([100, 1], most=1) == range(2)


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=40), st.integers(1, 12))
def test_a_chosen_run_has_at_least_two_neighbours_and_leaves_fewer(sizes: list[int], most: int) -> None:
    run = choose_run(sizes, most=most)

    assert (run is None) == (len(sizes) <= most)
    if run is not None:
        assert 0 <= run.start < run.stop - 1 < len(sizes)
        assert run.step == 1


@given(st.lists(st.integers(0, 100), min_size=1, max_size=40), st.integers(1, 12), st.integers(1, 300))
def test_a_run_is_chosen_within_a_limit_as_long_as_two_neighbours_fit(sizes: list[int], most: int, limit: int) -> None:
    run = choose_run(sizes, most=most, size_max=limit)

    fits = any(max(1, one) + max(1, next_) <= limit for one, next_ in pairwise(sizes))
    assert (run is not None) == (len(sizes) > most and fits)
    if run is not None:
        assert len(run) >= 2
        assert sum(sizes[run.start : run.stop]) <= limit


@given(st.lists(st.sampled_from([1, 2, 10, 100, 5000]), min_size=1, max_size=300))
def test_a_region_has_at_most_eight_generations_after_each_compaction(sizes: list[int]) -> None:
    live, _, peak = flushed(sizes)

    assert peak <= MOST
    assert sum(live) == sum(sizes)


@pytest.mark.parametrize("flushes", [64, 256, 1024])
def test_a_row_is_rewritten_a_number_of_times_that_grows_with_the_logarithm_of_the_flushes(flushes: int) -> None:
    _, written, _ = flushed([1] * flushes)

    assert written <= flushes * math.log2(flushes) / 2


def test_small_flushes_do_not_rewrite_large_generations() -> None:
    large = [1 << exponent for exponent in range(20, 12, -1)]
    _, written, _ = flushed([*large, *[1] * 1000])

    assert written < 5 * sum(large)


def test_generations_of_the_same_keys_become_one_so_that_replaced_rows_do_not_take_space() -> None:
    live, written, _ = flushed([100] * 200, distinct=100)

    assert sum(live) <= MOST * 100
    assert written <= 200 * 100 / (MOST - 1)
    assert choose_run([100, *[25] * 8], most=MOST) == range(9)
