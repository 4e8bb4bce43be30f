"""The work for a table with many columns grows with their number, not with its square."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.table import Table
from tests.unit.python_calls import calls_of

ROWS = 5


def create(path: Path, columns: int) -> tuple[Table, pa.Table]:
    schema = pa.schema([("id", pa.int64()), *((f"c{number}", pa.int64()) for number in range(columns - 1))])
    rows = pa.Table.from_arrays([pa.array(range(ROWS))] * columns, schema=schema)
    return lancelsm.create(path, rows, primary_key="id"), rows


def steps(table: Table, rows: pa.Table) -> dict[str, Callable[[], Any]]:
    """Calls, in order, that leave rows in the base, a generation and the log."""
    return {
        "upsert": lambda: table.upsert(rows),
        "upsert a dict": lambda: table.upsert(rows.slice(1, 1).to_pylist()[0]),
        "flush": table.flush,
        "merge": lambda: table.merge(engine="inprocess"),
        "upsert again": lambda: table.upsert(rows.slice(0, 3)),
        "flush again": table.flush,
        "upsert to the log": lambda: table.upsert(rows.slice(0, 1)),
        "scan": lambda: table.scan().to_arrow(),
        "get": lambda: table.get([0, 2, 4]),
    }


@pytest.mark.rest
def test_twice_the_columns_take_twice_the_calls(tmp_path: Path) -> None:
    few, many = (
        {name: calls_of(work) for name, work in steps(*create(tmp_path / str(columns), columns)).items()}
        for columns in (300, 600)
    )

    assert {name: many[name] / few[name] for name in few if many[name] > 2.1 * few[name]} == {}


def test_lance_gets_no_list_of_all_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Lance takes time in the square of the number of columns that a scan names.
    scanner, whole = lance.LanceDataset.scanner, []

    def record(dataset: lance.LanceDataset, columns: Any = None, **options: Any) -> Any:
        if columns is None:
            whole.append(len(dataset.schema))
        else:
            assert list(columns) != dataset.schema.names
        return scanner(dataset, columns, **options)

    monkeypatch.setattr(lance.LanceDataset, "scanner", record)

    for work in steps(*create(tmp_path / "table", 3)).values():
        work()

    assert {3, 4} <= set(whole), "of the base, and with tombstones of a generation"
