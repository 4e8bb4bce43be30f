"""Steps that tests of the change stream and of its positions share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lancelsm
from lancelsm.history.changes import Changes
from lancelsm.table import Table


def create_table(path: Path, **options: Any) -> Table:
    """Create a table whose whole log can be collected in one round."""
    return lancelsm.create(
        path, [{"id": 0, "v": 0}], primary_key="id", settings={"collect_floor_bytes": 1 << 40}, **options
    )


def write(table: Table, *values: int) -> None:
    for value in values:
        table.upsert([{"id": value % 7, "v": value}])


def values_in(changes: Changes) -> list[int]:
    return [row["v"] for change in changes for row in change.rows.to_pylist()]


def append_fences(table: Table) -> None:
    """Append two fences to the log: one claim takes the region, the next gives it back."""
    region = table.list_regions()[0]
    table.claim(region, owner="another")
    table.claim(region)


def flush_merge_collect(table: Table) -> None:
    table.flush()
    table.merge()
    table.collect(yes=True, interval_seconds=0)


def first_position(table: Table) -> int:
    return table.list_regions()[0].head().first_position
