"""On a real base, with collectors, snapshots and a cursor among all others: every read is a moment, pins hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.table_time import table_time


@pytest.mark.parametrize("seed", range(4))
def test_reads_are_moments_pins_hold_and_the_base_lacks_nothing(seed: int, tmp_path: Path) -> None:
    assert len(table_time(seed, tmp_path / "table").environment.plan.calls) > 500


@pytest.mark.long
@pytest.mark.parametrize("first", range(10, 200, 10))
def test_reads_are_moments_pins_hold_and_the_base_lacks_nothing_in_more_seeds(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        table_time(seed, tmp_path / str(seed))


@pytest.mark.parametrize("seed", [50, 103])
def test_a_collector_whose_version_of_the_base_another_removes_is_told_nothing_wrong(seed: int, tmp_path: Path) -> None:
    table_time(seed, tmp_path / "table")
