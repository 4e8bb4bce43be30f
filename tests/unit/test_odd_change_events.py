"""Change events that are legal but rare, and events that do not fit: each is applied right, or rejected by itself."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.errors import Invalid
from lancelsm.read.transact import change_capture
from lancelsm.read.transact.change_capture import Applied

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("at", pa.timestamp("us", "UTC")), ("b", pa.binary())])
AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
naive = dt.datetime.fromisoformat
FULL = {"id": 1, "v": "a", "at": AT, "b": b"x"}


@pytest.fixture
def table(tmp_path):
    return lancelsm.create(tmp_path / "t", SCHEMA, primary_key="id")


def created(path, *columns, key="id"):
    return lancelsm.create(path / "t", pa.schema(columns), primary_key=key)


def rows_of(table):
    return sorted(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())


FLAGGED = [
    ({"op": "I"}, {"op": "D"}, "op = 'D'"),
    ({"op": None}, {"op": None, "b": None}, "op = 'D' or b is null"),  # the field is null in all events
    ({"gone": None}, {"gone": None, "b": None}, "gone or b is null"),
    ({}, {"b": None}, "op = 'D' or b is null"),  # or missing in all
    ({"op": "I"}, {"op": "D"}, "op = 'D' and at > '2020-01-01T00:00:00Z'"),
    ({"op": "I"}, {"op": "D"}, "op = 'D' and b = X'78'"),
    ({"op": 1}, {"op": 2}, "op = 2"),
]


@pytest.mark.parametrize(("kept", "deleted", "condition"), FLAGGED)
def test_a_condition_finds_deletes_in_values_of_any_type(table, kept, deleted, condition):
    events = [FULL | kept, FULL | deleted | {"id": 2}]
    table.upsert([FULL | {"id": 2}])
    applied = table.apply_changes(events, apply_as_deletes=condition, except_column_list=["op", "gone"])
    assert (applied.written, applied.deleted) == (1, 1)
    assert [key for key, *_ in rows_of(table)] == [1]


def test_a_delete_by_a_condition_needs_the_key_alone(table):
    table.upsert([FULL])
    events = [{"id": 1, "op": "D"}, FULL | {"id": 2, "op": "I"}]
    table.apply_changes(events, apply_as_deletes="op = 'D'", except_column_list=["op"])
    assert [key for key, *_ in rows_of(table)] == [2]


@pytest.mark.parametrize(
    "bad", [FULL | {"op": 5}, FULL | {"op": "I", "b": "text"}, {"op": "D"}, {"id": 3, "op": "I", "b": b""}]
)
def test_an_event_that_a_condition_does_not_fit_is_rejected_alone(table, bad):
    events = [bad, FULL | {"op": "I"}, FULL | {"id": 2, "op": "D"}]
    applied = table.apply_changes(
        events,
        apply_as_deletes="op = 'D' or b is null",
        except_column_list=["op"],
        on_bad_row="skip",
    )
    assert applied == Applied(written=1, deleted=1, rejected=1)


def test_json_lines_end_at_line_feeds_alone(table):
    lines = "\n".join(
        json.dumps({"id": 1, "v": f"a{char}b", "at": None, "b": None}, ensure_ascii=False)
        for char in "\u2028\u2029\u0085"
    )
    assert table.apply_changes(lines + "\r\n\n").written == 1


@pytest.mark.parametrize(
    ("kind", "name", "encoded", "value"),
    [
        (pa.timestamp("us"), "io.debezium.time.MicroTimestamp", 1_000_000, naive("1970-01-01T00:00:01")),
        (pa.date32(), "io.debezium.time.Date", 1, dt.date(1970, 1, 2)),
    ],
)
@pytest.mark.parametrize(("form", "path"), [("flattened", ""), ("flattened", "u"), ("debezium", "after.u")])
def test_the_value_of_a_sequence_is_decoded_like_the_column(tmp_path, kind, name, encoded, value, form, path):
    table = created(tmp_path, ("id", pa.int64()), ("u", kind))
    fields = [{"field": "id", "type": "int64"}, {"field": "u", "name": name}]
    row = {"id": 1, "u": encoded}
    if form == "debezium":
        fields, row = [{"field": "after", "fields": fields}], {"op": "c", "after": row}
    event = {"schema": {"fields": fields}, "payload": row}
    table.apply_changes([event], format=form, sequence_by={"u": path})
    assert rows_of(table) == [(1, value)]


def test_a_time_of_the_source_orders_events_in_a_column_of_timestamps(tmp_path):
    table = created(tmp_path, ("id", pa.int64()), ("u", pa.timestamp("us")))
    event = {"op": "c", "after": {"id": 1}, "source": {"ts_ms": 1_000}}
    table.apply_changes([event], format="debezium", sequence_by={"u": "source.ts_ms"})
    assert rows_of(table) == [(1, naive("1970-01-01T00:00:01"))]


def test_the_time_of_the_source_counts_and_not_that_of_the_connector(tmp_path):
    table = created(tmp_path, ("id", pa.int64()), ("ts_ms", pa.int64()))
    event = {"id": 1, "__source_ts_ms": 6, "__ts_ms": 7}
    table.apply_changes([event], format="flattened", sequence_by="ts_ms")
    assert rows_of(table) == [(1, 6)]


def test_a_table_with_the_columns_key_and_value_takes_flattened_records(tmp_path):
    table = created(tmp_path, ("key", pa.int64()), ("value", pa.string()), key="key")
    message = {"key": {"key": 3}, "value": {"key": 3, "value": "c"}}
    table.apply_changes([{"key": 1, "value": "a"}, {"key": 2, "value": None}, message], format="flattened")
    assert rows_of(table) == [(1, "a"), (2, None), (3, "c")]


UNCHANGED = "__debezium_unavailable_value"


def test_null_in_before_is_not_the_value_of_an_unchanged_column(tmp_path):
    table = created(tmp_path, ("id", pa.int64()), ("v", pa.string()))
    table.upsert([{"id": 1, "v": "large"}])
    event = {"op": "u", "before": {"id": 1, "v": None}, "after": {"id": 1, "v": UNCHANGED}}
    table.apply_changes([event], format="debezium")
    assert rows_of(table) == [(1, "large")]


def test_a_change_of_the_key_without_a_value_is_rejected_whole(tmp_path):
    table = created(tmp_path, ("id", pa.int64()), ("v", pa.string()))
    table.upsert([{"id": 1, "v": "large"}, {"id": 2, "v": "of another row"}])
    event = {"op": "u", "before": {"id": 1}, "after": {"id": 2, "v": UNCHANGED}}
    assert table.apply_changes([event], format="debezium", on_bad_row="skip") == Applied(rejected=1)
    assert rows_of(table) == [(1, "large"), (2, "of another row")]


def test_an_event_that_finds_its_row_at_a_newer_head_is_no_bad_row(tmp_path, monkeypatch):
    table = created(tmp_path, ("id", pa.int64()), ("v", pa.string()))
    table.upsert([{"id": 9, "v": "other"}])
    other, decided = lancelsm.open(table.uri), change_capture.decide

    def raced(*given, **named):
        found = decided(*given, **named)
        if found.unfilled:
            other.upsert([{"id": 1, "v": "large"}])
        return found

    monkeypatch.setattr(change_capture, "decide", raced)
    rows = [{"id": 1, "v": UNCHANGED}, {"id": 2, "v": "b"}]
    events = [{"op": "u", "before": None, "after": row} for row in rows]
    done = table.apply_changes(events, format="debezium", on_bad_row="dead_letter")
    assert done == Applied(written=2)
    assert rows_of(table) == [(1, "large"), (2, "b"), (9, "other")]


def test_a_late_change_of_a_key_is_one_late_event(tmp_path):
    table = lancelsm.create(
        tmp_path / "t", pa.schema([("id", pa.int64()), ("v", pa.int64())]), primary_key="id", regions="bucket(id, 8)"
    )
    table.apply_changes([{"id": key, "v": 5} for key in range(8)], sequence_by="v")
    moves = [{"op": "u", "before": {"id": key, "v": 1}, "after": {"id": key + 1, "v": 2}} for key in range(7)]
    assert table.apply_changes(moves, format="debezium") == Applied(late=7)


@pytest.mark.parametrize(
    "event",
    [
        {1: 2},
        FULL | {"v": np.arange(3)},
        {"op": "c", "after": {"id": 1}, "source": "text"},
        {"op": "c", "after": {1: 2}},
        {"id": 1, "v": "a", "__op": "x"},
        {"schema": {"fields": [1]}, "payload": {"id": 1}},
        {"schema": {"fields": [{"field": "after", "fields": [{"field": [1]}]}]}, "payload": {"op": "c", "after": FULL}},
    ],
)
@pytest.mark.parametrize("form", ["rows", "debezium", "flattened"])
def test_an_event_of_odd_values_is_a_bad_row(table, event, form):
    with pytest.raises(Invalid, match="row 0"):
        table.apply_changes([event], format=form)
    applied = table.apply_changes([event, {(1, 2): 3}], format=form, on_bad_row="dead_letter")
    assert applied == Applied(rejected=2)


def encoded(number):
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


ENCODED = [
    (pa.date32(), "IsoDate", "2026-01-02Z", dt.date(2026, 1, 2)),
    (pa.time64("us"), "IsoTime", "10:00:00Z", dt.time(10)),
    (pa.time64("us"), "ZonedTime", "10:00:00.5Z", dt.time(10, 0, 0, 500_000)),
    (pa.timestamp("us"), "IsoTimestamp", "2026-01-02T10:00:00Z", naive("2026-01-02T10:00")),
    (pa.int32(), "Date", 19_000, 19_000),
    (pa.uint64(), None, str(2**64 - 1), 2**64 - 1),
    (pa.int64(), None, {"scale": 0, "value": "Dw=="}, 15),
    (pa.decimal128(10, 2), None, {"scale": 1_000_000_000, "value": "Dw=="}, None),
    (pa.decimal128(10, 2), None, {"scale": 90, "value": encoded(15 * 10**89)}, Decimal("1.50")),
    (pa.decimal128(10, 2), None, {"scale": 90, "value": encoded(15 * 10**86)}, None),
    (pa.duration("ns"), None, 5, None),
    (pa.duration("ns"), "other", 5, None),
    (pa.duration("ms"), "MicroTime", -90_000_000_000, dt.timedelta(hours=-25)),
    (pa.time64("us"), "MicroTime", -90_000_000_000, None),
    (pa.duration("ms"), "MicroTimestamp", 1_709_209_815_123_456, None),
    (pa.timestamp("us"), "MicroTimestamp", 9_223_372_036_825_200_000, None),  # infinity of PostgreSQL
    (pa.date32(), "Date", 1.9, None),
    (pa.date32(), "Date", "1_9", None),
    (pa.timestamp("us"), "Timestamp", True, None),
    (pa.timestamp("us"), "Timestamp", 2000.0, naive("1970-01-01T00:00:02")),
    (pa.duration("us"), "MicroDuration", 1.5, None),
    (pa.decimal128(10, 2), None, {"scale": 0, "value": ""}, None),
]


@pytest.mark.parametrize(("kind", "name", "given", "value"), ENCODED)
def test_an_encoding_is_decoded_or_refused(tmp_path, kind, name, given, value):
    table = created(tmp_path, ("id", pa.int64()), ("v", kind))
    event = {"op": "c", "after": {"id": 1, "v": given}}
    if name is not None:
        fields = [{"field": "after", "fields": [{"field": "v", "name": f"io.debezium.time.{name}"}]}]
        event = {"schema": {"fields": fields}, "payload": event}
    applied = table.apply_changes([event], format="debezium", on_bad_row="skip")
    assert applied == Applied(written=int(value is not None), rejected=int(value is None))
    assert value is None or rows_of(table) == [(1, value)]


def test_a_bad_row_that_was_left_out_is_skipped_by_a_repeated_call(table):
    events = ["no JSON", json.dumps({"id": 1, "v": "a", "at": None, "b": None})]
    assert table.apply_changes(events, source="s", offset=[1, 2], on_bad_row="dead_letter").rejected == 1
    more = [*events, json.dumps({"id": 2, "v": "b", "at": None, "b": None})]
    assert table.apply_changes(more, source="s", offset=[1, 2, 3]) == Applied(written=1, skipped=2)


@pytest.mark.parametrize("name", ["__op", "__source_ts_ms", "__event", "op", "after"])
@pytest.mark.parametrize("form", ["rows", "flattened"])
def test_a_table_may_have_the_columns_that_events_have(tmp_path, name, form):
    table = created(tmp_path, ("id", pa.int64()), (name, pa.string()))
    events = [{"id": 1, name: "c"}, {"id": 2, name: "u"}]
    table.apply_changes(events, format=form, sequence_by=name, apply_as_deletes=f"`{name}` = 'u'")
    assert rows_of(table) == [(1, "c")]


@pytest.mark.parametrize(
    ("kind", "schema", "given", "value"),
    [
        (pa.list_(pa.date32()), {"items": {"name": "io.debezium.time.Date"}}, [1, None], [dt.date(1970, 1, 2), None]),
        (
            pa.struct([("a", pa.list_(pa.time64("us")))]),
            {"fields": [{"field": "a", "items": {"name": "io.debezium.time.MicroTime"}}]},
            {"a": [1_000_000]},
            {"a": [dt.time(0, 0, 1)]},
        ),
        (pa.list_(pa.date32()), None, [1], [dt.date(1970, 1, 2)]),
        (pa.list_(pa.duration("ns")), None, [1], None),
        (pa.list_(pa.date32()), {"items": 5}, [1], None),
        (pa.struct([("a", pa.date32())]), {"fields": 5}, {"a": 1}, None),
    ],
)
def test_nested_values_are_decoded_like_those_of_columns(tmp_path, kind, schema, given, value):
    table = created(tmp_path, ("id", pa.int64()), ("v", kind))
    event = {"id": 1, "v": given}
    if schema is not None:
        event = {"schema": {"fields": [{"field": "v", **schema}]}, "payload": event}
    applied = table.apply_changes([event], format="flattened", on_bad_row="skip")
    assert applied == Applied(written=int(value is not None), rejected=int(value is None))
    assert value is None or rows_of(table) == [(1, value)]


def test_a_call_that_is_refused_does_not_decide_what_orders_the_events(table):
    with pytest.raises(Invalid, match="no value of column 'at'"):
        table.apply_changes([{"id": 1, "v": "a"}], sequence_by="v")
    table.apply_changes([], sequence_by="at")
    with pytest.raises(Invalid, match="ordered by at"):
        table.apply_changes([FULL], sequence_by="v")


def test_arrow_data_with_two_columns_of_one_name_is_refused(table):
    rows = pa.Table.from_pylist([FULL]).append_column("v", pa.array(["b"]))
    with pytest.raises(Invalid, match="duplicate column 'v'"):
        table.apply_changes(rows)


def test_a_condition_on_an_unknown_field_lists_those_of_the_events(tmp_path):
    table = lancelsm.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_key="id")
    with pytest.raises(Invalid, match=r"The events have the fields id, op, v$"):
        table.apply_changes([{"id": 1, "v": "a", "op": "D"}], apply_as_deletes="opp = 'D'", except_column_list=["op"])
