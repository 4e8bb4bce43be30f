"""Compare the hash behind buckets with a value-by-value model and with published vectors."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancelsm.errors import Invalid
from lancelsm.routing.murmur import hashed
from lancelsm.routing.transforms import bucket, multi_bucket

MASK = 0xFFFFFFFF


def rotate(number, by):
    return ((number << by) | (number >> (32 - by))) & MASK


def mix(state, word):
    word = rotate(word * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK
    return (rotate(state ^ word, 13) * 5 + 0xE6546B64) & MASK


def finish(state, length):
    state ^= length
    state = (state ^ state >> 16) * 0x85EBCA6B & MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & MASK
    return state ^ state >> 16


def text_hash(value, seed=0):
    state, whole = seed, len(value) & -4
    for start in range(0, whole, 4):
        state = mix(state, int.from_bytes(value[start : start + 4], "little"))
    for octet in value[whole:]:
        state = mix(state, (octet - 256 if octet > 127 else octet) & MASK)
    return finish(state, len(value))


def number_hash(value, size, seed=0):
    state = mix(seed, value & MASK)
    if size == 8:
        state = mix(state, value >> 32 & MASK)
    return finish(state, size)


texts = st.lists(st.none() | st.binary(max_size=21), max_size=30)


@given(values=texts, skip=st.integers(0, 5), large=st.booleans())
def test_text_of_every_length_hashes_like_the_model_also_in_slices(values, skip, large):
    column = pa.array(values, pa.large_binary() if large else pa.binary())
    expected = [None if value is None else text_hash(value) for value in values]

    assert hashed(column.slice(skip)).to_pylist() == expected[skip:]


@given(values=st.lists(st.none() | st.integers(-(1 << 63), (1 << 63) - 1)), skip=st.integers(0, 3))
def test_int64_hashes_like_the_model(values, skip):
    expected = [None if value is None else number_hash(value, 8) for value in values]

    assert hashed(pa.array(values, pa.int64()).slice(skip)).to_pylist() == expected[skip:]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.date32()])
def test_a_type_of_at_most_32_bits_hashes_as_one_sign_extended_word(kind):
    values = [0, 1, 127] if pa.types.is_unsigned_integer(kind) else [0, 1, 127, -1, -128]

    assert hashed(pa.array(values, kind)).to_pylist() == [number_hash(value, 4) for value in values]


@pytest.mark.parametrize(
    ("values", "kind", "buckets"),
    [
        ([1, 2, 3], pa.int32(), [2, 7, 1]),
        (["a", "b"], pa.utf8(), [1, 5]),
        (["a"], pa.large_utf8(), [1]),
        ([True], pa.bool_(), [2]),
        ([1.25], pa.float32(), [0]),
        ([None], pa.utf8(), [0]),
    ],
)
def test_bucket_numbers_match_the_published_vectors(values, kind, buckets):
    assert bucket(pa.array(values, kind), 8).to_pylist() == buckets


def test_both_zeros_share_a_hash_and_all_nans_share_a_hash():
    column = pa.array([0.0, -0.0, float("nan"), -float("nan")], pa.float64())

    zero, minus_zero, nan, minus_nan = hashed(column).to_pylist()

    assert (zero, nan) == (minus_zero, minus_nan)


def test_multi_bucket_matches_its_fixed_vectors():
    numbers = pa.array([1, 2, None, None, -7], pa.int32())
    words = pa.array(["a", None, "b", None, "longer text"])

    # These values must never change: ids of regions depend on them.
    assert multi_bucket([numbers, words], 1024).to_pylist() == [833, 895, 549, None, 879]
    assert multi_bucket([words, numbers], 1024).to_pylist() == [344, 895, 549, None, 596]


@given(
    rows=st.lists(
        st.tuples(st.none() | st.integers(-(1 << 63), (1 << 63) - 1), st.none() | st.binary(max_size=9)), max_size=30
    ),
    buckets=st.integers(1, 1024),
)
def test_multi_bucket_seeds_each_column_with_the_last_result_that_is_not_null(rows, buckets):
    def model(number, text):
        state = None
        if number is not None:
            state = number_hash(number, 8)
        if text is not None:
            state = text_hash(text, state or 0)
        return None if state is None else (state & 0x7FFFFFFF) % buckets

    columns = [pa.array([n for n, _ in rows], pa.int64()), pa.array([t for _, t in rows], pa.binary())]

    assert multi_bucket(columns, buckets).to_pylist() == [model(*row) for row in rows]


def test_multi_bucket_of_one_column_without_nulls_equals_bucket():
    column = pa.array(["x", "yy", "zzz"])

    assert multi_bucket([column], 64) == bucket(column, 64)


@pytest.mark.parametrize("kind", [pa.decimal128(10, 2), pa.list_(pa.int8()), pa.float16(), pa.date64()])
def test_a_type_that_lance_does_not_hash_is_refused(kind):
    with pytest.raises(Invalid, match="hashed"):
        hashed(pa.nulls(1, kind))
