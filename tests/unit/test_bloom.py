"""The bloom filter never rules out a key that it holds. tests/interop compares its bytes with Lance's."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancelsm.dataset.bloom import BYTES, build_bloom, is_filterable, may_contain


def one_column(values: list[object], kind: pa.DataType) -> pa.Table:
    return pa.table({"k": pa.array(values, kind)})


def test_a_filter_has_lances_size_and_one_key_sets_one_bit_in_each_word_of_one_block() -> None:
    bloom = build_bloom(one_column([7], pa.int64()))

    assert len(bloom) == BYTES
    blocks = {at // 32 for at, byte in enumerate(bloom) if byte}
    assert len(blocks) == 1
    (block,) = blocks
    words = [int.from_bytes(bloom[block * 32 + 4 * i :][:4], "little") for i in range(8)]
    assert [word.bit_count() for word in words] == [1] * 8


def test_a_filter_without_keys_has_every_bit_clear() -> None:
    assert build_bloom(one_column([], pa.utf8())) == bytes(BYTES)


@given(st.lists(st.binary(max_size=40), max_size=30), st.lists(st.binary(max_size=40), max_size=30))
def test_a_key_in_the_filter_is_never_ruled_out(held: list[bytes], others: list[bytes]) -> None:
    bloom = build_bloom(one_column(list(held), pa.binary()))

    answers = may_contain(bloom, one_column([*held, *others], pa.binary()))

    assert answers[: len(held)].all()


def test_most_keys_that_are_not_in_the_filter_are_ruled_out() -> None:
    bloom = build_bloom(one_column(list(range(8192)), pa.int64()))

    answers = may_contain(bloom, one_column(list(range(100_000, 110_000)), pa.int64()))

    assert answers.sum() < 30  # Lance sizes it for 8192 keys and a false positive rate of 0.057 %


def test_equal_numbers_of_different_width_are_different_keys() -> None:
    assert build_bloom(one_column([5], pa.int32())) != build_bloom(one_column([5], pa.int64()))


def test_columns_of_a_composite_key_are_hashed_separately() -> None:
    left = pa.table({"a": ["x", "xy"], "b": ["yz", "z"]})

    assert build_bloom(left.slice(0, 1)) != build_bloom(left.slice(1, 1))


def test_slices_and_chunks_of_a_key_column_hash_like_contiguous_rows() -> None:
    keys = [f"key {i}" * (i % 5) for i in range(50)]
    chunked = pa.concat_tables([one_column(keys[:20], pa.utf8()), one_column(["no", *keys[20:]], pa.utf8()).slice(1)])

    assert build_bloom(chunked) == build_bloom(one_column(keys, pa.utf8()))


@pytest.mark.parametrize("kind", [pa.int16(), pa.uint64(), pa.bool_(), pa.large_utf8(), pa.date32()])
def test_a_key_type_that_lance_does_not_hash_gets_a_filter_that_rules_nothing_out(kind: pa.DataType) -> None:
    keys = pa.table({"k": pa.array([1, 0], pa.int32()).cast(pa.utf8() if kind == pa.large_utf8() else pa.int32())})
    keys = pa.table({"k": keys["k"].cast(kind)})

    assert not is_filterable(keys.schema)
    assert build_bloom(keys) == b"\xff" * BYTES
    assert may_contain(bytes(BYTES), keys).all()


def test_a_filter_of_the_wrong_size_rules_nothing_out() -> None:
    assert may_contain(b"", one_column([1, 2], pa.int64())).all()
