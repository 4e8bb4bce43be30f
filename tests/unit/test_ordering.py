"""Sorted scans: the order of values, NaN and null, wrong orders, and how many rows are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lancelsm.errors import Invalid
from lancelsm.read.ordering import in_order, parse_order
from lancelsm.table import Table
from tests.unit.tables import ids, orders


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return orders(tmp_path)


@pytest.mark.parametrize(
    ("order_by", "expected"),
    [
        ("id", [1, 2, 3, 4]),
        ("id desc", [4, 3, 2, 1]),
        ("total, id DESC", [4, 1, 3, 2]),
        (["total desc", "id asc"], [3, 1, 4, 2]),
        (["state", "id"], [1, 3, 2, 4]),
    ],
)
@pytest.mark.parametrize("limit", [None, 0, 3, 9])
def test_a_scan_sorts_its_rows(table: Table, order_by: Any, expected: list[int], limit: int | None) -> None:
    assert ids(table.scan(order_by=order_by, limit=limit)) == expected[:limit]
    rows = table.scan(order_by=order_by, limit=limit, columns=["id"], where="id <> 3").to_arrow()
    assert rows.column_names == ["id"]
    assert rows["id"].to_pylist() == [one for one in expected if one != 3][:limit]


@pytest.mark.parametrize(
    ("order_by", "message"),
    [("totl", "Did you mean 'total'"), ("", "Columns are"), ([], "Name each column once"), ("id, id desc", "once")],
)
def test_a_wrong_order_is_invalid(table: Table, order_by: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message) as raised:
        table.scan(order_by=order_by)
    assert raised.value.where["table"] == table.uri


def test_a_column_whose_type_has_no_order_is_invalid() -> None:
    schema = pa.schema([("tags", pa.list_(pa.string())), ("a desc", pa.int64())])
    with pytest.raises(Invalid, match="can't be sorted by column 'tags'"):
        parse_order("tags", schema)
    assert parse_order("a desc", schema).keys == (("a desc", "ascending"),)


def test_nan_and_null_come_last_and_dictionaries_are_sorted_by_value() -> None:
    rows = pa.table(
        {
            "f": pa.array([float("nan"), 1.0, None, 2.0]),
            "kind.of": pa.array(["b", "a", None, "c"]).dictionary_encode(),
            "at": [0, 1, 2, 3],
        }
    )

    def order(text: str) -> list[int]:
        return list(
            in_order(rows.to_reader(), parse_order([text], rows.schema), limit=None).read_all()["at"].to_pylist()
        )

    assert (order("f"), order("f desc")) == ([1, 3, 0, 2], [3, 1, 0, 2])
    assert (order("kind.of"), order("kind.of desc")) == ([1, 0, 3, 2], [3, 0, 1, 2])


def test_a_limit_bounds_the_rows_in_memory() -> None:
    schema = pa.schema([("n", pa.int64())])
    alive: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        before = pa.total_allocated_bytes()
        for part in range(12):
            yield pa.record_batch([pa.array(range(part * 50_000, (part + 1) * 50_000), pa.int64())], schema=schema)
            alive.append(pa.total_allocated_bytes() - before)

    stream = pa.RecordBatchReader.from_batches(schema, batches())
    rows = in_order(stream, parse_order("n desc", schema), limit=2).read_all()

    assert rows["n"].to_pylist() == [599_999, 599_998]
    assert max(alive) < 8 * 50_000 * 8  # of 12 batches
