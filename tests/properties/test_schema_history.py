"""Rows that were written under any version of the columns are read under each later one, as SQL would define it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancelsm.record import schema_changes as changes
from lancelsm.record.normalize import deletes, upserts
from lancelsm.record.schema import NewerSchema, TableSchema, conform, field_id, names_now, numbered
from lancelsm.record.schema_history import (
    SchemaChange,
    SchemaHistory,
    history_in,
    metadata_of,
    version_of,
)

FIRST = TableSchema(
    columns=numbered(
        pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("a", pa.int8()), pa.field("b", pa.string())])
    ),
    primary_key=("id",),
)
WIDER = {pa.int8(): pa.int32(), pa.int32(): pa.int64(), pa.string(): pa.large_string(), pa.float32(): pa.float64()}
VALUES = {pa.int8(): 1, pa.int32(): 70_000, pa.int64(): 1 << 40, pa.string(): "t", pa.large_string(): "l"}
VALUES |= {pa.float32(): 0.5, pa.float64(): 0.1}
NAMES = st.sampled_from(["a", "b", "c", "d"])
Row = dict[str, Any]


class Versions:
    """The versions of a schema, with rows of each and what these are in the newest one: by the names of now."""

    def __init__(self) -> None:
        self.schemas = [FIRST]
        self.written: list[pa.Table] = []
        self.expected: list[Row] = []

    @property
    def now(self) -> TableSchema:
        return self.schemas[-1]

    def write(self, *, without: bool) -> None:
        row: Row = {"id": len(self.written)}
        for field in self.now.columns:
            if field.name != "id" and not (without and field.name in self.now.optional):
                row[field.name] = VALUES[field.type]
        self.written.append(upserts([row], schema=self.now))
        left_out = {
            field.name: self.now.left_out(field, 1)[0].as_py() for field in self.now.columns if field.name not in row
        }
        self.expected.append({**row, **left_out})

    def change(self, made: SchemaChange | None) -> None:
        assert made is not None
        old = {field.metadata[b"lance:field_id"]: field.name for field in self.now.columns}
        history = SchemaHistory(changes=(*self.now.history.changes, made))
        self.schemas.append(self.now.at(history))
        name = old.get(str(made.former).encode())
        for row in self.expected:
            value = row.pop(name) if name is not None else None if made.default is None else made.default[0].as_py()
            if made.kind != "drop":
                row[made.field.name] = value


@st.composite
def versions(draw: st.DrawFn) -> Versions:
    found = Versions()
    for _ in range(draw(st.integers(1, 7))):
        found.write(without=draw(st.booleans()))
        columns = [field for field in found.now.columns if field.name != "id"]
        act, first = (
            draw(st.sampled_from(["add", "drop", "rename", "widen"])),
            found.now.history.unused_id(found.now.columns),
        )
        name = draw(NAMES)
        if act == "add" and name not in found.now.names:
            kind = draw(st.sampled_from([pa.int8(), pa.string(), pa.float32()]))
            default = draw(st.sampled_from([None, VALUES[kind]]))
            again = 1 + max(field_id(field) for field in found.now.columns)  # Lance may use an id again
            first = draw(st.sampled_from([first, again]))
            found.change(changes.added(found.now, name, kind, default=default, first_id=first, file_version=""))
        elif act == "drop" and columns:
            found.change(changes.dropped(found.now, draw(st.sampled_from(columns)).name, protected={}))
        elif act == "rename" and columns and name not in found.now.names:
            found.change(changes.renamed(found.now, draw(st.sampled_from(columns)).name, name, protected={}))
        elif wide := [field for field in columns if field.type in WIDER and act == "widen"]:
            field = draw(st.sampled_from(wide))
            found.change(
                changes.widened(found.now, field.name, WIDER[field.type], protected={}, first_id=first, file_version="")
            )
    return found


@given(versions())
def test_rows_of_any_version_are_converted_to_every_later_one(found: Versions) -> None:
    for rows, expected in zip(found.written, found.expected, strict=True):
        lifted = conform(rows, found.now)
        assert lifted.schema.equals(found.now.stored, check_metadata=True)
        (row,) = lifted.drop_columns(["_tombstone"]).to_pylist()
        assert row == {**dict.fromkeys(found.now.names), **expected}
        by_steps = rows
        for schema in found.schemas[version_of(rows.schema) - 1 :]:
            by_steps = conform(by_steps, schema)
        assert by_steps.equals(lifted), "one step at a time gives the same rows"


@given(versions())
def test_a_decoded_history_leads_from_every_version_to_the_last_and_keeps_tombstones(found: Versions) -> None:
    decoded = history_in(metadata_of(found.now.history))
    assert decoded == found.now.history
    for schema in found.schemas:
        assert schema.at(decoded) == found.now
        assert names_now(["id"], schema, found.now) == ["id"]
        (row,) = conform(deletes([1], schema=schema), found.now).to_pylist()
        assert row == {**dict.fromkeys(found.now.names), "id": 1, "_tombstone": True}


def test_rows_of_a_newer_version_are_refused() -> None:
    made = changes.added(FIRST, "c", pa.int8(), default=1, first_id=3, file_version="")
    assert made is not None
    newer = FIRST.at(SchemaHistory(changes=(made,)))
    with pytest.raises(NewerSchema, match="have version 2 of the table's columns, and this process knows version 1"):
        conform(upserts([{"id": 1, "a": 1, "b": "x"}], schema=newer), FIRST)


def test_rows_without_ids_are_of_the_first_version() -> None:
    renamed = changes.renamed(FIRST, "a", "c", protected={})
    assert renamed is not None
    newer = FIRST.at(SchemaHistory(changes=(renamed,)))
    added = changes.added(newer, "a", pa.int8(), default=9, first_id=3, file_version="")
    assert added is not None
    now = newer.at(SchemaHistory(changes=(renamed, added)))
    rows = upserts([{"id": 1, "a": 5, "b": "x"}], schema=FIRST)
    plain = pa.Table.from_arrays(rows.columns, schema=pa.schema([field.remove_metadata() for field in rows.schema]))
    (row,) = conform(plain, now).to_pylist()
    assert row == {"id": 1, "c": 5, "b": "x", "a": 9, "_tombstone": False}
