"""Defaults and widened values of every type are exact in every level of a table."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from lancelsm.record.admission import refusal
from lancelsm.record.casts import as_type
from lancelsm.record.schema_changes import is_wider
from lancelsm.record.schema_history import widened_values
from lancelsm.table import Table
from tests.unit.arrow_values import EVERYWHERE, EXTENSIONS, FIXED, array, exact
from tests.unit.tables import create, levels

NESTED = [
    pa.list_(pa.float32(), 3),
    pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]),
    pa.map_(pa.string(), pa.int32()),
    pa.large_list(pa.struct([("k", pa.date32())])),
]
KINDS = [kind for kind in dict.fromkeys([*EVERYWHERE, *EXTENSIONS, *NESTED]) if refusal(pa.field("x", kind)) is None]
FLAT = [
    *FIXED,
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.large_binary(),
    pa.decimal128(5, 4),
    pa.decimal256(50, 4),
]
WIDER = [pair for pair in permutations(FLAT, 2) if is_wider(*pair)]


def three_levels(path: Path, columns: pa.Schema, rows: list[dict[str, Any]]) -> Table:
    """A table with one row in the base, one in a generation, and one in its log."""
    table = create(path, pa.schema([pa.field("id", pa.int64()), *columns]))
    base, generation, log = rows
    table.upsert(pa.table(base))
    table.flush()
    table.merge(engine="inprocess")
    table.upsert(pa.table(generation))
    table.flush()
    table.upsert(pa.table(log))
    return table


def check(table: Table, expected: dict[str, list[list[Any]]]) -> None:
    """Compare each column with the exact values of its rows, in each level and after a merge."""
    for _ in range(2):
        rows = table.scan().to_arrow().sort_by("id")
        wrong = [
            name for name, values in expected.items() if [exact(part) for part in _parts(rows.column(name))] != values
        ]
        assert not wrong, [str(rows.schema.field(name)) for name in wrong]
        table.flush()
        table.merge(engine="inprocess")
    assert table.scrub().problems == ()


def _parts(column: pa.ChunkedArray) -> list[pa.ChunkedArray]:
    return [column.slice(at, 1) for at in range(len(column))]


@pytest.mark.rest
def test_a_default_of_any_type_is_exact_in_every_level(tmp_path: Path) -> None:
    table = three_levels(tmp_path, pa.schema([]), [{"id": [key]} for key in range(3)])
    random, expected = Random("defaults"), {}
    for number, kind in enumerate(KINDS):
        name, (default,) = f"c{number}", array(kind, 1, random, nullable=False, nulls=0.0)
        table.add_column(name, kind, default=default)
        column = as_type(pa.repeat(default, 1), table.schema.field(name).type)
        expected[name] = [exact(column)] * 3
    assert table.add_column(f"c{len(KINDS) - 1}", KINDS[-1], default=default) == len(KINDS) + 1, "it is there"
    check(table, expected)


@pytest.mark.rest
def test_values_of_any_type_that_can_be_widened_are_exact_in_every_level(tmp_path: Path) -> None:
    random = Random("widened")
    columns = pa.schema([pa.field(f"c{number}", old) for number, (old, _) in enumerate(WIDER)])
    given = [{"id": [key], **{one.name: array(one.type, 1, random) for one in columns}} for key in range(3)]
    table = three_levels(tmp_path, columns, given)
    for number, (_, new) in enumerate(WIDER):
        table.widen_column(f"c{number}", new)
    assert len(WIDER) == 20
    check(
        table,
        {
            f"c{number}": [exact(widened_values(row[f"c{number}"], new)) for row in given]
            for number, (_, new) in enumerate(WIDER)
        },
    )


def test_a_nan_of_any_payload_is_read_as_nan_after_it_is_widened(tmp_path: Path) -> None:
    odd = pa.array([0x7F800001, 0x7FC12345, 0xFF800001], pa.uint32()).view(pa.float32())
    rows = [{"id": [key], "f": odd.slice(key, 1)} for key in range(3)]
    table = three_levels(tmp_path, pa.schema([pa.field("f", pa.float32())]), rows)
    table.add_column("g", "float", default=pa.scalar(float("nan"), pa.float32()))
    table.widen_column("f", "double")
    table.widen_column("g", "double")
    for _ in levels(table):
        found = table.scan().to_arrow()
        assert [str(value) for name in "fg" for value in found[name].to_pylist()] == ["nan"] * 6
