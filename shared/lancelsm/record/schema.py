"""The columns of a table, its primary key, and the stored form of rows in WAL entries and generations.

Lance identifies columns by field id, so that a renamed column keeps its data. The ids are in the Arrow field metadata.
In the stored form every column except the key is nullable, since a tombstone has only the key, and `_tombstone` is the
last column (lance-memwal, "WAL Entry", as written by Lance 14).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count

import pyarrow as pa

from lancelsm.common.shown import did_you_mean, shown
from lancelsm.errors import Invalid
from lancelsm.record.admission import children, with_children
from lancelsm.record.casts import as_column, as_schema, nulls

TOMBSTONE = "_tombstone"
FIELD_ID = b"lance:field_id"
PRIMARY_KEY = b"lance-schema:unenforced-primary-key"
PRIMARY_KEY_POSITION = b"lance-schema:unenforced-primary-key:position"

_RESERVED = frozenset({"_rowid", "_rowaddr", "_rowoffset"})


@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """Columns with Lance's field ids, and the columns of the primary key in key order.

    `columns` is the schema of the base without schema metadata. Every field has `FIELD_ID`, nested ones included, but
    for those in a fixed_size_list.
    """

    columns: pa.Schema
    primary_key: tuple[str, ...]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TableSchema)
            and self.primary_key == other.primary_key
            and self.columns == other.columns  # ignores metadata, which Lance changes, and with it the ids
            and list(_ids(self.columns)) == list(_ids(other.columns))
        )

    def __hash__(self) -> int:
        return hash((self.columns, self.primary_key))

    @cached_property
    def names(self) -> list[str]:
        return list(self.columns.names)

    @cached_property
    def key(self) -> pa.Schema:
        """The schema of the key columns, in key order."""
        return pa.schema([self.columns.field(name) for name in self.primary_key])

    @cached_property
    def stored(self) -> pa.Schema:
        """The schema of rows in WAL entries and generations: key not null, the rest nullable, `_tombstone` last."""
        fields = [field.with_nullable(field.name not in self.primary_key) for field in self.columns]
        return pa.schema([*fields, pa.field(TOMBSTONE, pa.bool_(), nullable=False)])


def field_id(field: pa.Field) -> int:
    """Return Lance's id of a field; raise `Invalid` if it has no id."""
    value = (field.metadata or {}).get(FIELD_ID)
    if value is None:
        raise Invalid(f"column {field.name!r} has no Lance field id", field=field.name)
    return int(value)


def _ids(fields: Iterable[pa.Field]) -> Iterator[bytes | None]:
    """Yield the id of each field and of the fields inside it."""
    for field in fields:
        yield (field.metadata or {}).get(FIELD_ID)
        yield from _ids(children(field.type))


def unknown_column(name: object, columns: Sequence[str], *, table: str | None = None, role: str = "") -> Invalid:
    """Build the error for a column that the table does not have. `role` says what it was named for."""
    remedy = did_you_mean(name, columns, what="Its columns are")
    field = name if isinstance(name, str) else None
    return Invalid(f"{role}the table has no column {shown(name)}", remedy=remedy, table=table, field=field)


def check_names(columns: pa.Schema) -> None:
    """Raise `Invalid` unless column names are unique, usable in Lance and SQL, and not reserved."""
    for name, times in Counter(columns.names).items():
        if times > 1:
            raise Invalid(f"duplicate column {name!r}", field=name)
        if name == TOMBSTONE:
            raise Invalid(f"column {TOMBSTONE!r} is reserved: it marks deleted rows", field=name)
        if name in _RESERVED:
            raise Invalid(f"column {name!r} is reserved: Lance has a column of this name", field=name)
        if not name or name == "*" or any(mark in name for mark in '."`'):
            remedy = "Use a name without dots, double quotes and backticks, other than *"
            raise Invalid(f"{name!r} can't be the name of a column", remedy=remedy, field=name)


def declare_primary_key(columns: pa.Schema, primary_key: Sequence[str]) -> pa.Schema:
    """Declare the primary key as Lance does: field metadata, positions from 1, key columns not null."""
    for name in primary_key:
        if columns.get_field_index(name) < 0:
            raise unknown_column(name, columns.names, role="primary key: ")
    fields = []
    for field in columns:
        kept = {k: v for k, v in (field.metadata or {}).items() if k not in (PRIMARY_KEY, PRIMARY_KEY_POSITION)}
        if field.name in primary_key:
            position = str(tuple(primary_key).index(field.name) + 1).encode()
            kept |= {PRIMARY_KEY: b"true", PRIMARY_KEY_POSITION: position}
        fields.append(field.with_nullable(field.nullable and field.name not in primary_key).with_metadata(kept))
    return pa.schema(fields, metadata=columns.metadata)


def numbered(columns: pa.Schema) -> pa.Schema:
    """Add the field ids that Lance will give to a new table: depth first, parents before children."""
    ids = count()
    return pa.schema([_numbered(field, ids) for field in columns])


def _numbered(field: pa.Field, ids: Iterator[int]) -> pa.Field:
    own = next(ids)
    kind = field.type
    if pa.types.is_map(kind):
        next(ids)  # the struct of key and value
    if not pa.types.is_fixed_size_list(kind):
        kind = with_children(kind, lambda inner: _numbered(inner, ids))
    return pa.field(field.name, kind, field.nullable, {**(field.metadata or {}), FIELD_ID: str(own).encode()})


def conform(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """Convert rows from the stored form of an older or another schema to the stored form of this one.

    Columns are matched by field id if the rows have ids, else by name. A missing column becomes null, a missing
    `_tombstone` false. A column that the table does not have any more is left out.
    """
    stored = schema.stored
    if rows.schema.equals(stored, check_metadata=True):
        return as_schema(rows, stored)
    ids = [(field.metadata or {}).get(FIELD_ID) for field in rows.schema]
    by_id = {found: i for i, found in enumerate(ids) if found is not None}
    by_name = {name: i for i, name in enumerate(rows.schema.names) if ids[i] is None or name == TOMBSTONE}
    columns = []
    for field in stored:
        index = by_id.get((field.metadata or {}).get(FIELD_ID), by_name.get(field.name))
        if index is not None:
            columns.append(as_column(rows.column(index), field.type))
        elif field.name == TOMBSTONE:
            columns.append(pa.repeat(False, rows.num_rows))
        else:
            columns.append(nulls(rows.num_rows, field.type))
    return pa.Table.from_arrays(columns, schema=stored)
