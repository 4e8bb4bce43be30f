"""What the bloom filter may say and what it may not; that its bytes are Lance's is for tests/interop."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancelsm.dataset.bloom import BYTES, build_bloom, is_filterable, may_contain


def _one(values: list[object], kind: pa.DataType) -> pa.Table:
    return pa.table({"k": pa.array(values, kind)})


def test_a_filter_has_the_size_of_lances_and_one_bit_per_word_of_a_block_for_one_key() -> None:
    bloom = build_bloom(_one([7], pa.int64()))

    assert len(bloom) == BYTES
    blocks = {at // 32 for at, byte in enumerate(bloom) if byte}
    assert len(blocks) == 1
    (block,) = blocks
    words = [int.from_bytes(bloom[block * 32 + 4 * i :][:4], "little") for i in range(8)]
    assert [word.bit_count() for word in words] == [1] * 8


def test_no_key_at_all_leaves_every_bit_clear() -> None:
    assert build_bloom(_one([], pa.utf8())) == bytes(BYTES)


@given(st.lists(st.binary(max_size=40), max_size=30), st.lists(st.binary(max_size=40), max_size=30))
def test_a_key_that_was_put_in_is_never_ruled_out(held: list[bytes], others: list[bytes]) -> None:
    bloom = build_bloom(_one(list(held), pa.binary()))

    answers = may_contain(bloom, _one([*held, *others], pa.binary()))

    assert answers[: len(held)].all()


def test_most_keys_that_were_not_put_in_are_ruled_out() -> None:
    bloom = build_bloom(_one(list(range(8192)), pa.int64()))

    answers = may_contain(bloom, _one(list(range(100_000, 110_000)), pa.int64()))

    assert answers.sum() < 30  # Lance sizes it for 8192 keys and 0.057 %


def test_equal_numbers_of_different_width_are_different_keys() -> None:
    assert build_bloom(_one([5], pa.int32())) != build_bloom(_one([5], pa.int64()))


def test_columns_of_a_composite_key_do_not_run_into_each_other() -> None:
    left = pa.table({"a": ["x", "xy"], "b": ["yz", "z"]})

    assert build_bloom(left.slice(0, 1)) != build_bloom(left.slice(1, 1))


def test_slices_and_chunks_of_a_key_column_hash_as_the_rows_they_are() -> None:
    keys = [f"key {i}" * (i % 5) for i in range(50)]
    chunked = pa.concat_tables([_one(keys[:20], pa.utf8()), _one(["no", *keys[20:]], pa.utf8()).slice(1)])

    assert build_bloom(chunked) == build_bloom(_one(keys, pa.utf8()))


@pytest.mark.parametrize("kind", [pa.int16(), pa.uint64(), pa.bool_(), pa.large_utf8(), pa.date32()])
def test_a_key_that_lance_does_not_hash_gets_a_filter_that_rules_nothing_out(kind: pa.DataType) -> None:
    keys = pa.table({"k": pa.array([1, 0], pa.int32()).cast(pa.utf8() if kind == pa.large_utf8() else pa.int32())})
    keys = pa.table({"k": keys["k"].cast(kind)})

    assert not is_filterable(keys.schema)
    assert build_bloom(keys) == b"\xff" * BYTES
    assert may_contain(bytes(BYTES), keys).all()


def test_a_file_of_another_size_rules_nothing_out() -> None:
    assert may_contain(b"", _one([1, 2], pa.int64())).all()
