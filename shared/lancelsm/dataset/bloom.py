"""Build and query the bloom filter of a generation, bit for bit as Lance's own writer does.

It is a split-block filter with Parquet's salts: 32768 bytes, 1024 blocks of eight little-endian 32-bit words. The size
is fixed, so above about 8192 keys false positives become more frequent. The hash of a key is SipHash-1-3 with zero keys
(Rust's default hasher) over its columns in key order. Lance hashes only the null flag of columns that are not int32,
int64, utf8 or binary, so a filter over such a key is useless.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

BYTES = 32768
_BLOCKS = BYTES // 32
_SALTS = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], dtype=np.uint32
)
_FIXED = {pa.int32(): "<i4", pa.int64(): "<i8"}
_TYPES = frozenset({pa.int32(), pa.int64(), pa.utf8(), pa.binary()})
_ROWS_AT_ONCE = 1 << 14  # the temporary arrays fit into the cache of a core

_U64 = npt.NDArray[np.uint64]


def is_filterable(key: pa.Schema) -> bool:
    """Return whether Lance hashes the values of every column of this key."""
    return all(field.type in _TYPES for field in key)


def build_bloom(keys: pa.Table) -> bytes:
    """Build the filter over these keys.

    Args:
        keys: the key columns in key order, without nulls.

    Returns:
        32768 bytes. All bits are one, so that every key may be contained, if the key is not filterable.
    """
    if not is_filterable(keys.schema):
        return b"\xff" * BYTES
    bits = np.zeros(BYTES * 8, dtype=np.bool_)
    for batch in keys.to_batches(max_chunksize=_ROWS_AT_ONCE):
        bits[bit_positions(_hashes(batch), _BLOCKS)] = True
    return np.packbits(bits, bitorder="little").tobytes()


def may_contain(bloom: bytes, keys: pa.Table) -> npt.NDArray[np.bool_]:
    """Return one flag per key: False means that the key is certainly not one from which `bloom` was built.

    All flags are True if the key is not filterable or the filter has another size.
    """
    if not is_filterable(keys.schema) or len(bloom) != BYTES:
        return np.ones(keys.num_rows, dtype=np.bool_)
    bits = np.unpackbits(np.frombuffer(bloom, dtype=np.uint8), bitorder="little").astype(np.bool_)
    hashed = map(_hashes, keys.to_batches(max_chunksize=_ROWS_AT_ONCE))
    found = [bits[bit_positions(hashes, _BLOCKS)].all(axis=1) for hashes in hashed]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.bool_)


def bit_positions(hashes: _U64, count: int) -> npt.NDArray[np.int64]:
    """Return eight bit positions per hash, from the start of a filter of `count` blocks: one per word of a block."""
    blocks = ((hashes >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)
    low = hashes.astype(np.uint32)
    within = (low[:, None] * _SALTS[None, :]) >> np.uint32(27)
    words = blocks.astype(np.int64)[:, None] * 8 + np.arange(8)
    return words * 32 + within.astype(np.int64)


def _hashes(keys: pa.RecordBatch) -> _U64:
    """Return SipHash-1-3 of each row. Each column adds a null flag and the value, as Rust's `Hash` does."""
    parts: list[Any] = []
    for column in keys.columns:
        if column.type in _FIXED:
            values = np.ascontiguousarray(column.to_numpy(zero_copy_only=False), dtype=_FIXED[column.type])
            parts += [b"\0", _binary_of(values)]
        elif column.type == pa.utf8():
            parts += [b"\0", column.cast(pa.binary()), b"\xff"]
        else:
            lengths = np.ascontiguousarray(pc.binary_length(column).to_numpy(zero_copy_only=False), dtype="<u8")
            parts += [b"\0", _binary_of(lengths), column]
    return _siphash_1_3(_joined(parts, keys.num_rows))


def _binary_of(values: npt.NDArray[Any]) -> pa.Array:
    """Convert each number to a large binary value."""
    width = values.dtype.itemsize
    offsets = np.arange(len(values) + 1, dtype=np.int64) * width
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(values), [None, *map(pa.py_buffer, (offsets, values))]
    )


def _joined(parts: list[Any], rows: int) -> pa.Array:
    """Concatenate the parts of each row, with 64-bit offsets. A part is a column, or one value for all rows."""
    columns = [
        pa.repeat(pa.scalar(part, pa.large_binary()), rows) if isinstance(part, bytes) else part.cast(pa.large_binary())
        for part in parts
    ]
    return pc.binary_join_element_wise(*columns, pa.scalar(b"", pa.large_binary()))


def _siphash_1_3(messages: pa.Array) -> _U64:
    """Return SipHash-1-3 with zero keys of each large binary message.

    Processes one 8-byte word of all messages at a time. Messages are sorted, the longest first, so that the unfinished
    ones are always a prefix.
    """
    count = len(messages)
    offsets = np.frombuffer(messages.buffers()[1], dtype=np.int64)[messages.offset : messages.offset + count + 1]
    data = messages.buffers()[2]
    flat = np.concatenate([np.frombuffer(data, dtype=np.uint8), np.zeros(8, dtype=np.uint8)])
    lengths = np.diff(offsets)
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = offsets[:-1][order], lengths[order]
    words = lengths // 8
    state = [
        np.full(count, seed, dtype=np.uint64)
        for seed in (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    ]
    running = np.searchsorted(-words, -np.arange(int(words.max(initial=0))), side="left")
    for word, active in enumerate(running):
        block = [v[:active] for v in state]
        message = _words_at(flat, starts[:active] + 8 * word)
        block[3] ^= message
        _round(block)
        block[0] ^= message
    tail = lengths % 8
    last = _words_at(flat, starts + 8 * words) & ((np.uint64(1) << (tail * 8).astype(np.uint64)) - np.uint64(1))
    last |= lengths.astype(np.uint64) << np.uint64(56)
    state[3] ^= last
    _round(state)
    state[0] ^= last
    state[2] ^= np.uint64(0xFF)
    for _ in range(3):
        _round(state)
    hashes = np.empty(count, dtype=np.uint64)
    hashes[order] = state[0] ^ state[1] ^ state[2] ^ state[3]
    return hashes


def _words_at(flat: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> _U64:
    gathered = flat[starts[:, None] + np.arange(8)]
    words: _U64 = gathered.view("<u8").reshape(-1).astype(np.uint64, copy=False)
    return words


def _round(v: list[_U64]) -> None:
    """Compute one SipRound in place."""
    v[0] += v[1]
    v[1][:] = _rotated(v[1], 13) ^ v[0]
    v[0][:] = _rotated(v[0], 32)
    v[2] += v[3]
    v[3][:] = _rotated(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3][:] = _rotated(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1][:] = _rotated(v[1], 17) ^ v[2]
    v[2][:] = _rotated(v[2], 32)


def _rotated(x: _U64, by: int) -> _U64:
    return (x << np.uint64(by)) | (x >> np.uint64(64 - by))
