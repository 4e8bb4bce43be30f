"""Columns that another tool changed are taken up, or the error says what to do."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.sync_columns import sync_columns
from lancelsm.errors import Invalid, LsmWarning
from lancelsm.region.handle import open_table
from lancelsm.table import Table
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, Crash, FaultPlan
from tests.unit.tables import create, faulty, levels, row, rows_of


def test_columns_that_another_tool_changed_are_taken_up(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string()), pa.field("n", pa.int8(), False)])
    table = create(tmp_path, columns)
    table.upsert([{"id": 1, "v": "a", "n": 1}])
    table.flush()
    table.merge(engine="inprocess")
    table.upsert([{"id": 2, "v": "b", "n": 2}])
    lance.dataset(table.uri).alter_columns({"path": "v", "name": "w"})
    lance.dataset(table.uri).alter_columns({"path": "n", "nullable": True})
    lance.dataset(table.uri).add_columns(pa.schema([("x", pa.int64())]))
    with pytest.warns(LsmWarning, match="is called 'w' now"):
        table.flush()
    with pytest.raises(Invalid, match=f"lancelsm schema sync {table.uri}"):
        table.merge(engine="inprocess")
    assert "lancelsm schema sync" in table.status().problems[0].remedy
    with pytest.raises(Invalid, match="takes no rows for now"):
        table.upsert([{"id": 3, "v": "c", "n": 3}])

    assert table.sync_schema() == ["rename v to w", "nullable n", "add x"]
    assert table.sync_schema() == []

    table.upsert([{"id": 3, "w": None, "n": None, "x": 3}])
    for _ in levels(table):
        assert rows_of(lancelsm.open(table.uri)) == [
            {"id": 1, "w": "a", "n": 1, "x": None},
            {"id": 2, "w": "b", "n": 2, "x": None},
            {"id": 3, "w": None, "n": None, "x": 3},
        ]
    assert table.add_column("y", "int8") == 5


def test_an_id_that_lance_uses_again_is_of_another_column(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    table.flush()
    table.upsert([row(2)])
    lance.dataset(table.uri).drop_columns(["v"])
    lance.dataset(table.uri).add_columns(pa.schema([("w", pa.string())]))
    assert table.sync_schema() == ["drop v", "add w"]
    table.upsert([{"id": 3, "w": "new"}])
    for _ in levels(table):
        assert rows_of(table) == [{"id": 1, "w": None}, {"id": 2, "w": None}, {"id": 3, "w": "new"}]


def test_a_change_of_a_protected_column_by_another_tool_is_not_taken_up(tmp_path: Path) -> None:
    table = create(tmp_path, pa.schema([("id", pa.int64()), ("at", pa.int64()), ("v", pa.string())]))
    table.apply_changes([{"id": 1, "at": 1, "v": "a"}], sequence_by="at")
    lance.dataset(table.uri).alter_columns({"path": "at", "name": "time"})
    with pytest.raises(Invalid, match="column 'at' was changed \\(rename\\), and it orders the change events"):
        table.sync_schema()


def test_a_base_that_was_restored_to_older_columns_is_named_and_not_taken_up(tmp_path: Path) -> None:
    table = create(tmp_path, [row(1)])
    held = lancelsm.open(table.uri)
    table.add_column("c", "string", default="d")
    table.upsert([{**row(2), "c": "x"}])
    newest = lance.dataset(table.uri).version
    lance.dataset(table.uri, version=2).restore()
    restored = "it restored version 1 of the columns, and the table has version 2"
    for call in (table.merge, table.sync_schema, held.sync_schema, lambda: held.drop_column("v")):
        with pytest.raises(Invalid, match=restored) as error:
            call()
        assert f"Undo it with Lance: lance.dataset({table.uri!r}, version={newest})" in error.value.remedy
    lance.dataset(table.uri, version=newest).restore()
    table.merge(engine="inprocess")
    assert rows_of(table) == [{**row(1), "c": "d"}, {**row(2), "c": "x"}]


@pytest.mark.rest
def test_taking_up_a_change_survives_a_crash_at_every_call(tmp_path: Path) -> None:
    def begun(name: str) -> Table:
        table = create(tmp_path / name, [row(1)], regions="bucket(id, 2)", registry="object")
        table.upsert([row(2), row(3)])
        lance.dataset(table.uri).alter_columns({"path": "v", "name": "w"})
        with pytest.warns(LsmWarning, match="is called 'w' now"):
            table.flush()  # it stops the writers
        return table

    def run(table: Table, plan: FaultPlan) -> None:
        sync_columns(open_table(table.uri, ports=faulty(plan)))

    plan = FaultPlan()
    run(begun("counted"), plan)
    for number in range(0, len(plan.calls), 2):
        for fault in (CRASH_BEFORE, CRASH_AFTER):
            table = begun(f"{number}-{fault}")
            with pytest.raises(Crash):
                run(table, FaultPlan.at(number, fault))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("lancelsm.region.lease._is_current", lambda *_: False)  # the lease has expired
                sync_columns(open_table(table.uri))
            again = lancelsm.open(table.uri)
            again.upsert([{"id": 4, "w": "b"}])
            for _ in levels(again):
                assert rows_of(again) == [*({"id": key, "w": "a"} for key in (1, 2, 3)), {"id": 4, "w": "b"}]
