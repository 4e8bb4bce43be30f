"""Encode rows to canonical bytes, and compute the setsum of rows from them.

A row is encoded as its non-null values by field id. So the order of columns and added null columns do not change it. A
value is encoded without its type, so offset widths, dictionaries and views do not change it either. Chunks, slices and
the order of rows do not matter. Arrow kernels encode whole columns; only the hashing visits each row.

    row     = value*                 of the non-null columns, by ascending id; then TRUE_TOMBSTONE for a tombstone
    value   = id (i32) length (u64) bytes                      all numbers little-endian
    bytes   = fixed width: as in memory, bool one byte | text, binary: as is | dictionary: of its value
            | struct: value* of its non-null children, by ascending id
            | list: count (u64) flag (u8) markers item*        of the non-null items; map: a list of pairs
    markers = one byte an item, 1 = not null                   absent with flag 0 = no item is null
    item    = bytes, after its length (u64) unless its width is fixed
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from struct import pack
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.setsum import Setsum
from lancelsm.errors import Invalid
from lancelsm.record.schema import TOMBSTONE, field_id

TRUE_TOMBSTONE: Final = pack("<iQB", -1, 1, 1)

_BYTES: Final = pa.large_binary()
_EMPTY: Final = pa.scalar(b"", _BYTES)
_BYTES_KINDS: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
)
_LIST_KINDS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_map)
_SLICE_ROWS: Final = 8192
_SLICE_BYTES: Final = 32 << 20


def row_setsum(rows: pa.Table | pa.RecordBatch, *, schema: pa.Schema | None = None) -> Setsum:
    """Return the setsum of these rows; see `row_items` for the arguments."""
    return Setsum.of(row_items(rows, schema=schema))


def row_items(rows: pa.Table | pa.RecordBatch, *, schema: pa.Schema | None = None) -> Iterator[memoryview]:
    """Yield the canonical bytes of each row, in order.

    Args:
        rows: columns in any order. `_tombstone` is included where it is true, and needs no field id.
        schema: fields with Lance's field ids, matched by name, for rows whose own fields have no ids, such as rows that
            Lance returns. It must contain all columns of the rows.

    Raises:
        Invalid: a field has no id, or a type that Lance can't store.
    """
    fields = {field.name: field for field in (rows.schema if schema is None else schema)}
    columns = [name for name in rows.schema.names if name != TOMBSTONE]
    if unknown := [name for name in columns if name not in fields]:
        raise Invalid(f"column {unknown[0]!r} has no Lance field id", field=unknown[0])
    columns.sort(key=lambda name: field_id(fields[name]))
    step = max(1, min(_SLICE_ROWS, _SLICE_BYTES * rows.num_rows // max(1, rows.nbytes)))
    for start in range(0, rows.num_rows, step):
        part = rows.slice(start, step)
        pieces = [piece for name in columns for piece in _tagged(_whole(part.column(name)), fields[name])]
        if TOMBSTONE in part.schema.names:
            tombstones = _whole(part.column(TOMBSTONE))
            pieces.append(pc.if_else(tombstones, pa.scalar(TRUE_TOMBSTONE, _BYTES), _EMPTY))
        yield from _views(_joined(pieces, part.num_rows))


def values(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return the canonical bytes of each value of a column as large_binary; null for null.

    Only the ids of `field` and of its children are used. Raises `Invalid` for the same reasons as `row_items`.
    """
    column = _plain(column)
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), _BYTES)
    if pa.types.is_struct(kind):
        return _structs(column, field)
    if _is_list(kind):
        return _lists(column, field)
    if (width := _width(kind)) is not None:
        return _fixed(column, width).cast(_BYTES)
    if _is_bytes(kind):
        return column.cast(_BYTES)
    raise Invalid(f"column {field.name!r}: type {kind} can't be stored", field=field.name)


def _tagged(column: pa.Array, field: pa.Field) -> list[pa.Array | pa.Scalar]:
    """Return field id, length and `values` as pieces to join; a null value gives no bytes."""
    tag = pack("<i", field_id(field))
    encoded = values(column, field)
    if encoded.null_count == len(encoded):
        return []
    if (width := _width(column.type)) is not None:
        pieces = [pa.scalar(tag + pack("<Q", width), _BYTES), encoded]
    else:
        pieces = [pa.scalar(tag, _BYTES), _lengths(encoded), encoded]
    # Without nulls one kernel joins the pieces of all columns.
    return pieces if encoded.null_count == 0 else [pc.binary_join_element_wise(*pieces, _EMPTY)]


def _structs(column: pa.StructArray, field: pa.Field) -> pa.Array:
    kind = _storage_type(field.type)
    if not pa.types.is_struct(kind):
        raise Invalid(f"column {field.name!r} is {kind}, not {column.type}", field=field.name)
    children = {child.name: array for child, array in zip(column.type, column.flatten(), strict=True)}
    fields = sorted((child for child in kind if child.name in children), key=field_id)
    if len(fields) != len(children):
        raise Invalid(f"column {field.name!r} is {kind}, not {column.type}", field=field.name)
    pieces = [piece for child in fields for piece in _tagged(children[child.name], child)]
    joined = _joined(pieces, len(column))
    return pc.if_else(column.is_valid(), joined, pa.scalar(None, _BYTES))


def _lists(column: pa.Array, field: pa.Field) -> pa.Array:
    kind = _storage_type(field.type)
    if not _is_list(kind) or pa.types.is_map(kind) != pa.types.is_map(column.type):
        raise Invalid(f"column {field.name!r} is {kind}, not {column.type}", field=field.name)
    if pa.types.is_map(kind):
        pair = pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])
        column = column.cast(pa.list_(pair))
    valid = column.is_valid()
    counts = pc.if_else(valid, _counts(column), pa.scalar(0, pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(counts)])
    items = _plain(column.flatten())
    flags, markers = _markers(items, offsets)
    grouped = _pairs(items, kind, offsets) if pa.types.is_map(kind) else _items(items, kind.value_field, offsets)
    joined = pc.binary_join_element_wise(_fixed(counts, 8).cast(_BYTES), flags, *markers, grouped, _EMPTY)
    return pc.if_else(valid, joined, pa.scalar(None, _BYTES))


def _pairs(pairs: pa.StructArray, kind: pa.MapType, offsets: pa.Array) -> pa.Array:
    """Encode the items of each map as key, a byte that says whether the value is present, and value."""
    keys, items = pairs.flatten()
    key, value = values(keys, kind.key_field), values(items, kind.item_field)
    present = _fixed(value.is_valid(), 1).cast(_BYTES)
    value = value.fill_null(b"")
    joined = pc.binary_join_element_wise(_lengths(key), key, present, _lengths(value), value, _EMPTY)
    return _grouped(pc.binary_join_element_wise(_lengths(joined), joined, _EMPTY), offsets)


def _markers(items: pa.Array, offsets: pa.Array) -> tuple[pa.Array | pa.Scalar, list[pa.Array]]:
    """Return the flag of each list, and one byte per item for lists that contain a null."""
    if items.null_count == 0:
        return _flags(len(offsets) - 1), []
    marks = _grouped(_fixed(items.is_valid(), 1).cast(_BYTES), offsets)
    has_null = pc.match_substring(marks, pattern=b"\0")
    return _fixed(has_null, 1).cast(_BYTES), [pc.if_else(has_null, marks, _EMPTY)]


def _items(items: pa.Array, field: pa.Field, offsets: pa.Array) -> pa.Array:
    width = _width(items.type)
    if width is None:
        encoded = values(items, field)
        return _grouped(pc.binary_join_element_wise(_lengths(encoded), encoded, _EMPTY).fill_null(b""), offsets)
    if items.null_count:
        return _grouped(_fixed(items, width).cast(_BYTES).fill_null(b""), offsets)
    # Without nulls, the bytes of the lists are the buffer of the items: only the offsets are scaled.
    raw = _fixed(items, width)
    data = raw.buffers()[1]
    body = data.slice(raw.offset * width, len(raw) * width) if data and len(raw) else pa.py_buffer(b"")
    ends = pc.multiply(offsets, width).buffers()[1]
    return pa.LargeBinaryArray.from_buffers(_BYTES, len(offsets) - 1, [None, ends, body])


def _joined(pieces: list[pa.Array | pa.Scalar], rows: int) -> pa.Array:
    """Concatenate the pieces of each row; a null gives no bytes."""
    if not pieces:
        return pa.repeat(_EMPTY, rows)
    return pc.binary_join_element_wise(*pieces, _EMPTY, null_handling="replace", null_replacement=b"")


def _grouped(items: pa.Array, offsets: pa.Array) -> pa.Array:
    """Concatenate runs of items: run i is items[offsets[i]:offsets[i + 1]]."""
    if len(items) == 0:
        return pa.repeat(_EMPTY, len(offsets) - 1)
    ends = pc.take(_ends(items), offsets).buffers()[1]
    return pa.LargeBinaryArray.from_buffers(_BYTES, len(offsets) - 1, [None, ends, items.buffers()[2]])


def _ends(items: pa.LargeBinaryArray) -> pa.Array:
    """Return the offsets of a large_binary array, one more than its number of values."""
    return pa.Array.from_buffers(pa.int64(), len(items) + 1, [None, items.buffers()[1]], offset=items.offset)


def _counts(column: pa.Array) -> pa.Array:
    if pa.types.is_fixed_size_list(column.type):
        return pa.repeat(pa.scalar(column.type.list_size, pa.int64()), len(column))
    return pc.list_value_length(column).cast(pa.int64())


def _lengths(encoded: pa.Array) -> pa.Array:
    return _fixed(pc.binary_length(encoded), 8).cast(_BYTES)


def _flags(lists: int) -> pa.Array:
    return pa.repeat(pa.scalar(b"\0", _BYTES), lists)


def _fixed(column: pa.Array, width: int) -> pa.Array:
    """View a fixed-width column as fixed-size binary without a copy; only bool is copied."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    return column.view(pa.binary(width))


def _width(kind: pa.DataType) -> int | None:
    """Return the number of bytes of a value, or None if it varies."""
    if pa.types.is_boolean(kind):
        return 1
    if pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width)
    fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_interval(kind)
    return kind.bit_width // 8 if fixed else None


def _is_bytes(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _BYTES_KINDS)


def _is_list(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _LIST_KINDS)


def _storage_type(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _plain(column: pa.Array) -> pa.Array:
    """Remove extension types and dictionaries."""
    while isinstance(column, pa.ExtensionArray | pa.DictionaryArray):
        column = column.storage if isinstance(column, pa.ExtensionArray) else column.dictionary_decode()
    return column


def _views(items: pa.LargeBinaryArray) -> Iterator[memoryview]:
    _, ends, body = items.buffers()
    ends = memoryview(ends).cast("B").cast("q")[items.offset : items.offset + len(items) + 1]
    body = memoryview(b"" if body is None else body).cast("B")
    for start, end in pairwise(ends):
        yield body[start:end]
