"""Flags of rows, one bit each."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt

from lancelsm.common.bounded_cache import BoundedCache

Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagBits:
    """The flags of all rows of a level, in the order in which Lance returns the rows: a bit for each, lowest first."""

    bits: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, flags: Flags) -> Self:
        return cls(bits=np.packbits(flags, bitorder="little"))

    @property
    def nbytes(self) -> int:
        return int(self.bits.nbytes)

    def part(self, start: int, rows: int) -> Flags:
        """Return the flags of `rows` rows, beginning with the row number `start`."""
        before = start % 8
        bits = self.bits[start // 8 : (start + rows + 7) // 8]
        flags = np.unpackbits(bits, count=before + rows, bitorder="little")
        return flags[before:].view(np.bool_)


class FlagsToKeep:
    """Collect the flags of a level as bits, while a cache takes as many."""

    def __init__(self, cache: BoundedCache) -> None:
        self._cache = cache
        self._bits: list[npt.NDArray[np.uint8]] = []
        self._rest: Flags = np.empty(0, np.bool_)  # fewer than eight
        self._bytes = 0

    def add(self, flags: Flags) -> None:
        flags = np.concatenate([self._rest, flags])
        whole = len(flags) // 8 * 8
        self._bytes += whole // 8
        if not self._cache.takes(self._bytes + 1):
            self._bits.clear()
            return
        self._bits.append(np.packbits(flags[:whole], bitorder="little"))
        self._rest = flags[whole:].copy()

    def keep(self, key: Hashable) -> None:
        """Keep the flags, now of all rows, unless the cache does not take them."""
        if self._cache.takes(self._bytes + 1):
            kept = FlagBits(bits=np.concatenate([*self._bits, np.packbits(self._rest, bitorder="little")]))
            self._cache.put(key, kept, size=kept.nbytes)
