"""Hash rows, and compute the setsum of rows from the hashes.

A row is hashed as its non-null values by field id. So the order of columns and added null columns do not change it. A
value is hashed without its type, so offset widths, dictionaries and views do not change it either. Chunks, slices and
the order of rows do not matter. Kernels hash whole columns (`record.words`); Python visits each value above 32 bytes.

    row    = mix(A1), mix(A2 ^ 2 * A1)      A1, A2 = a constant + the sum of its values, modulo 2**64
    value  = mix(v1 ^ s1), mix((v2 ^ s2) * GOLDEN + 1)      null = 0; s1, s2 = seeds of the field id and the width
    v1, v2 = number, time or bool of at most 8 bytes: its bits, twice; other values have the width 0
           | at most 32 bytes: length + sum of mix(word * K1[i]), and of mix(word * K2[i]); zeros fill the last word
           | longer: both halves of xxh3_128
    mix    = the finaliser of splitmix64

K1, K2 are odd constants, one for each word. A tombstone is a bool with the id -1, which is null if it is false.

Values other than numbers have canonical bytes:

    record = id (i32) length (u64) bytes                        all numbers little-endian
    bytes  = fixed width: as in memory, bool one byte | text, binary: as is | dictionary: of its value
           | struct: record* of its non-null children, by ascending id
           | list: count (u64) flag (u8) markers item*          of the non-null items; map: a list of pairs
    markers = one byte an item, 1 = not null                    absent with flag 0 = no item is null
    item    = bytes, after its length (u64) unless its width is fixed
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate, pairwise
from struct import pack
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_128_digest

from lancelsm.common.setsum import Setsum
from lancelsm.errors import Invalid
from lancelsm.record.admission import is_any
from lancelsm.record.casts import kind_of, list_of_pairs, whole
from lancelsm.record.schema import TOMBSTONE, field_id
from lancelsm.record.schema_history import FIELD_ID
from lancelsm.record.words import GOLDEN, LARGE, TEXTS, WORD, Arithmetic, Rows, Words, arithmetic, mixed

_BYTES: Final = pa.large_binary()
_EMPTY: Final = pa.scalar(b"", _BYTES)
_LIST_KINDS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_map)
_TOMBSTONE: Final = pa.field(TOMBSTONE, pa.bool_(), metadata={FIELD_ID: "-1"})
_WORDS: Final = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}
_SLICED_BYTES: Final = 512  # mean length
_SLICE_ROWS: Final = 8192
_SLICE_BYTES: Final = 32 << 20


def row_setsum(rows: pa.Table | pa.RecordBatch, *, schema: pa.Schema | None = None) -> Setsum:
    """Return the setsum of these rows.

    Args:
        rows: columns in any order. `_tombstone` is included where it is true, and needs no field id.
        schema: fields with Lance's field ids, matched by name, for rows whose own fields have no ids, such as rows that
            Lance returns. It must contain all columns of the rows.

    Raises:
        Invalid: a field has no id, or a type that Lance can't store.
    """
    return _summed(rows, schema=rows.schema if schema is None else schema, chosen=None)[0]


def row_setsums(rows: pa.Table | pa.RecordBatch, chosen: pa.BooleanArray) -> tuple[Setsum, Setsum]:
    """Return the setsum of these rows, and that of the chosen ones. Each row is hashed once.

    Args:
        rows: the same as in `row_setsum`; the fields have Lance's field ids.
        chosen: a flag per row, without nulls.

    Raises: the same errors as `row_setsum`.
    """
    return _summed(rows, schema=rows.schema, chosen=chosen)


def setsums_together(tables: Iterable[pa.Table]) -> list[Setsum | None]:
    """Return the `row_setsum` of each small table, hashed together with its neighbours; None for a large one.

    A kernel takes about as long for a few rows as for some thousand.

    Args:
        tables: of the same schema, which has Lance's field ids.

    Raises: the same errors as `row_setsum`.
    """
    sums, small, rows = list[Setsum | None](), list[pa.Table](), 0
    for table in tables:
        if small and rows + table.num_rows > _SLICE_ROWS:
            sums += _together(small)
            small, rows = [], 0
        small.append(table)
        rows += table.num_rows
    return sums + _together(small)


def _together(tables: list[pa.Table]) -> list[Setsum | None]:
    if len(tables) < 2 or sum(table.nbytes for table in tables) > _SLICE_BYTES:
        return [None] * len(tables)
    rows = pa.concat_tables(tables)
    on = arithmetic(rows.num_rows)
    hashes = _hashes(on, rows, [field for field in rows.schema if field.name != TOMBSTONE])
    ends = accumulate((table.num_rows for table in tables), initial=0)
    return [Setsum.of_columns(on.totals(hashes, start, end)) for start, end in pairwise(ends)]


def row_hashes(rows: pa.Table) -> Iterator[Any]:
    """Yield the first word of the hash of each row, as numpy arrays of uint64, some thousand rows at a time.

    Args:
        rows: see `row_setsums`.

    Raises: the same errors as `row_setsum`.
    """
    import numpy as np  # noqa: PLC0415 - a process that only appends never loads it

    for start in range(0, rows.num_rows, _SLICE_ROWS):
        part = rows.slice(start, _SLICE_ROWS)
        yield np.asarray(_hashes(arithmetic(part.num_rows), part, list(rows.schema))[0], np.uint64)


def row_words(rows: pa.Table) -> Any:
    """Return both words of the hash of each row, as a numpy array of uint64 with two columns.

    Args:
        rows: see `row_setsums`.

    Raises: the same errors as `row_setsum`.
    """
    import numpy as np  # noqa: PLC0415 - a process that only appends never loads it

    parts = [np.empty((0, 2), np.uint64)]
    for start in range(0, rows.num_rows, _SLICE_ROWS):
        part = rows.slice(start, _SLICE_ROWS)
        parts.append(np.asarray(_hashes(arithmetic(part.num_rows), part, list(rows.schema)), np.uint64).T)
    return np.concatenate(parts)


def _summed(
    rows: pa.Table | pa.RecordBatch, *, schema: pa.Schema, chosen: pa.BooleanArray | None
) -> tuple[Setsum, Setsum]:
    fields = {field.name: field for field in schema}
    columns = [name for name in rows.schema.names if name != TOMBSTONE]
    if unknown := [name for name in columns if name not in fields]:
        raise Invalid(f"column {unknown[0]!r} has no Lance field id", field=unknown[0])
    on, every, some = arithmetic(rows.num_rows), [0] * 4, [0] * 4
    step = max(1, min(_SLICE_ROWS, _SLICE_BYTES * rows.num_rows // max(1, rows.nbytes)))
    for start in range(0, rows.num_rows, step):
        hashes = _hashes(on, rows.slice(start, step), [fields[name] for name in columns])
        every = list(map(operator.add, every, on.totals(hashes)))
        if chosen is not None:
            some = list(map(operator.add, some, on.totals(on.where(hashes, chosen.slice(start, step)))))
    return Setsum.of_columns(every), Setsum.of_columns(some)


def _hashes(on: Arithmetic, rows: pa.Table | pa.RecordBatch, fields: list[pa.Field]) -> Words:
    """Return both words of the hash of each row."""
    return on.finished(_columns(on, rows, fields), _seeds(-2, 0), rows.num_rows)


def _columns(on: Arithmetic, rows: pa.Table | pa.RecordBatch, fields: list[pa.Field]) -> Iterator[Words]:
    """Yield both words of the hashes of each column, 0 for null."""
    for field in fields:
        yield _hashed(on, _plain(whole(rows.column(field.name))), field)
    if TOMBSTONE in rows.schema.names and (tombstones := whole(rows.column(TOMBSTONE))).true_count:
        yield on.where(_hashed(on, tombstones, _TOMBSTONE), tombstones)


def _hashed(on: Arithmetic, column: pa.Array, field: pa.Field) -> Words:
    if width := _number_width(column.type):
        words = on.bits(column.cast(_WORDS[1]) if pa.types.is_boolean(column.type) else column.view(_WORDS[width]))
    else:
        words = _bytes(on, column if column.type in TEXTS else values(column, field))
    hashed = on.seeded(words, _seeds(field_id(field), width))
    return on.where(hashed, column.is_valid()) if column.null_count else hashed


@lru_cache(maxsize=4096)
def _seeds(number: int, width: int) -> tuple[int, int]:
    """Return the two seeds of the values of one width in the column with this field id."""
    one = mixed((number << 8 | width) * GOLDEN & WORD)
    return one, mixed(one ^ GOLDEN)


def _bytes(on: Arithmetic, column: pa.Array) -> Words:
    """Return two words for each value; anything for null. A value is short or long by its own length alone."""
    short, long = on.split(column)
    if short is None:
        return on.texts(column, None)
    if long is None:
        return on.digests(_digests(column, None))
    return on.merged([(short, on.texts(column, short)), (long, on.digests(_digests(column, long)))])


def _digests(column: pa.Array, rows: Rows) -> bytes:
    """Return the digests of the values, or of those in some rows, one after the other."""
    kind = pa.int64() if column.type in LARGE else pa.int32()
    ends = pa.Array.from_buffers(kind, len(column) + 1, [None, column.buffers()[1]], offset=column.offset).to_pylist()
    if ends[-1] - ends[0] < _SLICED_BYTES * len(column):
        chosen = column if rows is None else column.take(pa.array(rows))
        return b"".join(map(xxh3_128_digest, chosen.cast(_BYTES).to_pylist()))
    # Slices copy no bytes, but take longer to make.
    body = memoryview(column.buffers()[2])
    spans = pairwise(ends) if rows is None else [(ends[row], ends[row + 1]) for row in pa.array(rows).to_pylist()]
    return b"".join([xxh3_128_digest(body[start:end]) for start, end in spans])


def values(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return the canonical bytes of each value of a column as large_binary; null for null.

    Only the ids of `field` and of its children are used. Raises `Invalid` for the same reasons as `row_setsum`.
    """
    column = _plain(column)
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), _BYTES)
    if pa.types.is_struct(kind):
        return _structs(column, field)
    if is_any(kind, _LIST_KINDS):
        return _lists(column, field)
    if (width := _width(kind)) is not None:
        return _fixed(column, width).cast(_BYTES)
    if kind_of(kind) in ("text", "binary"):
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
    if not is_any(kind, _LIST_KINDS) or pa.types.is_map(kind) != pa.types.is_map(column.type):
        raise Invalid(f"column {field.name!r} is {kind}, not {column.type}", field=field.name)
    if pa.types.is_map(kind):
        column = list_of_pairs(column)
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


def _number_width(kind: pa.DataType) -> int:
    """Return the number of bytes of a number, time or bool of at most 8 bytes; 0 for any other type."""
    width = _width(kind)
    hashed_as_bytes = pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind)
    return 0 if width not in _WORDS or hashed_as_bytes else width


def _storage_type(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _plain(column: pa.Array) -> pa.Array:
    """Remove extension types and dictionaries."""
    while isinstance(column, pa.ExtensionArray | pa.DictionaryArray):
        column = column.storage if isinstance(column, pa.ExtensionArray) else column.dictionary_decode()
    return column
