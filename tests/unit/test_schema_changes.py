"""Columns of a table change while it is read, written and maintained."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.admin.rebuild import rebuild
from lancelsm.admin.sync_columns import sync_columns
from lancelsm.dataset.base_table import open_base
from lancelsm.dataset.column_changes import first_unused_id
from lancelsm.errors import Contended, Corrupt, Invalid, LsmError, LsmWarning, Unavailable
from lancelsm.region.catalog import Region
from lancelsm.region.handle import open_table
from lancelsm.region.lease import lease
from lancelsm.spark.write_rows import WriteJob, check_columns, with_regions, write_sorted
from lancelsm.table import Table
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, Crash, FaultPlan
from tests.unit.schema_scenarios import configured, interrupted
from tests.unit.tables import by_key, create, faulty, levels, row, rows_of

Rows = dict[int, dict[str, Any]]
KINDS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("i", pa.int32()),
        pa.field("f", pa.float32()),
        pa.field("d", pa.decimal128(5, 2)),
        pa.field("t", pa.string(), nullable=False),
    ]
)


def of_kinds(key: int) -> dict[str, Any]:
    return {"id": key, "i": key, "f": key / 2, "d": Decimal(key), "t": str(key)}


@pytest.mark.one_case
@pytest.mark.parametrize("level", ["tail", "generation", "base"])
def test_rows_of_every_level_are_read_under_the_new_columns(tmp_path: Path, level: str) -> None:
    table = create(tmp_path, KINDS, regions="bucket(id, 2)")
    table.upsert([of_kinds(key) for key in range(6)])
    table.delete([5])
    next(name for name in levels(table) if name == level)
    held = lancelsm.open(table.uri)

    table.add_column("n", "int16", default=7)
    table.widen_column("i", "int64")
    table.widen_column("f", "double")
    table.widen_column("d", "decimal128(20, 2)")
    table.set_nullable("t")
    table.rename_column("t", "text")
    table.drop_column("d")
    table.add_column("d", pa.list_(pa.int32()))
    version = table.config.schema_version
    table.upsert([{"id": 9, "i": 1 << 40, "f": 0.1, "text": None, "n": None, "d": [1]}])

    expected = [{"id": key, "i": key, "f": key / 2, "text": str(key), "n": 7, "d": None} for key in range(5)] + [
        {"id": 9, "i": 1 << 40, "f": 0.1, "text": None, "n": None, "d": [1]}
    ]
    assert version == 9
    for found in (table, held, lancelsm.open(table.uri)):
        assert rows_of(found) == expected
    for _ in levels(table):
        assert rows_of(table) == rows_of(held) == expected
        assert table.get([0, 9]).num_rows == 2
        assert table.count(where="i > 5000000000 OR n = 7") == 6
    assert rows_of(table, where="n = 7 AND f = 1.0") == expected[2:3]
    assert table.scrub().problems == ()
    assert lance.dataset(table.uri).to_table().schema.names == ["id", "i", "f", "text", "n", "d"]


def test_an_object_that_is_open_takes_up_the_columns_with_its_next_write(tmp_path: Path) -> None:
    table = create(tmp_path)
    held, late = lancelsm.open(table.uri), lancelsm.open(table.uri)
    late.upsert([row(0)])
    table.add_column("c", "string", default="d")

    held.upsert([row(1)])
    late.upsert([row(2)])
    late.upsert([{**row(3), "c": "x"}])
    held.upsert([{**row(4), "c": "x"}])

    assert [found["c"] for found in rows_of(table)] == ["d", "d", "d", "x", "x"]
    assert held.config.schema_version == late.config.schema_version == 2


def test_a_row_that_leaves_out_an_added_column_has_its_default(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.add_column("c", "string", default="d")
    table.upsert([row(1)])
    table.upsert([{"id": 2, "c": "x"}], partial=True)
    table.upsert([{"id": 3}], partial=True)
    table.upsert([{"id": 1, "v": "new"}], partial=True)
    table.upsert([{**row(4), "c": None}])
    assert [(found["v"], found["c"]) for found in rows_of(table)] == [
        ("new", "d"),
        (None, "x"),
        (None, "d"),
        ("a", None),
    ]


def test_a_group_writer_takes_up_the_columns(tmp_path: Path) -> None:
    table = create(tmp_path)
    with table.writer() as writer:
        first = [writer.submit(row(key)) for key in range(3)]
        for future in first:
            future.result()
        lancelsm.open(table.uri).add_column("c", "string", default="d")
        writer.submit(row(3)).result()
        writer.submit({**row(4), "c": "x"}).result()
        writer.submit(row(5)).result()
    assert [found["c"] for found in rows_of(table)] == ["d", "d", "d", "d", "x", "d"]


def test_a_snapshot_keeps_its_columns(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    table.snapshot("before")
    table.rename_column("v", "w")
    table.upsert([{"id": 2, "w": "b"}])
    table.snapshot("after")
    table.drop_column("w")
    table.merge(engine="inprocess")
    assert rows_of(table.at("before")) == [row(1)]
    assert rows_of(table.at("after")) == [{"id": 1, "w": "a"}, {"id": 2, "w": "b"}]
    assert rows_of(table) == [{"id": 1}, {"id": 2}]


def test_the_change_stream_yields_older_entries_in_the_columns_of_now(tmp_path: Path) -> None:
    table = create(tmp_path)
    held = lancelsm.open(table.uri)
    table.upsert([row(1)])
    table.delete([1])
    table.add_column("c", "string", default="d")
    table.upsert([{**row(2), "c": "x"}])
    stream = iter(held.changes(follow=True))
    found = [next(stream).rows.to_pylist() for _ in range(3)]
    newest = [{"id": 2, "v": "a", "c": "x", "_op": "upsert"}]
    assert found == [
        [{"id": 1, "v": "a", "_op": "upsert"}],
        [{"id": 1, "v": None, "_op": "delete"}],
        newest,
    ], "the stream takes up the columns with the first entry that has them"
    assert [change.rows.to_pylist() for change in table.changes()] == [
        [{"id": 1, "v": "a", "c": "d", "_op": "upsert"}],
        [{"id": 1, "v": None, "c": None, "_op": "delete"}],
        newest,
    ]


@pytest.mark.parametrize("after", ["base", "configuration"])
def test_the_next_process_finishes_an_interrupted_change(tmp_path: Path, after: str) -> None:
    table = create(tmp_path, [row(1)])
    table.upsert([row(2)])
    interrupted(table, after=after)
    assert configured(table) == (1 if after == "base" else 2)

    opened = lancelsm.open(table.uri)
    assert rows_of(opened) == rows_of(table) == [{**row(key), "c": "d"} for key in (1, 2)]
    assert configured(table) == 2
    assert opened.add_column("c", "string", default="d") == 2, "the same call has nothing left to do"
    opened.flush()
    opened.merge(engine="inprocess")
    assert {region.head().schema_version for region in table.regions()} == {2}


def test_a_commit_without_a_reply_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lancelsm.admin import change_columns as operations

    table, original = create(tmp_path, [row(1)]), operations.commit_change

    def lost(*given: Any, **options: Any) -> Any:
        original(*given, **options)
        raise Unavailable("no reply")

    monkeypatch.setattr(operations, "commit_change", lost)
    assert table.add_column("c", "string", default="d") == 2
    assert len(table.config.schema.history.changes) == 1


REFUSED = {
    "a key column": (lambda table: table.drop_column("id"), "it is a column of the primary key"),
    "an unknown column": (lambda table: table.rename_column("w", "x"), "the table has no column 'w'"),
    "a name that is taken": (lambda table: table.rename_column("v", "n"), "the table has a column 'n'"),
    "a reserved name": (lambda table: table.add_column("_rowid", "int8"), "column '_rowid' is reserved"),
    "a narrower type": (lambda table: table.widen_column("n", "int16"), "column 'n' of type int32 can't become int16"),
    "another kind": (lambda table: table.widen_column("n", "double"), "column 'n' of type int32 can't become double"),
    "a type that no table has": (
        lambda table: table.add_column("x", pa.month_day_nano_interval()),
        "can't have column",
    ),
    "an expression": (lambda table: table.add_column("x", "n + 1"), "'n \\+ 1' is not a type"),
    "a default that does not fit": (
        lambda table: table.add_column("x", "int8", default=300),
        "the default 300 does not",
    ),
    "a column with an index": (lambda table: table.rename_column("n", "m"), "it has the index 'n_idx'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_change_that_is_not_possible_is_refused_with_a_remedy(tmp_path: Path, case: str) -> None:
    change, message = REFUSED[case]
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string()), pa.field("n", pa.int32())])
    table = create(tmp_path, columns)
    table.upsert([{"id": 1, "v": "a", "n": 1}])
    if case == "a column with an index":
        table.flush()
        table.merge(engine="inprocess")
        table.create_index("n", kind="BTREE")
    with pytest.raises(Invalid, match=message) as error:
        change(table)
    assert error.value.remedy
    assert table.config.schema_version == 1


def test_an_id_of_a_column_that_another_tool_dropped_is_not_used_again(tmp_path: Path) -> None:
    rows = pa.table({"a": [1], "b": [2], "c": [3]})
    lance.write_dataset(rows, tmp_path / "d").drop_columns(["c"])
    assert first_unused_id(open_base(uri=str(tmp_path / "d"))) == 3


def test_rows_of_an_older_generation_are_compared_with_their_sum_when_they_are_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lancelsm.common.setsum import Setsum

    table = create(tmp_path, settings={"max_generations": 1})
    for key in range(3):
        table.upsert([row(key)])
        table.flush()
    table.add_column("c", "string", default="d")
    with monkeypatch.context() as patch:
        patch.setattr("lancelsm.compaction.compact.own_row_setsum", lambda **_: Setsum.ZERO)
        with pytest.raises(Corrupt, match="differ from those that were flushed"):
            table.compact()
    assert len(table.compact()) == 1
    assert [found["c"] for found in rows_of(table)] == ["d"] * 3


# Compared with a dictionary


@dataclass
class Simulated:
    """A table, what its rows should be, and objects that were opened at different times."""

    table: Table
    random: Random
    rows: Rows = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=lambda: {"v": "string"})
    defaults: dict[str, Any] = field(default_factory=dict)
    opened: list[Table] = field(default_factory=list)
    number: int = 0

    def step(self) -> None:
        act = self.random.choice(
            [self.upsert, self.upsert, self.upsert, self.delete, self.partial, self.maintain, self.open, self.change]
        )
        act()
        for table in {id(one): one for one in (self.table, self.random.choice(self.opened))}.values():
            assert {found["id"]: found for found in rows_of(table)} == self.rows

    def upsert(self) -> None:
        """Write rows, at times in the columns that the object knows."""
        table = self.random.choice(self.opened)
        rows_of(table)  # it knows the columns of now
        key = self.random.randrange(8)
        self.number += 1
        given = {"id": key, **{name: self._value(name) for name in self.columns}}
        for name in [name for name in self.columns if name in self.defaults and self.random.random() < 0.3]:
            del given[name]
        table.upsert([given])
        self.rows[key] = {"id": key, **{name: given.get(name, self.defaults.get(name)) for name in self.columns}}

    def partial(self) -> None:
        if not self.rows or not self.columns:
            return
        key, name = self.random.choice(list(self.rows)), self.random.choice(list(self.columns))
        table = self.random.choice(self.opened)
        value = self._value(name)
        try:
            table.upsert([{"id": key, name: value}], partial=True)
        except Invalid:  # an object that has not written since may not know the column
            rows_of(table)
            table.upsert([{"id": key, name: value}], partial=True)
        self.rows[key][name] = value

    def delete(self) -> None:
        key = self.random.randrange(8)
        self.random.choice(self.opened).delete([key])
        self.rows.pop(key, None)

    def maintain(self) -> None:
        self.table.flush()
        if self.random.random() < 0.5:
            self.table.merge(engine="inprocess")
        else:
            self.table.compact()

    def open(self) -> None:
        self.opened.append(lancelsm.open(self.table.uri))

    def change(self) -> None:
        self.number += 1
        table, name = self.random.choice(self.opened), self.random.choice([*self.columns, ""])
        act = self.random.choice(["add", "add", "drop", "rename", "widen"])
        if act == "add":
            name = self.random.choice(["x", "y", "z"])
            if name in self.columns:
                return
            kind = self.random.choice(["string", "int32"])
            default = self.random.choice([None, self._of(kind)])
            table.add_column(name, kind, default=default)
            self.columns[name], self.defaults[name] = kind, default
            for found in self.rows.values():
                found[name] = default
        elif name and act == "drop":
            table.drop_column(name)
            del self.columns[name]
            self.defaults.pop(name, None)
            for found in self.rows.values():
                del found[name]
        elif name and act == "rename":
            to = f"r{self.number}"
            table.rename_column(name, to)
            self.columns[to] = self.columns.pop(name)
            if name in self.defaults:
                self.defaults[to] = self.defaults.pop(name)
            for found in self.rows.values():
                found[to] = found.pop(name)
        elif name and act == "widen" and self.columns[name] in ("string", "int32"):
            self.columns[name] = {"string": "large_string", "int32": "int64"}[self.columns[name]]
            table.widen_column(name, self.columns[name])

    def _value(self, name: str) -> Any:
        return self.random.choice([None, self._of(self.columns[name])])

    def _of(self, kind: str) -> Any:
        return str(self.number) if kind.endswith("string") else self.number


@pytest.mark.one_case
@pytest.mark.parametrize("seed", range(6))
def test_a_table_whose_columns_change_has_the_rows_of_a_dictionary(tmp_path: Path, seed: int) -> None:
    table = create(tmp_path, regions="bucket(id, 2)", settings={"max_generations": 1})
    simulated = Simulated(table=table, random=Random(f"columns {seed}"), opened=[table])
    for _ in range(40):
        simulated.step()
    assert table.scrub().problems == ()


# Changes by another tool


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


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "schema.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(example, {})


# Other operations on a table whose columns have changed


@pytest.mark.rest
def test_objects_that_were_open_before_maintain_copy_and_rebuild_the_table(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    table.upsert([row(key) for key in range(6)])
    table.flush()
    held = [lancelsm.open(table.uri) for _ in range(4)]
    table.snapshot("before")
    table.rename_column("v", "w")
    table.add_column("c", "int8", default=3)
    table.upsert([{"id": 1, "w": "x", "c": 1}])
    table.snapshot("after")
    expected = [{"id": key, "w": "a" if key != 1 else "x", "c": 3 if key != 1 else 1} for key in range(6)]

    assert held[0].scrub().problems == ()
    held[1].reshard("bucket(id, 3)")
    assert {region.head().schema_version for region in rebuild_all(held[2])} == {3}
    held[3].run()
    copies = {}
    for name in ("before", "after"):
        clone_snapshot(held[3]._handle, name, tmp_path / name)
        copies[name] = lancelsm.open(tmp_path / name)
        copies[name].add_column("z", "int8", default=9)
        copies[name].run()

    for one in (table, *held, lancelsm.open(table.uri)):
        assert rows_of(one) == expected
    assert rows_of(copies["before"]) == [{**row(key), "z": 9} for key in range(6)]
    assert rows_of(copies["after"]) == [{**found, "z": 9} for found in expected]
    held[2].restore("before")
    assert rows_of(table) == [{"id": key, "w": "a", "c": 3} for key in range(6)]
    held[2].restore("after")
    assert rows_of(table) == expected


def rebuild_all(table: Table) -> list[Region]:
    rebuild(table._handle)
    return table.list_regions()


def test_lance_reads_generations_of_older_columns_by_their_ids_until_they_are_merged(tmp_path: Path) -> None:
    from lance.mem_wal import LsmScanner

    table = create(tmp_path, pa.schema([("id", pa.int64()), ("v", pa.string()), ("n", pa.int32()), ("m", pa.int8())]))
    table.upsert([{"id": 1, "v": "a", "n": 1, "m": 1}])
    table.flush()
    table.rename_column("v", "w")
    table.drop_column("m")
    table.widen_column("n", "int64")
    table.add_column("c", "string", default="d")

    def found() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = LsmScanner.from_snapshots(*table.lance_snapshot()).to_table().to_pylist()
        return rows

    assert found() == [{"id": 1, "w": "a", "n": None, "c": None}]
    assert rows_of(table) == [{"id": 1, "w": "a", "n": 1, "c": "d"}]
    table.merge(engine="inprocess")
    assert found() == rows_of(table)
    assert lance.dataset(table.uri).to_table().to_pylist() == rows_of(table)


@pytest.mark.rest
@pytest.mark.parametrize("level", ["tail", "generation", "base"])
def test_rows_of_every_level_are_searched_under_the_new_columns(tmp_path: Path, level: str) -> None:
    columns = pa.schema([("id", pa.int64()), ("vec", pa.list_(pa.float32(), 2)), ("n", pa.int32()), ("t", pa.string())])
    table = create(tmp_path, columns, indexes={"vec": "IVF_FLAT", "t": "INVERTED"})
    table.upsert([{"id": key, "vec": [key, 0.0], "n": key, "t": f"word {key}"} for key in range(4)])
    next(name for name in levels(table) if name == level)
    table.widen_column("n", "int64")
    table.add_column("c", "string", default="d")
    table.upsert([{"id": 9, "vec": [9.0, 0.0], "n": 1 << 40, "t": "word 9", "c": "x"}])

    near = table.search([0.0, 0.0], k=10, where="n > 5000000000 OR c = 'd'").to_arrow()
    found = table.search("word", k=10, columns=["id", "n", "c"]).to_arrow()

    assert near["id"].to_pylist() == [0, 1, 2, 3, 9]
    assert near["c"].to_pylist() == ["d"] * 4 + ["x"]
    assert by_key(found.rename_columns({"n": "v"})) == {0: 0, 1: 1, 2: 2, 3: 3, 9: 1 << 40}
    with pytest.raises(Invalid, match="it has the index 't_idx'"):
        table.rename_column("t", "u")


def test_a_base_that_was_restored_to_older_columns_is_named_and_not_taken_up(tmp_path: Path) -> None:
    table = create(tmp_path, [row(1)])
    table.add_column("c", "string", default="d")
    table.upsert([{**row(2), "c": "x"}])
    newest = lance.dataset(table.uri).version
    lance.dataset(table.uri, version=2).restore()
    restored = "it restored version 1 of the columns, and the table has version 2"
    for call in (table.merge, table.sync_schema):
        with pytest.raises(Invalid, match=restored) as error:
            call()
        assert f"version={newest}" in error.value.remedy
    lance.dataset(table.uri, version=newest).restore()
    table.merge(engine="inprocess")
    assert rows_of(table) == [{**row(1), "c": "d"}, {**row(2), "c": "x"}]


def test_a_condition_may_name_a_column_that_an_open_object_does_not_know_yet(tmp_path: Path) -> None:
    table = create(tmp_path, [row(1), row(2)])
    held = [lancelsm.open(table.uri) for _ in range(3)]
    table.add_column("c", "int64", default=1)
    held[0].update(where="c = 1 AND id = 1", set={"c": "c + 1"})
    held[1].delete(where="c = 2")
    held[2].upsert([{"id": 2, "c": 5}], partial=True)
    assert rows_of(table) == [{**row(2), "c": 5}]
    with pytest.raises(Invalid, match="unknown"):
        held[0].update(where="unknown = 1", set={"c": "2"})


def test_change_events_and_tasks_of_spark_may_leave_out_an_added_column(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    held = lancelsm.open(table.uri)
    held.apply_changes([row(1)], source="s", offset=1)
    job = WriteJob(uri=table.uri, op="upsert", producer="spark:job", batch=0, alone=False, rows_per_entry=9)
    planned = list(with_regions(pa.table({"id": [5], "v": ["a"]}).to_batches(), job))
    table.add_column("c", "string", default="d")
    table.add_column("e", "int8")
    table.upsert([{**row(3), "c": "x", "e": 1}])

    assert check_columns(["id", "v"], table._handle, op="upsert") == ["id", "v"]
    list(write_sorted(planned, job))
    with pytest.raises(Contended):
        held.apply_changes([row(3), row(1), {**row(2), "c": None}], source="s", offset=2)
    held.apply_changes([row(3), row(1), {**row(2), "c": None}], source="s", offset=2)
    held.apply_changes([{"id": 4, "v": "b"}], source="s", offset=3, except_column_list=["e"])

    assert {found["id"]: found["c"] for found in rows_of(table)} == {1: "d", 2: None, 3: "d", 4: "d", 5: "d"}


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


def test_a_change_waits_for_a_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(tmp_path, [row(1)], settings={"retry_budget_seconds": 1})
    context = table._handle.context
    with lease(context, "base"), pytest.raises(Contended, match="another process holds the lease 'base'"):
        table.add_column("c", "string")
    assert table.config.schema_version == 1

    merging = lease(context, "base")
    merging.__enter__()
    with monkeypatch.context() as patch:
        patch.setattr(type(context.clock), "sleep", lambda *_: merging.__exit__(None, None, None))  # the merge ends
        assert table.add_column("c", "string") == 2


def test_events_are_not_ordered_by_a_column_that_was_dropped(tmp_path: Path) -> None:
    table = create(tmp_path, pa.schema([("id", pa.int64()), ("at", pa.int64()), ("v", pa.string())]))
    held = lancelsm.open(table.uri)
    table.drop_column("at")
    with pytest.raises(LsmError, match=r"the table has no column 'at'|columns of the table have changed"):
        held.apply_changes([{"id": 1, "at": 1, "v": "a"}], sequence_by="at")
    assert lancelsm.open(table.uri).config.sequence_by == ()
    assert rows_of(table) == []


def test_an_error_of_the_caller_is_raised_if_the_columns_can_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(tmp_path)
    monkeypatch.setattr("lancelsm.region.config.read", mock.Mock(side_effect=Unavailable("no answer")))
    with table.writer() as writer, pytest.raises(Invalid, match="no column 'c'"):
        writer.submit({**row(1), "c": 1})
    for call in (table.upsert, partial(table.upsert, partial=True)):
        with pytest.raises(Invalid, match="no column 'c'"):
            call([{**row(1), "c": 1}])
    with pytest.raises(Invalid, match="c"):
        table.update(where="c = 1", set={"v": "'x'"})


def test_an_app_that_does_not_know_an_added_column_opens_the_table_as_its_own(tmp_path: Path) -> None:
    columns = pa.schema([("a", pa.string()), ("id", pa.int64()), ("v", pa.string())])
    table = create(tmp_path, columns, regions="bucket(id, 2)")
    table.add_column("c", "string", default="d")
    table.drop_column("a")
    for known in (pa.schema([("id", pa.int64()), ("v", pa.string())]), table.schema.remove_metadata()):
        opened = create(tmp_path, known, regions="bucket(id, 2)", exist_ok=True)
        assert opened.schema.names == ["id", "v", "c"]
    for other in (columns, pa.schema([("id", pa.int64()), ("c", pa.string())])):
        with pytest.raises(Invalid, match="a table with another schema"):
            create(tmp_path, other, regions="bucket(id, 2)", exist_ok=True)
