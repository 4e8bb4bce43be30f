"""Messages of each connector of Debezium, with schemas as Kafka Connect writes them, give the rows of their source.

The messages are in tests/fixtures/debezium. Their shape is that of the documentation of each connector.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.errors import Invalid
from lancelsm.read.transact.change_capture import Applied
from lancelsm.record.json_lines import json_objects

MESSAGES = Path(__file__).parents[1] / "fixtures" / "debezium"
POINT = pa.struct([("x", pa.int32()), ("y", pa.int32())])
GEOMETRY = pa.struct([("wkb", pa.binary()), ("srid", pa.int32())])

# For each connector: columns, those that order the events, what is done, and the rows as `lancelsm scan` writes them.
CONNECTORS: dict[str, tuple[dict[str, pa.DataType], list[str], Applied, list[dict[str, Any]]]] = {
    "postgresql": (
        {
            "id": pa.int64(),
            "note": pa.string(),
            "state": pa.string(),
            "price": pa.decimal128(10, 2),
            "weight": pa.decimal128(12, 3),
            "day": pa.date32(),
            "made": pa.timestamp("us"),
            "paid": pa.timestamp("us", "UTC"),
            "opens": pa.time64("us"),
            "lasts": pa.duration("us"),
            "uid": pa.string(),
            "extra": pa.string(),
            "tags": pa.list_(pa.string()),
            "photo": pa.binary(),
            "embedding": pa.list_(pa.float32(), 3),
            "lsn": pa.int64(),
        },
        ["lsn"],
        Applied(written=2, deleted=2, skipped=3),
        [
            {
                "id": 1,
                "note": "long",
                "state": "paid",
                "price": "12.50",
                "weight": "2.500",
                "day": "2024-02-29",
                "made": "2024-02-29T12:30:15.123456",
                "paid": "2024-02-29T12:30:15.123456Z",
                "opens": "08:00:00.000000",
                "lasts": 5_400_000_000,
                "uid": "6b0c2f4e-4f3b-4c64-9d3c-0b6f3c0c7b11",
                "extra": '{"a": [1, null]}',
                "tags": ["x", None],
                "photo": "AP8=",
                "embedding": [0.5, -1.0, 2.0],
                "lsn": 170,
            },
            {"id": 4, "note": "moved from 3", "lsn": 190},
        ],
    ),
    "mysql": (
        {
            "id": pa.int32(),
            "qty": pa.int64(),
            "active": pa.bool_(),
            "price": pa.decimal128(12, 4),
            "made": pa.timestamp("ms"),
            "fine": pa.timestamp("us"),
            "seen": pa.timestamp("s", "UTC"),
            "day": pa.date32(),
            "opens": pa.time64("us"),
            "year": pa.int16(),
            "flags": pa.binary(),
            "kind": pa.string(),
            "kinds": pa.string(),
            "extra": pa.string(),
            "huge": pa.uint64(),
            "place": GEOMETRY,
            "file": pa.string(),
            "pos": pa.int64(),
        },
        ["file", "pos"],
        Applied(written=2, skipped=1),
        [
            {
                "id": key,
                "qty": qty,
                "active": True,
                "price": "-1.2345",
                "made": "2024-02-29T12:30:15.123",
                "fine": "1969-12-31T23:59:59.999999",
                "seen": "2024-02-29T12:30:15Z",
                "day": "2024-02-29",
                "opens": "01:00:00.000001",
                "year": 2024,
                "flags": "AQg=",
                "kind": "a",
                "kinds": "a,b",
                "extra": '{"a": 1}',
                "huge": 2**64 - 1,
                "place": {"wkb": "AQE=", "srid": None},
                "file": "mysql-bin.000004",
                "pos": pos,
            }
            for key, qty, pos in ((1, 6, 154), (2, 9, 300))
        ],
    ),
    "sqlserver": (
        {
            "id": pa.int32(),
            "note": pa.string(),
            "paid": pa.bool_(),
            "price": pa.decimal128(19, 4),
            "made": pa.timestamp("ns"),
            "small": pa.timestamp("s"),
            "zoned": pa.timestamp("ns", "UTC"),
            "opens": pa.time64("ns"),
            "day": pa.date32(),
            "commit_lsn": pa.string(),
        },
        ["commit_lsn"],  # events of a snapshot have no event_serial_no
        Applied(written=2, deleted=1, skipped=1),
        [
            {
                "id": key,
                "note": note,
                "paid": False,
                "price": "9.9999",
                "made": "2024-02-29T12:30:15.123456700",
                "small": "2024-02-29T12:30:00",
                "zoned": "2024-02-29T12:30:15.123456700Z",
                "opens": "12:30:15.123456700",
                "day": "2024-02-29",
                "commit_lsn": lsn,
            }
            for key, note, lsn in ((1, "A", "00000027:00000ac0:0007"), (3, "b", "00000027:00000db0:0007"))
        ],
    ),
    "oracle": (
        {
            "ID": pa.int32(),
            "AMOUNT": pa.decimal128(10, 2),
            "NOTE": pa.string(),
            "DAY": pa.timestamp("s"),
            "MADE": pa.timestamp("us"),
            "ZONED": pa.timestamp("us", "UTC"),
            "LASTS": pa.duration("s"),
            "RATE": pa.float64(),
            "scn": pa.int64(),
        },
        ["scn"],
        Applied(written=2, deleted=1, skipped=1),
        [
            {
                "ID": key,
                "AMOUNT": "15.50",
                "NOTE": note,
                "DAY": "2024-02-29T00:00:00",
                "MADE": "2024-02-29T12:30:15.123456",
                "ZONED": "2024-02-29T12:30:15.000000Z",
                "LASTS": 86_400,
                "RATE": rate,
                "scn": scn,
            }
            for key, note, rate, scn in ((1, "large", 0.5, 2_122_185), (3, None, 0.25, 2_125_544))
        ],
    ),
    "db2": (
        {
            "ID": pa.int32(),
            "NOTE": pa.string(),
            "PRICE": pa.decimal128(9, 2),
            "DAY": pa.date32(),
            "MADE": pa.timestamp("ms"),
            "OPENS": pa.time32("ms"),
            "commit_lsn": pa.string(),
        },
        ["commit_lsn"],
        Applied(written=1, deleted=1, skipped=1),
        [
            {
                "ID": 1,
                "NOTE": "b",
                "PRICE": "-0.05",
                "DAY": "2024-02-29",
                "MADE": "2024-02-29T12:30:15.123",
                "OPENS": "08:00:00.000",
                "commit_lsn": "00000027:00000ac0:0007",
            }
        ],
    ),
    "vitess": (
        {
            "id": pa.int64(),
            "price": pa.decimal128(8, 2),
            "made": pa.timestamp("ms"),
            "year": pa.int16(),
            "extra": pa.string(),
            "photo": pa.binary(),
        },
        [],  # a vgtid has no order: the partition of a shard does
        Applied(written=1, deleted=1, skipped=1),
        [{"id": 2, "price": "13.50", "made": "2024-02-29T12:30:15.123", "year": 2024, "extra": "{}", "photo": "AAE="}],
    ),
    "mongodb": (
        {
            "_id": pa.string(),
            "qty": pa.int64(),
            "price": pa.decimal128(8, 2),
            "rate": pa.float64(),
            "made": pa.timestamp("ms", "UTC"),
            "seen": pa.date32(),
            "photo": pa.binary(),
            "uid": pa.string(),
            "place": POINT,
            "extra": pa.string(),
            "tags": pa.list_(pa.string()),
            "ts_ms": pa.int64(),
            "ord": pa.int32(),
        },
        ["ts_ms", "ord"],
        Applied(written=1, deleted=2, skipped=2),
        [
            {
                "_id": "65e07b1a0f2d4c5e6a7b8c91",
                "qty": 7,
                "price": "13.50",
                "rate": "NaN",
                "made": "2024-02-29T12:30:15.123Z",
                "seen": "2024-02-29",
                "photo": "AAE=",
                "uid": "6b0c2f4e-4f3b-4c64-9d3c-0b6f3c0c7b11",
                "place": {"x": 1, "y": 2},
                "extra": None,
                "tags": ["x", "y"],
                "ts_ms": 1_709_209_815_124,
                "ord": 2,
            }
        ],
    ),
}


def messages_of(connector: str, *, schemas: bool = True) -> list[str]:
    """The messages as JSON lines, with the schemas of their topic."""
    document = json.loads((MESSAGES / f"{connector}.json").read_text())

    def part(message: dict[str, Any], name: str) -> Any:
        value = message[name]
        return {"schema": document[f"{name}_schema"], "payload": value} if schemas and value is not None else value

    return [json.dumps({name: part(one, name) for name in ("key", "value")}) for one in document["messages"]]


def created(path: Path, columns: dict[str, pa.DataType]) -> lancelsm.Table:
    return lancelsm.create(path / "table", pa.schema(columns), primary_key=next(iter(columns)))


def rows_of(table: lancelsm.Table) -> list[dict[str, Any]]:
    return sorted(json_objects(table.scan().to_arrow()), key=lambda row: next(iter(row.values())))


@pytest.mark.parametrize("calls", ["one call", "a call for each"])
@pytest.mark.parametrize("connector", CONNECTORS)
def test_the_table_has_the_rows_of_the_source(tmp_path: Path, connector: str, calls: str) -> None:
    columns, sequence, expected, rows = CONNECTORS[connector]
    table, messages = created(tmp_path, columns), messages_of(connector)
    done = Applied()
    for some in [messages] if calls == "one call" else [[message] for message in messages]:
        done += table.apply_changes(some, format="debezium", sequence_by=sequence)
    if calls == "one call":
        assert done == expected
    assert (done.late, done.rejected, done.skipped) == (0, 0, expected.skipped)
    assert rows_of(table) == [{**dict.fromkeys(columns), **row} for row in rows]
    if sequence:
        again = table.apply_changes(messages[:1], format="debezium")
        assert again == Applied(late=1)


def flattened(connector: str) -> Iterator[str]:
    """The messages as `ExtractNewRecordState` writes them with add.fields, and deletes as records."""
    document = json.loads((MESSAGES / f"{connector}.json").read_text())
    names = CONNECTORS[connector][1]
    (columns,) = (one["fields"] for one in document["value_schema"]["fields"] if one["field"] == "after")
    added = [{"type": "string", "field": name} for name in ("__deleted", "__op", *(f"__source_{one}" for one in names))]
    for value in (message["value"] for message in document["messages"]):
        if value is None or value["op"] == "m":
            continue
        facts = {f"__source_{name}": value["source"][name] for name in names}
        row = value["after"] or value["before"]
        payload = {**row, "__deleted": str(value["op"] == "d").lower(), "__op": value["op"], **facts}
        yield json.dumps({"schema": {"type": "struct", "fields": [*columns, *added]}, "payload": payload})


@pytest.mark.parametrize("connector", [name for name in CONNECTORS if name != "mongodb"])
def test_messages_that_are_flattened_give_the_same_rows(tmp_path: Path, connector: str) -> None:
    columns, sequence, _, rows = CONNECTORS[connector]
    table = created(tmp_path, columns)
    table.apply_changes(list(flattened(connector)), format="flattened", sequence_by=sequence)
    assert rows_of(table) == [{**dict.fromkeys(columns), **row} for row in rows]


def test_a_document_that_changes_in_part_needs_the_whole_document(tmp_path: Path) -> None:
    table = created(tmp_path, {"_id": pa.string(), "tags": pa.list_(pa.string())})
    source = {"connector": "mongodb"}
    for description in (
        {"updatedFields": '{"tags.0": "x"}'},
        {"updatedFields": "{}", "removedFields": ["tags.1"]},
        {"updatedFields": "{}", "removedFields": "tags"},
        {"updatedFields": "{}", "truncatedArrays": [{"field": "tags", "size": 1}]},
        None,
    ):
        event = {"op": "u", "after": None, "updateDescription": description, "source": source}
        with pytest.raises(Invalid, match=r"change_streams_update_full.*ExtractNewDocumentState"):
            table.apply_changes([{"key": {"id": '"a"'}, "value": event}], format="debezium")


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (pa.int64(), "1234", 1234),
        (pa.string(), '"1234"', "1234"),
        (pa.int64(), '{"$numberLong" : "1234"}', 1234),
        (pa.string(), '{"hi" : "kafka", "nums" : [10.0]}', '{"hi": "kafka", "nums": [10.0]}'),
        (pa.string(), '{"$oid" : "596e275826f08b2730779e1f"}', "596e275826f08b2730779e1f"),
        (pa.binary(), '{"$binary" : "a2Fma2E=", "$type" : "00"}', "a2Fma2E="),
    ],
)
def test_the_key_of_a_document_is_that_of_its_message(
    tmp_path: Path, kind: pa.DataType, given: str, expected: Any
) -> None:
    table = created(tmp_path, {"_id": kind, "v": pa.int64()})
    source = {"connector": "mongodb"}
    after = f'{{"_id": {given}, "v": 1}}'
    table.apply_changes([json.dumps({"op": "c", "after": after, "source": source})], format="debezium")
    assert rows_of(table) == [{"_id": expected, "v": 1}]
    table.apply_changes([{"key": {"id": given}, "value": {"op": "d", "source": source}}], format="debezium")
    assert rows_of(table) == []


def test_documents_that_are_flattened_are_rows(tmp_path: Path) -> None:
    table = created(tmp_path, {"_id": pa.string(), "qty": pa.int64()})
    rows = [{"_id": "a", "qty": 1, "__deleted": False}, {"_id": "b", "qty": 2}, {"_id": "a", "__deleted": True}]
    assert table.apply_changes(rows, format="flattened") == Applied(written=1, deleted=1)
    assert rows_of(table) == [{"_id": "b", "qty": 2}]


def test_cells_of_cassandra_are_refused_with_what_to_do(tmp_path: Path) -> None:
    table = created(tmp_path, {"id": pa.int64(), "v": pa.string()})
    cells = {name: {"value": value, "deletion_ts": None, "set": True} for name, value in (("id", 1), ("v", "a"))}
    event = {"op": "c", "after": cells, "source": {"connector": "cassandra", "file": "commitlog-6-1.log", "pos": 54}}
    with pytest.raises(Invalid, match=r"Cassandra has cells.*format='rows'"):
        table.apply_changes([event], format="debezium", on_bad_row="skip")
