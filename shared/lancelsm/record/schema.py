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

from lancelsm.common.error_text import did_you_mean, shown
from lancelsm.errors import Contended, Invalid
from lancelsm.record.admission import children, with_children
from lancelsm.record.casts import as_column, as_schema
from lancelsm.record.schema_history import FIELD_ID, SchemaHistory, evolved, filled, mark, version_of, widened_values

TOMBSTONE = "_tombstone"
PRIMARY_KEY = b"lance-schema:unenforced-primary-key"
PRIMARY_KEY_POSITION = b"lance-schema:unenforced-primary-key:position"

_NO_CHANGES = SchemaHistory()
_RESERVED = frozenset({"_rowid", "_rowaddr", "_rowoffset"})


@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """Columns with Lance's field ids, and the columns of the primary key in key order.

    `columns` is the schema of the base without schema metadata. Every field has `FIELD_ID`, nested ones included, but
    for those in a fixed_size_list. `history` leads from the columns that the table was created with to these.
    """

    columns: pa.Schema
    primary_key: tuple[str, ...]
    history: SchemaHistory = _NO_CHANGES

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TableSchema)
            and self.primary_key == other.primary_key
            and self.history == other.history
            and self.columns == other.columns  # ignores metadata, which Lance changes, and with it the ids
            and list(_ids(self.columns)) == list(_ids(other.columns))
        )

    def __hash__(self) -> int:
        return hash((self.columns, self.primary_key))

    @cached_property
    def version(self) -> int:
        return self.history.version

    def at(self, history: SchemaHistory) -> TableSchema:
        """Return the schema after the changes of a longer history.

        Raises:
            ValueError: it is not a history of these columns.
        """
        if not history.extends(self.history):
            raise ValueError("the columns have another history")
        columns = evolved(self.columns, history.since(self.version))
        return TableSchema(columns=columns, primary_key=self.primary_key, history=history)

    @cached_property
    def names(self) -> list[str]:
        return list(self.columns.names)

    @cached_property
    def optional(self) -> frozenset[str]:
        """The columns that whole rows may leave out: those that were added since the table was created."""
        if not self.history.changes:
            return frozenset()
        return frozenset(field.name for field in self.columns if self.history.is_added(field_id(field)))

    def left_out(self, field: pa.Field, rows: int) -> pa.Array:
        """Return the values of a column in rows that leave it out."""
        return filled(self.history.default(field_id(field)), field.type, pa.repeat(pa.scalar(False), rows))

    @cached_property
    def key(self) -> pa.Schema:
        """The schema of the key columns, in key order."""
        return pa.schema([self.columns.field(name) for name in self.primary_key])

    @cached_property
    def stored(self) -> pa.Schema:
        """The schema of rows in WAL entries and generations: key not null, the rest nullable, `_tombstone` last.

        The metadata of `_tombstone` has the version of the schema, so that rows say under which columns they were
        written.
        """
        fields = [field.with_nullable(field.name not in self.primary_key) for field in self.columns]
        return pa.schema([*fields, pa.field(TOMBSTONE, pa.bool_(), nullable=False, metadata=mark(self.version))])


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


def names_now(names: Iterable[str], then: TableSchema, now: TableSchema) -> list[str]:
    """Return the names of some columns of an older schema in a newer one; those that were dropped are left out."""
    changed = now.history.ids_since(then.version)
    ids = {changed.get(number, number) for number in (field_id(then.columns.field(name)) for name in names)}
    return [field.name for field in now.columns if field_id(field) in ids]


def check_names(columns: pa.Schema) -> None:
    """Raise `Invalid` unless column names are unique, usable in Lance and SQL, and not reserved."""
    for name, times in Counter(columns.names).items():
        if times > 1:
            raise Invalid(f"duplicate column {name!r}", remedy="Name each column once", field=name)
        if name == TOMBSTONE:
            raise Invalid(
                f"column {TOMBSTONE!r} is reserved: it marks deleted rows", remedy="Choose another name", field=name
            )
        if name in _RESERVED:
            raise Invalid(
                f"column {name!r} is reserved: Lance has a column of this name",
                remedy="Choose another name",
                field=name,
            )
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


def numbered_from(field: pa.Field, first: int) -> pa.Field:
    """Add the ids from `first` on to a field and the fields inside it, as `numbered` does."""
    return _numbered(field, count(first))


def _numbered(field: pa.Field, ids: Iterator[int]) -> pa.Field:
    own = next(ids)
    kind = field.type
    if pa.types.is_map(kind):
        next(ids)  # the struct of key and value
    if not pa.types.is_fixed_size_list(kind):
        kind = with_children(kind, lambda inner: _numbered(inner, ids))
    return pa.field(field.name, kind, field.nullable, {**(field.metadata or {}), FIELD_ID: str(own).encode()})


class NewerSchema(Contended):
    """Rows have a schema version that the caller does not know yet: it must read the schema again."""


def check_known(schema: TableSchema, version: int) -> None:
    """Raise `NewerSchema` if rows of this schema version can't be read with this schema."""
    if version > schema.version:  # guard: rows of a newer schema are not read with an older one
        raise NewerSchema(
            f"the rows have version {version} of the table's columns, and this process knows version {schema.version}",
            remedy="Retry: then the newest columns are read",
        )


def conform(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """Convert rows from the stored form of an older or another schema to the stored form of this one.

    Columns are matched by field id if the rows have ids, else by the names of the first version of the schema. Older
    rows may have a column under an id that it had before it was widened. A missing column has its default, and null
    without one; a missing `_tombstone` is false. A column that the table does not have any more is left out.

    Raises:
        NewerSchema: the rows have a newer version than the schema.
    """
    stored, history = schema.stored, schema.history
    if rows.schema.equals(stored, check_metadata=True):
        return as_schema(rows, stored)
    check_known(schema, version_of(rows.schema))
    ids = [(field.metadata or {}).get(FIELD_ID) for field in rows.schema]
    first = history.first_names(schema.columns) if history.changes and None in ids else {}
    then = {int(found): i for i, found in enumerate(ids) if found is not None}
    then |= {first[name]: i for i, name in enumerate(rows.schema.names) if ids[i] is None and name in first}
    changed = history.ids_since(version_of(rows.schema))
    at = {changed.get(number, number): i for number, i in then.items()}
    by_name = {name: i for i, name in enumerate(rows.schema.names) if ids[i] is None and not history.changes}
    marks = rows.schema.get_field_index(TOMBSTONE)
    tombstones = as_column(rows.column(marks), pa.bool_()) if marks >= 0 else pa.repeat(False, rows.num_rows)
    columns = []
    for field in schema.columns:
        index = at.get(field_id(field), by_name.get(field.name))
        if index is not None:
            given, number = rows.column(index), ids[index]
            if number is not None and int(number) != field_id(field):  # it was widened
                chunks = given.chunks if isinstance(given, pa.ChunkedArray) else [given]
                given = pa.chunked_array([widened_values(chunk, field.type) for chunk in chunks], field.type)
            columns.append(as_column(given, field.type))
        else:
            columns.append(filled(history.default(field_id(field)), field.type, tombstones))
    return pa.Table.from_arrays([*columns, tombstones], schema=stored)
