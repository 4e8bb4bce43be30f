"""Write rows to files and JSON, and read them back."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lancelsm.errors import Invalid
from lancelsm.record.export import write_file
from lancelsm.record.files import read_file, read_ndjson
from lancelsm.record.json_lines import json_lines, json_objects, json_values

NOON = dt.datetime.fromisoformat("2024-02-29T12:30:15.123456")
FLAT = pa.table(
    {
        "id": pa.array([1, 2, -(1 << 63)], pa.int64()),
        "text": ["", None, 'ä"\n\t日本 \\'],
        "number": pa.array([math.nan, -math.inf, -0.0], pa.float64()),
        "small": pa.array([0.1, None, math.inf], pa.float32()),
        "yes": [True, False, None],
        "price": pa.array([Decimal("1.50"), None, Decimal("-12345678901234.99")], pa.decimal128(16, 2)),
        "day": pa.array([dt.date(2024, 2, 29), None, dt.date(1969, 12, 31)], pa.date32()),
        "at": pa.array([NOON, None, NOON], pa.timestamp("us")),
        "instant": pa.array([1_700_000_000_123_456_789, None, -1], pa.timestamp("ns", "UTC")),
        "time": pa.array([dt.time(1, 2, 3), None, dt.time(0)], pa.time64("us")),
    }
)
NESTED = FLAT.append_column("blob", pa.array([b"", None, b"\x00\xff"])).append_column(
    "nested",
    pa.array(
        [{"list": [1, None], "map": [("k", Decimal("1.0"))]}, None, {"list": None, "map": []}],
        pa.struct([("list", pa.list_(pa.int32())), ("map", pa.map_(pa.string(), pa.decimal128(3, 1)))]),
    ),
)
WITH_DICTIONARY = NESTED.append_column("word", pa.array(["a", None, "b"]).dictionary_encode())


def same(a: pa.Table, b: pa.Table) -> bool:
    """Whether two tables are equal, where NaN equals NaN and -0.0 differs from 0.0."""
    return a.schema.equals(b.schema) and repr(a.to_pylist()) == repr(b.to_pylist())


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "arrows", "ipc", "feather", "ndjson", "jsonl", "json", "csv"])
def test_rows_written_to_a_file_are_read_back_unchanged(tmp_path: Path, suffix: str) -> None:
    rows = FLAT if suffix == "csv" else NESTED
    path = str(tmp_path / f"rows.{suffix}")

    written = write_file(path, rows.schema, rows.to_batches(max_chunksize=2))

    assert written == 3
    assert same(read_file(path, schema=rows.schema), rows)
    assert [file.name for file in tmp_path.iterdir()] == [f"rows.{suffix}"]


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv"])
def test_a_file_without_rows_keeps_its_columns(tmp_path: Path, suffix: str) -> None:
    path = str(tmp_path / f"rows.{suffix}")

    assert write_file(path, FLAT.schema, []) == 0
    assert read_file(path, schema=FLAT.schema).schema.equals(FLAT.schema)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.ndjson"
    path.write_text("old")

    def failing() -> Any:
        yield from FLAT.to_batches()
        raise Invalid("no more rows")

    with pytest.raises(Invalid, match="no more rows"):
        write_file(str(path), FLAT.schema, failing())
    assert (path.read_text(), [file.name for file in tmp_path.iterdir()]) == ("old", ["rows.ndjson"])


def test_csv_refuses_nested_columns(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="'nested' of type struct"):
        write_file(str(tmp_path / "rows.csv"), NESTED.schema, NESTED.to_batches())


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="suffix"):
        write_file(str(tmp_path / "rows.xls"), FLAT.schema, FLAT.to_batches())


def test_json_writes_types_that_it_lacks_as_text() -> None:
    first, second, third = json_objects(WITH_DICTIONARY)

    assert first == {
        "id": 1,
        "text": "",
        "number": "NaN",
        "small": pytest.approx(0.1),
        "yes": True,
        "price": "1.50",
        "day": "2024-02-29",
        "at": "2024-02-29T12:30:15.123456",
        "instant": "2023-11-14T22:13:20.123456789Z",
        "time": "01:02:03.000000",
        "blob": "",
        "nested": {"list": [1, None], "map": {"k": "1.0"}},
        "word": "a",
    }
    assert {name: value for name, value in second.items() if value is not None} == {
        "id": 2,
        "number": "-Infinity",
        "yes": False,
    }
    assert (third["blob"], third["nested"], third["id"]) == ("AP8=", {"list": None, "map": {}}, -(1 << 63))


def test_json_writes_a_zoned_timestamp_in_utc() -> None:
    column = pa.array([0], pa.timestamp("s", "Europe/Berlin"))

    assert json_values(column) == ["1970-01-01T00:00:00Z"]


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.list_(pa.int8(), 2), [[1, 2], None, [3, 4], [5, 6]], [None, [3, 4]]),
        (pa.large_list(pa.binary()), [[b"a"], [], [b"b", None], None], [[], ["Yg==", None]]),
        (pa.map_(pa.int8(), pa.bool_()), [[(1, True)], None, [(2, None)], []], [None, [[2, None]]]),
        (pa.struct([("a", pa.bool_())]), [{"a": None}, None, {"a": True}, None], [None, {"a": True}]),
        (pa.struct([]), [{}, None, {}, {}], [None, {}]),
        (pa.float16(), [0.0, None, math.inf, 0.0], [None, "Infinity"]),
        (pa.duration("ms"), [0, None, 1500, 0], [None, 1500]),
        (pa.null(), [None] * 4, [None, None]),
    ],
)  # fmt: skip
def test_a_slice_is_written_with_its_own_values_only(kind: pa.DataType, values: list[Any], expected: list[Any]) -> None:
    found = json_values(pa.array(values, kind).slice(1, 2))

    assert json.loads(json.dumps(found)) == expected


def test_a_row_without_columns_is_an_empty_object() -> None:
    assert list(json_lines(FLAT.select([]).slice(0, 2))) in ([], ["{}", "{}"])


def test_json_lines_in_utf8_are_read_back_unchanged() -> None:
    lines = list(json_lines(NESTED))

    assert "日本" in lines[2]
    assert all("\n" not in line for line in lines)
    assert same(read_ndjson([line.encode() for line in lines], schema=NESTED.schema), NESTED)
