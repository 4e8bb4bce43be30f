"""Collectors, snapshots and a cursor beside other actors on a real base: reads show one moment, and pins hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.table_pins import run_table_pins


@pytest.mark.one_case
@pytest.mark.parametrize("seed", range(4))
def test_reads_show_one_moment_pins_hold_and_the_base_lacks_no_file(seed: int, tmp_path: Path) -> None:
    assert len(run_table_pins(seed, tmp_path / "table").environment.plan.calls) > 500


@pytest.mark.long
@pytest.mark.parametrize("first", range(10, 200, 10))
def test_reads_show_one_moment_pins_hold_and_the_base_lacks_no_file_in_many_more_seeds(
    first: int, tmp_path: Path
) -> None:
    for seed in range(first, first + 10):
        run_table_pins(seed, tmp_path / str(seed))


@pytest.mark.parametrize("seed", [50, 103])
def test_a_collector_whose_version_of_the_base_is_removed_by_another_reports_no_damage(
    seed: int, tmp_path: Path
) -> None:
    run_table_pins(seed, tmp_path / "table")
