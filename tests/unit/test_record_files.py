"""Read rows from files: every format gives the same table, and the error for a broken file names the file."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from lancelsm.errors import Invalid
from lancelsm.record.files import json_rows, read_file, read_ndjson
from lancelsm.record.normalize import upserts
from lancelsm.record.schema import FIELD_ID, TableSchema

SCHEMA = pa.schema(
    [
        ("id", pa.uint64()),
        ("name", pa.string()),
        ("price", pa.float32()),
        ("amount", pa.decimal128(38, 3)),
        ("day", pa.date32()),
        ("at", pa.timestamp("ns", "UTC")),
        ("flag", pa.bool_()),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
    ]
)
AT = dt.datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
ROWS = [
    {
        "id": 2**64 - 1,
        "name": 'é,"\n',
        "price": 0.1,
        "amount": Decimal("12345678901234567890123456789012345.678"),
        "day": AT.date(),
        "at": AT,
        "flag": True,
        "kind": "a",
    },
    {"id": 1, "name": "", "price": math.nan, "amount": None, "day": None, "at": None, "flag": None, "kind": None},
    {
        "id": 2,
        "name": None,
        "price": -math.inf,
        "amount": Decimal(0),
        "day": None,
        "at": AT,
        "flag": False,
        "kind": "b",
    },
]
TABLE = pa.Table.from_pylist(ROWS, schema=SCHEMA)
PLAIN = TABLE.cast(SCHEMA.set(7, pa.field("kind", pa.string())))


def write(path):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(TABLE, path)
    elif path.suffix == ".csv":
        pyarrow.csv.write_csv(PLAIN, path)
    elif path.suffix in (".ndjson", ".jsonl", ".json"):
        texts = {"amount": str, "day": str, "at": lambda at: at.isoformat(timespec="microseconds")}
        rows = [
            {name: texts[name](v) if v is not None and name in texts else v for name, v in row.items()} for row in ROWS
        ]
        path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    else:
        make = pa.ipc.new_stream if path.suffix == ".arrows" else pa.ipc.new_file
        with pa.OSFile(str(path), "wb") as sink, make(sink, SCHEMA) as writer:
            writer.write_table(TABLE)
    return str(path)


FORMATS = ["parquet", "csv", "ndjson", "jsonl", "json", "arrow", "arrows", "ipc", "feather"]


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_same_rows(tmp_path, suffix):
    path = write(tmp_path / f"rows.{suffix}")
    fields = [field.with_metadata({FIELD_ID: str(i)}) for i, field in enumerate(SCHEMA)]
    schema = TableSchema(columns=pa.schema(fields), primary_key=("id",))

    rows = upserts(read_file(path, schema=SCHEMA), schema=schema)

    assert repr(rows.select(SCHEMA.names).to_pylist()) == repr(TABLE.to_pylist())


@pytest.mark.parametrize("suffix", ["ndjson", "jsonl", "json"])
def test_an_empty_json_lines_file_has_no_rows(tmp_path, suffix):
    path = tmp_path / f"rows.{suffix}"
    path.touch()

    assert read_file(str(path), schema=SCHEMA).equals(SCHEMA.empty_table())


@pytest.mark.parametrize("suffix", [suffix for suffix in FORMATS if "json" not in suffix])
def test_an_empty_file_is_refused(tmp_path, suffix):
    path = tmp_path / f"rows.{suffix}"
    path.touch()

    with pytest.raises(Invalid, match="empty") as raised:
        read_file(str(path), schema=SCHEMA)
    assert raised.value.where["file"] == str(path)


@pytest.mark.parametrize("suffix", ["parquet", "ndjson", "arrow", "arrows"])
def test_a_truncated_file_is_refused(tmp_path, suffix):
    path = tmp_path / f"cut.{suffix}"
    write(path)
    content = path.read_bytes()

    for length in range(1, len(content), 7):
        if suffix == "ndjson" and b"\n" in content[length - 1 : length + 1]:
            continue  # this is a valid file with fewer lines
        path.write_bytes(content[:length])
        with pytest.raises(Invalid) as raised:
            read_file(str(path), schema=SCHEMA)
        assert raised.value.where["file"] == str(path)


def test_an_arrow_stream_truncated_between_batches_is_refused(tmp_path):
    path = tmp_path / "rows.arrows"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(TABLE)
        end = sink.tell()
    path.write_bytes(path.read_bytes()[:end])

    with pytest.raises(Invalid, match="no end"):
        read_file(str(path), schema=None)


BROKEN = {
    "text.csv": (b"id,name\n1,a\n2,\xff\n", "UTF8"),
    "more.csv": (b"id,extra\n1,\xff\n", "'extra' is not UTF-8"),
    "wide.csv": (b"id,name\n1\n", "Expected 2 columns"),
    "number.csv": (b"id,name\nx,a\n", "'x'"),
    "point.csv": (b"id\n1.0\n", "'1.0'"),
    "overflow.csv": (b"price\n1\n1e39\n", "row 1: 1e39 is out of the range of float"),
    "lossy.csv": (b"amount\n1.2345\n", "data loss"),
    "line.ndjson": (b'{"id": 1}\n{"id": \n', "line 2 is not JSON"),
    "utf8.ndjson": (b'{"name": "\xff"}\n', "line 1 is not JSON in UTF-8"),
    "array.ndjson": (b"[1]\n", "line 1 is not a JSON object"),
    "surrogate.ndjson": (b'{"name": "\\ud800"}\n', "row 0: .*surrogates not allowed"),
    "float.ndjson": (b'{"id": 1.0}\n', "row 0: .* is not a value of uint64"),
    "big.ndjson": (b'{"id": 18446744073709551616}\n', "row 0"),
    "huge.ndjson": (b'{"price": 1e400}\n', "row 0"),
    "missing.ndjson": (b'{"id": 1, "name": ""}\n{"id": 2}\n', "'name' is missing in row 1 .*the same columns"),
    "more.ndjson": (b'{"id": 1}\n{"id": 2, "name": ""}\n', "'name' is missing in row 0"),
    "day.ndjson": (b'{"day": "2020-02-30"}\n', "row 0"),
    "clock.ndjson": (b'{"at": "2020-01-01T00:00:00"}\n', "row 0: .*zone offset"),
    "junk.parquet": (b"PAR1 junk PAR1", "parquet"),
    "junk.arrow": (b"ARROW1\0\0 junk", "arrow"),
    "rows.txt": (b"id\n1\n", "is not a known format"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_error_for_a_broken_file_names_the_file(tmp_path, name):
    content, message = BROKEN[name]
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(Invalid, match=message) as raised:
        read_file(str(path), schema=SCHEMA)
    assert raised.value.where["file"] == str(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(Invalid, match=r"there is no file .*none.csv \["):
        read_file(str(tmp_path / "none.csv"), schema=None)


def test_without_a_schema_types_are_inferred(tmp_path):
    (tmp_path / "rows.csv").write_text("id,name,x\n1,a,1.5\n2,,\n")
    (tmp_path / "rows.ndjson").write_text('{"id": 9007199254740993, "name": "2020-01-01"}\n\n{"id": 2, "x": [1]}\n')

    assert read_file(str(tmp_path / "rows.csv"), schema=None).to_pylist() == [
        {"id": 1, "name": "a", "x": 1.5},
        {"id": 2, "name": None, "x": None},
    ]
    assert read_file(str(tmp_path / "rows.ndjson"), schema=None).to_pylist() == [
        {"id": 9007199254740993, "name": "2020-01-01", "x": None},
        {"id": 2, "name": None, "x": [1]},
    ]


def test_json_reads_types_that_it_lacks_from_text():
    inner = pa.struct([("at", pa.timestamp("us")), ("amount", pa.decimal128(30, 20)), ("raw", pa.binary())])
    schema = pa.schema(
        [
            ("raw", pa.large_binary()),
            ("time", pa.time64("us")),
            ("amount", pa.decimal128(30, 20)),
            ("x", pa.list_(pa.float64())),
            ("half", pa.float16()),
            ("inner", pa.list_(inner)),
            ("map", pa.map_(pa.string(), pa.date32())),
            ("day", pa.dictionary(pa.int8(), pa.string())),
        ]
    )
    line = (
        b'{"raw": "AP8=", "time": "01:02:03.5", "amount": 1.12345678901234567890, "x": ["NaN", -Infinity, 1e308, 3],'
        b'"half": "Infinity", "inner": [{"at": "2020-01-02 03:04:05", "amount": "0.5", "raw": ""}, null],'
        b'"map": {"a": "2020-01-01"}, "day": "x"}'
    )

    (row,) = read_ndjson([line], schema=schema).to_pylist()

    assert repr(row) == repr(
        {
            "raw": b"\0\xff",
            "time": dt.time(1, 2, 3, 500000),
            "amount": Decimal("1.12345678901234567890"),
            "x": [math.nan, -math.inf, 1e308, 3.0],
            "half": math.inf,
            "inner": [
                {
                    "at": AT.replace(tzinfo=None, microsecond=0),
                    "amount": Decimal("0.50000000000000000000"),
                    "raw": b"",
                },
                None,
            ],
            "map": [("a", dt.date(2020, 1, 1))],
            "day": "x",
        }
    )


MISFITS_IN_JSON = [
    (pa.time64("us"), "12:00:00.123456789"),
    (pa.time64("ns"), "12:00:00.1234567890"),
    (pa.time64("ns"), "12:00:00.0000000001"),
    (pa.time64("ns"), "12:00.5"),
    (pa.time64("ns"), "12:00:00Z"),
    (pa.time32("s"), 43200),
    (pa.timestamp("us"), "2020-01-01T00:00:00.123456789"),
    (pa.timestamp("us"), 5),
    (pa.timestamp("us"), "+2020-13-01T00:00:00"),
    (pa.timestamp("us"), "+12020-01-01"),
    (pa.timestamp("s"), "+12020-01-01T00:00:00.5"),
    (pa.timestamp("s", "UTC"), "+12020-01-01T00:00:00"),
    (pa.timestamp("s"), "+12020-01-01T00:00:00Z"),
    (pa.timestamp("ns"), "+12020-01-01T00:00:00"),
    (pa.date32(), "+99999999-01-01"),
    (pa.date32(), "-12020-02-30"),
    (pa.date32(), "-44-03-15"),
    (pa.duration("s"), "5"),
    (pa.duration("s"), 1.5),
    (pa.duration("s"), True),
    (pa.duration("s"), 2**63),
]


@pytest.mark.parametrize(("kind", "value"), MISFITS_IN_JSON, ids=str)
@pytest.mark.parametrize("nested", [False, True], ids=["column", "nested"])
def test_a_value_in_json_that_does_not_fit_is_refused_with_its_row(kind, value, nested):
    column = pa.struct([("x", pa.list_(kind))]) if nested else kind
    rows = [{"v": None}, {"v": {"x": [None, value]} if nested else value}]

    with pytest.raises(Invalid) as raised:
        json_rows(rows, schema=pa.schema([("v", column)]))

    assert raised.value.where == {"field": "v", "row": 1}


def test_a_row_of_10_mb_is_read_from_text(tmp_path):
    text = "x" * 10_000_000
    (tmp_path / "rows.csv").write_text(f"id,name\n1,{text}\n")
    (tmp_path / "rows.ndjson").write_text(json.dumps({"id": 1, "name": text}))

    for name in ("rows.csv", "rows.ndjson"):
        assert read_file(str(tmp_path / name), schema=SCHEMA)["name"].to_pylist() == [text]
