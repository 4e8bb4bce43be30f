"""A join finds exactly the given keys, whatever their types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancelsm.dataset.key_join import JoinedKeys
from lancelsm.errors import Corrupt
from tests.unit.test_merge_keys import KINDS


@given(st.data(), st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
def test_a_key_is_found_only_if_each_column_is_equal(
    data: st.DataObject, kinds: list[tuple[pa.DataType, st.SearchStrategy[Any]]]
) -> None:
    each = [data.draw(st.lists(values, min_size=1, max_size=4)) for _, values in kinds]
    keys = st.tuples(*map(st.sampled_from, each))
    known, wanted = data.draw(st.lists(keys, max_size=20, unique=True)), data.draw(st.lists(keys, max_size=20))
    numbers = data.draw(st.lists(st.integers(0, 127), min_size=len(known), max_size=len(known)))

    def table(rows: list[tuple[Any, ...]]) -> pa.Table:
        columns = [pa.array([row[at] for row in rows], arrow) for at, (arrow, _) in enumerate(kinds)]
        return pa.table(columns, names=[f"number {at}" for at in range(len(kinds))])

    joined = JoinedKeys(pa.concat_tables([table(known[:5]), table(known[5:])]), np.array(numbers, np.int8))
    found = joined.find(pa.concat_tables([table(wanted[:3]), table(wanted[3:])]))

    assert found.dtype == np.int8
    assert found.tolist() == [numbers[known.index(key)] if key in known else -1 for key in wanted]


def test_a_key_that_is_known_twice_is_found_once() -> None:
    joined = JoinedKeys(pa.table({"id": ["a", "b", "a"]}), np.array([1, 0, 1], np.int8))

    assert joined.find(pa.table({"id": ["a", "c", "b"]})).tolist() == [1, -1, 0]


@pytest.mark.parametrize(("known", "wanted"), [(["a", None], ["a"]), (["a"], ["a", None])])
def test_a_null_key_is_corrupt(known: list[str | None], wanted: list[str | None]) -> None:
    with pytest.raises(Corrupt, match="null"):
        JoinedKeys(pa.table({"id": known}), np.zeros(len(known), np.int8)).find(pa.table({"id": wanted}))
