"""Clones, backups, restores, scrubs and drops beside all other actors: copies are complete and stay complete."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lancelsm.admin import clone, drop
from lancelsm.errors import Corrupt
from tests.simulation.table_copies import run_table_copies


@pytest.mark.rest
def test_copies_are_complete_and_stay_complete_and_scrub_finds_no_problem(tmp_path: Path) -> None:
    done: Counter[str] = Counter()
    for seed in range(3):
        done += run_table_copies(seed, tmp_path / f"table{seed}").done

    assert all(done[what] >= 3 for what in ("clone", "drop", "restore", "scrub")), done
    assert done["drop of the source"], done


@pytest.mark.long
@pytest.mark.parametrize("first", range(10, 110, 10))
def test_copies_are_complete_and_stay_complete_in_many_more_seeds(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        run_table_copies(seed, tmp_path / f"table{seed}")


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("module", "functions"),
    [
        (clone, ["_pin_base_version", "_check_not_dropped"]),  # the source keeps the clone's version
        (drop, ["_release_pin"]),  # the pin ends with the clone
        (drop, ["_check_no_clones"]),  # a table whose files a clone shares is not dropped
    ],
)
def test_a_promise_breaks_without_the_guard(
    module: object, functions: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in functions:
        monkeypatch.setattr(module, function, lambda *arguments, **options: None)
    with pytest.raises((AssertionError, Corrupt), match="clone"):
        run_table_copies(0, tmp_path / "table")
