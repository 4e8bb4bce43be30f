"""Primary keys: their types, one comparable value per row, and the newest row of each key.

A composite key becomes one binary value, in Lance's encoding of a `_pk_index`. The encoding is unique and has the same
order as the tuples.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.errors import Invalid
from lancelsm.record.admission import is_any
from lancelsm.record.casts import whole
from lancelsm.record.schema import TableSchema, unknown_column

_EMPTY: Final = pa.scalar(b"", pa.large_binary())
_PRESENT: Final = pa.scalar(b"\1", pa.large_binary())
_END: Final = pa.scalar(b"\0\0", pa.large_binary())
_FIRST_ROWS: Final = 1024  # keys in any other order are noticed here
_KEY_KINDS: Final = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_date32,
    pa.types.is_timestamp,
)
_LANCE_KEY_TYPES: Final = (pa.int32(), pa.int64(), pa.string(), pa.binary())


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """The newest row of each key in `rows`, and the other rows in `superseded`, both in arrival order."""

    rows: pa.Table
    superseded: pa.Table


def check_primary_key(schema: TableSchema) -> None:
    """Raise `Invalid` unless the primary key is not empty, has no duplicate columns, and has types that can be keys.

    These types are bool, integers, text, binary, date32 and timestamp: each value has exactly one encoding.
    """
    if not schema.primary_key:
        raise Invalid("a table needs a primary key", remedy="Name the key column in primary_key, or several in a list")
    for name in schema.primary_key:
        if schema.primary_key.count(name) > 1:
            raise Invalid(f"primary key names column {name!r} twice", remedy="Name each column once", field=name)
        if schema.columns.get_field_index(name) < 0:
            raise unknown_column(name, schema.names, role="primary key: ")
        kind = schema.columns.field(name).type
        if not is_any(kind, _KEY_KINDS):
            raise Invalid(
                f"column {name!r} of type {kind} can't be a primary key",
                remedy="Use text or binary, by an Arrow schema: UUIDs of rows are converted"
                if kind == pa.uuid()
                else "Use bool, an integer, text, binary, date32 or timestamp",
                field=name,
            )


def unsupported_by_lance(schema: TableSchema) -> list[str]:
    """Return the key columns that Lance's own MemWAL writer can't flush and its bloom filter can't hash."""
    return [field.name for field in schema.key if field.type not in _LANCE_KEY_TYPES]


def key_column(table: pa.Table | pa.RecordBatch, primary_key: tuple[str, ...]) -> pa.Array:
    """Return the key of each row as one array: a single column as it is, several in Lance's binary tuple encoding."""
    columns = [whole(table.column(name)) for name in primary_key]
    if len(columns) == 1:
        return columns[0]
    return pc.binary_join_element_wise(*(_ordered(column) for column in columns), _EMPTY).cast(pa.binary())


def has_key_of(rows: pa.Table, others: pa.Table, primary_key: tuple[str, ...]) -> pa.Array:
    """Return a flag per row: whether the other rows have its key."""
    return pc.is_in(key_column(rows, primary_key), value_set=key_column(others, primary_key))


def last_of_key(table: pa.Table, primary_key: tuple[str, ...]) -> pa.Array:
    """Return for each row the index of the last row with its key."""
    rows = table.num_rows
    if _ascends(table, primary_key):
        return pa.arange(0, rows)
    columns = [whole(table.column(name)) for name in primary_key]
    keys = columns[0] if len(columns) == 1 else _tuple_codes(columns)
    # index_in returns the first of equal values in its set. In reverse order that is the last one.
    return pc.subtract(rows - 1, pc.index_in(keys, value_set=keys.take(pa.arange(rows - 1, -1, -1))))


def _ascends(table: pa.Table, primary_key: tuple[str, ...]) -> bool:
    """Return whether a key of one column is larger in each row than in the row before, so that it is there once."""
    if len(primary_key) > 1:
        return False
    keys = whole(table.column(primary_key[0]))
    return all(
        pc.less(some.slice(0, len(some) - 1), some.slice(1)).true_count == len(some) - 1
        for some in ((keys.slice(0, _FIRST_ROWS), keys) if len(keys) > _FIRST_ROWS else (keys,))
        if len(some)
    )


def fold(table: pa.Table, primary_key: tuple[str, ...]) -> Fold:
    """Keep the last row of each key. Return the dropped rows too, so that a flush can prove that the sums balance."""
    if table.num_rows < 2 or _ascends(table, primary_key):
        return Fold(rows=table, superseded=table.slice(0, 0))
    last = last_of_key(table, primary_key)
    is_last = pc.equal(last, pa.arange(0, table.num_rows))
    if pc.all(is_last).as_py():
        return Fold(rows=table, superseded=table.slice(0, 0))
    return Fold(rows=table.filter(is_last), superseded=table.filter(pc.invert(is_last)))


def newest(table: pa.Table, primary_key: tuple[str, ...]) -> pa.Table:
    """Return the last row of each key, in arrival order."""
    return fold(table, primary_key).rows


def _tuple_codes(columns: list[pa.Array]) -> pa.Array:
    """Return a number per row; equal tuples have equal numbers. Several times faster to compare than encodings."""
    codes = pa.repeat(pa.scalar(0, pa.int64()), len(columns[0]))
    for column in columns:
        # Codes and sizes are below 2**31, the maximum number of dictionary entries: the product can't overflow.
        encoded = pc.dictionary_encode(column)
        paired = pc.add(pc.multiply(codes, len(encoded.dictionary)), encoded.indices)
        codes = pc.dictionary_encode(paired).indices.cast(pa.int64())
    return codes


def _ordered(column: pa.Array) -> pa.Array:
    """Encode one key column as in Lance's tuple encoding."""
    kind = column.type
    if pa.types.is_boolean(kind):
        body = [column.cast(pa.uint8()).view(pa.binary(1)).cast(pa.large_binary())]
    elif pa.types.is_unsigned_integer(kind):
        body = [_big_endian(column.cast(pa.uint64()))]
    elif pa.types.is_signed_integer(kind):
        body = [_signed(column)]
    elif pa.types.is_date32(kind):
        body = [_signed(column.cast(pa.int32()))]
    elif pa.types.is_timestamp(kind):
        body = [_signed(column.cast(pa.int64()))]
    else:
        text = column.cast(pa.large_binary())
        body = [pc.replace_substring(text, pattern=b"\0", replacement=b"\0\xff"), _END]
    encoded = pc.binary_join_element_wise(_PRESENT, *body, _EMPTY)
    return pc.if_else(column.is_valid(), encoded, pa.scalar(b"\0", pa.large_binary()))


def _signed(numbers: pa.Array) -> pa.Array:
    return _big_endian(pc.bit_wise_xor(numbers.cast(pa.int64()), pa.scalar(-(1 << 63), pa.int64())))


def _big_endian(numbers: pa.Array) -> pa.Array:
    """Encode numbers as eight bytes, most significant first; the bytes of a null are arbitrary."""
    data = numbers.buffers()[1]
    words = array("Q")
    if len(numbers):
        words.frombytes(memoryview(data)[numbers.offset * 8 : (numbers.offset + len(numbers)) * 8])
    if sys.byteorder == "little":
        words.byteswap()
    fixed = pa.Array.from_buffers(pa.binary(8), len(numbers), [None, pa.py_buffer(words)])
    return fixed.cast(pa.large_binary())
