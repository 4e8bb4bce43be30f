"""Find the newest level of each key above the base: rows of older levels with this key are stale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
import pyarrow as pa

from lancelsm.dataset.key_lookup import Indexes, Keys
from lancelsm.read.flag_bits import FlagBits
from lancelsm.record.schema import TableSchema


class NewestLevels:
    """The keys above the base, each with the number of its newest level. Holds them in memory.

    Args:
        keys: of all levels.
        flags: of each level, whether it is the newest one of each of its keys.
    """

    def __init__(self, keys: Keys, flags: Sequence[FlagBits], primary_key: tuple[str, ...]) -> None:
        self._keys = keys
        self._flags = flags
        self._primary_key = primary_key

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        """The bytes in memory, about."""
        return self._keys.nbytes + sum(flags.nbytes for flags in self._flags)

    @classmethod
    def of(cls, levels: Iterable[tuple[int, pa.Table]], schema: TableSchema) -> Self:
        """Build it from the number, 0 or more, and the keys of each level; newer levels of a region come later."""
        names = list(schema.primary_key)
        fields = pa.schema([schema.columns.field(name).remove_metadata() for name in names])
        every = list(levels)
        keys = [rows.select(names).cast(fields) for _, rows in reversed(every)]
        of_levels = np.array([number for number, _ in reversed(every)])
        small = of_levels.astype(np.min_scalar_type(-1 - int(of_levels.max())))  # large arrays take time to allocate
        sizes = [len(found) for found in keys]
        numbers = np.repeat(small, sizes)
        together = pa.concat_tables(keys)
        lookup = Keys(together, numbers)
        is_newest = lookup.find_known(together) == numbers
        flags = [FlagBits.of(part) for part in np.split(is_newest, np.cumsum(sizes)[:-1])]
        return cls(lookup, flags[::-1], schema.primary_key)

    def flags_of(self, place: int) -> FlagBits:
        """Return for each key of a level whether no newer level has it.

        Args:
            place: of the level among those from which this was built.
        """
        return self._flags[place]

    def level_of(self, rows: pa.Table) -> Indexes:
        """Return the newest level that has the key of each row; `ABSENT` if no level above the base has it."""
        return self._keys.find(rows.select(self._primary_key))
