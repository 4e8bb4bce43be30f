"""Properties of the setsum of rows, for random schemas and values."""

from __future__ import annotations

import itertools
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancelsm.common.setsum import Setsum
from lancelsm.record import rowsum
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import FIELD_ID
from lancelsm.record.words import ARROW, INTS, with_numpy

LEAVES = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=4) | st.text(min_size=7, max_size=40),
    pa.large_binary(): st.binary(max_size=4) | st.binary(min_size=31, max_size=34),
    pa.date64(): st.dates(),
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


def layouts(column):
    """Return the values of a column in other Arrow layouts, which all have the same setsum."""
    if column.type == pa.string():
        return [column.cast(pa.large_string()), column.cast(pa.string_view()), column.dictionary_encode()]
    if column.type == pa.large_binary():
        return [column.cast(pa.binary()), column.cast(pa.binary_view())]
    if column.type in (pa.uint64(), pa.int8(), pa.date32()):
        return [column.dictionary_encode()]
    return []


@pytest.mark.rest
@given(tables(), st.data())
def test_every_arithmetic_gives_the_same_sum_for_every_split_and_layout(table, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, table.num_rows), max_size=4)))
    parts = [table.slice(first, last - first) for first, last in itertools.pairwise([0, *cuts, table.num_rows])]
    column = data.draw(st.integers(0, table.num_columns - 1))
    found = set()
    for on in (ARROW, INTS, with_numpy(np)):
        with mock.patch.object(rowsum, "arithmetic", lambda rows, on=on: on):
            found.add(row_setsum(table))
            found.add(row_setsum(pa.concat_tables(parts)))
            found.add(sum((row_setsum(part) for part in parts), Setsum.ZERO))
            for values in layouts(table.column(column)):
                other = table.schema.field(column).with_type(values.type)
                found.add(row_setsum(table.set_column(column, other, values)))

    assert len(found) == 1


@pytest.mark.rest
@given(tables(), st.sampled_from([pa.int8(), pa.string(), pa.list_(pa.int8())]))
def test_an_added_null_column_does_not_change_the_sum(table, kind):
    added = pa.field("added", kind, metadata={FIELD_ID: b"1000"})

    assert row_setsum(table.append_column(added, pa.nulls(table.num_rows, kind))) == row_setsum(table)


@given(tables(min_rows=2))
def test_rows_have_equal_items_only_if_they_are_equal(table):
    encoded = [row_setsum(table.slice(row, 1)) for row in range(table.num_rows)]

    for left, right in itertools.combinations(range(table.num_rows), 2):
        # repr distinguishes -0.0 from 0.0, but prints NaN of any payload alike.
        printed = [repr(table.slice(row, 1).to_pylist()) for row in (left, right)]
        if "nan" not in printed[0]:
            assert (encoded[left] == encoded[right]) == (printed[0] == printed[1])


def test_what_lies_under_a_null_value_of_a_map_does_not_count():
    """Lance returns such a map with a null under the null struct, although the child must not be null."""
    child, ids = pa.field("f", pa.float16(), nullable=False, metadata={FIELD_ID: "3"}), {FIELD_ID: "2"}
    value = pa.field("value", pa.struct([child]), metadata=ids)
    kind = pa.map_(pa.field("key", pa.string(), nullable=False, metadata={FIELD_ID: "1"}), value)
    schema = pa.schema([pa.field("m", kind, metadata={FIELD_ID: "0"})])

    def summed(below: float | None) -> Setsum:
        floats = pa.array([np.float16(1), below and np.float16(below), np.float16(2)], pa.float16())
        values = pa.StructArray.from_arrays([floats], fields=[child], mask=pa.array([False, True, False]))
        maps = pa.MapArray.from_arrays(pa.array([0, 2, 2, 3], pa.int32()), pa.array(["a", "b", "c"]), values, type=kind)
        return row_setsum(pa.table([maps], schema=schema)) + row_setsum(pa.table([maps[2:]], schema=schema))

    assert summed(None) == summed(7.0)
