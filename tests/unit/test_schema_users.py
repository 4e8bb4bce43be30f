"""Everything else that a table can do works after its columns have changed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.admin.rebuild import rebuild
from lancelsm.errors import Invalid
from lancelsm.region.catalog import Region
from lancelsm.spark.write_rows import WriteJob, check_columns, with_regions, write_sorted
from lancelsm.table import Table
from tests.unit.tables import by_key, create, levels, row, rows_of

Rows = dict[int, dict[str, Any]]


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
    held.apply_changes([row(3), row(1), {**row(2), "c": None}], source="s", offset=2)
    held.apply_changes([{"id": 4, "v": "b"}], source="s", offset=3, except_column_list=["e"])

    assert {found["id"]: found["c"] for found in rows_of(table)} == {1: "d", 2: None, 3: "d", 4: "d", 5: "d"}


def submit(table: Table, rows: Any) -> None:
    with table.writer() as writer:
        writer.submit(rows).result()


ADDED = {**row(3), "c": 5}
CALLS_THAT_NAME_A_NEW_COLUMN: dict[str, Callable[[Table], Any]] = {
    "apply_changes": lambda table: table.apply_changes([ADDED]),
    "apply_changes of an iterator": lambda table: table.apply_changes(iter([ADDED])),
    "apply_changes of Arrow data": lambda table: table.apply_changes(pa.Table.from_pylist([ADDED]).to_reader()),
    "apply_changes of lines": lambda table: table.apply_changes(io.StringIO(json.dumps(ADDED) + "\n")),
    "apply_changes with sequence_by": lambda table: table.apply_changes([ADDED], sequence_by="c"),
    "apply_changes with column_list": lambda table: table.apply_changes([ADDED], column_list=["id", "v", "c"]),
    "apply_changes that reads rows": lambda table: table.apply_changes([ADDED | {"c": None}], ignore_null_updates=True),
    "upsert": lambda table: table.upsert([ADDED]),
    "upsert of an iterator": lambda table: table.upsert(iter([ADDED])),
    "upsert of the rows of a read": lambda table: table.upsert(lancelsm.open(table.uri).scan()),
    "upsert if_newer": lambda table: table.upsert([ADDED], if_newer="c"),
    "submit": lambda table: submit(table, ADDED),
    "submit of an iterator": lambda table: submit(table, iter([ADDED])),
    "upsert partial": lambda table: table.upsert([{"id": 3, "c": 5}], partial=True),
    "transact": lambda table: table.transact([3], lambda _: [ADDED]),
    "update": lambda table: table.update(where="c = 5", set={"c": "c"}),
    "delete": lambda table: table.delete(where="c = 6"),
    "scan": lambda table: table.scan(columns=["c"], where="c = 5", order_by="c").to_arrow(),
    "get": lambda table: table.get([3], columns=["c"]),
    "create_index": lambda table: (table.merge(), table.create_index("c", kind="BTREE")),
    "add_column": lambda table: table.add_column("e", "c + 1"),
    "rename_column": lambda table: table.rename_column("c", "e"),
}


@pytest.mark.parametrize("name", CALLS_THAT_NAME_A_NEW_COLUMN)
def test_an_object_that_is_open_takes_a_new_column_at_once(tmp_path: Path, name: str) -> None:
    table = create(tmp_path, [row(3)])
    held = lancelsm.open(table.uri)
    held.upsert([row(3)])
    table.add_column("c", "int64", default=5)
    CALLS_THAT_NAME_A_NEW_COLUMN[name](held)
    renamed = "e" if name == "rename_column" else "c"
    assert [(found["v"], found[renamed]) for found in rows_of(table)] == [("a", 5)]


def test_events_are_not_ordered_by_a_column_that_was_dropped(tmp_path: Path) -> None:
    table = create(tmp_path, pa.schema([("id", pa.int64()), ("at", pa.int64()), ("v", pa.string())]))
    held = lancelsm.open(table.uri)
    table.drop_column("at")
    with pytest.raises(Invalid, match=r"sequence_by names 'at', which is no column|the table has no column 'at'"):
        held.apply_changes([{"id": 1, "at": 1, "v": "a"}], sequence_by="at")
    assert lancelsm.open(table.uri).config.sequence_by == ()
    assert rows_of(table) == []


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
