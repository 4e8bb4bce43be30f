"""What must hold when columns change while others write, and when a change is interrupted."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.dataset import column_changes
from lancelsm.errors import Contended, Corrupt, Invalid, Unavailable
from lancelsm.region import config as configs
from lancelsm.region import unfinished_change as changes
from lancelsm.region.handle import Ports
from lancelsm.region.unfinished_change import finish_change
from lancelsm.table import Table
from tests.unit.tables import create, row, rows_of


def interrupted(table: Table, *, after: str, name: str = "c", default: object = "d") -> None:
    """Add a column. The process ends after the commit of the base, or after the configuration."""
    broken = {"base": (changes.configs, "change"), "configuration": (changes, "raise_version")}[after]
    with mock.patch.object(*broken, side_effect=Unavailable("the process ends")), pytest.raises(Unavailable):
        table.add_column(name, "string", default=default)


def configured(table: Table) -> int:
    found = configs.read(table._context.objects, uri=table.uri)
    assert found is not None
    return found.schema.version


def with_value(path: Path) -> tuple[Table, Table]:
    """A table that began with two columns and got a third one, and an object that was open before."""
    table = create(path, [row(1), row(2)])
    held = lancelsm.open(table.uri)
    held.upsert([row(3)])
    table.add_column("c", "string", default="d")
    table.upsert([{**row(1), "c": "set"}])
    return table, held


def change_within_a_transaction(path: Path) -> None:
    """Columns change, and another writer sets the new one, between the read and the append of a transaction."""
    table = create(path, [row(1)])
    other = lancelsm.open(table.uri)
    calls = []

    def fn(current: pa.Table) -> list[dict[str, object]]:
        calls.append(current.column_names)
        if len(calls) == 1:
            other.add_column("c", "string", default="d")
            other.upsert([{**row(1), "c": "set"}])
        return [{**one, "v": "new"} for one in current.to_pylist()]

    table.transact([1], fn)

    assert calls == [["id", "v"], ["id", "v", "c"]]
    assert rows_of(table) == [{"id": 1, "v": "new", "c": "set"}]


def change_between_regions(path: Path) -> None:
    """A transaction over two regions meets the change in the second one: the first one keeps what it has."""
    table = create(path, [row(n) for n in range(4)], regions="bucket(id, 2)", ports=Ports(threads=1))
    table.upsert([row(n) for n in range(4)])
    other = lancelsm.open(table.uri)
    calls: list[list[int]] = []

    def fn(current: pa.Table) -> list[dict[str, object]]:
        calls.append(current["id"].to_pylist())
        if len(calls) == 2:
            other.add_column("c", "string", default="d")
            other.upsert([{**row(n), "c": "set"} for n in calls[1]])
        return [{**one, "v": one["v"] + "+"} for one in current.to_pylist()]

    with pytest.raises(Contended, match=r"regions_done.*Write again what the regions in regions_done don't have"):
        table.transact(range(4), fn)

    found = {one["id"]: one["v"] for one in rows_of(table)}
    assert found == dict.fromkeys(calls[0], "a+") | dict.fromkeys(calls[1], "a")
    table.transact(calls[1], fn)
    assert {(one["v"], one["c"]) for one in rows_of(table) if one["id"] in calls[1]} == {("a+", "set")}


def transaction_of_an_old_object(path: Path) -> None:
    """An object that was open before the change reads the row of a transaction from a newer base."""
    table, held = with_value(path)
    table.flush()
    table.merge(engine="inprocess")
    held.update(where="id = 1", set={"v": "'new'"})
    assert rows_of(table)[0] == {"id": 1, "v": "new", "c": "set"}


def writer_finishes(path: Path) -> None:
    """A writer that found the columns in the base writes the configuration before its rows."""
    table = create(path, [row(1)])
    held = lancelsm.open(table.uri)
    interrupted(table, after="base")
    assert configured(table) == 1
    assert rows_of(held) == [{**row(1), "c": "d"}]
    held.upsert([{**row(2), "c": "x"}])
    assert configured(table) == 2


def entry_names_its_version(path: Path) -> None:
    """The heads were not raised. The first entry in the new columns raises the head of its region."""
    table = create(path, [row(1)])
    table.upsert([row(0)])
    interrupted(table, after="configuration")
    (region,) = table.list_regions()
    assert region.head().schema_version == 1
    lancelsm.open(table.uri).upsert([{**row(2), "c": "x"}])
    assert region.head().schema_version == 2


def older_base(path: Path) -> None:
    """Another tool restores a version of the base from before the change, with rows in the new columns in the log."""
    table, _ = with_value(path)
    lance.dataset(table.uri, version=2).restore()
    with pytest.raises(Corrupt, match="version 2 of the table's columns, but the base has version 1"):
        table.scan().to_arrow()


def late_configuration(path: Path) -> None:
    """A process that finishes an older change stalls until the columns have changed again."""
    table = create(path, [row(1)])
    table.add_column("c", "string")
    handle, base = table._handle, table._handle.read_base()
    table.add_column("d", "string")
    finish_change(handle, base)
    assert configured(table) == 3


def foreign_columns(path: Path) -> None:
    """Another tool adds a column: no change is made on top of it."""
    table = create(path, [row(1)])
    lance.dataset(table.uri).add_columns(pa.schema([("other", pa.int64())]))
    version = lance.dataset(table.uri).version
    with pytest.raises(Invalid, match="it added column 'other'"):
        table.add_column("c", "string")
    assert lance.dataset(table.uri).version == version


def damaged_column(path: Path) -> None:
    """Lance writes other values into the file of a column than it was given."""
    original = column_changes.write_fragments

    def write(reader: pa.RecordBatchReader, *given: object, **options: object) -> object:
        batches = [pa.record_batch([pa.array(["x"] * len(batch))], schema=batch.schema) for batch in reader]
        return original(pa.RecordBatchReader.from_batches(reader.schema, batches), *given, **options)

    table = create(path, [row(n) for n in range(5)])
    version = lance.dataset(table.uri).version
    with (
        mock.patch.object(column_changes, "write_fragments", write),
        pytest.raises(Corrupt, match="a new file of the base is wrong"),
    ):
        table.add_column("c", "string", default="d")
    assert lance.dataset(table.uri).version == version
