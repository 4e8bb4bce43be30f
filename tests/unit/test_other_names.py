"""A name of another library is answered with the call that does it here."""

from __future__ import annotations

import asyncio
import pickle
import re

import pytest

import lancelsm
from lancelsm.common.other_names import MODULE, NAMESPACE, ROWS, TABLE


@pytest.fixture
def table(tmp_path):
    return lancelsm.create(tmp_path / "orders.lance", [{"id": 1, "state": "new"}], primary_key="id")


def test_each_name_of_another_library_is_answered(table, tmp_path):
    rows, namespace = table.scan(), lancelsm.connect(tmp_path)
    asynchronous = lancelsm.AsyncTable(table)
    for whole, calls in (
        (table, TABLE),
        (asynchronous, TABLE),
        (rows, ROWS),
        (namespace, NAMESPACE),
        (lancelsm, MODULE),
    ):
        for name, call in calls.items():
            with pytest.raises(AttributeError, match=re.escape(f"has no {name!r}. Use {call}")):
                getattr(whole, name)


@pytest.mark.parametrize(
    ("owner", "calls"),
    [(lancelsm.Table, TABLE), (lancelsm.Rows, ROWS), (lancelsm.Namespace, NAMESPACE), (lancelsm, MODULE)],
)
def test_the_calls_that_are_named_exist(owner, calls):
    for name, call in calls.items():
        first = re.match(r"(lancelsm\.)?(\w+)", call)
        whose = lancelsm if first.group(1) else owner
        known = hasattr(whose, first.group(2)) or call.startswith(("namespace[", "list(namespace)", "the arguments"))
        assert known, call
        assert not hasattr(owner, name), name


def test_other_missing_names_keep_the_error_of_python(table):
    with pytest.raises(AttributeError, match="'Table' object has no attribute 'unknown'"):
        _ = table.unknown
    with pytest.raises(AttributeError, match="module 'lancelsm' has no attribute 'unknown'"):
        _ = lancelsm.unknown
    with pytest.raises(AttributeError, match=re.escape("Use asyncio.to_thread(table.table.snapshot, ...)")):
        _ = lancelsm.AsyncTable(table).snapshot
    assert pickle.loads(pickle.dumps(table)).count() == 1


def test_rows_are_read_as_dicts(table):
    assert table.to_pylist() == table.scan().to_pylist() == [{"id": 1, "state": "new"}]

    async def read():
        return await (await lancelsm.AsyncTable(table).scan(columns=["id"])).to_pylist()

    assert asyncio.run(read()) == [{"id": 1}]
