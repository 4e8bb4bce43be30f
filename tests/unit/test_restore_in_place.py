"""Restore in place: the table gets the rows of an earlier state, and keeps what is written after the comparison."""

from __future__ import annotations

import shutil

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common.clock import SystemClock
from lancelsm.errors import Invalid
from lancelsm.history import restore as module
from lancelsm.history.restore import Restored
from lancelsm.read import difference
from lancelsm.record.schema_history import SchemaHistory
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, Crash, FaultPlan
from tests.unit.tables import by_key, faulty, three_levels

NOW = {0: 2, 1: 1, 2: 1}


@pytest.fixture
def table(tmp_path):
    """Two regions. Version 1 has the rows 0 to 3 with v=0; later 0 to 2 were changed and 3 was deleted."""
    return three_levels(tmp_path / "t")


def values(table):
    return by_key(table.scan().to_arrow())


def names(table):
    return [pin.name for pin in table.snapshots()]


def test_a_version_is_restored_from_every_level_and_back(table):
    table.snapshot("monday", ttl="never")
    table.upsert([{"id": 7, "v": 7}])

    assert table.restore(1) == Restored(written=4, deleted=1, kept=0)
    assert values(table) == {0: 0, 1: 0, 2: 0, 3: 0}
    assert table.restore(1) == Restored()
    assert table.restore("monday") == Restored(written=3, deleted=1)
    assert values(table) == NOW
    assert by_key(lance.dataset(table.uri).to_table()) == {0: 0, 1: 0, 2: 0, 3: 0}  # until the merge
    table.run()
    assert values(table) == by_key(lance.dataset(table.uri).to_table()) == NOW
    assert names(table) == ["monday"]


def test_only_the_difference_is_written_and_is_in_the_change_stream(table):
    table.run()
    time = table.history()[-1].time.isoformat()
    table.upsert([{"id": 0, "v": 2}, {"id": 1, "v": 9}, {"id": 8, "v": 8}])
    table.delete([2])
    before = table.changes()
    for _ in before:
        pass

    assert table.restore(time) == Restored(written=2, deleted=1)
    changes = [row for change in table.changes(start=before.positions) for row in change.rows.to_pylist()]
    assert sorted((row["id"], row["_op"], row["v"]) for row in changes) == [
        (1, "upsert", 1),
        (2, "upsert", 1),
        (8, "delete", None),
    ]


@pytest.mark.parametrize("hashes_at_once", [1, 2])
def test_the_parts_of_a_large_difference_add_up(table, monkeypatch, hashes_at_once):
    monkeypatch.setattr(difference, "HASHES_AT_ONCE", hashes_at_once)
    table.upsert([{"id": n, "v": n} for n in range(20, 40)])
    assert table.restore(1) == Restored(written=4, deleted=20)
    assert values(table) == {0: 0, 1: 0, 2: 0, 3: 0}


class Stop(BaseException):
    """A crash after some chunks."""


def interrupt_after(monkeypatch, chunks):
    put = module._Restore._put
    left = [chunks]

    def put_or_stop(self, rows):
        if not left[0]:
            raise Stop
        left[0] -= 1
        return put(self, rows)

    monkeypatch.setattr(module._Restore, "_put", put_or_stop)


def test_the_same_call_continues_with_the_comparison_of_the_first(table, monkeypatch):
    table.upsert([{"id": 7, "v": 7}, {"id": 8, "v": 8}])
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        with pytest.raises(Stop):
            table.restore(1)
    assert sorted(names(table)) == ["lancelsm-restore-version-1", "lancelsm-restore-version-1-to"]
    table.upsert([{"id": n, "v": 99} for n in (3, 7, 60)])
    table.run()
    table.collect(yes=True, interval_seconds=0)

    done = lancelsm.open(table.uri).restore(1)
    assert done == Restored(deleted=1, kept=5)
    assert values(table) == {0: 0, 1: 0, 2: 0, 3: 99, 7: 99, 60: 99}
    assert names(table) == []
    assert table.scrub().ok

    table.restore(1)
    assert values(table) == {0: 0, 1: 0, 2: 0, 3: 0}


def test_rows_of_that_state_get_the_columns_of_now(tmp_path):
    rows = [{"id": n, "n": n, "old": "x", "gone": n} for n in range(3)]
    schema = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("old", pa.string()), ("gone", pa.int64())])
    made = lancelsm.create(tmp_path / "t", pa.Table.from_pylist(rows, schema), primary_key="id")
    held = lancelsm.open(made.uri)
    made.upsert(pa.Table.from_pylist([{**rows[0], "n": 9}], schema))
    made.widen_column("n", "int64")
    made.rename_column("old", "new")
    made.drop_column("gone")
    made.add_column("c", "string", default="d")
    made.upsert([{"id": 1, "n": 1 << 40, "new": "y", "c": "set"}, {"id": 7, "n": 7, "new": "z", "c": "set"}])

    wanted = [{"id": n, "n": n, "new": "x", "c": "d"} for n in range(3)]
    assert held.restore(1) == Restored(written=2, deleted=1)
    assert sorted(made.scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == wanted
    with made.at(1) as old:
        assert sorted(old.scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == rows
        assert old.schema.names == schema.names
    copied = lancelsm.copy(made.uri, tmp_path / "then", at=1)
    assert sorted(lancelsm.open(copied.uri).scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == rows


def test_columns_that_change_after_the_comparison_are_taken_up(table, monkeypatch):
    run = module._Restore.run

    def change_then_run(self, target):
        monkeypatch.setattr(module._Restore, "run", run)
        other = lancelsm.open(table.uri)
        other.add_column("c", "string", default="d")
        other.upsert([{"id": 0, "v": 99, "c": "set"}])
        return run(self, target)

    monkeypatch.setattr(module._Restore, "run", change_then_run)
    done = table.restore(1)
    assert done.written + done.kept == 4  # a region that had no newer rows was done before the columns were read again
    assert {row["id"]: (row["v"], row["c"]) for row in table.scan().to_arrow().to_pylist()} == {
        0: (99, "set"),
        **dict.fromkeys((1, 2, 3), (0, "d")),
    }


def test_a_state_of_another_history_of_columns_is_refused_and_nothing_is_kept(table, monkeypatch):
    monkeypatch.setattr(SchemaHistory, "extends", lambda self, older: False)
    with pytest.raises(Invalid, match="by changes that are known") as refused:
        table.restore(1)
    assert "lancelsm.copy" in refused.value.remedy
    assert names(table) == []


@pytest.mark.parametrize(("at", "problem"), [(99, "no version 99 yet"), ("absent", "not found"), (0, "at is 0")])
def test_a_state_that_does_not_exist_changes_nothing(table, at, problem):
    with pytest.raises(Invalid, match=problem):
        table.restore(at)
    assert (values(table), names(table)) == (NOW, [])


def test_a_table_with_ordered_events_goes_back_with_the_sequences_of_that_state(tmp_path):
    """A later event is compared with the restored sequence, and an event before a delete of that state stays late."""
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("lsn", pa.int64())])
    table = lancelsm.create(tmp_path / "t", schema, primary_key="id")

    def event(key, v, lsn, **more):
        return {"id": key, "v": v, "lsn": lsn, **more}

    def apply(*events):
        return table.apply_changes(list(events), sequence_by="lsn", apply_as_deletes="v = -1")

    apply(event(1, 1, 10), event(2, 1, 10), event(3, 1, 5))
    apply(event(3, -1, 20))
    table.run()
    table.snapshot("monday", ttl="never")
    apply(event(1, 2, 30), event(2, -1, 30), event(3, 2, 30), event(4, 2, 30))

    assert table.restore("monday") == Restored(written=2, deleted=2)
    assert by_key(table.scan().to_arrow()) == {1: 1, 2: 1}
    assert apply(event(1, 7, 9), event(3, 7, 19)).late == 2
    apply(event(1, 3, 11), event(2, 3, 11), event(3, 3, 21), event(4, 3, 1))
    assert by_key(table.scan().to_arrow()) == {1: 3, 2: 3, 3: 3, 4: 3}


@pytest.mark.rest
@pytest.mark.parametrize("fault", [CRASH_BEFORE, CRASH_AFTER], ids=lambda fault: fault.kind)
def test_a_restore_that_crashes_at_any_call_is_continued_and_keeps_newer_rows(table, tmp_path, fault):
    """A row that is written after the crash stays if the rows had been compared, as `kept` says, and is undone else."""
    for at in range(1, 500, 7):
        uri, plan = tmp_path / str(at), FaultPlan.at(at, fault)
        shutil.copytree(table.uri, uri)
        try:
            lancelsm.open.on(faulty(plan, process=str(at), clock=SystemClock()))(uri).restore(1)
        except Crash:
            pass
        else:
            break
        after = lancelsm.open(uri)
        finished = all(not pin.name.startswith("lancelsm-") for pin in after.snapshots())
        compared = "lancelsm-restore-version-1" in names(after)
        after.upsert([{"id": 0, "v": 99}, {"id": 70, "v": 99}])
        if finished and values(after) == {0: 99, 1: 0, 2: 0, 3: 0, 70: 99}:
            continue  # it crashed after its last step
        done = after.restore(1)
        assert values(after) == ({0: 99, 1: 0, 2: 0, 3: 0, 70: 99} if compared else {0: 0, 1: 0, 2: 0, 3: 0})
        assert (done.kept > 0) == compared
        assert names(after) == []
        assert after.scrub().ok
    assert at > 30


def test_every_type_of_column_is_compared_and_restored(tmp_path):
    schema = pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("s", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
            pa.field("d", pa.dictionary(pa.int32(), pa.string())),
            pa.field("f", pa.float64()),
            pa.field("vec", pa.list_(pa.float32(), 2)),
            pa.field("t", pa.timestamp("us", "UTC")),
        ]
    )
    row = {"s": {"a": 1, "b": ["x", None]}, "d": "d", "f": float("nan"), "vec": [1.0, 2.0], "t": None}
    rows = [{"id": "1", **row}, {"id": "2", **row, "s": None, "f": -0.0}, {"id": "3", **row, "d": None}]
    made = lancelsm.create(tmp_path / "t", pa.Table.from_pylist(rows, schema), primary_key="id")
    changed = [{**rows[0], "s": {"a": 1, "b": ["x", "y"]}}, {**rows[1], "f": 0.0}]
    made.upsert(pa.Table.from_pylist(changed, schema))

    assert made.restore(1) == Restored(written=2)
    found = {row["id"]: repr(row) for row in made.scan().to_arrow().to_pylist()}
    assert found == {row["id"]: repr(row) for row in rows}


def test_a_table_that_was_opened_before_a_reshard_is_restored(table):
    lancelsm.open(table.uri).reshard("bucket(id, 5)")
    assert table.restore(1) == Restored(written=4)
    assert values(lancelsm.open(table.uri)) == {0: 0, 1: 0, 2: 0, 3: 0}


def test_the_names_of_its_snapshots_are_reserved(table):
    with pytest.raises(Invalid, match="names that begin with lancelsm- are reserved"):
        table.snapshot("lancelsm-restore-version-1")


def test_hashes_with_the_same_first_word_are_told_apart_by_the_second():
    def words(*pairs):
        return np.array(pairs, np.uint64).reshape(-1, 2)

    known = difference._sorted([words((5, 1), (7, 1)), words((5, 2), (5, 3))])
    found = difference._is_in(words((5, 3), (7, 2), (5, 1), (6, 1), (9, 1), (7, 1)), known)
    assert found.tolist() == [True, False, True, False, False, True]
    assert difference._is_in(words((5, 3)), difference._sorted([])).tolist() == [False]
