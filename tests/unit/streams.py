"""What the tests of the change stream and of its positions do with a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lancelsm
from lancelsm.history.changes import Changes
from lancelsm.table import Table


def made(place: Path, **how: Any) -> Table:
    """A table whose whole log may go in one round."""
    return lancelsm.create(
        place, [{"id": 0, "v": 0}], primary_key="id", settings={"collect_floor_bytes": 1 << 40}, **how
    )


def write(table: Table, *values: int) -> None:
    for value in values:
        table.upsert([{"id": value % 7, "v": value}])


def seen(changes: Changes) -> list[int]:
    return [row["v"] for change in changes for row in change.rows.to_pylist()]


def fence(table: Table) -> None:
    """Behind what is there: whoever takes a region and gives it back appends two."""
    region = table.regions()[0]
    table.claim(region, owner="another")
    table.claim(region)


def fold(table: Table) -> None:
    table.flush()
    table.merge()
    table.collect(yes=True, interval_seconds=0)


def first_position(table: Table) -> int:
    return table.regions()[0].head().first_position
