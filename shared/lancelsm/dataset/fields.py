"""Write generations with the field ids of the base, and match their columns by field id.

A column can be renamed, and a dropped name can be used again; ids never change. Lance numbers the columns of a new
dataset itself and ignores ids in Arrow metadata, so this module puts the ids into the Lance schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
from lance.schema import LanceSchema

from lancelsm.errors import Corrupt
from lancelsm.record.schema import TOMBSTONE, TableSchema, field_id
from lancelsm.record.schema_history import FIELD_ID, version_of, widened_values

TRUE_IDS = {b"lancelsm.fields": b"numbered as in the base"}  # in the schema metadata of generations of lancelsm
_LanceField = Any  # field of a LanceSchema; lance does not export the type


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """The schema of a generation with the ids that Lance gives a new dataset (`fresh`) and with the base's (`wanted`).

    `ids` maps fresh ids to wanted ids; `plain` is the Arrow schema of the rows.
    """

    fresh: LanceSchema
    wanted: LanceSchema
    plain: pa.Schema
    ids: Mapping[int, int]

    @property
    def is_fresh(self) -> bool:
        """Whether both numberings are equal, which is the case until columns of the base are changed."""
        return all(old == new for old, new in self.ids.items())


def numbering(schema: TableSchema) -> Numbering:
    """Both numberings of `schema.stored`. As in Lance, `_tombstone` gets the id after all columns."""
    return _numbering(schema, schema.stored.serialize().to_pybytes())


@lru_cache(maxsize=16)
def _numbering(schema: TableSchema, _metadata: bytes) -> Numbering:
    # Equal schemas may differ in their metadata.
    fresh = LanceSchema.from_pyarrow(schema.stored.with_metadata(TRUE_IDS))
    top = [
        node
        for native, column in zip(fresh.fields(), schema.columns, strict=False)
        for node in _nodes(native, column, -1)
    ]
    top.append((len(top), max((new for _, new, _ in top), default=-1) + 1, -1))
    reduced: Any = fresh.__reduce__()
    metadata, *fields = reduced[1]
    renumbered = [_with_ids(field, new, parent) for field, (_, new, parent) in zip(fields, top, strict=True)]
    return Numbering(
        fresh=fresh,
        wanted=LanceSchema._from_protos(metadata, *renumbered),
        plain=fresh.to_pyarrow(),
        ids={old: new for old, new, _ in top},
    )


def encoded_fields(schema: LanceSchema) -> list[list[bytes]]:
    """Return the messages of each column of a Lance schema: of the column, then of all fields inside it."""
    reduced: Any = schema.__reduce__()
    _, *encoded = reduced[1]
    found, start = [], 0
    for native in schema.fields():
        end = start + len(list(_numbers(_stored(native))))
        found.append(encoded[start:end])
        start = end
    return found


def encoded_column(column: pa.Field) -> list[bytes]:
    """Return the messages of a column with the ids in its metadata, as `encoded_fields` does."""
    fresh = LanceSchema.from_pyarrow(pa.schema([column]))
    (encoded,), (native,) = encoded_fields(fresh), fresh.fields()
    nodes = _nodes(native, column, -1)
    return [_with_ids(one, new, parent) for one, (_, new, parent) in zip(encoded, nodes, strict=True)]


def renamed_column(encoded: list[bytes], name: str) -> list[bytes]:
    """Return the messages of a column under another name."""
    return [encoded[0] + b"\x12" + _varint(len(name.encode())) + name.encode(), *encoded[1:]]


def nullable_column(encoded: list[bytes]) -> list[bytes]:
    """Return the messages of a column that may be null."""
    return [encoded[0] + b"\x30\x01", *encoded[1:]]


@dataclass(frozen=True, slots=True)
class Node:
    """A field of a column: the id that Lance gives it in a schema of its own, and the id in the metadata."""

    fresh: int
    wanted: int
    is_leaf: bool


def ids_in_order(column: pa.Field) -> list[Node]:
    """Return the column and the fields inside it, in Lance's order."""
    (native,) = LanceSchema.from_pyarrow(pa.schema([column])).fields()
    leaves = [not one.inner for one in _every(_stored(native))]
    return [
        Node(fresh, wanted, is_leaf)
        for (fresh, wanted, _), is_leaf in zip(_nodes(native, column, -1), leaves, strict=True)
    ]


def _every(field: StoredField) -> Iterator[StoredField]:
    yield field
    for child in field.inner:
        yield from _every(child)


def _with_ids(encoded: bytes, number: int, parent: int) -> bytes:
    # In protobuf the last value of a field wins, so append id (3) and parent_id (4) of lance.file.Field.
    return encoded + b"\x18" + _varint(number) + b"\x20" + _varint(parent)


def _nodes(native: _LanceField, field: pa.Field, parent: int) -> Iterator[tuple[int, int, int]]:
    """(fresh id, wanted id, wanted parent id) of a field and all nested fields, in Lance's order."""
    # Arrow can't carry the id of a map's entries field. Lance creates it with the map, so its id is the next one.
    wanted = field_id(field) if FIELD_ID in (field.metadata or {}) else parent + 1
    yield native.id(), wanted, parent
    for child, inner in zip(native.children(), _inner(field.type), strict=False):
        yield from _nodes(child, inner, wanted)


def _inner(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return [kind.field(i) for i in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [pa.field("entries", pa.struct([kind.key_field, kind.item_field]))]
    return [kind.value_field] if hasattr(kind, "value_field") else []


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredField:
    """A field of a generation: its name in the generation, and the id of the table's field that it stores."""

    name: str
    number: int
    inner: tuple[StoredField, ...]


def stored_fields(native: LanceSchema, given: pa.Schema, schema: TableSchema) -> dict[str, StoredField]:
    """Find the field of a generation for each column of the table; columns that the generation lacks are left out.

    Fields match by id; an older generation may have a column under an id that it had before it was widened. But before
    release 13 Lance numbered the columns of every generation from 0, so ids are wrong if the base's ids have gaps. If
    Lance wrote the generation, its ids are consecutive, and they contradict the names, fields match by name.

    Args:
        native, given: the schema of the generation, as Lance and as Arrow have it.
    """
    columns = schema.columns
    marked = TRUE_IDS.items() <= (given.metadata or {}).items()
    every = [_stored(field) for field in native.fields()]
    by_id = {field.number: field for field in every if field.name != TOMBSTONE}
    by_name = {field.name: field for field in by_id.values()}
    contradicted = any(column.name in by_name and by_name[column.name].number != field_id(column) for column in columns)
    numbers = [number for field in every for number in _numbers(field)]
    if not marked and contradicted and numbers == list(range(len(numbers))):
        return {column.name: _named(by_name[column.name], column) for column in columns if column.name in by_name}
    changed = schema.history.ids_since(version_of(given))
    now = {changed.get(number, number): field for number, field in by_id.items()}
    return {column.name: now[field_id(column)] for column in columns if field_id(column) in now}


def _stored(native: _LanceField) -> StoredField:
    return StoredField(name=native.name(), number=native.id(), inner=tuple(map(_stored, native.children())))


def _numbers(field: StoredField) -> Iterator[int]:
    yield field.number
    for child in field.inner:
        yield from _numbers(child)


def _named(stored: StoredField, field: pa.Field) -> StoredField:
    """Give a stored field the ids of the table's field. Fields of a struct match by name, a list item by position."""
    inner = _inner(field.type)
    if pa.types.is_struct(field.type):
        by_name = {child.name: child for child in inner}
        pairs = [(child, by_name[child.name]) for child in stored.inner if child.name in by_name]
    else:
        pairs = list(zip(stored.inner, inner, strict=False))
    number = field_id(field) if FIELD_ID in (field.metadata or {}) else stored.number
    return replace(stored, number=number, inner=tuple(_named(child, match) for child, match in pairs))


def fitted(values: pa.Array, stored: StoredField, field: pa.Field) -> pa.Array:
    """Convert values of the stored field to the type of the table's `field`.

    Fields of a struct match by id; fields that the generation lacks become null. A column with another id than `field`
    was widened since, so its values are cast.

    Raises:
        Corrupt: the stored type differs.
    """
    kind = field.type
    if stored.number != (field_id(field) if FIELD_ID in (field.metadata or {}) else stored.number):
        return widened_values(values, kind)
    if values.type == kind and not pa.types.is_nested(kind):
        return values
    inner = stored.inner
    if pa.types.is_struct(kind) and pa.types.is_struct(values.type):
        by_id = {child.number: at for at, child in enumerate(inner)}
        held = values.flatten()
        arrays = [
            fitted(held[by_id[field_id(child)]], inner[by_id[field_id(child)]], child)
            if field_id(child) in by_id
            else pa.nulls(len(values), child.type)
            for child in _inner(kind)
        ]
        return pa.StructArray.from_arrays(arrays, fields=_inner(kind), mask=values.is_null())
    if inner and values.type.id == kind.id and not pa.types.is_map(kind):
        buffers = values.buffers()[: 1 if pa.types.is_fixed_size_list(kind) else 2]
        items = fitted(values.values, inner[0], kind.value_field)
        return pa.Array.from_buffers(kind, len(values), buffers, offset=values.offset, children=[items])
    if values.type != kind:
        raise Corrupt(f"column {field.name!r} is {values.type} in a generation, {kind} in the table", field=field.name)
    return values
