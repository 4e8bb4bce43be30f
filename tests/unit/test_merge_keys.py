"""A lookup finds exactly the given keys, whatever their type."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(st.data(), st.sampled_from(KINDS))
def test_a_lookup_finds_each_known_key_at_its_index_and_no_other_key(
    data: st.DataObject, kind: tuple[pa.DataType, st.SearchStrategy[Any]]
) -> None:
    arrow, values = kind
    known = data.draw(st.lists(values, unique=True, max_size=20))
    wanted = data.draw(st.lists(values | st.sampled_from(known) if known else values, max_size=20))

    found = Keys(pa.chunked_array([known[:5], known[5:]], arrow)).find(pa.chunked_array([wanted], arrow))

    assert found.tolist() == [known.index(key) if key in known else -1 for key in wanted]


def test_a_lookup_of_a_null_key_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="null"):
        Keys(pa.chunked_array([[1]])).find(pa.chunked_array([[1, None]]))
