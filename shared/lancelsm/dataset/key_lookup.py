"""The keys of a delta, looked up by the million.

What is asked is mostly absent. For integers a bitmap says so without a search; other types are hashed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.errors import Corrupt

Places = npt.NDArray[np.int64]

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

    def find(self, asked: pa.ChunkedArray) -> Places:
        """The place of each asked key among these, `ABSENT` for another key.

        Ask for many at once: other than integers, all keys of the set are hashed again for each call.

        Raises:
            Corrupt: an asked key is null.
        """
        if asked.null_count:
            raise Corrupt("a key of the base is null")
        return self._lookup.find(asked)


class _Integers:
    def __init__(self, keys: pa.ChunkedArray) -> None:
        values = _as_integers(keys)
        self._places = np.argsort(values)
        self._sorted = values[self._places]
        self._bits = min(max(len(values).bit_length() + 4, _BITMAP_BITS.start), _BITMAP_BITS.stop - 1)
        self._bitmap = np.zeros(1 << self._bits, np.bool_)
        self._bitmap[self._slots(values)] = True

    def find(self, asked: pa.ChunkedArray) -> Places:
        values = _as_integers(asked)
        found = np.full(len(values), ABSENT, np.int64)
        if len(self._sorted):
            likely = np.flatnonzero(self._bitmap[self._slots(values)])
            at = np.searchsorted(self._sorted, values[likely])
            at[at == len(self._sorted)] = 0
            exact = self._sorted[at] == values[likely]
            found[likely[exact]] = self._places[at[exact]]
        return found

    def _slots(self, values: Places) -> Places:
        slots: Places = (values * _SPREAD) >> np.int64(64 - self._bits) & np.int64((1 << self._bits) - 1)
        return slots


class _Values:
    def __init__(self, keys: pa.ChunkedArray) -> None:
        self._keys = keys

    def find(self, asked: pa.ChunkedArray) -> Places:
        found: Places = pc.index_in(asked, value_set=self._keys).fill_null(ABSENT).to_numpy().astype(np.int64)
        return found


def _is_integral(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in (pa.types.is_integer, pa.types.is_date32, pa.types.is_timestamp))


def _as_integers(keys: pa.ChunkedArray) -> Places:
    if pa.types.is_date32(keys.type):
        keys = keys.cast(pa.int32())
    elif pa.types.is_timestamp(keys.type):
        keys = keys.cast(pa.int64())
    values: Places = keys.to_numpy().astype(np.int64, copy=False)  # unsigned 64 bits wrap, one to one
    return values
