"""Look up millions of keys in the keys of a delta or of the levels above the base.

Most looked-up keys are absent. Integers that lie close together are looked up in an array over their range, other
integers in hash tables of numpy. So are texts, bytes and keys of several columns, by a hash of 64 bits, after which the
keys themselves are compared. Only if different keys have the same hash, Arrow looks keys up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.errors import Corrupt
from lancelsm.record.casts import whole
from lancelsm.record.key import key_column

Indexes = npt.NDArray[np.signedinteger[Any]]
_Column: TypeAlias = Indexes | pa.LargeBinaryArray  # the values of a key column: all integers are of 64 bits
_MOST_INT32 = (1 << 31) - 1

ABSENT = -1
_RANGE, _RANGE_PER_KEY = 1 << 24, 8  # a range up to this size, or this size for each key, is an array
_IN_CACHE = 1 << 15  # looked up at once, so that what is computed for them stays in the cache of the core
_TABLES = 8
_HASHED_BYTES = 256  # longer values with the same beginning and length have the same hash
_ALL = np.uint64((1 << 64) - 1)
_SPREAD = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)  # odd: the top bits of a product depend on every bit of a key


class Keys:
    """Keys without nulls, each with a number. The first of equal keys counts.

    Args:
        keys: the key column, or a table of the key columns.
        numbers: from 0 on; by default the indexes of the keys.

    Raises:
        Corrupt: a key is null.
    """

    def __init__(self, keys: pa.ChunkedArray | pa.Table, numbers: Indexes | None = None) -> None:
        numbers = np.arange(len(keys)) if numbers is None else numbers
        columns = _columns(keys)
        self._lookup: _Range | _Tables | _Hashed | _Values
        if len(columns) == 1 and not _is_text(columns[0].type):
            self._lookup = _integers(_as_integers(columns[0]), numbers)
        else:
            self._lookup = _Hashed.of(columns, numbers) or _Values(columns, numbers)
        self._count = len(keys)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """The bytes in memory, about."""
        return self._lookup.nbytes

    def find(self, wanted: pa.ChunkedArray | pa.Table) -> Indexes:
        """Return the number of each wanted key, or `ABSENT`. Wanted keys have the form and types of the known keys.

        Raises:
            Corrupt: a wanted key is null.
        """
        return self._lookup.find(_columns(wanted))


class _Range:
    """The number of each integer between the least and the greatest key; before and after them is an absent one."""

    def __init__(self, values: Indexes, numbers: Indexes, *, least: int, size: int) -> None:
        self._before = np.uint64((least - 1) % (1 << 64)).astype(np.int64)  # differences wrap, too
        self._numbers: Indexes = np.full(size + 2, ABSENT, np.min_scalar_type(-1 - int(numbers.max())))
        at = np.empty(min(len(values), _IN_CACHE), np.int64)
        for end in range(len(values), 0, -_IN_CACHE):  # the last assignment counts
            some = values[max(end - _IN_CACHE, 0) : end][::-1]
            here = at[: len(some)]
            np.subtract(some, self._before, out=here)
            self._numbers[here] = numbers[max(end - _IN_CACHE, 0) : end][::-1]
        self.nbytes = int(self._numbers.nbytes)

    def find(self, wanted: Sequence[pa.ChunkedArray]) -> Indexes:
        values = _as_integers(wanted[0])
        found = np.empty(len(values), self._numbers.dtype)
        at = np.empty(min(len(values), _IN_CACHE), np.int64)
        for start in range(0, len(values), _IN_CACHE):
            some = values[start : start + _IN_CACHE]
            here = at[: len(some)]
            np.subtract(some, self._before, out=here)
            np.take(self._numbers, here, out=found[start : start + len(some)], mode="clip")  # "raise" would copy
        return found


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

    def find(self, wanted: Sequence[pa.ChunkedArray]) -> Indexes:
        return self.numbers_of(_as_integers(wanted[0]))

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


class _Hashed:
    """Texts, bytes, or keys of several columns, found by their hashes and then compared."""

    def __init__(self, keys: Sequence[pa.ChunkedArray], numbers: Indexes) -> None:
        self._columns = [_comparable(column) for column in keys]
        self._numbers = numbers
        hashes = _hashes(self._columns)
        self._tables = _Tables(hashes, np.arange(len(hashes)))
        self.is_exact = self._are_equal(self._tables.numbers_of(hashes), self._columns).all()
        self.nbytes = sum(int(column.nbytes) for column in self._columns) + int(numbers.nbytes) + self._tables.nbytes

    @classmethod
    def of(cls, keys: Sequence[pa.ChunkedArray], numbers: Indexes) -> Self | None:
        """Return None if different keys have the same hash."""
        found = cls(keys, numbers)
        return found if found.is_exact else None

    def find(self, wanted: Sequence[pa.ChunkedArray]) -> Indexes:
        columns = [_comparable(column) for column in wanted]
        at = self._tables.numbers_of(_hashes(columns))
        hits = np.flatnonzero(at != ABSENT)
        hits = hits[self._are_equal(at[hits], [_taken(column, hits) for column in columns])]
        found = np.full(len(at), ABSENT, np.int64)
        found[hits] = self._numbers[at[hits]]
        return found

    def _are_equal(self, at: Indexes, columns: Sequence[_Column]) -> npt.NDArray[np.bool_]:
        """Compare the known keys at these indexes with the keys in `columns`."""
        same = np.ones(len(at), np.bool_)
        for own, others in zip(self._columns, columns, strict=True):
            equal = pc.equal(_taken(own, at), others) if isinstance(others, pa.Array) else _taken(own, at) == others
            same &= np.asarray(equal)
        return same


class _Values:
    def __init__(self, keys: Sequence[pa.ChunkedArray], numbers: Indexes) -> None:
        self._keys, self._numbers = _encoded(keys), numbers
        self.nbytes = int(self._keys.nbytes + numbers.nbytes)

    def find(self, wanted: Sequence[pa.ChunkedArray]) -> Indexes:
        at: Indexes = pc.index_in(_encoded(wanted), value_set=self._keys).fill_null(ABSENT).to_numpy().astype(np.int64)
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


def _columns(keys: pa.ChunkedArray | pa.Table) -> list[pa.ChunkedArray]:
    columns = keys.columns if isinstance(keys, pa.Table) else [keys]
    if any(column.null_count for column in columns):
        raise Corrupt("a key is null")
    return columns


def _encoded(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    names = tuple(map(str, range(len(columns))))
    return key_column(pa.table(list(columns), names=list(names)), names)


def _comparable(keys: pa.ChunkedArray) -> _Column:
    return whole(keys.cast(pa.large_binary())) if _is_text(keys.type) else _as_integers(keys)


def _taken(column: _Column, at: Indexes) -> _Column:
    return column.take(pa.array(at)) if isinstance(column, pa.Array) else column[at]


def _hashes(columns: Sequence[_Column]) -> Indexes:
    """Hash each key. Hashes are not stored, and keys with equal ones are compared."""
    parts = [_text_hashes(column) if isinstance(column, pa.Array) else column for column in columns]
    hashes = parts[0].view(np.uint64)
    for part in parts[1:]:
        mixed = (hashes ^ (hashes >> np.uint64(32))) * np.uint64(_SPREAD[0])
        hashes = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(_SPREAD[1]) ^ part.view(np.uint64)
    return hashes.view(np.int64)


def _text_hashes(values: pa.LargeBinaryArray) -> Indexes:
    """Hash the bytes of each value, 8 at a time."""
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


def _as_integers(keys: pa.ChunkedArray) -> Indexes:
    if pa.types.is_boolean(keys.type):
        keys = keys.cast(pa.int8())
    elif pa.types.is_date32(keys.type):
        keys = keys.cast(pa.int32())
    elif pa.types.is_timestamp(keys.type):
        keys = keys.cast(pa.int64())
    values: Indexes = keys.to_numpy().astype(np.int64, copy=False)  # unsigned 64-bit values wrap, but stay distinct
    return values
