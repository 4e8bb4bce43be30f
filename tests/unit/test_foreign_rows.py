"""Rows that another tool added to a base: their count, and their keys as text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from lancelsm.dataset.foreign_rows import ROWS, counted_rows, described_keys


def test_the_key_of_every_row_has_a_text() -> None:
    times = pa.array([0, 1 << 50], pa.timestamp("s"))  # Python has no such year
    rows = pa.table({"id": pa.array([1, 2]), "at": times, "value": times})

    found = described_keys(rows, ("id", "at"))

    assert found == ("id=1, at=datetime.datetime(1970, 1, 1, 0, 0)", "id=2, at=a value of timestamp[s]")


@pytest.mark.parametrize(("counted", "rows"), [("5", 5), ("", 7), ("-1", 7), ("many", 7)])
def test_a_count_that_another_tool_changed_is_ignored(counted: str, rows: int) -> None:
    base = SimpleNamespace(metadata={ROWS: counted}, counters={}, version=9, rows=7)

    assert counted_rows(cast("Any", base)) == rows
