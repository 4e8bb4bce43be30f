"""A lookup finds exactly the given keys, whatever their type."""

from __future__ import annotations

import datetime as dt
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancelsm.dataset import key_lookup
from lancelsm.dataset.key_lookup import Keys
from lancelsm.dataset.key_texts import Texts
from lancelsm.errors import Corrupt

KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.int64(), st.sampled_from([at + near for at in (-(2**63) + 2, 0, 2**63 - 3) for near in (-2, -1, 1, 2)])),
    (pa.uint64(), st.integers(2**63 - 3, 2**63 + 3)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=3)),
    (pa.binary(), st.binary(max_size=2)),
    (pa.large_string(), st.sampled_from(["", "x", *(f"{'k' * size}{end}" for size in (6, 7, 8, 23) for end in "abc")])),
    (pa.large_binary(), st.sampled_from([b"k" * size + end for size in (254, 255, 256, 300) for end in (b"a", b"b")])),
    (pa.date32(), st.dates(dt.date(1969, 12, 30), dt.date(1970, 1, 3))),
    (pa.timestamp("us"), st.datetimes()),
]


@pytest.mark.parametrize(("ranges", "tables"), [(1 << 24, 8), (0, 8), (0, 1), (0, 0)])
@given(st.data(), st.sampled_from(KINDS))
def test_a_lookup_finds_the_first_of_each_known_key_and_no_other_key(
    ranges: int, tables: int, data: st.DataObject, kind: tuple[pa.DataType, st.SearchStrategy[Any]]
) -> None:
    arrow, values = kind
    known = data.draw(st.lists(values, max_size=20))
    numbers = data.draw(st.lists(st.integers(0, 2**40), min_size=len(known), max_size=len(known)))
    wanted = data.draw(st.lists(values | st.sampled_from(known) if known else values, max_size=20))

    sizes = {"_RANGE": ranges, "_RANGE_PER_KEY": 8 if ranges > 0 else 0, "_TABLES": tables, "_IN_CACHE": 4}
    slots = data.draw(st.sampled_from([1, 8]))  # with few, several keys share one
    with mock.patch.multiple(key_lookup, **sizes, _SLOTS_PER_KEY=slots):
        column = pa.chunked_array([known[:5], known[5:]], arrow)
        keys = Keys(column, np.array(numbers, np.int64))
        found = keys.find(pa.chunked_array([wanted], arrow))
        own = keys.find_known(column)

    assert found.tolist() == [numbers[known.index(key)] if key in known else -1 for key in wanted]
    assert own.tolist() == [numbers[known.index(key)] for key in known]


@given(st.lists(st.binary(max_size=20) | st.binary(min_size=8, max_size=8)), st.integers(0, 3), st.data())
def test_texts_are_hashed_and_compared_by_all_bytes(texts: list[bytes], first: int, data: st.DataObject) -> None:
    values = pa.array([b"x" * first, *texts], pa.binary()).slice(1)
    others = pa.array(texts[::-1], pa.large_binary())
    pairs = st.lists(st.integers(0, len(texts) - 1) if texts else st.nothing())
    at, rows = (np.array(data.draw(pairs), np.int64) for _ in range(2))
    at, rows = at[: len(rows)], rows[: len(at)]

    known, wanted = Texts.of(values), Texts.of(others)

    assert known.hashes().tolist() == wanted.hashes().tolist()[::-1]
    assert len(set(known.hashes().tolist())) == len(set(texts))
    assert known.equal(at, wanted, rows).tolist() == [
        texts[one] == texts[-1 - other] for one, other in zip(at, rows, strict=True)
    ]


def test_most_unknown_keys_are_looked_up_in_no_table() -> None:
    known, unknown = (np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, 10_000) for seed in (1, 2))
    keys = key_lookup._Filter(known)

    assert keys.possible(known).tolist() == list(range(10_000))
    assert len(keys.possible(unknown)) < 200


def test_a_lookup_of_a_null_key_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="null"):
        Keys(pa.chunked_array([[1]])).find(pa.chunked_array([[1, None]]))


def _no_hashes(columns: list[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.zeros(len(columns[0]), np.int64)


@pytest.mark.parametrize("has_collisions", [False, True])
@given(st.data(), st.lists(st.sampled_from(KINDS), min_size=2, max_size=3))
def test_a_key_of_several_columns_is_found_only_if_each_column_is_equal(
    has_collisions: bool, data: st.DataObject, kinds: list[tuple[pa.DataType, st.SearchStrategy[Any]]]
) -> None:
    each = [data.draw(st.lists(values, min_size=1, max_size=3)) for _, values in kinds]
    tuples = st.lists(st.tuples(*map(st.sampled_from, each)), max_size=20)
    known, wanted = data.draw(tuples), data.draw(tuples)

    def table(rows: list[tuple[Any, ...]]) -> pa.Table:
        columns = [pa.array([row[at] for row in rows], arrow) for at, (arrow, _) in enumerate(kinds)]
        return pa.table(columns, names=[str(at) for at in range(len(kinds))])

    with mock.patch.object(key_lookup, "_hashes", _no_hashes if has_collisions else key_lookup._hashes):
        found = Keys(pa.concat_tables([table(known[:5]), table(known[5:])])).find(table(wanted))

    assert found.tolist() == [known.index(key) if key in known else -1 for key in wanted]


@pytest.mark.parametrize("known", [["a"], ["a", "b"]])
def test_texts_with_equal_hashes_are_distinguished(known: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_lookup, "_hashes", _no_hashes)

    assert Keys(pa.chunked_array([known])).find(pa.chunked_array([["b", "a", "c"]])).tolist() == [
        known.index(key) if key in known else -1 for key in ("b", "a", "c")
    ]


def test_texts_of_a_slice_are_found() -> None:
    texts = pa.array([f"text {number}" for number in range(9)])

    found = Keys(pa.chunked_array([texts.slice(3, 4)])).find(pa.chunked_array([texts.slice(1), texts.slice(0, 1)]))

    assert found.tolist() == [-1, -1, 0, 1, 2, 3, -1, -1, -1]
