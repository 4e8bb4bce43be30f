"""With clones, backups, restored tables, scrubs and drops among all others: copies are whole, and stay so."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lancelsm.admin import clone, drop
from lancelsm.errors import Corrupt
from tests.simulation.table_copies import table_copies


def test_copies_are_whole_and_stay_so_and_scrub_finds_nothing(tmp_path: Path) -> None:
    done: Counter[str] = Counter()
    for seed in range(3):
        done += table_copies(seed, tmp_path / f"table{seed}").done

    assert all(done[what] >= 3 for what in ("clone", "drop", "restore", "scrub")), done
    assert done["drop of the source"], done


@pytest.mark.long
@pytest.mark.parametrize("first", range(10, 110, 10))
def test_copies_are_whole_and_stay_so_in_more_seeds(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        table_copies(seed, tmp_path / f"table{seed}")


@pytest.mark.parametrize(
    ("module", "functions"),
    [
        (clone, ["_keep_files", "_check_begun"]),  # the source keeps the clone's version
        (drop, ["_release"]),  # the pin ends with the clone
        (drop, ["_check_unshared"]),  # a table whose files a clone shares is not dropped
    ],
)
def test_without_the_guard_something_breaks(
    module: object, functions: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in functions:
        monkeypatch.setattr(module, function, lambda *arguments, **options: None)
    with pytest.raises((AssertionError, Corrupt), match="clone"):
        table_copies(0, tmp_path / "table")
