"""Tables with columns of any types: rows for them, and what each level, copy and stream must have."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.compaction.optimize import optimize_base
from lancelsm.region.handle import open_table
from lancelsm.table import Table
from tests.unit.arrow_values import array, exact

KEY: Final = pa.field("id", pa.int64(), nullable=False)


def columns_of(kinds: Iterable[pa.DataType], **options: Any) -> pa.Schema:
    return pa.schema([KEY, *(pa.field(f"v{number}", kind, **options) for number, kind in enumerate(kinds))])


def rows_of(columns: pa.Schema, keys: range, random: Random, **options: Any) -> pa.Table:
    """Draw rows with these keys. The options are those of `arrow_values.array`."""
    values = [
        array(column.type, len(keys), random, nullable=column.nullable, **options) for column in list(columns)[1:]
    ]
    return pa.Table.from_arrays([pa.array(keys, pa.int64()), *values], schema=columns)


class Model:
    """The rows that a table must have, as exact values by key."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}

    def write(self, rows: pa.Table) -> None:
        self.rows.update(self.of(rows))

    def of(self, rows: pa.Table) -> dict[int, dict[str, Any]]:
        columns = {name: exact(rows.column(name)) for name in rows.schema.names if name != "id"}
        return {key: {name: column[at] for name, column in columns.items()} for at, key in enumerate(exact(rows["id"]))}

    def check(self, found: pa.Table, columns: pa.Schema, what: str, keys: set[int] | None = None) -> None:
        expected = {key: row for key, row in self.rows.items() if keys is None or key in keys}
        rows = self.of(found)
        assert rows.keys() == expected.keys(), what
        for column in columns:
            assert found.schema.field(column.name).type == column.type, f"{what}: {column.name}"
        for key, row in rows.items():
            for name, value in row.items():
                assert value == expected[key][name], f"{what}: {name} of type {columns.field(name).type}, row {key}"


def check_reads(table: Table, model: Model, what: str) -> None:
    model.check(table.scan().to_arrow(), table.schema, f"{what}, scan")
    model.check(table.get({"id": sorted(model.rows)}), table.schema, f"{what}, get")
    few = {key for key in model.rows if key < 5}
    model.check(table.scan(where="id < 5").to_arrow(), table.schema, f"{what}, where", few)
    for name in table.schema.names[1:4]:
        present = {key for key, row in model.rows.items() if row[name] is not None}
        found = table.scan(where=f"{name} IS NOT NULL", columns=["id", name]).to_arrow()
        assert model.of(found) == {key: {name: model.rows[key][name]} for key in present}, f"{what}, {name} IS NOT NULL"


def check_levels(table: Table, directory: Path, batches: list[pa.Table], model: Model) -> None:
    """Write four batches, and compare all reads at each level, in copies and in the change stream."""
    for number, rows in enumerate(batches):
        table.upsert(rows)
        model.write(rows)
        check_reads(table, model, f"log {number}")
        if number in (0, 2):
            table.flush()
            check_reads(table, model, f"generation {number}")
            table.merge(engine="inprocess")
            check_reads(table, model, f"base {number}")
        elif number == 1:
            table.flush()
    table.snapshot("now", "never")
    check_reads(table.at("now"), model, "snapshot")
    clone_snapshot(open_table(table.uri), "now", directory / "clone")
    check_reads(lancelsm.open(directory / "clone"), model, "clone")
    changed = Model()
    for change in table.changes():
        changed.write(change.rows.select(table.schema.names))
    assert {key: model.rows[key] for key in changed.rows} == changed.rows, "change stream"
    optimize_base(uri=table.uri, small_fragments=2, deleted_share=0.01)
    check_reads(table, model, "optimized base")
    lancelsm.backup(table, directory / "backup")
    lancelsm.restore(directory / "backup", directory / "restored")
    check_reads(lancelsm.open(directory / "restored"), model, "restored backup")
