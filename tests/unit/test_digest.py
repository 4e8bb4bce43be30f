"""The digest of rows depends on each value, its place and its bits, but not on how rows are split into batches."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pytest

from lancelsm.record.digest import RowDigest

COLUMNS = {
    "bool": pa.array([True, None, False, True]),
    "int": pa.array([1, 2, None, -4], pa.int16()),
    "double": pa.array([0.0, math.nan, None, 1.5]),
    "decimal": pa.array([Decimal("1.5"), None, Decimal("-2.5"), Decimal(0)], pa.decimal128(20, 2)),
    "timestamp": pa.array([1, None, 3, 4], pa.timestamp("us", "UTC")),
    "text": pa.array(["a", "", None, "bc"]),
    "large text": pa.array(["a", "", None, "bc"], pa.large_string()),
    "binary": pa.array([b"a", b"", None, b"bc"]),
    "fixed": pa.array([b"ab", None, b"cd", b"ef"], pa.binary(2)),
    "vector": pa.array([[1.0, 2.0], None, [3.0, None], [4.0, 5.0]], pa.list_(pa.float32(), 2)),
    "list": pa.array([["a", None], [], None, ["b", "c"]]),
    "large list": pa.array([[1, None], [], None, [2, 3]], pa.large_list(pa.int64())),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 2, "b": None}]),
    "nested": pa.array([[{"a": [1]}], None, [{"a": None}, None], [{"a": [2, 3]}]]),
    "map": pa.array([[("k", 1)], None, [], [("l", None), ("m", 2)]], pa.map_(pa.string(), pa.int64())),
    "dictionary": pa.array(["a", "b", None, "a"]).dictionary_encode(),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16, None, b"b" * 16, b"c" * 16], pa.binary(16))),
    "null": pa.nulls(4),
}


def digest(values: pa.Array, *splits: int) -> RowDigest:
    bounds = [0, *splits, len(values)]
    batches = [pa.record_batch([values[a:b]], names=["v"]) for a, b in pairwise(bounds)]
    return RowDigest.of(pa.schema([pa.field("v", values.type)]), batches)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_digest_depends_on_each_value_and_its_place_but_not_on_batches(name: str) -> None:
    values = COLUMNS[name]
    whole = digest(values)

    for splits in ((1,), (2,), (3,), (1, 2, 3), (0, 2, 2), (4,)):
        assert digest(values, *splits) == whole, splits
    padded = pa.concat_arrays([values[1:3], values, values[:2]])
    assert digest(padded[2:6]) == whole
    assert digest(values[:3]) != whole
    if name == "null":
        return
    for order in ([1, 0, 2, 3], [0, 2, 1, 3], [0, 1, 2, 2], [3, 1, 2, 0], [1, 1, 2, 3]):
        changed = values.take(pa.array(order))
        assert (digest(changed) == whole) == (changed.to_pylist() == values.to_pylist()), order


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([0.0]), pa.array([-0.0])),
        (pa.array([[0.0]]), pa.array([[-0.0]])),
        (pa.array(["", "b"]), pa.array([None, "b"])),
        (pa.array(["ab", "c"]), pa.array(["a", "bc"])),
        (pa.array([[1, 2], [3]]), pa.array([[1], [2, 3]])),
        (pa.array([[], [1]]), pa.array([None, [1]])),
        (pa.array([{"a": None}]), pa.array([None], pa.struct({"a": pa.null()}))),
        (pa.array([{"a": 1}, {"a": 2}]), pa.array([{"a": 1}, {"a": None}])),
        (pa.array([[None], [1]]), pa.array([[1], [None]])),
    ],
)
def test_values_that_differ_only_in_bits_nulls_or_lengths_have_other_digests(one: pa.Array, other: pa.Array) -> None:
    assert digest(one) != digest(other)


def test_what_lies_below_a_null_does_not_count() -> None:
    draw = random.Random("below a null")
    for kind in (pa.int64(), pa.float64()):
        valid = pa.py_buffer(bytes([0b101]))
        hidden = [pa.py_buffer(b"\1" * 8 + draw.randbytes(8) + b"\2" * 8) for _ in range(2)]
        one, other = (pa.Array.from_buffers(kind, 3, [valid, data]) for data in hidden)
        assert digest(one) == digest(other)


def test_equal_values_of_other_dictionaries_have_the_same_digest() -> None:
    one = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["a", "b"]))
    other = pa.DictionaryArray.from_arrays(pa.array([2, 0], pa.int32()), pa.array(["b", "x", "a"]))

    assert digest(one) == digest(other)
