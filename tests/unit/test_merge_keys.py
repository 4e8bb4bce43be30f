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
from lancelsm.errors import Corrupt

KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(2**63 - 3, 2**63 + 3)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=3)),
    (pa.binary(), st.binary(max_size=2)),
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

    with mock.patch.multiple(key_lookup, _RANGE=ranges, _RANGE_PER_KEY=8 if ranges > 0 else 0, _TABLES=tables):
        keys = Keys(pa.chunked_array([known[:5], known[5:]], arrow), np.array(numbers, np.int64))
    found = keys.find(pa.chunked_array([wanted], arrow))

    assert found.tolist() == [numbers[known.index(key)] if key in known else -1 for key in wanted]


def test_a_lookup_of_a_null_key_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="null"):
        Keys(pa.chunked_array([[1]])).find(pa.chunked_array([[1, None]]))
