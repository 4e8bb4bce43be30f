"""The history of the columns of a table: each change makes the next version, and rows of older versions stay readable.

Rows in stored form name the version that they were written under, and Lance's field id of each column. A column keeps
its id when it is renamed. It gets a new id when it is widened, since Lance writes it again. Ids are never used twice.
So the history says, for each column of the newest version, under which ids older rows have it, and which value rows
have that were written before it was added. Nothing here does I/O.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.record.admission import children
from lancelsm.record.casts import as_type, nulls

FIELD_ID: Final = b"lance:field_id"
SCHEMA_VERSION: Final = b"lancelsm.schema_version"  # in the metadata of `_tombstone`; absent in version 1
METADATA: Final = "lancelsm.schema"  # in the schema metadata of the base
FIRST_VERSION: Final = 1


class ChangeKind(StrEnum):
    ADD = "add"
    DROP = "drop"
    RENAME = "rename"
    WIDEN = "widen"
    NULLABLE = "nullable"


@dataclass(frozen=True, kw_only=True, eq=False)
class SchemaChange:
    """One change of the columns of a table.

    Args:
        field: the column after the change, with its id; a column that is dropped, as it was.
        former: the id of the column before the change. Only `WIDEN` has another one than `field`.
        name: the name of the column before the change.
        default: for `ADD`, an array of the value in rows that lack the column. None: null.
    """

    kind: ChangeKind
    field: pa.Field
    former: int
    name: str
    default: pa.Array | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SchemaChange) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    @cached_property
    def identity(self) -> tuple[object, ...]:
        """What two equal changes have in common. Arrow takes NaN for another value than NaN, so values are bytes."""
        field, default = self.field, None if self.default is None else _encoded(self.default)
        shown = (field.name, str(field.type), field.nullable, *ids_of([field]))
        return (self.kind, self.former, self.name, shown, default)

    @property
    def number(self) -> int:
        """The id of the column after the change."""
        return _number(self.field)

    @property
    def described(self) -> str:
        """The change for people, such as `rename a to b`."""
        to = {ChangeKind.RENAME: f" to {self.field.name}", ChangeKind.WIDEN: f" to {self.field.type}"}
        return f"{self.kind.value} {self.name}{to.get(self.kind, '')}"

    def to_json(self) -> dict[str, Any]:
        default = {} if self.default is None else {"default": _encoded(self.default)}
        column = base64.b64encode(pa.schema([self.field]).serialize()).decode()
        return {"kind": self.kind.value, "former": self.former, "name": self.name, "column": column, **default}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SchemaChange:
        """Decode `to_json`; raise `ValueError`, `LookupError`, `TypeError` or an error of Arrow for anything else."""
        (field,) = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(document["column"])))
        _number(field)
        return cls(
            kind=ChangeKind(document["kind"]),
            field=field,
            former=int(document["former"]),
            name=str(document["name"]),
            default=_decoded(document["default"]) if "default" in document else None,
        )


@dataclass(frozen=True, kw_only=True)
class SchemaHistory:
    """All changes of the columns of a table, oldest first. Change number i leads from version i to version i + 1."""

    changes: tuple[SchemaChange, ...] = ()

    @property
    def version(self) -> int:
        return FIRST_VERSION + len(self.changes)

    def since(self, version: int) -> tuple[SchemaChange, ...]:
        """Return the changes that lead from a version to the newest one."""
        return self.changes[version - FIRST_VERSION :]

    def extends(self, older: SchemaHistory) -> bool:
        """Whether the older history is the beginning of this one."""
        return self.changes[: len(older.changes)] == older.changes

    def ids_since(self, version: int) -> Mapping[int, int | None]:
        """Return the ids of now of the columns of a version whose ids have changed, by their ids then.

        None: the column was dropped. Lance may give its id to another column, which is not in rows of that version.
        """
        if version not in self._ids_since:
            found: dict[int, int | None] = {}
            for change in self.since(version):
                if change.kind in (ChangeKind.WIDEN, ChangeKind.DROP):
                    after = change.number if change.kind is ChangeKind.WIDEN else None
                    then = next((old for old, now in found.items() if now == change.former), change.former)
                    if then == change.former and found.get(then, then) is None:
                        continue  # the column was added since
                    found[then] = after
            self._ids_since[version] = found
        return self._ids_since[version]

    def default(self, number: int) -> pa.Array | None:
        """Return the value of a column, given by its id of now, in rows that lack it, as an array. None: null."""
        return self._defaults.get(number)

    @cached_property
    def ids(self) -> frozenset[int]:
        """The ids of all columns that were changed, in each version."""
        return frozenset(number for change in self.changes for number in (change.former, change.number))

    def is_added(self, number: int) -> bool:
        """Whether a column, given by its id of now, was added: rows may leave it out, and then have its default."""
        return number in self._added

    def unused_id(self, columns: pa.Schema) -> int:
        """Return the lowest id such that no column of any version has it or a higher one."""
        used = [*ids_of(columns), *ids_of(change.field for change in self.changes)]
        return 1 + max([*used, *(change.former for change in self.changes)], default=-1)

    def first_names(self, columns: pa.Schema) -> dict[str, int]:
        """Return the ids of the columns of version 1 by their names then, for rows without ids."""
        names = {_number(field): field.name for field in columns}
        for change in reversed(self.changes):
            names.pop(change.number, None)
            if change.kind is not ChangeKind.ADD:
                names[change.former] = change.name
        return {name: number for number, name in names.items()}

    @cached_property
    def _ids_since(self) -> dict[int, Mapping[int, int | None]]:
        return {}

    @cached_property
    def _added(self) -> frozenset[int]:
        found: set[int] = set()
        for change in self.changes:
            is_added = change.kind is ChangeKind.ADD or change.former in found
            found.discard(change.former)
            if is_added and change.kind is not ChangeKind.DROP:
                found.add(change.number)
        return frozenset(found)

    @cached_property
    def _defaults(self) -> Mapping[int, pa.Array]:
        found: dict[int, pa.Array] = {}
        for change in self.changes:
            default = found.pop(change.former, None) if change.kind is not ChangeKind.ADD else change.default
            if default is not None and change.kind is not ChangeKind.DROP:
                found[change.number] = widened_values(default, change.field.type)
        return found


def evolved(columns: pa.Schema, changes: Iterable[SchemaChange]) -> pa.Schema:
    """Return the columns after some changes.

    Raises:
        ValueError: a change is of a column that is not there.
    """
    fields = list(columns)
    for change in changes:
        if change.kind is ChangeKind.ADD:
            fields.append(change.field)
            continue
        at = next((at for at, field in enumerate(fields) if _number(field) == change.former), None)
        if at is None:
            raise ValueError(f"there is no column with the id {change.former}")
        fields[at : at + 1] = [] if change.kind is ChangeKind.DROP else [change.field]
    return pa.schema(fields)


def history_to_json(history: SchemaHistory) -> list[dict[str, Any]]:
    return [change.to_json() for change in history.changes]


def history_from_json(document: Sequence[Mapping[str, Any]]) -> SchemaHistory:
    """Decode `history_to_json`. Raises: the same errors as `SchemaChange.from_json`."""
    return SchemaHistory(changes=tuple(map(SchemaChange.from_json, document)))


def history_in(metadata: Mapping[str, str]) -> SchemaHistory:
    """Return the history that the schema metadata of a base has.

    Raises:
        ValueError: it can't be decoded.
    """
    text = metadata.get(METADATA)
    try:
        return SchemaHistory() if text is None else history_from_json(json.loads(text))
    except (LookupError, TypeError, AttributeError, pa.ArrowException) as error:
        raise ValueError(f"{METADATA} can't be decoded: {error!r}") from error


def metadata_of(history: SchemaHistory) -> dict[str, str]:
    """Return the schema metadata of a base with this history; the inverse of `history_in`."""
    return {METADATA: json.dumps(history_to_json(history), separators=(",", ":"))} if history.changes else {}


def version_of(rows: pa.Schema) -> int:
    """Return the schema version that rows in stored form were written under; 1 if they name none."""
    return int((rows.field(len(rows) - 1).metadata or {}).get(SCHEMA_VERSION, FIRST_VERSION)) if len(rows) else 1


def mark(version: int) -> dict[bytes, bytes] | None:
    """Return the metadata of `_tombstone` in rows of a schema version; None for version 1."""
    return None if version == FIRST_VERSION else {SCHEMA_VERSION: str(version).encode()}


def filled(default: pa.Array | None, kind: pa.DataType, tombstones: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column that rows lack: the default in live rows, null in tombstones."""
    if default is None:
        return nulls(len(tombstones), kind)
    dead = tombstones.combine_chunks() if isinstance(tombstones, pa.ChunkedArray) else tombstones
    at = pc.if_else(dead, pa.scalar(None, pa.int32()), pa.scalar(0, pa.int32()))
    return as_type(default.take(at), kind)


def widened_values(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values of a column that was widened. A NaN stays a NaN, perhaps with another payload."""
    if pa.types.is_floating(kind) and pa.types.is_floating(values.type):
        return values.cast(kind)
    return as_type(values, kind)


def ids_of(fields: Iterable[pa.Field]) -> Iterator[int]:
    """Yield the id of each field and of the fields inside it."""
    for field in fields:
        value = (field.metadata or {}).get(FIELD_ID)
        if value is not None:
            yield int(value)
        yield from ids_of(children(field.type))


def _number(field: pa.Field) -> int:
    return int((field.metadata or {})[FIELD_ID])


def _encoded(default: pa.Array) -> str:
    batch = pa.record_batch([default], names=["default"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return base64.b64encode(sink.getvalue()).decode()


def _decoded(text: str) -> pa.Array:
    with pa.ipc.open_stream(pa.py_buffer(base64.b64decode(text))) as reader:
        (default,) = reader.read_next_batch().columns
    return default
