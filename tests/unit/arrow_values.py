"""Arrow types, arrays of their values with nulls and extremes at each level, and an exact comparison of arrays."""

from __future__ import annotations

import struct
from decimal import Decimal
from itertools import accumulate, chain, islice, pairwise
from random import Random
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_NUMBERS = [getattr(pa, f"{sign}int{width}")() for sign in ("", "u") for width in (8, 16, 32, 64)]
_TIMES = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
_TIMESTAMPS = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")]
_DURATIONS = [pa.duration(unit) for unit in ("s", "ms", "us", "ns")]
_TEXTS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
_TEXT_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_DICTIONARY_INDEXES = _NUMBERS
_DICTIONARY_VALUES = [*_TEXTS, *_NUMBERS, pa.bool_()]

FIXED: Final = [
    pa.bool_(),
    *_NUMBERS,
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(38, 4),
    pa.decimal128(5, -2),
    pa.decimal128(3, 10),
    pa.decimal256(76, 3),
    pa.date32(),
    pa.date64(),
    *_TIMES,
    *_TIMESTAMPS,
    pa.timestamp("us", "Europe/Berlin"),
    pa.timestamp("ms", "+02:00"),
    *_DURATIONS,
    pa.binary(3),
    pa.binary(70_000),
]
DICTIONARIES: Final = [
    *(pa.dictionary(index, pa.string()) for index in _DICTIONARY_INDEXES),
    *(pa.dictionary(pa.int32(), value) for value in _DICTIONARY_VALUES),
]
EXTENSIONS: Final = [
    pa.uuid(),
    pa.bool8(),
    pa.opaque(pa.int32(), "type", "vendor"),
    pa.opaque(pa.string(), "type", "vendor"),
    pa.fixed_shape_tensor(pa.float32(), (2, 2)),
]
NEVER: Final = [
    pa.decimal32(9, 2),
    pa.decimal64(18, 3),
    pa.month_day_nano_interval(),
    pa.run_end_encoded(pa.int32(), pa.string()),
    pa.dense_union([pa.field("a", pa.int8()), pa.field("b", pa.string())]),
    pa.sparse_union([pa.field("a", pa.int8()), pa.field("b", pa.string())]),
    pa.json_(),
    pa.json_(pa.large_string()),
    pa.opaque(pa.list_(pa.int8()), "type", "vendor"),
    pa.opaque(pa.struct([("x", pa.int8())]), "type", "vendor"),
    pa.dictionary(pa.int32(), pa.string(), ordered=True),
    *(
        pa.dictionary(pa.int32(), value)
        for value in (pa.float64(), pa.float16(), pa.date32(), pa.timestamp("us"), pa.decimal128(5, 2), pa.binary(3))
    ),
    pa.map_(pa.string(), pa.int8(), keys_sorted=True),
    pa.struct([]),
    pa.struct([pa.field("x", pa.int8()), pa.field("x", pa.string())]),
    pa.list_(pa.int8(), 0),
    pa.list_(pa.field("item", pa.int8(), nullable=False), 2),
    pa.list_(pa.bool_(), 16_000),
    pa.list_(pa.bool_(), 2_046),
    pa.list_(pa.list_(pa.bool_(), 91), 90),
    pa.list_(pa.list_(pa.list_(pa.bool_(), 1), 1), 8_192),
]
EVERYWHERE: Final = [*FIXED, *_TEXTS, *_TEXT_VIEWS, *DICTIONARIES]
LIST_VIEWS: Final = [pa.list_view(pa.int8()), pa.large_list_view(pa.string_view())]


def array(
    kind: pa.DataType, rows: int, random: Random, *, nullable: bool = True, nulls: float = 0.25, distinct: int = 0
) -> pa.Array:
    """Build an array of values of a type, with nulls at each level that allows them.

    Below a null struct, fields that must not be null hold nulls and values alike.

    Args:
        nulls: the share of nulls at each level.
        distinct: if not 0, text, binary and integers are drawn from so many values; else from the extremes.
    """
    return _array(kind, [nullable and random.random() < nulls for _ in range(rows)], random, nulls, distinct)


def _array(kind: pa.DataType, null: list[bool], random: Random, nulls: float, distinct: int) -> pa.Array:
    rows = len(null)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _array(kind.storage_type, null, random, nulls, distinct))
    if pa.types.is_null(kind):
        return pa.nulls(rows)

    def inner(field: pa.Field, hidden: list[bool]) -> pa.Array:
        missing = [random.random() < (nulls if field.nullable else 0.5 * below) for below in hidden]
        return _array(field.type, missing, random, nulls, distinct)

    if pa.types.is_struct(kind):
        children = [inner(field, null) for field in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pa.array(null, pa.bool_()))
    if pa.types.is_fixed_size_list(kind):
        items = inner(kind.value_field, [missing for missing in null for _ in range(kind.list_size)])
        return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=pa.array(null, pa.bool_()))
    if pa.types.is_nested(kind):
        return _of_lists(kind, null, random, inner)
    if pa.types.is_dictionary(kind):
        words = _pool(kind.value_type, distinct)
        picks = [None if missing else random.randrange(len(words)) for missing in null]
        used = sorted({pick for pick in picks if pick is not None})[: _most(kind.index_type)]
        where = {pick: at for at, pick in enumerate(used)}
        indexes = [None if pick is None else where.get(pick, 0) for pick in picks]
        return pa.DictionaryArray.from_arrays(
            pa.array(indexes, kind.index_type), words.take(pa.array(used, pa.int64()))
        )
    if kind in _TEXT_VIEWS:  # Arrow has no `take` for them
        return _array(_TEXT_VIEWS[kind], null, random, nulls, distinct).cast(kind)
    pool = _pool(kind, distinct)
    return pool.take(pa.array([None if missing else random.randrange(len(pool)) for missing in null], pa.int64()))


def _of_lists(kind: pa.DataType, null: list[bool], random: Random, inner: Any) -> pa.Array:
    """Lists or maps. Some null lists have items, as Arrow allows."""
    sizes = [random.choice((0, 1, 2, 3)) for _ in null]
    ends = [0, *accumulate(sizes)]
    hidden = list(chain.from_iterable([missing] * size for missing, size in zip(null, sizes, strict=True)))
    if pa.types.is_map(kind):
        fields = [kind.key_field, kind.item_field]
        arrays = [inner(field, hidden if field is fields[1] else [False] * len(hidden)) for field in fields]
        child = pa.StructArray.from_arrays(arrays, fields=fields)
    else:
        child = inner(kind.value_field, hidden)
    offsets = pa.array(ends, pa.int64() if pa.types.is_large_list(kind) else pa.int32())
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        make = pa.ListViewArray if pa.types.is_list_view(kind) else pa.LargeListViewArray
        return make.from_arrays(ends[:-1], sizes, child, type=kind, mask=pa.array(null, pa.bool_()))
    valid = pa.array([not missing for missing in null], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(kind, len(null), [valid, offsets.buffers()[1]], children=[child])


def _most(index: pa.DataType) -> int:
    return int((1 << (index.bit_width - pa.types.is_signed_integer(index))) - 1)


def _pool(kind: pa.DataType, distinct: int) -> pa.Array:
    """The values to choose from."""
    if distinct and pa.types.is_integer(kind):
        return pa.array(range(min(distinct, _most(kind))), kind)
    if distinct and kind in _TEXTS:
        return pa.array([f"{number:07}" for number in range(distinct)]).cast(kind)
    if pa.types.is_boolean(kind):
        return pa.array([True, False])
    if pa.types.is_integer(kind):
        low = 0 if pa.types.is_unsigned_integer(kind) else -_most(kind) - 1
        return pa.array([0, 1, 7, low, low + 1, _most(kind) - 1, _most(kind)], kind)
    if pa.types.is_floating(kind):
        return _floats(kind.bit_width // 8)
    if pa.types.is_decimal(kind):
        digits = [(0,), (1,), (9,) * kind.precision]
        return pa.array([Decimal((sign, one, -kind.scale)) for sign in (0, 1) for one in digits], kind)
    if pa.types.is_date64(kind):
        return pa.array([0, 86_400_000, -86_400_000, 86_400_000 * 10**9], pa.int64()).view(kind)
    if pa.types.is_time(kind):
        most = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit] - 1
        return pa.array([0, 1, most, most // 7], pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    if pa.types.is_temporal(kind):
        return _pool(pa.int32() if kind.bit_width == 32 else pa.int64(), 0).view(kind)
    if pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        return pa.array([bytes(width), b"\xff" * width, (b"ab" * width)[:width]], kind)
    if kind in (pa.string(), pa.large_string()):
        return pa.array(["", "a", "A", "ä", "\0", "\U0001f600", '"', "a,b\r\n", " ", "null", "NaN", "x" * 300], kind)
    return pa.array([b"", b"a", b"\0\xff", b"\xff", b"y" * 300], kind)


def _floats(width: int) -> pa.Array:
    """Zeros, infinities, the smallest number, and NaNs with different payloads."""
    letter = {2: "e", 4: "f", 8: "d"}[width]
    bits = [struct.pack(f"<{letter}", number) for number in (0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"))]
    bits += [b"\1" + bytes(width - 1), b"\xff" * width, b"\1" + bits[5][1:]]
    kind = {2: pa.float16(), 4: pa.float32(), 8: pa.float64()}[width]
    return pa.Array.from_buffers(kind, len(bits), [None, pa.py_buffer(b"".join(bits))])


def exact(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return Python values that are equal only if the Arrow values are equal: floats as bits, times as counts."""
    if isinstance(values, pa.ChunkedArray):
        return [value for chunk in values.chunks for value in exact(chunk)]
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return exact(values.storage)
    if pa.types.is_dictionary(kind):
        words = exact(values.dictionary)
        return [None if index is None else words[index] for index in values.indices.to_pylist()]
    valid = values.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        children = [exact(child) for child in values.flatten()]
        return [row if present else None for row, present in zip(zip(*children, strict=True), valid, strict=True)]
    if pa.types.is_map(kind):
        pairs = list(zip(exact(values.keys), exact(values.items), strict=True))
        spans = pairwise(values.offsets.to_pylist())
        return [pairs[start:end] if present else None for (start, end), present in zip(spans, valid, strict=True)]
    if hasattr(kind, "value_field"):
        items = iter(exact(values.flatten()))
        sizes = pc.list_value_length(values).to_pylist()
        return [list(islice(items, size)) if present else None for size, present in zip(sizes, valid, strict=True)]
    if pa.types.is_floating(kind):
        return list(values.view(pa.binary(kind.bit_width // 8)).to_pylist())
    if pa.types.is_temporal(kind):
        return list(values.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist())
    return list(values.to_pylist())
