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
from lancelsm.record.words import WORD, Arithmetic, Words, arithmetic, mixed

_SHORT: Final = 32
_GOLDEN: Final = 0x9E3779B97F4A7C15
_WORD_FACTORS: Final = tuple(
    tuple(mixed((8 * lane + index + 1) * _GOLDEN & WORD) | 1 for index in range(_SHORT // 8)) for lane in (1, 2)
)

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
    halves = _halves(on, rows, [field for field in rows.schema if field.name != TOMBSTONE])
    ends = accumulate((table.num_rows for table in tables), initial=0)
    return [Setsum.of_columns(on.total(part[start:end]) for part in halves) for start, end in pairwise(ends)]


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
        hashes = _hashes(arithmetic(part.num_rows), part, list(rows.schema))
        parts.append(np.stack([np.asarray(words, np.uint64) for words in hashes], axis=1))
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
        halves = _halves(on, rows.slice(start, step), [fields[name] for name in columns])
        every = [total + on.total(part) for total, part in zip(every, halves, strict=True)]
        if chosen is not None:
            flags = _bits(on, chosen.slice(start, step))
            some = [total + on.total(on.multiply(part, flags)) for total, part in zip(some, halves, strict=True)]
    return Setsum.of_columns(every), Setsum.of_columns(some)


def _halves(on: Arithmetic, rows: pa.Table | pa.RecordBatch, fields: list[pa.Field]) -> list[Words]:
    """Return the columns of a setsum for each row: both halves of both words of its hash."""
    low, width = on.constant(0xFFFFFFFF), on.constant(32)
    return [half for word in _hashes(on, rows, fields) for half in (on.both(word, low), on.shift_right(word, width))]


def _hashes(on: Arithmetic, rows: pa.Table | pa.RecordBatch, fields: list[pa.Field]) -> tuple[Words, Words]:
    """Return both words of the hash of each row."""
    sums = [on.load(pa.repeat(pa.scalar(seed, pa.uint64()), rows.num_rows)) for seed in _seeds(-2, 0)]
    for hashed in _columns(on, rows, fields):
        sums = [on.add(total, words) for total, words in zip(sums, hashed, strict=True)]
    first, second = sums
    return on.mix(first), on.mix(on.xor(second, on.multiply(first, on.constant(2))))


def _columns(on: Arithmetic, rows: pa.Table | pa.RecordBatch, fields: list[pa.Field]) -> Iterator[tuple[Words, Words]]:
    """Yield both words of the hashes of each column, 0 for null."""
    for field in fields:
        yield _hashed(on, _plain(whole(rows.column(field.name))), field)
    if TOMBSTONE in rows.schema.names and (tombstones := whole(rows.column(TOMBSTONE))).true_count:
        yield _hashed(on, pc.if_else(tombstones, tombstones, pa.scalar(None, pa.bool_())), _TOMBSTONE)


def _hashed(on: Arithmetic, column: pa.Array, field: pa.Field) -> tuple[Words, Words]:
    width = _number_width(column.type)
    first, second = (_bits(on, column),) * 2 if width else _bytes(on, values(column, field))
    one, two = _seeds(field_id(field), width)
    first = on.mix(on.xor(first, on.constant(one)))
    second = on.multiply(on.xor(second, on.constant(two)), on.constant(_GOLDEN))
    second = on.mix(on.add(second, on.constant(1)))
    if column.null_count == 0:
        return first, second
    valid = _bits(on, column.is_valid())
    return on.multiply(first, valid), on.multiply(second, valid)


@lru_cache(maxsize=4096)
def _seeds(number: int, width: int) -> tuple[int, int]:
    """Return the two seeds of the values of one width in the column with this field id."""
    one = mixed((number << 8 | width) * _GOLDEN & WORD)
    return one, mixed(one ^ _GOLDEN)


def _bits(on: Arithmetic, column: pa.Array) -> Words:
    """Return the bits of each value of at most 8 bytes; anything for null."""
    kind = column.type
    raw = column.cast(pa.uint8()) if pa.types.is_boolean(kind) else column.view(_WORDS[_number_width(kind)])
    raw = raw if raw.type == pa.uint64() else raw.cast(pa.uint64())
    return on.load(pa.Array.from_buffers(pa.uint64(), len(raw), [None, raw.buffers()[1]], offset=raw.offset))


def _bytes(on: Arithmetic, column: pa.LargeBinaryArray) -> tuple[Words, Words]:
    """Return two words for each value; anything for null. A value is short or long by its own length alone."""
    lengths = pc.binary_length(column).fill_null(0)
    is_long = pc.greater(lengths, _SHORT)
    longs = is_long.true_count
    if longs == 0:
        return _short(on, column, lengths)
    if longs == len(column):
        return _long(on, column)
    rows, is_short = pc.indices_nonzero(is_long), pc.invert(is_long)
    short = _short(on, column.filter(is_short), lengths.filter(is_short))
    order = pc.array_sort_indices(pa.concat_arrays([pc.indices_nonzero(is_short), rows]))
    first, second = (on.gathered(few, many, order) for few, many in zip(short, _long(on, column, rows), strict=True))
    return first, second


def _short(on: Arithmetic, column: pa.LargeBinaryArray, lengths: pa.Array) -> tuple[Words, Words]:
    words = -(-max(1, pc.max(lengths).as_py()) // 8)  # words of zeros add nothing
    sums = [_bits(on, lengths)] * 2
    for index, word in enumerate(on.texts(column, words)):
        sums = [
            on.add(total, on.mix(on.multiply(word, on.constant(factors[index]))))
            for total, factors in zip(sums, _WORD_FACTORS, strict=True)
        ]
    return sums[0], sums[1]


def _long(on: Arithmetic, column: pa.LargeBinaryArray, rows: pa.Array | None = None) -> tuple[Words, Words]:
    """Return two words for each value, or for each value in these rows."""
    ends = _ends(column).to_pylist()
    count = len(column) if rows is None else len(rows)
    if ends[-1] - ends[0] < _SLICED_BYTES * count:
        digests: Iterable[bytes] = map(xxh3_128_digest, (column if rows is None else column.take(rows)).to_pylist())
    else:  # slices copy no bytes, but take longer to make
        body = memoryview(column.buffers()[2])
        spans = pairwise(ends) if rows is None else [(ends[row], ends[row + 1]) for row in rows.to_pylist()]
        digests = [xxh3_128_digest(body[start:end]) for start, end in spans]
    flat = pa.Array.from_buffers(pa.uint64(), 2 * count, [None, pa.py_buffer(b"".join(digests))])
    first, second = on.transposed(flat, 2)
    return first, second


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
