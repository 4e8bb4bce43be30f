"""Look up millions of keys in the keys of a delta or of the levels above the base.

Most looked-up keys are absent. Integers that lie close together are looked up in an array over their range, other
integers in hash tables of numpy. So are texts and bytes, by a hash of 64 bits, after which the keys themselves are
compared. Other types are looked up by Arrow.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.errors import Corrupt
from lancelsm.record.casts import whole

Indexes = npt.NDArray[np.signedinteger[Any]]
_MOST_INT32 = (1 << 31) - 1

ABSENT = -1
_RANGE, _RANGE_PER_KEY = 1 << 24, 8  # a range up to this size, or this size for each key, is an array
_TABLES = 8
_HASHED_BYTES = 256  # longer values with the same beginning and length have the same hash
_ALL = np.uint64((1 << 64) - 1)
_SPREAD = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)  # odd: the top bits of a product depend on every bit of a key


class Keys:
    """Keys in the form of `record.key.key_column`, without nulls, each with a number. The first of equal keys counts.

    Args:
        numbers: from 0 on; by default the indexes of the keys.
    """

    def __init__(self, keys: pa.ChunkedArray, numbers: Indexes | None = None) -> None:
        numbers = np.arange(len(keys)) if numbers is None else numbers
        self._lookup: _Range | _Tables | _Texts | _Values
        if _is_integral(keys.type):
            self._lookup = _integers(_as_integers(keys), numbers)
        else:
            self._lookup = (_Texts.of(keys, numbers) if _is_text(keys.type) else None) or _Values(keys, numbers)
        self._count = len(keys)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """The bytes in memory, about."""
        return self._lookup.nbytes

    def find(self, wanted: pa.ChunkedArray) -> Indexes:
        """Return the number of each wanted key, or `ABSENT`.

        Look up many keys per call: unless keys are integers, texts or bytes, each call hashes the whole set again.

        Raises:
            Corrupt: a wanted key is null.
        """
        if wanted.null_count:
            raise Corrupt("a key of the base is null")
        return self._lookup.find(wanted)


class _Range:
    """The number of each integer between the least and the greatest key."""

    def __init__(self, values: Indexes, numbers: Indexes, *, least: int, size: int) -> None:
        self._least = np.int64(least)
        self._end = np.uint64(size)
        self._numbers: Indexes = np.full(size + 1, ABSENT, np.min_scalar_type(-1 - int(numbers.max())))
        self._numbers[values[::-1] - self._least] = numbers[::-1]  # the last assignment counts
        self.nbytes = int(self._numbers.nbytes)

    def find(self, wanted: pa.ChunkedArray) -> Indexes:
        at = (_as_integers(wanted) - self._least).view(np.uint64)  # less than the least becomes very large
        return self._numbers[np.minimum(at, self._end)]


class _Tables:
    """Hash tables: a key that finds its slot taken goes to the next table. What fits in none is sorted."""

    def __init__(self, values: Indexes, numbers: Indexes) -> None:
        self._values, self._numbers = values, numbers
        self._owners: list[Indexes] = []
        left = np.arange(len(values), dtype=np.int32 if len(values) <= _MOST_INT32 else np.int64)
        for table in range(_TABLES):
            if not len(left):
                break
            owners: Indexes = np.full(1 << (2 * len(left)).bit_length(), ABSENT, left.dtype)
            slots = _slots(values[left], len(owners), table)
            owners[slots[::-1]] = left[::-1]  # the first of equal keys is assigned last
            self._owners.append(owners)
            left = left[values[owners[slots]] != values[left]]
        order = left[np.argsort(values[left], kind="stable")]
        self._rest, self._rest_at = values[order], order
        self.nbytes = sum(int(array.nbytes) for array in (values, numbers, *self._owners, self._rest, self._rest_at))

    def find(self, wanted: pa.ChunkedArray) -> Indexes:
        return self.numbers_of(_as_integers(wanted))

    def numbers_of(self, values: Indexes) -> Indexes:
        """Return the number of each of these values, or `ABSENT`."""
        found = np.full(len(values), ABSENT, np.int64)
        pending = np.arange(len(values))
        for table, owners in enumerate(self._owners):
            at = owners[_slots(values[pending], len(owners), table)]
            taken = at != ABSENT
            pending, at = pending[taken], at[taken]
            same = self._values[at] == values[pending]
            found[pending[same]] = self._numbers[at[same]]
            pending = pending[~same]
        if len(self._rest) and len(pending):
            at = np.minimum(np.searchsorted(self._rest, values[pending]), len(self._rest) - 1)
            same = self._rest[at] == values[pending]
            found[pending[same]] = self._numbers[self._rest_at[at[same]]]
        return found


class _Texts:
    """Texts or bytes, found by their hashes and then compared."""

    def __init__(self, keys: pa.LargeBinaryArray, numbers: Indexes) -> None:
        hashes = _hashes(keys)
        self._keys, self._numbers = keys, numbers
        self._tables = _Tables(hashes, np.arange(len(hashes)))
        self.is_exact = self._are_equal(self._tables.numbers_of(hashes), keys).all()
        self.nbytes = int(keys.nbytes + numbers.nbytes) + self._tables.nbytes

    @classmethod
    def of(cls, keys: pa.ChunkedArray, numbers: Indexes) -> Self | None:
        """Return None if different keys have the same hash."""
        found = cls(_as_bytes(keys), numbers)
        return found if found.is_exact else None

    def find(self, wanted: pa.ChunkedArray) -> Indexes:
        values = _as_bytes(wanted)
        at = self._tables.numbers_of(_hashes(values))
        hits = np.flatnonzero(at != ABSENT)
        hits = hits[self._are_equal(at[hits], values.take(pa.array(hits)))]
        found = np.full(len(at), ABSENT, np.int64)
        found[hits] = self._numbers[at[hits]]
        return found

    def _are_equal(self, at: Indexes, values: pa.LargeBinaryArray) -> npt.NDArray[np.bool_]:
        same: npt.NDArray[np.bool_] = pc.equal(self._keys.take(pa.array(at)), values).to_numpy(zero_copy_only=False)
        return same


class _Values:
    def __init__(self, keys: pa.ChunkedArray, numbers: Indexes) -> None:
        self._keys, self._numbers = keys, numbers
        self.nbytes = int(keys.nbytes + numbers.nbytes)

    def find(self, wanted: pa.ChunkedArray) -> Indexes:
        at: Indexes = pc.index_in(wanted, value_set=self._keys).fill_null(ABSENT).to_numpy().astype(np.int64)
        return np.append(self._numbers, ABSENT)[at]


def _integers(values: Indexes, numbers: Indexes) -> _Range | _Tables:
    if len(values):
        least, greatest = int(values.min()), int(values.max())
        if greatest - least < max(_RANGE, _RANGE_PER_KEY * len(values)):
            return _Range(values, numbers, least=least, size=greatest - least + 1)
    return _Tables(values, numbers)


def _slots(values: Indexes, size: int, table: int) -> Indexes:
    """Return the slot of each key in a table of this size, a power of two. Every table spreads keys differently."""
    mixed = values.view(np.uint64) ^ np.uint64(table * _SPREAD[1] % (1 << 64))
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(_SPREAD[0])
    slots: Indexes = (mixed >> np.uint64(65 - size.bit_length())).view(np.int64)
    return slots


def _as_bytes(keys: pa.ChunkedArray) -> pa.LargeBinaryArray:
    return whole(keys.cast(pa.large_binary()))


def _hashes(values: pa.LargeBinaryArray) -> Indexes:
    """Hash the bytes of each value, 8 at a time. Hashes are not stored, and values with equal ones are compared."""
    if not len(values):
        return np.empty(0, np.int64)
    _, offsets, body = values.buffers()
    ends = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    first, size = int(ends[0]), int(ends[-1] - ends[0])
    padded = np.zeros(size // 8 * 8 + 16, np.uint8)  # each byte begins a word
    padded[:size] = np.frombuffer(body, np.uint8, size, first) if size else 0
    words = np.lib.stride_tricks.as_strided(padded.view(np.uint64)[:1], (size + 1,), (1,))
    starts, lengths = ends[:-1] - first, np.diff(ends)
    hashes = lengths.astype(np.uint64) * np.uint64(_SPREAD[1])
    for at in range(0, min(int(lengths.max()), _HASHED_BYTES), 8):
        is_longer = lengths > at
        rows = slice(None) if is_longer.all() else np.flatnonzero(is_longer)
        left = np.minimum(lengths[rows] - at, 8).astype(np.uint64)
        word = words[starts[rows] + at] & (_ALL >> (np.uint64(64) - np.uint64(8) * left))
        mixed = (hashes[rows] ^ word) * np.uint64(_SPREAD[0])
        hashes[rows] = mixed ^ (mixed >> np.uint64(32))
    return hashes.view(np.int64)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _is_integral(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in (pa.types.is_integer, pa.types.is_date32, pa.types.is_timestamp))


def _as_integers(keys: pa.ChunkedArray) -> Indexes:
    if pa.types.is_date32(keys.type):
        keys = keys.cast(pa.int32())
    elif pa.types.is_timestamp(keys.type):
        keys = keys.cast(pa.int64())
    values: Indexes = keys.to_numpy().astype(np.int64, copy=False)  # unsigned 64-bit values wrap, but stay distinct
    return values
