"""Events as Debezium's connectors write them, with and without schemas. Shapes follow Debezium's documentation."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.read.transact.change_capture import Applied

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("lsn", pa.int64())])


@pytest.fixture
def table(tmp_path):
    return lancelsm.create(tmp_path / "t", SCHEMA, primary_key="id")


def row(key, v):
    return {"id": key, "v": v}


def event(op, before, after, lsn):
    return {"op": op, "before": before, "after": after, "source": {"connector": "postgresql", "lsn": lsn}, "ts_ms": 1}


def apply(table, events, **options):
    return table.apply_changes(events, format="debezium", sequence_by="lsn", **options)


def rows_of(table):
    return sorted((row["id"], row["v"]) for row in table.scan().to_arrow().to_pylist())


def test_creates_updates_deletes_and_snapshots_are_applied_and_the_rest_is_skipped(table):
    events = [
        event("r", None, row(1, "a"), 1),
        event("c", None, row(2, "b"), 2),
        event("u", row(2, "b"), row(2, "c"), 3),
        event("d", row(1, "a"), None, 4),
        {"key": {"id": 1}, "value": None},
        None,
        {"op": "m", "message": {"prefix": "p"}, "source": {"lsn": 5}},
    ]
    assert apply(table, events) == Applied(written=1, deleted=1, skipped=3)
    assert rows_of(table) == [(2, "c")]


def test_insert_delete_insert_at_one_sequence_ends_with_the_last_insert(table):
    apply(table, [event("c", None, row(1, "a"), 7), event("d", row(1, "a"), None, 7), event("c", None, row(1, "b"), 7)])
    assert rows_of(table) == [(1, "b")]


def test_a_change_of_the_key_moves_the_row(table):
    apply(table, [event("c", None, row(1, "a"), 1)])
    assert apply(table, [event("u", row(1, "a"), row(9, "a"), 2)]) == Applied(written=1, deleted=1)
    assert rows_of(table) == [(9, "a")]


def test_a_repeated_event_counts_once_though_it_changes_two_regions(tmp_path):
    table = lancelsm.create(tmp_path / "t", SCHEMA, primary_key="id", regions="bucket(id, 8)")
    events = [event("u", row(key, "a"), row(key + 100, "a"), 2) for key in range(4)]
    assert apply(table, events, source="s", offset=1) == Applied(written=4, deleted=4)
    assert apply(table, events, source="s", offset=1) == Applied(skipped=4)


@pytest.mark.parametrize("before", [None, {"id": 1}])
def test_a_delete_needs_the_key_alone(table, before):
    apply(table, [event("c", None, row(1, "a"), 1)])
    apply(table, [{"key": {"id": 1}, "value": event("d", before, None, 2)}])
    assert rows_of(table) == []


@pytest.mark.parametrize("placeholder", ["__debezium_unavailable_value", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="])
def test_an_unchanged_toast_value_is_that_of_the_row_before(table, placeholder):
    apply(table, [event("c", None, row(1, "long"), 1)])
    table.flush()
    apply(table, [event("u", None, row(1, placeholder), 2)])
    apply(table, [event("c", None, row(2, "new"), 3), event("u", None, row(2, placeholder), 4)])
    assert rows_of(table) == [(1, "long"), (2, "new")]
    with pytest.raises(lancelsm.Invalid, match=r"no stored row has.*row 0"):
        apply(table, [event("u", None, row(3, placeholder), 5)])
    assert apply(table, [event("u", None, row(3, placeholder), 5)], on_bad_row="skip") == Applied(rejected=1)
    assert rows_of(table) == [(1, "long"), (2, "new")]


def test_an_unchanged_value_of_a_row_with_a_new_key_is_taken_from_before(table):
    apply(table, [event("c", None, row(1, "long"), 1)])
    apply(table, [event("u", row(1, "long"), row(9, "__debezium_unavailable_value"), 2)])
    assert rows_of(table) == [(9, "long")]


@pytest.mark.parametrize("before", [{"id": 1}, row(1, "__debezium_unavailable_value")])
def test_a_row_with_a_new_key_stays_as_it_is_if_the_event_has_not_all_values(table, before):
    apply(table, [event("c", None, row(1, "long"), 1), event("c", None, row(2, "other"), 1)])
    moved = event("u", before, row(2, "__debezium_unavailable_value"), 2)
    with pytest.raises(lancelsm.Invalid, match="changes the key and has no value of column 'v'"):
        apply(table, [moved])
    assert apply(table, [moved], on_bad_row="skip") == Applied(rejected=1)
    assert rows_of(table) == [(1, "long"), (2, "other")]


def test_flattened_records_are_applied(table):
    events = [
        {"id": 1, "v": "a", "__op": "c", "__source_lsn": 1, "__deleted": "false"},
        {"id": 2, "v": "b", "__op": "r", "__lsn": 1, "__deleted": "false"},
        {"id": 1, "v": None, "__op": "d", "__lsn": 2, "__deleted": "true"},
        None,
    ]
    done = table.apply_changes(events, format="flattened", sequence_by="lsn")
    assert done == Applied(written=1, deleted=1, skipped=1)
    assert rows_of(table) == [(2, "b")]


def test_the_sequence_is_found_by_its_path(table):
    events = [{**event("c", None, {**row(1, "a")}, None), "ts_ns": number} for number in (5, 4)]
    done = table.apply_changes(events, format="debezium", sequence_by={"lsn": "ts_ns"})
    assert (done, rows_of(table)) == (Applied(written=1, late=1), [(1, "a")])


CONNECTORS = {
    "postgresql": ("int64", {"lsn": 33842856, "txId": 601, "xmin": None, "schema": "public"}, {"lsn": 33842860}),
    "mysql": (
        "string, int64",
        {"file": "mysql-bin.000003", "pos": 9999, "row": 0, "gtid": None},
        {"file": "mysql-bin.000004", "pos": 154},
    ),
    "sqlserver": (
        "string, int64",
        {"commit_lsn": "00000027:00000758:0005", "event_serial_no": 2, "schema": "dbo"},
        {"commit_lsn": "00000027:00000a58:0001", "event_serial_no": 1},
    ),
    "oracle": ("int64", {"scn": "999999", "commit_scn": "1000000", "lcr_position": None}, {"scn": "2122185"}),
}


@pytest.mark.parametrize("connector", CONNECTORS)
def test_the_position_of_each_connector_orders_its_events(tmp_path, connector):
    """Fields of `source` as in the documentation of the connectors, which is under the Apache License 2.0."""
    kinds, first, second = CONNECTORS[connector]
    kind_of = {"int64": pa.int64(), "string": pa.string()}
    order = dict(zip(second, map(kind_of.get, kinds.split(", ")), strict=True))
    columns = pa.schema([("id", pa.int64()), ("paid", pa.bool_()), *order.items()])
    table = lancelsm.create(tmp_path / "t", columns, primary_key="id")
    facts = {
        "version": "3.0.0.Final",
        "connector": connector,
        "name": "shop",
        "ts_ms": 1,
        "snapshot": "false",
        "db": "d",
    }

    def changed(source, paid):
        sides = {"before": None, "after": {"id": 1, "paid": paid}, "source": {**facts, **source}}
        return json.dumps({**sides, "op": "u", "ts_ms": 2, "transaction": None})

    events = [changed({**first, **second}, 1), changed(first, 0)]
    assert apply_in_order(table, events, list(second)) == Applied(written=1, late=1)
    assert apply_in_order(table, [changed(first, 0)], list(second)) == Applied(late=1)
    assert table.scan().to_arrow()["paid"].to_pylist() == [True]


def apply_in_order(table, events, names):
    return table.apply_changes(events, format="debezium", sequence_by=names)


def enveloped(after, fields):
    columns = [{"field": "id", "type": "int64"}, *fields]
    sides = [{"field": side, "type": "struct", "fields": columns} for side in ("before", "after")]
    payload = {"op": "c", "before": None, "after": {"id": 1, **after}, "source": {}}
    return json.dumps({"schema": {"type": "struct", "fields": sides}, "payload": payload})


def number(value, size):
    return base64.b64encode(value.to_bytes(size, "big", signed=True)).decode()


MOMENT = dt.datetime(2024, 2, 29, 12, 30, 15, 123456)  # noqa: DTZ001
MICROS = 1_709_209_815_123_456


@pytest.mark.parametrize(
    ("kind", "name", "given", "expected", "parameters"),
    [
        (pa.date32(), "io.debezium.time.Date", 19782, dt.date(2024, 2, 29), None),
        (pa.date32(), "org.apache.kafka.connect.data.Date", -1, dt.date(1969, 12, 31), None),
        (pa.timestamp("us"), "io.debezium.time.Timestamp", MICROS // 1000, MOMENT.replace(microsecond=123000), None),
        (pa.timestamp("us"), "io.debezium.time.MicroTimestamp", MICROS, MOMENT, None),
        (pa.timestamp("us"), "io.debezium.time.NanoTimestamp", MICROS * 1000, MOMENT, None),
        (
            pa.timestamp("us"),
            "io.debezium.time.MicroTimestamp",
            -1,
            dt.datetime(1969, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
            None,
        ),
        (pa.timestamp("us", "UTC"), "io.debezium.time.MicroTimestamp", MICROS, MOMENT.replace(tzinfo=dt.UTC), None),
        (
            pa.timestamp("us", "UTC"),
            "io.debezium.time.ZonedTimestamp",
            "2024-02-29T13:30:15.123456+01:00",
            MOMENT.replace(tzinfo=dt.UTC),
            None,
        ),
        (pa.time64("us"), "io.debezium.time.MicroTime", 45_015_123_456, MOMENT.time(), None),
        (pa.time32("ms"), "io.debezium.time.Time", 45_015_123, dt.time(12, 30, 15, 123000), None),
        (
            pa.decimal128(10, 2),
            "org.apache.kafka.connect.data.Decimal",
            number(-12345, 3),
            Decimal("-123.45"),
            {"scale": "2"},
        ),
        (
            pa.decimal128(10, 2),
            "io.debezium.data.VariableScaleDecimal",
            {"scale": 1, "value": number(15, 1)},
            Decimal("1.50"),
            None,
        ),
        (pa.int64(), "io.debezium.data.VariableScaleDecimal", {"scale": 0, "value": number(77, 1)}, 77, None),
        (pa.binary(), None, base64.b64encode(b"\0x").decode(), b"\0x", None),
        (pa.duration("ms"), "io.debezium.time.MicroDuration", 5_000, dt.timedelta(milliseconds=5), None),
        (pa.string(), "io.debezium.data.Json", '{"a":1}', '{"a":1}', None),
        (pa.float64(), None, 1.5, 1.5, None),
        (pa.decimal128(10, 2), None, 1.25, Decimal("1.25"), None),
        (pa.int64(), None, "9007199254740993", 9007199254740993, None),
        (pa.bool_(), None, True, True, None),
    ],
)
def test_values_are_decoded_by_the_schema_of_the_event(tmp_path, kind, name, given, expected, parameters):
    table = lancelsm.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("x", kind)]), primary_key="id")
    field = {"field": "x", "type": "any", "name": name, "parameters": parameters}
    table.apply_changes(enveloped({"x": given}, [field]), format="debezium")
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "x": expected}]


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (pa.timestamp("us"), MICROS, "no unit; set schemas.enable=true"),
        (pa.time64("us"), 1, "no unit"),
        (pa.decimal128(10, 2), "MDk=", "decimal.handling.mode=string"),
    ],
)
def test_a_value_of_an_unknown_encoding_is_refused_without_a_schema(tmp_path, kind, given, said):
    table = lancelsm.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("x", kind)]), primary_key="id")
    with pytest.raises(lancelsm.Invalid, match=said):
        table.apply_changes([event("c", None, {"id": 1, "x": given}, 1)], format="debezium")


@pytest.mark.parametrize("text", ['{"id":1,"v":%s}', '{"op":"c","after":{"id":1,"v":%s}}'])
def test_a_number_in_a_line_keeps_all_digits_of_a_decimal(tmp_path, text):
    schema = pa.schema([("id", pa.int64()), ("v", pa.decimal128(20, 2))])
    table = lancelsm.create(tmp_path / "t", schema, primary_key="id")
    table.apply_changes(text % "123456789012345678.91", format="debezium" if "op" in text else "rows")
    assert rows_of(table) == [(1, Decimal("123456789012345678.91"))]


def test_plain_values_need_no_schema(tmp_path):
    columns = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("price", pa.decimal128(10, 2))])
    table = lancelsm.create(tmp_path / "t", columns, primary_key="id")
    table.apply_changes([event("c", None, {"id": 1, "day": 1, "price": "1.25"}, 1)], format="debezium")
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "day": dt.date(1970, 1, 2), "price": Decimal("1.25")}]
