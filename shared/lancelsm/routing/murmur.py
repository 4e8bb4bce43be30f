"""The hash for `bucket` and `multi_bucket`: Murmur3 (x86, 32 bit) in the variant of Spark, as Lance 14 computes it.

Numbers of up to 32 bits are one word; longer numbers are two words, low word first. For text the variant differs from
standard Murmur3 in the last one to three bytes: each is sign-extended and mixed as a separate word. So `mmh3` hashes
the whole words of a text. Then its final mix is undone (it is a bijection), the remaining bytes are mixed in, and the
final mix is applied again with the full length. All other arithmetic uses Arrow kernels on whole columns, so the code
is the same with and without numpy.
"""

from __future__ import annotations

from array import array

import mmh3
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from lancelsm.errors import Invalid

_WORD = pa.uint32()
_M1, _M2 = 0x85EBCA6B, 0xC2B2AE35
_M1_INVERSE, _M2_INVERSE = pow(_M1, -1, 1 << 32), pow(_M2, -1, 1 << 32)


def hashed(column: pa.Array, *, seed: pa.Array | None = None) -> pa.Array:
    """Return the hash of each value as uint32; null for null.

    Args:
        column: bool, integer, float, date32, time or timestamp, text or binary.
        seed: uint32, one per row, without nulls; by default zero for every row.

    Raises:
        Invalid: a column of another type.
    """
    kind = column.type
    if _is_text(kind):
        return _of_text(column, seed)
    start = pa.repeat(pa.scalar(0, _WORD), len(column)) if seed is None else seed
    words = _words(column)
    for word in words:
        start = _mix(start, word)
    return _finish(start, pa.scalar(4 * len(words), _WORD))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_binary(kind) or pt.is_large_binary(kind))


def _words(column: pa.Array) -> list[pa.Array]:
    """Return the values of the column as one or two uint32 columns."""
    kind = column.type
    if pt.is_float32(kind) or pt.is_float64(kind):
        # Equal values must have equal hashes: normalize -0.0 and NaN.
        nan = pa.scalar(float("nan"), kind)
        column = pc.if_else(pc.is_nan(column), nan, pc.add(column, pa.scalar(0.0, kind)))
    elif pt.is_boolean(kind) or pt.is_int8(kind) or pt.is_int16(kind) or pt.is_uint8(kind) or pt.is_uint16(kind):
        column = column.cast(pa.int32())
    elif not (pt.is_integer(kind) or pt.is_date32(kind) or pt.is_time(kind) or pt.is_timestamp(kind)):
        raise Invalid(
            f"a column of type {kind} can't be hashed to a bucket",
            remedy="Choose another column of the key, or identity(column)",
        )
    if column.type.bit_width == 32:
        return [column.view(_WORD)]
    bits = column.view(pa.uint64())
    return [bits.cast(_WORD, safe=False), pc.shift_right(bits, pa.scalar(32, pa.uint64())).cast(_WORD)]


def _of_text(column: pa.Array, seed: pa.Array | None) -> pa.Array:
    wide = pt.is_large_string(column.type) or pt.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    data_bytes = data or pa.py_buffer(b"")
    index = pa.int64() if wide else pa.int32()
    starts = pa.Array.from_buffers(index, len(column), [None, offsets], offset=column.offset).cast(pa.int64())
    lengths = pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
    bodies = pc.bit_wise_and(lengths, pa.scalar(-4, pa.int64()))
    ends = pc.add(starts, bodies)
    tails = pc.subtract(lengths, bodies)

    state = pc.bit_wise_xor(_unmix(_of_bodies(data_bytes, starts, ends, seed)), bodies.cast(_WORD))
    signed = pa.Array.from_buffers(pa.int8(), data_bytes.size, [None, data_bytes])
    for number in range(3):
        present = pc.greater(tails, number)
        index = pc.if_else(present, pc.add(ends, number), pa.scalar(None, pa.int64()))
        byte = signed.take(index).cast(pa.int32()).view(_WORD)
        state = pc.if_else(present, _mix(state, byte), state)
    return pc.if_else(column.is_valid(), _finish(state, lengths.cast(_WORD)), pa.scalar(None, _WORD))


def _of_bodies(data_bytes: pa.Buffer, starts: pa.Array, ends: pa.Array, seed: pa.Array | None) -> pa.Array:
    """Apply mmh3 to the whole words of each text."""
    text = data_bytes.to_pybytes()
    hash32 = mmh3.hash
    runs = zip(_numbers(starts, "q"), _numbers(ends, "q"), strict=True)
    if seed is None:
        hashes = array("I", [hash32(text[start:end], 0, False) for start, end in runs])
    else:
        seeds = _numbers(seed, "I")
        hashes = array("I", [hash32(text[a:b], first, False) for (a, b), first in zip(runs, seeds, strict=True)])
    return pa.Array.from_buffers(_WORD, len(starts), [None, pa.py_buffer(hashes)])


def _numbers(column: pa.Array, code: str) -> list[int]:
    """Return a column without nulls as Python integers, much faster than `to_pylist`."""
    data = column.buffers()[1]
    values = array(code, b"" if data is None else data.to_pybytes())
    return values[column.offset : column.offset + len(column)].tolist()


def _mix(state: pa.Array, word: pa.Array) -> pa.Array:
    scrambled = _times(_rotated(_times(word, 0xCC9E2D51), 15), 0x1B873593)
    rotated = _rotated(pc.bit_wise_xor(state, scrambled), 13)
    return pc.add(_times(rotated, 5), pa.scalar(0xE6546B64, _WORD))


def _finish(state: pa.Array, length: pa.Array | pa.Scalar) -> pa.Array:
    state = _shifted(pc.bit_wise_xor(state, length), 16)
    state = _shifted(_times(state, _M1), 13)
    return _shifted(_times(state, _M2), 16)


def _unmix(final: pa.Array) -> pa.Array:
    """Undo `_finish`: return its state with the length already mixed in."""
    state = _times(_shifted(final, 16), _M2_INVERSE)
    # x ^ x >> 13 is undone by shifts of 13 and 26; a shift of 16 undoes itself.
    state = pc.bit_wise_xor(_shifted(state, 13), pc.shift_right(state, pa.scalar(26, _WORD)))
    return _shifted(_times(state, _M1_INVERSE), 16)


def _times(column: pa.Array, factor: int) -> pa.Array:
    return pc.multiply(column, pa.scalar(factor, _WORD))


def _shifted(column: pa.Array, by: int) -> pa.Array:
    return pc.bit_wise_xor(column, pc.shift_right(column, pa.scalar(by, _WORD)))


def _rotated(column: pa.Array, by: int) -> pa.Array:
    left = pc.shift_left(column, pa.scalar(by, _WORD))
    return pc.bit_wise_or(left, pc.shift_right(column, pa.scalar(32 - by, _WORD)))
