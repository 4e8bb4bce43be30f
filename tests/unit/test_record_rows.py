"""Bring rows to their stored form. The error for a value that does not fit names its column and row."""

from __future__ import annotations

import datetime as dt
import math
import struct
import subprocess
import sys
import uuid
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from lancelsm.errors import Invalid
from lancelsm.record.normalize import deletes, inferred, upserts
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import FIELD_ID, TOMBSTONE, TableSchema


def schema_of(key=("id",), nullable=True, **kinds):
    fields = [
        pa.field(name, kind, nullable=nullable and name not in key, metadata={FIELD_ID: str(number)})
        for number, (name, kind) in enumerate(kinds.items())
    ]
    return TableSchema(columns=pa.schema(fields), primary_key=key)


ORDERS = schema_of(id=pa.int64(), name=pa.string(), price=pa.float64())
ROWS = [
    {"id": 1, "name": "a", "price": 1.5},
    {"id": 2, "name": "", "price": None},
    {"id": 1, "name": None, "price": math.inf},
]
NEWEST = [{**ROWS[1], TOMBSTONE: False}, {**ROWS[2], TOMBSTONE: False}]
ARROW = pa.Table.from_pylist(ROWS)

FORMS = {
    "table": ARROW,
    "chunked table": pa.concat_tables([ARROW.slice(0, 1), ARROW.slice(1)]),
    "batch": ARROW.to_batches()[0],
    "reader": ARROW.to_reader,
    "polars": pl.DataFrame(ROWS),
    "pandas": pd.DataFrame(ROWS),
    "filtered pandas": pd.DataFrame([{"id": 0, "name": "x", "price": 0.0}, *ROWS]).query("id > 0"),
    "dict of lists": {name: [row[name] for row in ROWS] for name in ("price", "id", "name")},
    "dict of arrays": {name: ARROW.column(name) for name in ARROW.schema.names},
    "dict of series": lambda: {name: pl.DataFrame(ROWS)[name] for name in ARROW.schema.names},
    "rows": ROWS,
    "generator of rows": lambda: (dict(reversed(row.items())) for row in ROWS),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_input_rows_becomes_the_stored_form(form):
    data = FORMS[form]() if callable(FORMS[form]) else FORMS[form]

    rows = upserts(data, schema=ORDERS)

    assert rows.schema.equals(ORDERS.stored, check_metadata=True)
    assert rows.to_pylist() == NEWEST


@pytest.mark.parametrize(
    "keys",
    [
        [1, 2, 1],
        [{"id": 2}, {"id": 1}],
        pa.table({"id": [2, 1]}),
        {"id": (2, 1)},
        pa.array([2, 1], pa.int8()),
        pl.Series([2, 1]),
        pd.Series([2, 1]),
        pd.Index([2, 1]),
        iter([2, 1]),
    ],
    ids=lambda keys: type(keys).__name__,
)
def test_keys_become_tombstones(keys):
    rows = deletes(keys, schema=ORDERS)

    assert rows.schema.equals(ORDERS.stored, check_metadata=True)
    assert rows.to_pylist() == [{"id": key, "name": None, "price": None, TOMBSTONE: True} for key in (2, 1)]


def test_a_tombstone_has_null_in_all_other_columns_even_if_they_are_not_null():
    schema = schema_of(("b", "a"), nullable=False, a=pa.int32(), x=pa.list_(pa.int8()), b=pa.string())

    rows = deletes([{"a": 1, "b": "k"}, {"a": 1, "b": "l"}, {"b": "k", "a": 1}], schema=schema)

    assert rows.select(["a", "b", "x"]).to_pylist() == [{"a": 1, "b": key, "x": None} for key in "lk"]


@pytest.mark.parametrize(
    "empty", [[], ARROW.slice(0, 0), {"id": [], "name": [], "price": []}], ids=["rows", "table", "dict"]
)
def test_no_rows_become_an_empty_table(empty):
    assert upserts(empty, schema=ORDERS).equals(ORDERS.stored.empty_table())


def test_a_second_row_of_a_key_is_refused_with_on_duplicate_error():
    with pytest.raises(Invalid, match="duplicate key id 1 in rows 0 and 2") as raised:
        upserts(ROWS, schema=ORDERS, on_duplicate="error")
    assert raised.value.where == {"field": "id", "row": 0}

    assert upserts(ROWS[1:], schema=ORDERS, on_duplicate="error").num_rows == 2
    far = pa.array([YEAR_10000] * 2).cast(pa.timestamp("s"))
    with pytest.raises(Invalid, match=r"duplicate key at a value of timestamp\[s\] in rows 0 and 1"):
        upserts(pa.table({"at": far}), schema=schema_of(("at",), at=pa.timestamp("s")), on_duplicate="error")


COLUMNS = [
    ({"id": [1], "name": ["a"]}, "'price' is missing"),
    ({}, "'id' is missing"),
    ({"id": [1], "name": ["a"], "price": [1.0], "more": [1]}, "no column 'more'"),
    ({"id": [1], "name": ["a"], "price": [1.0], TOMBSTONE: [True]}, "no column '_tombstone'"),
    ({"id": [1], "name": ["a", "b"], "price": [1.0]}, "differ in length: id 1, name 2, price 1"),
    ([ROWS[0], {"id": 2, "name": "x"}], "'price' is in row 0 and missing in row 1 .*the same columns"),
    ([ROWS[0], {**ROWS[1], "more": 1}], "'more' is in row 1 and missing in row 0"),
    ([ROWS[0], 7], "row 1 is a int, not a dict"),
    ("text", "can't be read from str"),
    (7, "can't be read from int"),
    ({**ROWS[0], "name": ["a", "b"]}, "'id' is a int, not a sequence of values .* or rows as a list of dicts"),
    (pa.table([[1], [1]], names=["id", "id"]), "duplicate column 'id'"),
    (pa.array([1, 2]), "can't be read as Arrow"),
    (pd.DataFrame({"id": [1, "a"]}), "can't be read as Arrow: Could not convert 'a' .* column id"),
]


def test_an_unknown_value_of_on_duplicate_is_refused():
    with pytest.raises(Invalid, match="on_duplicate is 'first'"):
        upserts(ROWS, schema=ORDERS, on_duplicate="first")


@pytest.mark.parametrize(("data", "message"), COLUMNS, ids=lambda value: value if isinstance(value, str) else "")
def test_rows_with_other_columns_are_refused(data, message):
    with pytest.raises(Invalid, match=message):
        upserts(data, schema=ORDERS)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([{"id": 1, "name": "a"}], "'name' is not a key column"),
        ([1, None], "'id' is null in row 1"),
        ([1, "x"], "row 1: 'x' is not a value of int64"),
        ("abc", "row 0: 'abc' is not a value of int64"),
        (pa.table({"id": [1], "price": [1.0]}), "'price' is not a key column"),
    ],
    ids=str,
)
def test_invalid_keys_are_refused(keys, message):
    with pytest.raises(Invalid, match=message):
        deletes(keys, schema=ORDERS)


def test_a_composite_key_needs_all_its_columns():
    schema = schema_of(("a", "b"), a=pa.int8(), b=pa.int8())

    with pytest.raises(Invalid, match="'b' is missing"):
        deletes([{"a": 1}], schema=schema)
    for keys in ([1], (1,), (1, 2, 3), [(1, 2), (1,)], [[(1, 2)]]):
        with pytest.raises(Invalid, match="one value for each of the columns a, b"):
            deletes(keys, schema=schema)
    for keys in (1, "ab", pa.array([1])):
        with pytest.raises(Invalid, match="a key has the columns a, b"):
            deletes(keys, schema=schema)


@pytest.mark.parametrize(
    "keys", [(1, 2), [(1, 2)], [[1, 2]], {"a": 1, "b": 2}, {"a": [1], "b": [2]}, [{"a": 1, "b": 2}]]
)
def test_a_composite_key_is_a_tuple_or_a_dict(keys):
    rows = deletes(keys, schema=schema_of(("a", "b"), a=pa.int8(), b=pa.int8()))

    assert rows.select(["a", "b"]).to_pylist() == [{"a": 1, "b": 2}]


@pytest.mark.parametrize("keys", [7, [7], (7,), {7}, iter([7]), {"id": 7}, {"id": [7]}, np.int64(7), np.array([7])])
def test_a_key_of_one_column_is_a_plain_value_or_a_dict(keys):
    assert deletes(keys, schema=schema_of(("id",), id=pa.int64())).column("id").to_pylist() == [7]


ONE = {"id": 1, "tags": ["a"], "of": {"x": 1}}


@pytest.mark.parametrize("data", [ONE, [ONE], {"id": [1], "tags": [["a"]], "of": [{"x": 1}]}])
def test_a_dict_is_one_row_if_its_sequences_are_values_of_nested_columns(data):
    schema = schema_of(("id",), id=pa.int64(), tags=pa.list_(pa.string()), of=pa.struct([("x", pa.int64())]))

    assert upserts(data, schema=schema).select(schema.names).to_pylist() == [ONE]
    assert inferred(data).to_pylist() == [ONE]


def test_a_dict_that_could_be_a_row_or_columns_is_refused():
    schema = schema_of(("id",), id=pa.int64(), tags=pa.list_(pa.string()))

    with pytest.raises(Invalid, match="could be one row or columns"):
        upserts({"tags": ["a"]}, schema=schema)


def test_a_uuid_is_text_or_sixteen_bytes():
    value = uuid.UUID("12345678-1234-5678-1234-567812345678")
    inside = pa.map_(pa.string(), pa.list_(items(pa.binary(16))))
    schema = schema_of(("id",), id=pa.string(), raw=pa.binary(16), more=pa.binary(), inside=inside)
    row = upserts({"id": value, "raw": value, "more": value, "inside": {value: [value]}}, schema=schema).to_pylist()[0]

    assert (row["id"], row["raw"], row["more"]) == (str(value), value.bytes, value.bytes)
    assert row["inside"] == [(str(value), [value.bytes])]
    assert deletes(value, schema=schema).column("id").to_pylist() == [str(value)]
    with pytest.raises(Invalid, match="is not a value of int64"):
        deletes(value, schema=ORDERS)


INSTANT = dt.datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
CLOCK = INSTANT.replace(tzinfo=None)
EPOCH = dt.datetime.fromtimestamp(0, dt.UTC).replace(tzinfo=None)
NANOSECONDS = pd.Timestamp("2020-01-02T03:04:05.123456789")
INNER = pa.struct(
    [pa.field("x", pa.int8(), metadata={FIELD_ID: "8"}), pa.field("y", pa.string(), metadata={FIELD_ID: "9"})]
)


class Colour(StrEnum):
    RED = "red"


def items(kind, nullable=True):
    return pa.field("item", kind, nullable=nullable, metadata={FIELD_ID: "7"})


PYTHON_MISFITS = [
    (pa.int8(), 128),
    (pa.uint8(), -1),
    (pa.int64(), 2**63),
    (pa.uint64(), 2**64),
    (pa.int64(), 1.0),
    (pa.int64(), True),
    (pa.int64(), "1"),
    (pa.int64(), Decimal(1)),
    (pa.int64(), np.float64(1)),
    (pa.bool_(), 1),
    (pa.bool_(), "true"),
    (pa.float64(), 2**53 + 1),
    (pa.float32(), 2**24 + 1),
    (pa.float32(), 1e39),
    (pa.float16(), 65520.0),
    (pa.float64(), "1"),
    (pa.float64(), True),
    (pa.float64(), Decimal(1)),
    (pa.string(), b"a"),
    (pa.string(), 1),
    (pa.string(), "\ud800"),
    (pa.binary(), "a"),
    (pa.binary(2), b"abc"),
    (pa.decimal128(5, 2), Decimal("1.234")),
    (pa.decimal128(5, 2), Decimal("1234")),
    (pa.decimal128(5, 2), Decimal("NaN")),
    (pa.decimal128(5, 2), 1.5),
    (pa.date32(), CLOCK),
    (pa.date32(), "2020-01-01"),
    (pa.timestamp("s"), CLOCK),
    (pa.timestamp("us"), INSTANT),
    (pa.timestamp("us", "UTC"), CLOCK),
    (pa.timestamp("us"), dt.date(2020, 1, 1)),
    (pa.timestamp("us"), 5),
    (pa.timestamp("ns"), CLOCK.replace(year=3000)),
    (pa.time32("s"), CLOCK.time()),
    (pa.duration("s"), dt.timedelta(microseconds=1)),
    (pa.list_(items(pa.int8())), [1, 300]),
    (pa.list_(items(pa.int8())), [True]),
    (pa.list_(items(pa.int8())), 5),
    (pa.list_(items(pa.int8(), False)), [None]),
    (pa.list_(items(pa.string())), ["a", 1]),
    (pa.list_(items(pa.string())), "ab"),
    (pa.list_(items(pa.int8()), 2), [1]),
    (INNER, {"x": 1}),
    (INNER, {"x": 1, "y": "", "z": 1}),
    (INNER, {"x": 1.0, "y": ""}),
    (INNER, [1]),
    (pa.dictionary(pa.int8(), pa.string()), 1),
    (pa.map_(pa.string(), pa.int8()), [("a", 1, 2)]),
    (pa.map_(pa.string(), pa.int8()), {"a": "b"}),
    (pa.null(), 1),
    (pa.float64(), np.uint64(2**64 - 1)),
    (pa.float32(), np.uint32(2**32 - 1)),
    (pa.list_(items(pa.float64())), [np.uint64(2**64 - 1)]),
    (pa.list_(items(pa.float64()), 1), np.array([2**64 - 1], np.uint64)),
    (pa.int64(), np.uint64(2**63)),
    (pa.timestamp("us"), NANOSECONDS),
    (pa.struct([pa.field("x", pa.timestamp("us"), metadata={FIELD_ID: "8"})]), {"x": NANOSECONDS}),
    (pa.list_(items(pa.timestamp("ms"))), [NANOSECONDS]),
    (pa.duration("us"), pd.Timedelta(1, "ns")),
    (pa.struct([pa.field("x", pa.int8(), nullable=False, metadata={FIELD_ID: "8"})]), {"x": None}),
    (pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False)), {"a": None}),
    (pa.map_(pa.string(), pa.int8()), {None: 1}),
    (pa.float32(), 10**400),
    (pa.float64(), 10**400),
    (pa.float32(), Fraction(10**400)),
    (pa.float64(), np.longdouble(1) / 3),
    (pa.float64(), np.timedelta64(1, "ns")),
    (pa.int64(), np.timedelta64(1, "D")),
    (pa.time64("us"), INSTANT.timetz()),
    (pa.timestamp("us", "UTC"), CLOCK.replace(tzinfo=dt.timezone(dt.timedelta(microseconds=1)))),
    (pa.list_(items(pa.int64())), np.bytes_(b"x")),
    (pa.list_(items(pa.string())), np.str_("x")),
    (pa.list_(items(pa.int64())), np.array(3)),
    (pa.bool8(), 5),
    (pa.uuid(), "12345678-1234-5678-1234-567812345678"),
]


@pytest.mark.parametrize(("kind", "value"), PYTHON_MISFITS, ids=str)
def test_the_error_for_a_python_value_that_does_not_fit_names_its_row(kind, value):
    rows = [{"id": 0, "v": None}, {"id": 1, "v": value}, {"id": 2, "v": None}]

    with pytest.raises(Invalid) as raised:
        upserts(rows, schema=schema_of(id=pa.int64(), v=kind))

    assert raised.value.where == {"field": "v", "row": 1}
    assert raised.value.remedy.startswith("Give ")


def bad_text():
    offsets = struct.pack("<3i", 0, 1, 2)
    return pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"a\xff")])


YEAR_10000 = 253_402_300_800  # Python has no such date

ARROW_MISFITS = [
    (pa.date32(), pa.array([0, YEAR_10000 + 1]).cast(pa.timestamp("s"))),
    (pa.int8(), pa.array([1, 128])),
    (pa.uint64(), pa.array([0, -1])),
    (pa.int64(), pa.array([1, 2**64 - 1], pa.uint64())),
    (pa.float32(), pa.array([0.5, 0.1])),
    (pa.float16(), pa.array([0.5, 70000.0])),
    (pa.string(), bad_text()),
    (pa.large_string(), bad_text()),
    (pa.date32(), pa.array([EPOCH, CLOCK])),
    (pa.timestamp("ms"), pa.array([EPOCH, CLOCK])),
    (pa.decimal128(3, 1), pa.array([Decimal("1.10"), Decimal("1.11")])),
    (pa.binary(1), pa.array([b"a", b"ab"])),
    (pa.list_(items(pa.int8())), pa.array([[1], [1, 300]])),
    (pa.list_(items(pa.float32())), pa.array([[0.5], [0.1]])),
    (pa.list_(items(pa.int8(), False)), pa.array([[1], [1, None]])),
    (pa.list_(items(pa.int8()), 2), pa.array([[1, 2], [1]])),
    (
        pa.struct([pa.field("x", pa.int8(), nullable=False, metadata={FIELD_ID: "8"})]),
        pa.array([None, {"x": None}], pa.struct([("x", pa.int8())])),
    ),
    (
        pa.decimal128(2, 0),
        pa.Array.from_buffers(pa.decimal128(2, 0), 2, [None, pa.py_buffer(struct.pack("<qqqq", 1, 0, 100, 0))]),
    ),
]


@pytest.mark.parametrize(("kind", "values"), ARROW_MISFITS, ids=lambda value: str(getattr(value, "type", value)))
def test_the_error_for_an_arrow_value_that_does_not_fit_names_its_row(kind, values):
    chunks = pa.chunked_array([values[:1], values[:0], values[:1], values])
    for given in (chunks, chunks.combine_chunks()):
        with pytest.raises(Invalid) as raised:
            upserts({"id": pa.array(range(4)), "v": given}, schema=schema_of(id=pa.int64(), v=kind))

        assert raised.value.where == {"field": "v", "row": 3}
        assert raised.value.remedy.startswith("Give ")


def categories(number):
    """A chunk of 100 values that no other chunk has; the index can count only 127."""
    words = pa.array([f"{number} {word}" for word in range(100)])
    return pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), words)


@pytest.mark.parametrize(
    ("kind", "wrap"),
    [
        (pa.dictionary(pa.int32(), pa.string()), lambda chunk: chunk),
        (pa.string(), lambda chunk: chunk),
        (pa.struct([("f", pa.string())]), lambda chunk: pa.StructArray.from_arrays([chunk], ["f"])),
        (
            pa.list_(items(pa.dictionary(pa.int32(), pa.string()))),
            lambda chunk: pa.ListArray.from_arrays(pa.arange(0, 101).cast(pa.int32()), chunk),
        ),
    ],
    ids=["dictionary", "string", "struct", "list"],
)
def test_chunks_may_have_more_values_than_their_dictionary_index_counts(kind, wrap):
    chunks = pa.chunked_array([wrap(categories(number)) for number in range(3)])

    rows = upserts(pa.table({"id": range(300), "v": chunks}), schema=schema_of(id=pa.int64(), v=kind))

    assert rows["v"].to_pylist() == [value for chunk in chunks.chunks for value in chunk.to_pylist()]


def test_chunks_may_be_empty():
    values = pa.array([1, None, 2, 3])
    chunks = pa.chunked_array([values[:2], values[:0], values[2:], values[4:]])
    schema = schema_of(id=pa.int64(), v=pa.int64())

    for data in (pa.table({"id": range(4), "v": chunks}), {"id": pa.array(range(4)), "v": chunks}):
        assert upserts(data, schema=schema)["v"].to_pylist() == values.to_pylist()
        assert inferred(data)["v"].to_pylist() == values.to_pylist()


INCOMPATIBLE = [
    (pa.int64(), pa.float64()),
    (pa.float64(), pa.int64()),
    (pa.int64(), pa.string()),
    (pa.string(), pa.int64()),
    (pa.bool_(), pa.int8()),
    (pa.int8(), pa.bool_()),
    (pa.string(), pa.binary()),
    (pa.binary(), pa.string()),
    (pa.decimal128(5), pa.int64()),
    (pa.float64(), pa.decimal128(5)),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.timestamp("us", "UTC"), pa.timestamp("us")),
    (pa.date32(), pa.int32()),
    (pa.date32(), pa.string()),
    (pa.timestamp("us"), pa.time64("us")),
    (pa.list_(items(pa.int8())), pa.int8()),
    (INNER, pa.struct([("x", pa.int8())])),
    (pa.list_(items(pa.int8())), pa.list_(pa.string())),
    (pa.dictionary(pa.int8(), pa.string()), pa.int8()),
]


@pytest.mark.parametrize(("declared", "given"), INCOMPATIBLE, ids=str)
def test_a_column_of_an_incompatible_type_is_refused(declared, given):
    with pytest.raises(Invalid, match=r"'v' has type .*, but the table has") as raised:
        upserts({"id": pa.array([1]), "v": pa.nulls(1, given)}, schema=schema_of(id=pa.int64(), v=declared))

    assert raised.value.where == {"field": "v"}


CASTS = [
    (pa.int64(), pa.array([1, None], pa.uint8())),
    (pa.uint8(), pa.array([255, None])),
    (pa.float64(), pa.array([0.5, None], pa.float32())),
    (pa.float32(), pa.array([0.5, float("nan")])),
    (pa.float16(), pa.array([0.5, math.inf])),
    (pa.string(), pa.array(["a", None], pa.string_view())),
    (pa.string(), pa.array(["a", None], pa.large_string())),
    (pa.large_string(), pa.array(["a", ""])),
    (pa.string(), pa.array(["a", None]).dictionary_encode()),
    (pa.dictionary(pa.int8(), pa.string()), pa.array(["a", None])),
    (pa.dictionary(pa.int8(), pa.int16()), pa.array([5, None])),
    (pa.large_binary(), pa.array([b"a", b""])),
    (pa.binary(), pa.array([b"ab"], pa.binary(2))),
    (pa.decimal256(50, 3), pa.array([Decimal("1.1"), None])),
    (pa.timestamp("us"), pa.array([dt.date(2020, 1, 1)])),
    (pa.date32(), pa.array([dt.date(2020, 1, 1)]).cast(pa.timestamp("s"))),
    (pa.timestamp("us", "UTC"), pa.array([INSTANT], pa.timestamp("ns", "Europe/Paris"))),
    (pa.time64("ns"), pa.array([dt.time(1)])),
    (pa.duration("ns"), pa.array([dt.timedelta(1)], pa.duration("s"))),
    (pa.int8(), pa.nulls(2)),
    (INNER, pa.nulls(2)),
    (pa.list_(items(pa.int8())), pa.array([[1, None], None], pa.large_list(pa.int64()))),
    (pa.list_(items(pa.float32()), 2), pa.array([[0.5, float("nan")], None])),
    (INNER, pa.array([{"y": "a", "x": 1}, None], pa.struct([("y", pa.large_string()), ("x", pa.int64())]))),
]


@pytest.mark.parametrize(("kind", "values"), CASTS, ids=lambda value: str(getattr(value, "type", value)))
def test_a_value_of_a_compatible_type_is_cast(kind, values):
    schema = schema_of(id=pa.int64(), v=kind)

    rows = upserts({"id": pa.array(range(len(values))), "v": values}, schema=schema)

    assert rows.schema.equals(schema.stored, check_metadata=True)
    expected = values.cast(kind.value_type if pa.types.is_dictionary(kind) else kind)
    assert repr(rows["v"].to_pylist()) == repr(expected.to_pylist())


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b"])], ids=str)
@pytest.mark.parametrize("declared", [pa.string(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_categories_of_polars_become_text(kind, declared):
    data = pl.DataFrame({"id": [1, 2, 3], "v": pl.Series(["b", None, "a"], dtype=kind)})

    rows = upserts(data, schema=schema_of(id=pa.int64(), v=declared))

    assert rows["v"].type == declared
    assert rows["v"].to_pylist() == ["b", None, "a"]


def test_objects_of_polars_are_refused():
    data = pl.DataFrame({"id": [1], "v": pl.Series([object()], dtype=pl.Object)})

    for convert in (inferred, lambda given: upserts(given, schema=schema_of(id=pa.int64(), v=pa.binary(8)))):
        for given in (data, {"id": data["id"], "v": data["v"]}):
            with pytest.raises(Invalid, match="column 'v' has Python objects"):
                convert(given)


def test_the_error_for_an_integer_that_does_not_fit_shows_it_whatever_its_size():
    with pytest.raises(Invalid, match=f"'id', row 1: {2**70} does not fit int64"):
        deletes([1, 2**70], schema=ORDERS)


def test_values_outside_a_slice_are_not_checked():
    schema = schema_of(id=pa.int64(), v=pa.list_(items(pa.int8())))
    table = pa.table({"id": [1, 2, 3], "v": [[300], [1], [300]]})

    assert upserts(table.slice(1, 1), schema=schema)["v"].to_pylist() == [[1]]


UNCHANGED = {
    "floats": (pa.float64(), [math.nan, math.inf, -math.inf, -0.0, 5e-324]),
    "half": (pa.float16(), [-0.0, math.nan, 65504.0]),
    "single": (pa.float32(), [0.5, 1, None]),
    "zoned": (pa.timestamp("us", "Asia/Tokyo"), [INSTANT, None]),
    "nanoseconds": (pa.timestamp("ns"), [CLOCK]),
    "decimal": (pa.decimal128(38, 10), [Decimal("-1.0000000001"), 7]),
    "wide decimal": (pa.decimal256(70, 2), [Decimal("1.10")]),
    "list": (pa.list_(items(pa.string())), [["a", None, ""], [], None]),
    "nested list": (pa.list_(items(pa.list_(items(pa.int8())))), [[[1], None, []]]),
    "struct": (INNER, [{"x": 1, "y": None}, None]),
    "structs": (pa.list_(items(INNER)), [[{"x": 1, "y": "é"}, None]]),
    "vector": (pa.list_(items(pa.float32()), 3), [[1.0, -0.0, math.nan], None]),
    "numpy vector": (pa.list_(items(pa.float32()), 2), [np.array([1.0, 2.0], np.float32)]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a", None]),
    "map": (pa.map_(pa.string(), pa.int8()), [[("a", 1), ("b", None)], {"c": 2}, None]),
    "empty text": (pa.string(), ["", "\0", "é", None]),
    "binary": (pa.binary(), [b"", b"\0\xff", None]),
    "integers": (pa.uint64(), [2**64 - 1, 0, np.uint8(3)]),
    "bool": (pa.bool_(), [True, np.False_, None]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "time": (pa.time32("ms"), [dt.time(1, 2, 3, 4000)]),
    "duration": (pa.duration("us"), [dt.timedelta(microseconds=1)]),
    "null": (pa.null(), [None]),
    "nanoseconds of pandas": (pa.list_(items(pa.timestamp("ns"))), [[NANOSECONDS, None], None]),
    "duration of pandas": (pa.map_(pa.string(), pa.duration("ns")), [[("a", pd.Timedelta(1, "ns"))]]),
    "unsigned numbers": (pa.list_(items(pa.float64())), [[np.uint64(2**53), np.uint8(255), 1.5]]),
    "subclasses": (pa.string(), [Colour.RED, np.str_("x")]),
    "10 MB": (pa.string(), ["x" * 10_000_000]),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_a_value_is_stored_unchanged(name):
    kind, values = UNCHANGED[name]
    schema = schema_of(id=pa.int64(), v=kind)

    rows = upserts([{"id": i, "v": value} for i, value in enumerate(values)], schema=schema)

    assert rows.schema.equals(schema.stored, check_metadata=True)
    expected = pa.array([list(v) if isinstance(v, np.ndarray) else v for v in values], kind)
    assert repr(rows["v"].to_pylist()) == repr(expected.to_pylist())
    again = upserts(rows.drop_columns([TOMBSTONE]), schema=schema)
    assert row_setsum(again) == row_setsum(rows)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.float64(), [10**20, 2**63, np.uint64(2**63), 2**53, Fraction(1, 2), math.inf]),
        (pa.float32(), [2**24, 2**63, -(2**100), np.float64(0.5)]),
        (pa.float16(), [2048, np.float16(65504), np.float32(0.5)]),
        (pa.bool8(), [True, np.False_, None]),
    ],
    ids=str,
)
def test_a_number_that_the_type_has_is_stored(kind, values):
    rows = upserts([{"id": i, "v": value} for i, value in enumerate(values)], schema=schema_of(id=pa.int64(), v=kind))

    assert rows["v"].to_pylist() == values


def test_a_null_struct_may_have_fields_that_must_not_be_null() -> None:
    kind = pa.struct([pa.field("x", pa.int8(), nullable=False, metadata={FIELD_ID: "8"})])
    schema = schema_of(id=pa.int64(), v=kind)
    given = pa.StructArray.from_arrays(
        [pa.array([1, None], pa.int8())], fields=list(kind), mask=pa.array([False, True])
    )

    for values in ([{"x": 1}, None], given, pa.array([{"x": 1}, None], pa.struct([("x", pa.int8())]))):
        rows = upserts({"id": [1, 2], "v": values}, schema=schema)
        assert rows["v"].to_pylist() == [{"x": 1}, None]
        assert rows["v"].chunk(0).field(0).null_count == 0
        assert rows.cast(rows.schema).equals(rows), "Arrow can cast it"


def test_a_dictionary_with_a_null_value_is_stored_without_it() -> None:
    schema = schema_of(id=pa.int64(), v=pa.dictionary(pa.int32(), pa.string()))
    values = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), pa.array(["a", None]))

    rows = upserts({"id": [1, 2], "v": values}, schema=schema)

    assert rows["v"].null_count == 1
    assert rows["v"].to_pylist() == [None, "a"]
    with pytest.raises(Invalid, match="'v' is null in row 0"):
        upserts(
            {"id": [1, 2], "v": values},
            schema=schema_of(nullable=False, id=pa.int64(), v=schema.columns.field("v").type),
        )


def test_2000_columns_are_accepted():
    schema = schema_of(("c0",), **{f"c{i}": pa.int32() for i in range(2000)})

    rows = upserts([{f"c{i}": i + row for i in range(2000)} for row in range(2)], schema=schema)

    assert rows.num_columns == 2001
    assert rows.to_pylist()[1]["c1999"] == 2000


def test_a_null_in_a_not_null_column_is_refused():
    schema = schema_of(nullable=False, id=pa.int64(), v=pa.string())

    with pytest.raises(Invalid, match="'v' is null in row 1"):
        upserts({"id": [1, 2], "v": ["a", None]}, schema=schema)
    with pytest.raises(Invalid, match="'v' is null in row 1"):
        upserts(pa.table({"id": [1, 2], "v": ["a", None]}), schema=schema)


def test_a_null_key_is_refused():
    with pytest.raises(Invalid, match="'id' is null in row 1"):
        upserts([ROWS[0], {**ROWS[1], "id": None}], schema=ORDERS)


SCRIPT = """
import sys
sys.modules["numpy"] = None
import pyarrow as pa
from lancelsm.record import casts, files, key, normalize, rowsum, schema, values
def field(name, kind, number):
    return pa.field(name, kind, metadata={"lance:field_id": str(number)})
items = pa.list_(field("item", pa.int8(), 9))
fields = [field("a", pa.int64(), 0), field("b", pa.string(), 1), field("c", items, 2)]
table = schema.TableSchema(columns=pa.schema(fields), primary_key=("a", "b"))
stored = normalize.upserts([{"a": 1, "b": "x", "c": [1]}, {"a": 1, "b": "x", "c": None}], schema=table)
assert stored.num_rows == 1
assert rowsum.row_setsum(stored)
assert key.key_column(stored, ("a", "b"))
heavy = ["pandas", "lance", "pyarrow.dataset", "pyarrow.acero", "pyarrow.parquet", "pyarrow.csv", "pydantic"]
print([name for name in heavy if name in sys.modules])
"""


def test_normalizing_rows_needs_no_numpy_and_imports_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)

    assert done.stdout.strip() == "[]", done.stderr


@dataclass
class Order:
    id: int
    name: str | None
    price: float | None


class OrderTuple(NamedTuple):
    id: int
    name: str | None
    price: float | None


class OrderModel:
    """What lancelsm needs of a model of pydantic."""

    def __init__(self, **values):
        self.values = values

    def model_dump(self):
        return self.values

    def __iter__(self):
        return iter(self.values.items())


@pytest.mark.parametrize("kind", [Order, OrderTuple, OrderModel])
def test_objects_with_named_fields_are_rows(kind):
    rows = [{"id": 1, "name": "a", "price": 1.5}, {"id": 2, "name": None, "price": None}]
    objects = [kind(**row) for row in rows]

    for given in (objects, tuple(objects), iter(objects), [objects[0], rows[1]]):
        assert upserts(given, schema=ORDERS).to_pylist() == upserts(rows, schema=ORDERS).to_pylist()
    assert upserts(objects[0], schema=ORDERS).to_pylist() == upserts(rows[:1], schema=ORDERS).to_pylist()
    assert inferred(objects).to_pylist() == rows


def test_a_class_is_no_row():
    with pytest.raises(Invalid, match="rows can't be read from type"):
        upserts(Order, schema=ORDERS)
    with pytest.raises(Invalid, match="row 1 is a int, not a dict"):
        upserts([ROWS[0], 7], schema=ORDERS)
    with pytest.raises(Invalid, match="row 0 is a tuple, not a dict"):
        upserts([(1, "a", 1.5)], schema=ORDERS)
