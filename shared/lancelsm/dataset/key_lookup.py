"""Look up millions of keys in the keys of a delta.

Most looked-up keys are absent. For integers a bitmap finds most absent keys without a search; other types are hashed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.errors import Corrupt

Indexes = npt.NDArray[np.int64]

ABSENT = -1
_BITMAP_BITS = range(10, 25)  # 16 MB at most
_SPREAD = np.int64(-7046029254386353131)  # odd, so that the top bits of a product depend on every bit of a key


class Keys:
    """Distinct keys in the form of `record.key.key_column`, without nulls."""

    def __init__(self, keys: pa.ChunkedArray) -> None:
        self._lookup = _Integers(keys) if _is_integral(keys.type) else _Values(keys)
        self._count = len(keys)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """The bytes in memory, about."""
        return self._lookup.nbytes

    def find(self, wanted: pa.ChunkedArray) -> Indexes:
        """Return the index of each wanted key in this set, or `ABSENT`.

        Look up many keys per call: unless keys are integers, each call hashes the whole set again.

        Raises:
            Corrupt: a wanted key is null.
        """
        if wanted.null_count:
            raise Corrupt("a key of the base is null")
        return self._lookup.find(wanted)


class _Integers:
    def __init__(self, keys: pa.ChunkedArray) -> None:
        values = _as_integers(keys)
        self._indexes = np.argsort(values)
        self._sorted = values[self._indexes]
        self._bits = min(max(len(values).bit_length() + 4, _BITMAP_BITS.start), _BITMAP_BITS.stop - 1)
        self._bitmap = np.zeros(1 << self._bits, np.bool_)
        self._bitmap[self._slots(values)] = True
        self.nbytes = int(self._indexes.nbytes + self._sorted.nbytes + self._bitmap.nbytes)

    def find(self, wanted: pa.ChunkedArray) -> Indexes:
        values = _as_integers(wanted)
        found = np.full(len(values), ABSENT, np.int64)
        if len(self._sorted):
            likely = np.flatnonzero(self._bitmap[self._slots(values)])
            at = np.searchsorted(self._sorted, values[likely])
            at[at == len(self._sorted)] = 0
            exact = self._sorted[at] == values[likely]
            found[likely[exact]] = self._indexes[at[exact]]
        return found

    def _slots(self, values: Indexes) -> Indexes:
        slots: Indexes = (values * _SPREAD) >> np.int64(64 - self._bits) & np.int64((1 << self._bits) - 1)
        return slots


class _Values:
    def __init__(self, keys: pa.ChunkedArray) -> None:
        self._keys = keys
        self.nbytes = int(keys.nbytes)

    def find(self, wanted: pa.ChunkedArray) -> Indexes:
        found: Indexes = pc.index_in(wanted, value_set=self._keys).fill_null(ABSENT).to_numpy().astype(np.int64)
        return found


def _is_integral(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in (pa.types.is_integer, pa.types.is_date32, pa.types.is_timestamp))


def _as_integers(keys: pa.ChunkedArray) -> Indexes:
    if pa.types.is_date32(keys.type):
        keys = keys.cast(pa.int32())
    elif pa.types.is_timestamp(keys.type):
        keys = keys.cast(pa.int64())
    values: Indexes = keys.to_numpy().astype(np.int64, copy=False)  # unsigned 64-bit values wrap, but stay distinct
    return values
