"""Filters of Spark as conditions, compared with what they mean row by row. The classes are named as Spark's."""

from __future__ import annotations

import datetime
import math
import struct
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancelsm.dataset.conditions import read_condition
from lancelsm.errors import Invalid
from lancelsm.spark.batch_read import ReadRequest, declared_schema, filtered_request, parts, read_part
from lancelsm.spark.filters import condition_of
from tests.unit.tables import three_levels

UTC, time = datetime.UTC, datetime.datetime.fromisoformat


@dataclass(frozen=True)
class _OfColumn:
    attribute: tuple[str, ...]


@dataclass(frozen=True)
class _WithValue(_OfColumn):
    value: Any


EqualTo, EqualNullSafe, In, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual = (
    type(name, (_WithValue,), {})
    for name in ("EqualTo", "EqualNullSafe", "In", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual")
)
StringStartsWith, StringEndsWith, StringContains = (
    type(name, (_WithValue,), {}) for name in ("StringStartsWith", "StringEndsWith", "StringContains")
)
IsNull, IsNotNull = (type(name, (_OfColumn,), {}) for name in ("IsNull", "IsNotNull"))


@dataclass(frozen=True)
class Not:
    child: Any


def order(value: Any) -> Any:
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else value


def meant(one: Any, value: Any) -> bool | None:
    """What a filter says of a value in Spark: true, false or null."""
    name = type(one).__name__
    if name == "Not":
        inner = meant(one.child, value)
        return None if inner is None else not inner
    if name in ("IsNull", "IsNotNull"):
        return (value is None) == (name == "IsNull")
    if name == "EqualNullSafe":
        return value is None if one.value is None else value is not None and order(value) == order(one.value)
    if value is None:
        return None
    if name == "In":
        return any(order(value) == order(other) for other in one.value)
    if name.startswith("String"):
        return {"StringStartsWith": value.startswith, "StringEndsWith": value.endswith}.get(
            name, lambda text: text in value
        )(one.value)
    left, right = order(value), order(one.value)
    return bool(
        {
            "EqualTo": left == right,
            "GreaterThan": left > right,
            "GreaterThanOrEqual": left >= right,
            "LessThan": left < right,
            "LessThanOrEqual": left <= right,
        }[name]
    )


(MINUS_NAN,) = struct.unpack("<d", b"\0\0\0\0\0\0\xf8\xff")
TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=4) | st.sampled_from(["'", "a'--", "%_"])
FLOATS = st.sampled_from([0.0, -0.0, math.nan, MINUS_NAN, math.inf, -math.inf])
TIMES = st.datetimes(time("0001-01-02"), time("9999-12-30"))
NS_TIMES = st.datetimes(time("1678-01-01"), time("2262-01-01"))
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1).map(Decimal)),
    (pa.float32(), FLOATS | st.floats(width=32)),
    (pa.float64(), FLOATS | st.floats()),
    (pa.bool_(), st.booleans()),
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.binary(), st.binary(max_size=3)),
    (pa.binary(2), st.binary(min_size=2, max_size=2)),
    (pa.date32(), st.dates()),
    (pa.decimal128(9, 2), st.decimals(-9999999, 9999999, places=2)),
    (pa.decimal256(20, 3), st.decimals(-(10**16), 10**16, places=3)),
    (pa.timestamp("s"), TIMES.map(lambda one: one.replace(microsecond=0))),
    (pa.timestamp("us", "UTC"), TIMES.map(lambda one: one.replace(tzinfo=UTC))),
    (pa.timestamp("ms", "Europe/Berlin"), TIMES.map(lambda one: one.replace(tzinfo=UTC, microsecond=5000))),
    (pa.timestamp("ns"), NS_TIMES),
]
OF_VALUE = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
OF_TEXT = (StringStartsWith, StringEndsWith, StringContains)


def stored(values: list[Any], kind: pa.DataType) -> pa.Table:
    plain = [int(one) if isinstance(one, Decimal) and pa.types.is_integer(kind) else one for one in values]
    return pa.table({"n": pa.array(range(len(values)), pa.int64()), "a b": pa.array(plain, kind)})


@pytest.mark.rest
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_a_condition_is_true_for_the_rows_of_the_filter(data: st.DataObject, kind: Any) -> None:
    of, strategy = kind
    values = [None, *data.draw(st.lists(strategy, min_size=1, max_size=5))]
    others = st.sampled_from(values[1:]) | strategy
    makers = [*OF_VALUE, In, *(OF_TEXT if isinstance(values[1], str) else ())]
    make = data.draw(st.sampled_from(makers))
    one: Any = make(("a b",), data.draw(st.lists(others, min_size=1, max_size=3) if make is In else others))
    one = data.draw(st.sampled_from([one, Not(one), Not(IsNull(("a b",))), IsNull(("a b",)), IsNotNull(("a b",))]))
    rows = stored(values, of)

    condition = condition_of(one, rows.schema)

    assert condition is not None
    found = read_condition(condition, columns=rows.schema, table="t").matching(rows, table="t")
    assert found["n"].to_pylist() == [n for n, value in enumerate(values) if meant(one, value)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int8(), 128),
        (pa.int64(), True),
        (pa.int64(), 1.0),
        (pa.uint64(), Decimal("1.5")),
        (pa.float32(), 0.1),  # compared as a double
        (pa.float16(), 1.0),
        (pa.string(), "a\0"),
        (pa.binary(2), b"a"),
        (pa.date32(), time("2024-01-01")),
        (pa.decimal128(9, 2), Decimal("1.005")),
        (pa.decimal128(9, 2), Decimal("1e8")),
        (pa.timestamp("ms"), time("2024-01-01T00:00:00.000001")),
        (pa.timestamp("us"), time("2024-01-01T00:00Z")),
        (pa.timestamp("us", "UTC"), time("2024-01-01")),
        (pa.timestamp("ns"), time("9999-01-01")),
        (pa.dictionary(pa.int32(), pa.string()), "a"),
        (pa.list_(pa.int64()), [1]),
        (pa.int64(), None),
    ],
)
def test_a_value_that_a_column_can_not_have_is_left_to_spark(kind: pa.DataType, value: Any) -> None:
    columns = pa.schema([pa.field("a", kind)])

    for make in (EqualTo, GreaterThan, EqualNullSafe if value is not None else EqualTo):
        assert condition_of(make(("a",), value), columns) is None
        assert condition_of(Not(make(("a",), value)), columns) is None
    assert condition_of(In(("a",), [value]), columns) is None


def test_other_filters_are_left_to_spark() -> None:
    columns = pa.schema([("a", pa.struct([("x", pa.int64())])), ("s", pa.string())])

    for one in (EqualTo(("a", "x"), 1), IsNull(("a",)), EqualNullSafe(("a",), None), EqualTo(("z",), 1), object()):
        assert condition_of(one, columns) is None


def test_filters_are_read_with_the_condition_of_the_user(tmp_path: Path) -> None:
    uri = three_levels(tmp_path / "table").uri
    request = ReadRequest(uri=uri, where="v > 0 OR id = 3 -- all but none")
    kept = EqualTo(("v",), None)

    found, left = filtered_request(request, [GreaterThan(("id",), 0), kept, LessThan(("id",), 2)])

    assert left == [kept]
    schema = declared_schema(found)
    batches = [batch for part in parts(found) for batch in read_part(found, part, schema)]
    assert pa.Table.from_batches(batches, schema).to_pylist() == [{"id": 1, "v": 1}]
    with pytest.raises(Invalid, match=r"closes none"):
        filtered_request(ReadRequest(uri=uri, where="v > 0) OR (id = 3"), [])
