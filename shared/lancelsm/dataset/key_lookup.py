"""Look up millions of keys in the keys of a delta or of the levels above the base.

Most looked-up keys are absent. Integers that lie close together are looked up in an array over their range, other
integers in hash tables of numpy. So are texts, bytes and keys of several columns, by a hash of 64 bits, after which the
keys themselves are compared. Only if different keys have the same hash, Arrow looks keys up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.dataset.key_texts import Texts
from lancelsm.errors import Corrupt
from lancelsm.record.casts import whole
from lancelsm.record.key import key_column

Indexes = npt.NDArray[np.signedinteger[Any]]
_Column: TypeAlias = Indexes | Texts  # the values of a key column: all integers are of 64 bits
_MOST_INT32 = (1 << 31) - 1

ABSENT = -1
_RANGE, _RANGE_PER_KEY = 1 << 24, 8  # a range up to this size, or this size for each key, is an array
_IN_CACHE = 1 << 16  # looked up at once, so that what is computed for them stays in the cache of the core
_TABLES = 8
_SLOTS_PER_KEY = 4  # at least: few known keys share a slot then
_SEVERAL = np.uint8(255)
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

    def find_known(self, known: pa.ChunkedArray | pa.Table) -> Indexes:
        """Return the same as `find` for the known keys. Most of them are not looked up again."""
        own = self._lookup.own_numbers()
        return self.find(known) if own is None else own


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
        found = np.empty(len(wanted[0]), self._numbers.dtype)
        at = np.empty(_IN_CACHE, np.int64)
        for start, (keys,) in _blocks(wanted):
            here = at[: len(keys)]
            np.subtract(_as_integers(keys), self._before, out=here)
            np.take(self._numbers, here, out=found[start : start + len(keys)], mode="clip")  # "raise" would copy
        return found

    def own_numbers(self) -> None:
        """Return None: the keys are not kept."""


class _Tables:
    """Hash tables: a key that finds its slot taken goes to the next table. What fits in none is sorted."""

    def __init__(self, values: Indexes, numbers: Indexes) -> None:
        self._values, self._numbers = values, numbers
        self._filter = _Filter(values)
        self._owners: list[Indexes] = []
        left: Indexes = np.arange(len(values), dtype=np.int32 if len(values) <= _MOST_INT32 else np.int64)
        self.firsts: Indexes = left.copy()  # for each key, the index of the first one that is equal
        for table in range(_TABLES):
            if not len(left):
                break
            owners: Indexes = np.full(1 << (2 * len(left)).bit_length(), ABSENT, left.dtype)
            slots = _slots(values[left], len(owners), table)
            owners[slots[::-1]] = left[::-1]  # the first of equal keys is assigned last
            self._owners.append(owners)
            at = owners[slots]
            same = values[at] == values[left]
            self.firsts[left[same]] = at[same]
            left = left[~same]
        order = left[np.argsort(values[left], kind="stable")]
        self._rest, self._rest_at = values[order], order
        self.firsts[left] = order[np.searchsorted(self._rest, values[left])]
        arrays = (values, numbers, self.firsts, *self._owners, self._rest, self._rest_at)
        self.nbytes = sum(int(array.nbytes) for array in arrays) + self._filter.nbytes

    def find(self, wanted: Sequence[pa.ChunkedArray]) -> Indexes:
        found = np.full(len(wanted[0]), ABSENT, self._numbers.dtype)
        for start, (keys,) in _blocks(wanted):
            rows, at = self.matches(_as_integers(keys))
            found[start + rows] = self._numbers[at]
        return found

    def own_numbers(self) -> Indexes:
        """Return the number of each known key."""
        return self._numbers[self.firsts]

    def matches(self, values: Indexes) -> tuple[Indexes, Indexes]:
        """Return the places of the values that are known, and for each the index of the first known one."""
        possible = self._filter.possible(values)
        wanted = left = values.take(possible)
        found = np.full(len(wanted), ABSENT, np.int64)
        places = np.arange(len(wanted))
        for table, owners in enumerate(self._owners):
            at = owners.take(_slots(left, len(owners), table), mode="clip")
            found[places] = at
            others = np.flatnonzero((self._values.take(at, mode="clip") != left) & (at != ABSENT))
            places, left = places.take(others), left.take(others)
        found[places] = ABSENT
        if len(self._rest) and len(left):
            at = np.minimum(np.searchsorted(self._rest, left), len(self._rest) - 1)
            found[places] = np.where(self._rest[at] == left, self._rest_at[at], ABSENT)
        known = np.flatnonzero(found != ABSENT)
        return possible.take(known), found.take(known)


class _Filter:
    """Most values that are not known are excluded by one byte: each known one leaves a tag of 7 bits in its slot."""

    def __init__(self, values: Indexes) -> None:
        self._tags = np.zeros(_SLOTS_PER_KEY << len(values).bit_length(), np.uint8)
        slots, tags = self._places(values)
        self._tags[slots] = tags
        self._tags[slots[self._tags[slots] != tags]] = _SEVERAL
        self.nbytes = int(self._tags.nbytes)

    def possible(self, values: Indexes) -> Indexes:
        """Return the places of the values that may be known, in ascending order."""
        slots, tags = self._places(values)
        found = self._tags.take(slots, mode="clip")
        return np.flatnonzero((found == tags) | (found == _SEVERAL))

    def _places(self, values: Indexes) -> tuple[Indexes, npt.NDArray[np.uint8]]:
        mixed = _mixed(values, 0)
        return _top(mixed, len(self._tags)), (mixed.astype(np.uint8) & np.uint8(127)) + np.uint8(1)


class _Hashed:
    """Texts, bytes, or keys of several columns, found by their hashes and then compared."""

    def __init__(self, keys: Sequence[pa.ChunkedArray], numbers: Indexes) -> None:
        self._columns = [_comparable(_as_one(column)) for column in keys]
        self._numbers = numbers
        self._tables = _Tables(_hashes(self._columns), numbers)
        firsts = self._tables.firsts
        later = np.flatnonzero(firsts != np.arange(len(firsts)))
        self.is_exact = bool(self._are_equal(firsts[later], self._columns, later).all())
        self.nbytes = sum(int(column.nbytes) for column in self._columns) + self._tables.nbytes

    @classmethod
    def of(cls, keys: Sequence[pa.ChunkedArray], numbers: Indexes) -> Self | None:
        """Return None if different keys have the same hash."""
        found = cls(keys, numbers)
        return found if found.is_exact else None

    def find(self, wanted: Sequence[pa.ChunkedArray]) -> Indexes:
        found = np.full(len(wanted[0]), ABSENT, self._numbers.dtype)
        for start, keys in _blocks(wanted):
            columns = [_comparable(column) for column in keys]
            rows, at = self._tables.matches(_hashes(columns))
            same = self._are_equal(at, columns, rows)
            found[start + rows[same]] = self._numbers[at[same]]
        return found

    def own_numbers(self) -> Indexes:
        return self._tables.own_numbers()

    def _are_equal(self, at: Indexes, columns: Sequence[_Column], rows: Indexes) -> npt.NDArray[np.bool_]:
        """Compare the known keys at these indexes with these rows of the columns."""
        same = np.ones(len(at), np.bool_)
        for own, others in zip(self._columns, columns, strict=True):
            if isinstance(own, Texts):
                same &= own.equal(at, cast("Texts", others), rows)
            else:
                same &= own[at] == cast("Indexes", others)[rows]
        return same


class _Values:
    def __init__(self, keys: Sequence[pa.ChunkedArray], numbers: Indexes) -> None:
        self._keys, self._numbers = _encoded(keys), numbers
        self.nbytes = int(self._keys.nbytes + numbers.nbytes)

    def find(self, wanted: Sequence[pa.ChunkedArray]) -> Indexes:
        at: Indexes = pc.index_in(_encoded(wanted), value_set=self._keys).fill_null(ABSENT).to_numpy().astype(np.int64)
        return np.append(self._numbers, ABSENT)[at]

    def own_numbers(self) -> None:
        """Return None: they are found like other keys."""


def _integers(values: Indexes, numbers: Indexes) -> _Range | _Tables:
    if len(values):
        least, greatest = int(values.min()), int(values.max())
        if greatest - least < max(_RANGE, _RANGE_PER_KEY * len(values)):
            return _Range(values, numbers, least=least, size=greatest - least + 1)
    return _Tables(values, numbers)


def _slots(values: Indexes, size: int, table: int) -> Indexes:
    """Return the slot of each key in a table of this size, a power of two. Every table spreads keys differently."""
    return _top(_mixed(values, table), size)


def _mixed(values: Indexes, table: int) -> npt.NDArray[np.uint64]:
    mixed = values.view(np.uint64) ^ np.uint64(table * _SPREAD[1] % (1 << 64))
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(_SPREAD[0])
    return mixed


def _top(mixed: npt.NDArray[np.uint64], size: int) -> Indexes:
    slots: Indexes = (mixed >> np.uint64(65 - size.bit_length())).view(np.int64)
    return slots


def _columns(keys: pa.ChunkedArray | pa.Table) -> list[pa.ChunkedArray]:
    columns = keys.columns if isinstance(keys, pa.Table) else [keys]
    if any(column.null_count for column in columns):
        raise Corrupt("a key is null")
    return columns


def _encoded(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    names = _names(columns)
    return key_column(pa.table(list(columns), names=names), tuple(names))


def _blocks(columns: Sequence[pa.ChunkedArray]) -> Iterator[tuple[int, list[pa.Array]]]:
    """Yield a few rows at a time, so that what is computed for them stays in the cache, and the number of the first."""
    start = 0
    for batch in pa.table(list(columns), names=_names(columns)).to_batches(max_chunksize=_IN_CACHE):
        yield start, batch.columns
        start += batch.num_rows


def _names(columns: Sequence[pa.ChunkedArray]) -> list[str]:
    return [str(number) for number in range(len(columns))]


def _as_one(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, also if it has more than 2 GiB of texts."""
    return whole(column.cast(pa.large_binary()) if _is_text(column.type) else column)


def _comparable(keys: pa.Array) -> _Column:
    return Texts.of(keys) if _is_text(keys.type) else _as_integers(keys)


def _hashes(columns: Sequence[_Column]) -> Indexes:
    """Hash each key. Hashes are not stored, and keys with equal ones are compared."""
    parts = [column.hashes() if isinstance(column, Texts) else column.view(np.uint64) for column in columns]
    hashes = parts[0]
    for part in parts[1:]:
        mixed = (hashes ^ (hashes >> np.uint64(32))) * np.uint64(_SPREAD[0])
        hashes = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(_SPREAD[1]) ^ part
    return hashes.view(np.int64)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _as_integers(keys: pa.ChunkedArray | pa.Array) -> Indexes:
    if pa.types.is_boolean(keys.type):
        keys = keys.cast(pa.int8())
    elif pa.types.is_date32(keys.type):
        keys = keys.cast(pa.int32())
    elif pa.types.is_timestamp(keys.type):
        keys = keys.cast(pa.int64())
    values: Indexes = (
        whole(keys).to_numpy().astype(np.int64, copy=False)
    )  # unsigned 64-bit values wrap, but stay distinct
    return values
