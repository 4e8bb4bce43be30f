"""A merge reports in each head what it merged, for schedules and backpressure."""

from __future__ import annotations

from pathlib import Path

from lancelsm.region.catalog import regions
from lancelsm.region.handle import open_table
from tests.unit.tables import create, row


def test_a_merge_marks_a_head_clean_only_if_the_base_has_all_rows(tmp_path: Path) -> None:
    table = create(tmp_path)
    (region,) = regions(open_table(table.uri).context)
    table.upsert([row(1)])
    table.flush()
    assert region.head().dirty

    table.merge()
    assert (region.head().dirty, region.head().merged) == ("", 1)

    table.upsert([row(2)])
    table.flush()
    table.upsert([row(3)])
    table.merge()
    assert region.head().dirty, "row 3 is only in the log"
    assert region.head().merged == 2
