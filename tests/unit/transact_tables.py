"""Small tables for tests of transactions and conditional writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import lancelsm
from lancelsm.table import Table

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("n", pa.int32()),
        pa.field("s", pa.dictionary(pa.int32(), pa.string())),
        pa.field("v", pa.list_(pa.float32(), 2), nullable=False),
    ]
)
V = [0.5, 1.5]


def row(key: int, n: int | None = 0, s: str | None = "a", v: list[float] = V) -> dict[str, Any]:
    return {"id": key, "n": n, "s": s, "v": v}


def make(path: Path, *rows: dict[str, Any], regions: str | None = None) -> Table:
    table = lancelsm.create(path / "table", COLUMNS, primary_key="id", regions=regions)
    table.upsert(list(rows))
    return table


def rows_of(table: Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda one: int(one["id"]))


def add(number: int) -> Callable[[pa.Table], list[dict[str, Any]]]:
    return lambda current: [{**one, "n": one["n"] + number} for one in current.to_pylist()]
