"""Properties of the setsum of rows, for random schemas and values."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancelsm.record.rowsum import row_items, row_setsum
from lancelsm.record.schema import FIELD_ID

LEAVES = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=4),
    pa.large_binary(): st.binary(max_size=4),
    pa.binary(2): st.binary(min_size=2, max_size=2),
    pa.decimal128(10, 2): st.decimals(-1000, 1000, places=2),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.dictionary(pa.int16(), pa.string()): st.sampled_from(["", "a", "b"]),
}


@st.composite
def kinds(draw, ids, depth=2):
    """Draw a type whose children have field ids, and a strategy for its values."""
    shape = draw(st.sampled_from(["leaf", "leaf", "list", "fixed", "struct"])) if depth else "leaf"
    if shape == "leaf":
        kind = draw(st.sampled_from(sorted(LEAVES, key=str)))
        return kind, st.none() | LEAVES[kind]
    if shape == "struct":
        children = [draw(fields(ids, name, depth - 1)) for name in ("x", "y")]
        values = st.fixed_dictionaries({field.name: value for field, value in children})
        return pa.struct([field for field, _ in children]), st.none() | values
    child, value = draw(fields(ids, "item", depth - 1))
    if shape == "fixed":
        return pa.list_(child, 2), st.none() | st.lists(value, min_size=2, max_size=2)
    return pa.list_(child), st.none() | st.lists(value, max_size=3)


@st.composite
def fields(draw, ids, name, depth=2):
    number = str(next(ids))
    kind, value = draw(kinds(ids, depth))
    return pa.field(name, kind, metadata={FIELD_ID: number}), value


@st.composite
def tables(draw, min_rows=0):
    ids = itertools.count()
    columns = [draw(fields(ids, f"c{i}")) for i in range(draw(st.integers(1, 3)))]
    count = draw(st.integers(min_rows, 6))
    arrays = [pa.array(draw(st.lists(value, min_size=count, max_size=count)), field.type) for field, value in columns]
    return pa.Table.from_arrays(arrays, schema=pa.schema([field for field, _ in columns]))


@given(tables(), st.randoms(use_true_random=False))
def test_the_sum_does_not_depend_on_order_chunks_or_slices(table, random):
    order = list(range(table.num_rows))
    random.shuffle(order)
    cut = random.randint(0, table.num_rows)

    assert row_setsum(pa.concat_tables([table.slice(row, 1) for row in order] or [table])) == row_setsum(table)
    assert row_setsum(table.slice(0, cut)) + row_setsum(table.slice(cut)) == row_setsum(table)
    assert row_setsum(table.select(table.schema.names[::-1])) == row_setsum(table)


@pytest.mark.rest
@given(tables(), st.sampled_from([pa.int8(), pa.string(), pa.list_(pa.int8())]))
def test_an_added_null_column_does_not_change_the_sum(table, kind):
    added = pa.field("added", kind, metadata={FIELD_ID: b"1000"})

    assert row_setsum(table.append_column(added, pa.nulls(table.num_rows, kind))) == row_setsum(table)


@given(tables(min_rows=2))
def test_rows_have_equal_items_only_if_they_are_equal(table):
    encoded = [bytes(item) for item in row_items(table)]

    for left, right in itertools.combinations(range(table.num_rows), 2):
        # repr distinguishes -0.0 from 0.0, but prints NaN of any payload alike.
        printed = [repr(table.slice(row, 1).to_pylist()) for row in (left, right)]
        if "nan" not in printed[0]:
            assert (encoded[left] == encoded[right]) == (printed[0] == printed[1])
