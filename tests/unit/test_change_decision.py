"""Change events against a reference in plain Python over the whole stream: reordered, repeated, split, with crashes."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.common.layout import source_key
from lancelsm.errors import LsmError
from lancelsm.objects.filesystem import LocalStore
from lancelsm.read.transact.change_capture import Applied
from lancelsm.region.handle import Ports, open_table
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, FAIL_AFTER, Crash, FakeClock, FaultPlan, FaultyStore
from tests.unit.test_rebuild import damage_record

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("seq", pa.int64()), ("sub", pa.int32())])


def reference(events):
    """Return the rows after all events: for each key, the last event of the highest sequence."""
    newest = {}
    for event in events:
        sequence = (event["seq"], event["sub"])
        if event["id"] not in newest or sequence >= newest[event["id"]][0]:
            newest[event["id"]] = (sequence, event)
    live = [event for _, event in newest.values() if event["op"] != "d"]
    return sorted(({name: event[name] for name in SCHEMA.names} for event in live), key=lambda row: row["id"])


def generated(dice, count, *, keys=6):
    """A stream of a source in order; transactions have several events of one sequence."""
    events = []
    for number in range(count):
        op = dice.choice("uuuud")
        sequence = number // dice.choice([1, 1, 3])
        event = {"id": dice.randrange(keys), "v": f"{number}", "seq": sequence, "sub": dice.randrange(3), "op": op}
        events.append(event)
    return events


def reordered(dice, events, bound):
    """Move each event by less than `bound` places."""
    return [event for _, event in sorted(enumerate(events), key=lambda one: one[0] + dice.random() * bound)]


def rows_of(table):
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])


def apply(table, events, **options):
    return table.apply_changes(
        events,
        sequence_by=["seq", "sub"],
        apply_as_deletes="op = 'd'",
        except_column_list=["op"],
        **options,
    )


@pytest.fixture
def table(tmp_path):
    return lancelsm.create(tmp_path / "t", SCHEMA, primary_key="id", regions="bucket(id, 2)")


@pytest.mark.rest
@pytest.mark.parametrize("merges", [False, True], ids=["log and generations", "merges"])
@pytest.mark.parametrize("seed", range(2))
def test_any_cut_of_a_reordered_stream_gives_the_rows_of_the_reference(tmp_path, seed, merges):
    """The stream is split at random. Consumers crash in the middle of a call, or repeat events that are applied."""
    dice = random.Random(f"changes {seed}")
    path = tmp_path / "t"
    table = lancelsm.create(path, SCHEMA, primary_key="id", regions="bucket(id, 2)", registry="object")
    events = reordered(dice, generated(dice, 60), 8)
    done, at, crashes = Applied(), 0, 0
    while at < len(events):
        part = events[at : at + dice.randrange(1, 6)]
        call = {"source": "s", "offset": [number + 1 for number in range(at, at + len(part))]}
        if dice.random() < 0.3:
            plan = FaultPlan.at(dice.randrange(30), dice.choice([CRASH_BEFORE, CRASH_AFTER, FAIL_AFTER]))
            store = FaultyStore(LocalStore(path), plan, process="victim")
            ports = Ports(store=lambda *_, store=store: store, clock=FakeClock(), threads=1)
            with contextlib.suppress(LsmError, Crash):
                apply(lancelsm.open.on(ports)(path), part, **call)
            plan.stop()
            crashes += bool(plan.injected)
            table = lancelsm.open(path)
        else:
            done += apply(table, part, **call)
        at = max(0, (table.source_offset("s") or 0) - dice.choice([0, 0, 0, 2]))
        if dice.random() < 0.2:
            table.run() if merges else table.flush()
    assert rows_of(table) == reference(events)
    assert table.source_offset("s") == len(events)
    assert done.late
    assert done.skipped
    assert crashes > 2


TEXT, INT = pa.string(), pa.int64()
PEERS = {  # columns with the key first, the sequence, rows before, events, and the documented rows
    'Databricks, "The AUTO CDC APIs", SCD type 1: updates and a delete out of order': (
        {"userId": INT, "name": TEXT, "city": TEXT, "sequenceNum": INT},
        ["sequenceNum"],
        [],
        [
            (124, "Raul", "Oaxaca", 1, "INSERT"),
            (123, "Isabel", "Monterrey", 1, "INSERT"),
            (125, "Mercedes", "Tijuana", 2, "INSERT"),
            (126, "Lily", "Cancun", 2, "INSERT"),
            (123, None, None, 6, "DELETE"),
            (125, "Mercedes", "Guadalajara", 6, "UPDATE"),
            (125, "Mercedes", "Mexicali", 5, "UPDATE"),
            (123, "Isabel", "Chihuahua", 5, "UPDATE"),
        ],
        [(124, "Raul", "Oaxaca", 1), (125, "Mercedes", "Guadalajara", 6), (126, "Lily", "Cancun", 2)],
    ),
    "Hudi, EVENT_TIME_ORDERING with two ordering fields (issue 14669), and a late delete (issue 17372)": (
        {"id": INT, "v": TEXT, "ts1": INT, "ts2": INT},
        ["ts1", "ts2"],
        [],
        [
            (1, "v1", 100, 1, "u"),
            (1, "v2", 100, 5, "u"),
            (1, "v3", 100, 3, "u"),
            (1, "v4", 90, 999, "u"),
            (1, "v5", 200, 0, "u"),
            (2, "kept", 100, 0, "u"),
            (2, None, 99, 0, "DELETE"),
        ],
        [(1, "v5", 200, 0), (2, "kept", 100, 0)],
    ),
    "Paimon, sequence.field = update_time, flag: the largest merges last, equal ones in order of input": (
        {"pk": INT, "v1": pa.float64(), "update_time": INT, "flag": INT},
        ["update_time", "flag"],
        [],
        [
            (1, 1.0, 20, 1, "u"),
            (1, 2.0, 10, 9, "u"),
            (2, 1.0, 10, 2, "u"),
            (2, 2.0, 10, 1, "u"),
            (3, 1.0, 10, 1, "u"),
            (3, 2.0, 10, 1, "u"),
        ],
        [(1, 1.0, 20, 1), (2, 1.0, 10, 2), (3, 2.0, 10, 1)],
    ),
    "debezium-server-iceberg, pull request 661: insert, delete and insert in one timestamp": (
        {"id": INT, "text": TEXT, "source_ts_ns": INT},
        ["source_ts_ns"],
        [],
        [(1, "hello", 7, "c"), (1, "hello", 7, "DELETE"), (1, "hallo", 7, "c")],
        [(1, "hallo", 7)],
    ),
    'Delta Lake, "Write change data into a Delta table": the latest change of each key': (
        {"key": TEXT, "value": TEXT, "time": INT},
        ["time"],
        [("a", "0", -1), ("b", "1", -1), ("c", "2", -1), ("d", "3", -1)],
        [
            ("a", "10", 0, "u"),
            ("a", None, 1, "DELETE"),
            ("b", None, 2, "DELETE"),
            ("c", None, 3, "DELETE"),
            ("c", "20", 4, "u"),
            ("c", "200", 5, "u"),
            ("e", "100", 6, "u"),
        ],
        [("c", "200", 5), ("d", "3", -1), ("e", "100", 6)],
    ),
}


@pytest.mark.parametrize("calls", ["one call", "merged after each"])
@pytest.mark.parametrize("peer", PEERS)
def test_the_examples_of_peers_have_their_documented_results(tmp_path, peer, calls):
    columns, sequence, before, events, expected = PEERS[peer]
    key = next(iter(columns))
    table = lancelsm.create(tmp_path / "t", pa.schema(list(columns.items())), primary_key=key)
    if before:
        table.upsert([dict(zip(columns, row, strict=True)) for row in before])
    rows = [dict(zip([*columns, "operation"], row, strict=True)) for row in events]
    for some in [rows] if calls == "one call" else [[row] for row in rows]:
        table.apply_changes(
            some,
            keys=[key],
            sequence_by=sequence,
            apply_as_deletes="operation = 'DELETE'",
            except_column_list=["operation"],
        )
        if calls != "one call":
            table.run()
    assert sorted(tuple(row.values()) for row in table.scan().to_arrow().to_pylist()) == expected


def event(key, v, seq, op="u", sub=0):
    return {"id": key, "v": v, "seq": seq, "sub": sub, "op": op}


@pytest.mark.parametrize("level", ["call", "log", "generation", "base"])
def test_a_lower_sequence_is_late_against_every_level(table, level):
    events = [event(1, "new", 5), event(2, "x", 4), event(1, "old", 3), event(2, "y", 4)]
    if level == "call":
        assert apply(table, events) == Applied(written=2, late=1)
    else:
        assert apply(table, events[:2]) == Applied(written=2)
        if level == "generation":
            table.flush()
        elif level == "base":
            table.run()
        assert apply(table, events[2:]) == Applied(written=1, late=1)
    assert [(row["id"], row["v"]) for row in rows_of(table)] == [(1, "new"), (2, "y")]


@pytest.mark.parametrize("level", ["call", "log", "generation", "compacted"])
def test_a_delete_keeps_its_sequence(table, level):
    events = [event(1, "a", 1), event(1, None, 5, "d"), event(1, "b", 4), event(1, "c", 5, sub=1)]
    if level == "call":
        apply(table, events[:3])
    else:
        apply(table, events[:2])
        if level != "log":
            table.flush()
        if level == "compacted":
            for number in range(8):
                apply(table, [event(key, f"{number}", number) for key in range(10, 20)])
                table.flush()
            assert table.compact()
            apply(table, [event(key, None, 9, "d") for key in range(10, 20)])
        assert apply(table, events[2:3]) == Applied(late=1)
    assert rows_of(table) == []
    assert apply(table, events[3:]) == Applied(written=1)
    assert [row["v"] for row in rows_of(table)] == ["c"]


ORDERS = {
    "timestamp": (pa.timestamp("us", "UTC"), ["2024-01-01T00:00:00Z", "2024-01-01T00:00:00.000001Z"]),
    "decimal": (pa.decimal128(20, 3), ["9.999", "10.001"]),
    "binary": (pa.binary(), ["AAH/", "AQ=="]),
    "text": (pa.string(), ["Z", "a"]),
    "date": (pa.date32(), ["1969-12-31", "2024-01-01"]),
    "float": (pa.float64(), [-0.5, 0.25]),
}


@pytest.mark.parametrize("name", ORDERS)
def test_columns_of_many_types_order_events_also_after_a_merge(tmp_path, name):
    kind, (low, high) = ORDERS[name]
    columns = pa.schema([("id", pa.int64()), ("at", kind)])
    table = lancelsm.create(tmp_path / "t", columns, primary_key="id")

    def changed(key, at, op="u"):
        return table.apply_changes(
            json.dumps({"id": key, "at": at, "op": op}),
            sequence_by="at",
            apply_as_deletes="op = 'd'",
            except_column_list=["op"],
        )

    assert [changed(1, high), changed(1, low)] == [Applied(written=1), Applied(late=1)]
    changed(2, high, "d")
    table.run()
    assert [changed(2, low), changed(2, high)] == [Applied(late=1), Applied(written=1)]
    changed(3, high, "d")
    table = lancelsm.open(table.uri, settings={"keep_delete_sequences_seconds": 0})
    table.run()
    assert [changed(4, low), changed(4, high)] == [Applied(late=1)] * 2
    assert table.count() == 2


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())])], ids=str)
def test_a_column_that_has_no_order_is_refused(tmp_path, kind):
    table = lancelsm.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("x", kind)]), primary_key="id")
    with pytest.raises(lancelsm.Invalid, match="can't order events"):
        table.apply_changes([], sequence_by="x")


def test_an_event_below_a_merged_delete_of_its_key_is_late(table):
    apply(table, [event(1, "a", 1), event(9, "x", 1), event(1, None, 5, "d", sub=2), event(9, None, 3, "d")])
    table.run()
    late = [event(1, "b", 4), event(1, "b", 5, sub=1), event(1, "b", 5, sub=2)]
    assert apply(table, late) == Applied(written=1, late=2)  # equal values win by arrival
    assert apply(table, [event(1, None, 4, "d"), event(1, "c", 5, sub=3)]) == Applied(written=1, late=1)
    apply(table, [event(2, "y", 6), event(2, None, 6, "d")])
    table.run()
    assert apply(table, [event(1, "d", 6)]) == Applied(written=1)
    assert [(row["id"], row["v"]) for row in rows_of(table)] == [(1, "d")]


def test_a_call_is_one_entry_per_region_and_moves_the_offset_in_its_swap(table):
    apply(table, [event(key, "a", 1, op) for key in range(8) for op in "ud"], source="s", offset=7)
    heads = [region.head() for region in table.list_regions()]
    assert [head.next_position for head in heads] == [2, 2]
    assert [head.applied("source:s") for head in heads] == [7, 7]
    assert table.source_offset("s") == 7
    assert apply(table, [event(1, "b", 9)], source="s", offset=7) == Applied(skipped=1)
    assert apply(table, [event(1, "b", 9)], source="s", offset=8) == Applied(written=1)


@pytest.mark.parametrize("registry", ["sqlite", "object"])
def test_a_source_whose_record_is_unreadable_is_applied_from_the_start(tmp_path, registry):
    table = lancelsm.create(tmp_path / "t", SCHEMA, primary_key="id", registry=registry)
    table.apply_changes([{"id": 1, "v": "a", "seq": 1, "sub": 0}], source="s", offset=5)
    damage_record(tmp_path / "t", source_key(table.config.table, "s"))
    with pytest.raises(lancelsm.Corrupt, match="from the start"):
        table.source_offset("s")
    again = table.apply_changes([{"id": 1, "v": "b", "seq": 1, "sub": 0}], source="s", offset=5)
    assert (again.written, again.skipped, table.source_offset("s")) == (0, 1, 5)


def test_the_table_remembers_what_orders_its_events(table):
    apply(table, [event(1, "a", 5)])
    again = lancelsm.open(table.uri)
    assert again.apply_changes([{"id": 1, "v": "b", "seq": 4, "sub": 0}]) == Applied(late=1)
    with pytest.raises(lancelsm.Invalid, match="ordered by seq, sub"):
        table.apply_changes([{"id": 1, "v": "b", "seq": 6, "sub": 0}], sequence_by="seq")
    assert [row["v"] for row in rows_of(table)] == ["a"]


def test_copies_of_a_table_remember_what_orders_its_events(table, tmp_path):
    apply(table, [event(1, "a", 5)])
    lancelsm.backup(table, tmp_path / "backup")
    lancelsm.restore(tmp_path / "backup", tmp_path / "restored")
    table.snapshot("s")
    clone_snapshot(open_table(table.uri), "s", tmp_path / "clone")
    for uri in (tmp_path / "restored", tmp_path / "clone"):
        copy = lancelsm.open(uri)
        assert copy.apply_changes([{"id": 1, "v": "b", "seq": 4, "sub": 0}]) == Applied(late=1)


@pytest.mark.parametrize(
    ("bad", "options", "said"),
    [
        ([{"id": 1}], {}, "no value of column 'v'.*row 0"),
        ([{"id": 1, "v": "a", "seq": None, "sub": 0}], {"sequence_by": "seq"}, "null in 'seq'"),
        ([{"id": None, "v": "a", "seq": 1, "sub": 0}], {}, "'id'"),
        ([{"id": 1, "v": "a", "seq": 1, "sub": 0, "w": 1}], {}, "no column 'w'.*column_list"),
        (["{"], {}, "no JSON"),
        ([{"op": "t", "before": None, "after": None}], {"format": "debezium", "on_bad_row": "skip"}, "empties"),
        ([], {"sequence_by": "nope"}, "'nope', which is no column"),
        ([], {"keys": "v"}, "keys are v, but the primary key of the table is id"),
        ([], {"source": "s"}, "source and offset go together"),
        ([{}], {"source": "s", "offset": 0}, "not an integer from 1"),
        ([{}, {}], {"source": "s", "offset": [2, 1]}, "lower than the one before"),
        ([{}, {}], {"source": "s", "offset": [2]}, "2 events, but 1 offsets"),
        ([], {"column_list": ["v"]}, "can't leave out column 'id'"),
    ],
)
def test_what_does_not_fit_is_invalid_and_nothing_is_written(table, bad, options, said):
    with pytest.raises(lancelsm.Invalid, match=said):
        table.apply_changes([{"id": 7, "v": "a", "seq": 1, "sub": 0}, *bad][-len(bad) :] if bad else [], **options)
    assert rows_of(table) == []


def test_a_bad_row_is_skipped_and_counted_on_request(table):
    events = [event(1, "a", 1), event(2, 7, 1), event(3, "c", 1), {"id": 4}]
    assert apply(table, events, on_bad_row="skip") == Applied(written=2, rejected=2)
    assert [row["id"] for row in rows_of(table)] == [1, 3]


def test_a_bad_row_is_kept_with_its_reason_on_request(table):
    events = [event(1, "a", 1), event(2, 7, 1), {"id": 4}, '{"id": 5']
    assert apply(table, events, on_bad_row="dead_letter") == Applied(written=1, rejected=3)
    (file,) = (Path(table.uri) / "_lancelsm" / "dead_letters").iterdir()
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["row"], one["event"]) for one in kept] == [(1, events[1]), (2, events[2]), (3, events[3])]
    assert "7 is not a value of string" in kept[0]["error"]
    assert table.scrub().problems == ()
    apply(table, [event(1, "b", 2)], on_bad_row="dead_letter")
    assert len(list(file.parent.iterdir())) == 1


def test_the_redacted_error_of_a_bad_row_has_no_value(table):
    with pytest.raises(lancelsm.Invalid, match=r"column 'seq': 'secret' .*row 1, field seq") as raised:
        apply(table, [event(1, "a", 1), event(2, "b", "secret")])
    assert "secret" not in json.dumps(raised.value.document(redacted=True))


def test_a_value_that_does_not_fit_the_condition_of_deletes_is_a_bad_row(table):
    apply(table, [event(1, "a", 1)])
    events = [event(1, "a", "x"), event(1, "a", 9)]
    done = table.apply_changes(
        events, sequence_by=["seq", "sub"], apply_as_deletes="seq > 8", except_column_list=["op"], on_bad_row="skip"
    )
    assert done == Applied(deleted=1, rejected=1)


def test_columns_that_events_leave_out_keep_their_values(table):
    table.upsert([{"id": 1, "v": "kept", "seq": 1, "sub": 1}])
    assert (
        table.apply_changes([{"id": 1, "seq": 2, "x": 0}, {"id": 2, "seq": 2}], column_list=["id", "seq"]).written == 2
    )
    assert table.apply_changes([{"id": 1, "v": None, "seq": 3, "sub": None}], ignore_null_updates=True).written == 1
    assert rows_of(table) == [{"id": 1, "v": "kept", "seq": 3, "sub": 1}, {"id": 2, "v": None, "seq": 2, "sub": None}]


def test_events_come_as_json_lines_and_as_arrow_too(table):
    assert (
        table.apply_changes('{"id":1,"v":"a\u2028","seq":1,"sub":0}\r\n\n{"id":2,"v":"b","seq":1,"sub":0}').written == 2
    )
    rows = pa.table([[3], ["c"], [1], [0]], schema=SCHEMA)
    assert table.apply_changes(rows).written == 1
    assert [row["v"] for row in rows_of(table)] == ["a\u2028", "b", "c"]
