"""Change events that `ingest` sends to the queue: rows and deletes that need no row that is there."""

from __future__ import annotations

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.errors import Invalid
from lancelsm.region.handle import open_table
from lancelsm.stack.delivery.request import event_rows

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def table(tmp_path):
    return lancelsm.create(tmp_path / "t", COLUMNS, primary_key="id")


def event(op, before, after):
    sides = [None if v is None else {"id": v[0], "v": v[1]} for v in (before, after)]
    return {"op": op, "before": sides[0], "after": sides[1], "source": {}}


def rows_of(table, events):
    return event_rows(events, format="debezium", handle=open_table(table.uri)).to_pylist()


def test_the_last_event_of_each_key_becomes_a_row_or_a_delete(table):
    events = [
        event("c", None, (1, "a")),
        event("u", (1, "a"), (1, "b")),
        event("c", None, (2, "x")),
        event("d", (2, "x"), None),
        None,
    ]
    assert rows_of(table, events) == [
        {"id": 1, "v": "b", "_tombstone": False},
        {"id": 2, "v": None, "_tombstone": True},
    ]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (event("u", None, (1, "__debezium_unavailable_value")), r"leaves out a value.*row 0.*function apply"),
        (event("t", None, None), "empties the source table"),
        (event("c", None, (1, 7)), "7 is not a value of string.*row 0"),
        ({"op": "x"}, "the op 'x'"),
        ({"op": "c", "after": {"id": 1}}, "no value of column 'v'.*row 0"),
    ],
)
def test_an_event_that_needs_rows_or_does_not_fit_is_invalid(table, bad, said):
    with pytest.raises(Invalid, match=said):
        rows_of(table, [bad])


def test_events_that_have_an_order_need_the_function_apply(table):
    table.apply_changes([{"id": 1, "v": "a"}], sequence_by="v")
    with pytest.raises(Invalid, match=r"ordered by v.*function apply"):
        rows_of(table, [event("c", None, (1, "b"))])
