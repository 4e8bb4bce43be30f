"""Columns of any admitted type, nested to any depth, keep all values: in conversions, and at every level of a table."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lancelsm
from lancelsm.record.admission import children, declared, refusal
from lancelsm.record.casts import as_type
from lancelsm.record.iso import parsed, texts
from lancelsm.record.json_lines import json_values
from lancelsm.record.values import json_column
from tests.unit.arrow_values import EVERYWHERE, EXTENSIONS, FIXED, array, exact
from tests.unit.test_values import without_nan_payload
from tests.unit.value_levels import Model, check_levels, columns_of, rows_of

WIDE = pa.binary(70_000)
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
SEEDS = st.integers(0, 1 << 32).map(Random)
NULLS = st.sampled_from([0.25, 0.0, 0.9, 1.0])


def fields(name: str, kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.Field]:
    return st.builds(lambda kind, nullable: pa.field(name, kind, nullable), kinds, st.booleans())


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    structs = st.integers(1, 3).flatmap(lambda count: st.tuples(*(fields(f"f{at}", inner) for at in range(count))))
    items = fields("item", inner)
    keys = (
        st.sampled_from([pa.string(), pa.int32(), pa.timestamp("ns"), pa.dictionary(pa.int32(), pa.string())]) | inner
    )
    return (
        structs.map(pa.struct)
        | items.map(pa.list_)
        | items.map(pa.large_list)
        | items.map(pa.list_view)
        | items.map(pa.large_list_view)
        | st.builds(lambda key, item: pa.map_(pa.field("key", key, nullable=False), item), keys, fields("value", inner))
    )


FLAT = st.sampled_from([kind for kind in EVERYWHERE if kind != WIDE])
FIXED_SIZE_LISTS = st.recursive(
    st.sampled_from([kind for kind in FIXED if kind != WIDE]),
    lambda inner: st.builds(pa.list_, inner, st.sampled_from([1, 2, 3, 9])),
    max_leaves=2,
)
KINDS = st.recursive(FLAT | FIXED_SIZE_LISTS, nested, max_leaves=6)
COLUMNS = KINDS | st.sampled_from([*EXTENSIONS, pa.null()])


def admitted(kind: pa.DataType) -> pa.DataType:
    column = declared(columns_of([kind])).field(1)
    assert refusal(column) is None, kind
    return column.type


def hidden_nulls(values: pa.Array) -> int:
    """The number of nulls in fields that must not be null."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return int(values.dictionary.null_count)
    if pa.types.is_map(kind):
        inner = [values.keys, values.items]
    elif pa.types.is_struct(kind):
        inner = [values.field(at) for at in range(kind.num_fields)]
    else:
        inner = [values.values] if pa.types.is_nested(kind) else []
    own = sum(part.null_count for part, field in zip(inner, children(kind), strict=True) if not field.nullable)
    return int(own) + sum(map(hidden_nulls, inner))


@settings(suppress_health_check=QUIET)
@given(KINDS, SEEDS, NULLS, st.integers(0, 3))
def test_a_converted_array_is_equal_and_hides_no_null(
    kind: pa.DataType, random: Random, nulls: float, cut: int
) -> None:
    values = array(kind, 12, random, nulls=nulls).slice(cut, 7)

    converted = as_type(values, admitted(kind))

    converted.validate(full=True)
    assert converted.type == admitted(kind)
    assert exact(converted) == exact(values)
    assert hidden_nulls(converted) == 0
    assert converted.cast(converted.type).equals(converted) or "nan" in str(converted)


@settings(suppress_health_check=QUIET)
@given(KINDS, SEEDS, NULLS)
@pytest.mark.rest
def test_values_in_json_are_read_back_equal(kind: pa.DataType, random: Random, nulls: float) -> None:
    column = pa.field("v", admitted(kind))
    values = as_type(array(kind, 7, random, nulls=nulls), column.type)

    read = json_column(json.loads(json.dumps(json_values(values), allow_nan=False)), column)

    assert read.type == column.type
    found, expected = ([without_nan_payload(v, column.type) for v in exact(one)] for one in (read, values))
    assert found == expected


DATES = [kind for kind in FIXED if pa.types.is_date(kind) or pa.types.is_timestamp(kind)]


@given(st.sampled_from(DATES), st.data())
@pytest.mark.rest
def test_the_text_of_a_date_or_timestamp_is_read_back_equal(kind: pa.DataType, data: st.DataObject) -> None:
    most = (1 << (kind.bit_width - 1)) - 1
    # The first and last days that Arrow has text for are the most likely to go wrong.
    days = st.sampled_from([-719_528, -719_529, 2_932_896, 2_932_897]).map(lambda day: day * per_day(kind))
    counts = days.flatmap(lambda start: st.integers(start - 2, start + 2)) | st.integers(-most - 1, most)
    drawn = data.draw(st.lists(st.none() | counts.filter(lambda count: -most <= count <= most), max_size=5))
    if kind == pa.date64():
        day = 86_400_000
        drawn = [None if count is None else (count // day + (count < 0)) * day for count in drawn]  # in 64 bits
    values = pa.array(drawn, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)

    assert parsed(texts(values), kind).equals(values)


def per_day(kind: pa.DataType) -> int:
    if pa.types.is_date(kind):
        return 1 if kind == pa.date32() else 86_400_000
    return 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]


def check(kinds: list[pa.DataType], random: Random, rows: int, nulls: float, distinct: int) -> None:
    with tempfile.TemporaryDirectory(prefix="lancelsm-") as directory:
        table = lancelsm.create(Path(directory) / "table", columns_of(kinds), primary_key="id")
        half = rows // 2
        batches = [
            rows_of(table.schema, range(at, at + rows), random, nulls=nulls, distinct=distinct)
            for at in (0, half, rows, half // 2)
        ]
        check_levels(table, Path(directory), batches, Model())


TABLES = (
    st.lists(COLUMNS, min_size=1, max_size=3),
    SEEDS,
    st.sampled_from([12, 1, 2, 300]),
    NULLS,
    st.sampled_from([0, 0, 100]),
)
MANY_VALUES = [
    pa.dictionary(pa.int8(), pa.string()),
    *(
        pytest.param(kind, marks=pytest.mark.long)
        for kind in (
            pa.struct([("f", pa.dictionary(pa.uint16(), pa.binary()))]),
            pa.list_(pa.dictionary(pa.uint64(), pa.int32())),
            pa.string(),
        )
    ),
]


@pytest.mark.rest
@settings(max_examples=12, suppress_health_check=QUIET)
@given(*TABLES)
def test_values_are_kept_at_every_level(
    kinds: list[pa.DataType], random: Random, rows: int, nulls: float, distinct: int
) -> None:
    check(kinds, random, rows, nulls, distinct)


@pytest.mark.long
@settings(max_examples=2_000, suppress_health_check=QUIET)
@given(*TABLES)
def test_values_are_kept_at_every_level_in_long_runs(
    kinds: list[pa.DataType], random: Random, rows: int, nulls: float, distinct: int
) -> None:
    check(kinds, random, rows, nulls, distinct)


@pytest.mark.rest
@pytest.mark.parametrize("kind", MANY_VALUES, ids=str)
def test_more_values_than_16_bits_count_are_kept_at_every_level(kind: pa.DataType) -> None:
    check([kind], Random(f"{kind}"), 80_000, 0.01, 70_000)
