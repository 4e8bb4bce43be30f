"""The commands `schema`."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from tests.cli.console import Json, Run, lines
from tests.unit.tables import create, row, rows_of


@pytest.mark.rest
def test_columns_are_changed_and_shown(tmp_path: Path, as_json: Json, run: Run) -> None:
    table = create(tmp_path, pa.schema([("id", pa.int64()), ("v", pa.string()), ("n", pa.int32())]))
    table.upsert([{**row(1), "n": 1}])

    as_json("schema", "add", table.uri, "day", "date32", "--default", "2026-11-01")
    as_json("schema", "add", table.uri, "price", "decimal128(20, 2)", "--default", "123456789012345678.10")
    as_json("schema", "widen", table.uri, "n", "int64")
    as_json("schema", "rename", table.uri, "v", "text")
    as_json("schema", "drop", table.uri, "n")
    done = run("write", table.uri, "-", stdin=lines({"id": 2, "text": "b"}))
    lance.dataset(table.uri).add_columns(pa.schema([("x", pa.int8())]))
    synced = as_json("schema", "sync", table.uri)

    assert done.code == 0, done.err
    assert synced["synced"] == ["add x"]
    found = as_json("schema", "show", table.uri)
    assert found["version"] == 7
    assert found["changes"] == ["add day", "add price", "widen n to int64", "rename v to text", "drop n", "add x"]
    assert [(one["name"], one["type"]) for one in found["columns"]] == [
        ("id", "int64"),
        ("text", "string"),
        ("day", "date32[day]"),
        ("price", "decimal128(20, 2)"),
        ("x", "int8"),
    ]
    values = [(str(one["day"]), str(one["price"])) for one in rows_of(table)]
    assert values == [("2026-11-01", "123456789012345678.10")] * 2
    assert "version 7 of the columns" in run("schema", "show", table.uri).out
    assert as_json("schema", "nullable", table.uri, "x")["version"] == 7
