"""The rules of conditional and partial writes do what the same rules on dicts do, for any rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lancelsm.read.transact import rules
from lancelsm.read.transact.rows_at_head import live_columns
from lancelsm.record.normalize import partial_upserts, upserts
from lancelsm.record.schema import TableSchema, declare_primary_key, numbered

COLUMNS = pa.schema([("v", pa.float64()), ("a", pa.string()), ("b", pa.int32()), ("w", pa.list_(pa.int8()))])
SCHEMA = TableSchema(columns=numbered(declare_primary_key(COLUMNS, ["a", "b"])), primary_key=("a", "b"))
NAN = float("nan")

Rows = dict[tuple[str, int], dict[str, Any]]

values = st.fixed_dictionaries(
    {"v": st.sampled_from([None, NAN, -1.0, 0.0, 1.0]), "w": st.none() | st.lists(st.integers(0, 2), max_size=2)}
)
tables = st.dictionaries(st.tuples(st.sampled_from(["", "x", "x\0"]), st.integers(0, 2)), values, max_size=6)


def listed(rows: Rows) -> list[dict[str, Any]]:
    return [{"a": a, "b": b, **rest} for (a, b), rest in rows.items()]


def rank(value: float | None) -> float:
    return float("-inf") if value is None or value != value else value  # noqa: PLR0124 - NaN


def keys(rows: pa.Table) -> list[tuple[str, int]]:
    return list(zip(rows["a"].to_pylist(), rows["b"].to_pylist(), strict=True))


@settings(max_examples=settings().max_examples // 5)
@given(written=tables, there=tables)
def test_the_rules_are_those_of_dicts(written: Rows, there: Rows) -> None:
    rows = upserts(listed(written), schema=SCHEMA)
    current = pa.Table.from_pylist(listed(there), schema=live_columns(SCHEMA))

    assert keys(rules.absent(rows, current, SCHEMA)) == [key for key in written if key not in there]
    newer = [key for key, row in written.items() if key not in there or rank(row["v"]) > rank(there[key]["v"])]
    assert keys(rules.newer(rows, current, SCHEMA, column="v")) == newer
    part, names = partial_upserts(
        [{k: v for k, v in row.items() if k != "w"} for row in listed(written)], schema=SCHEMA
    )
    filled = rules.filled(part, current, SCHEMA, names=names)
    assert filled.schema == rows.schema
    assert list(map(repr, filled["v"].to_pylist())) == list(map(repr, rows["v"].to_pylist()))
    assert filled["w"].to_pylist() == [there.get(key, {"w": None})["w"] for key in written]
