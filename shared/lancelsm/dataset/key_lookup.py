"""Look up millions of keys in the keys of a delta or of the levels above the base.

Most looked-up keys are absent. Integers that lie close together are looked up in an array over their range, other
integers in hash tables of numpy, and other types by Arrow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.errors import Corrupt

Indexes = npt.NDArray[np.signedinteger[Any]]
_MOST_INT32 = (1 << 31) - 1

ABSENT = -1
_RANGE, _RANGE_PER_KEY = 1 << 24, 8  # a range up to this size, or this size for each key, is an array
_TABLES = 8
_SPREAD = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)  # odd: the top bits of a product depend on every bit of a key


class Keys:
    """Keys in the form of `record.key.key_column`, without nulls, each with a number. The first of equal keys counts.

    Args:
        numbers: from 0 on; by default the indexes of the keys.
    """

    def __init__(self, keys: pa.ChunkedArray, numbers: Indexes | None = None) -> None:
        numbers = np.arange(len(keys)) if numbers is None else numbers
        self._lookup = _integers(_as_integers(keys), numbers) if _is_integral(keys.type) else _Values(keys, numbers)
        self._count = len(keys)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """The bytes in memory, about."""
        return self._lookup.nbytes

    def find(self, wanted: pa.ChunkedArray) -> Indexes:
        """Return the number of each wanted key, or `ABSENT`.

        Look up many keys per call: unless keys are integers, each call hashes the whole set again.

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
        values = _as_integers(wanted)
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


def _is_integral(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in (pa.types.is_integer, pa.types.is_date32, pa.types.is_timestamp))


def _as_integers(keys: pa.ChunkedArray) -> Indexes:
    if pa.types.is_date32(keys.type):
        keys = keys.cast(pa.int32())
    elif pa.types.is_timestamp(keys.type):
        keys = keys.cast(pa.int64())
    values: Indexes = keys.to_numpy().astype(np.int64, copy=False)  # unsigned 64-bit values wrap, but stay distinct
    return values
