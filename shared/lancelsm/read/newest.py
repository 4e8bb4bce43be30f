"""Find the newest level of each key above the base: rows of older levels with this key are stale."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np
import pyarrow as pa

from lancelsm.dataset.key_lookup import Indexes, Keys
from lancelsm.record.schema import TableSchema


class NewestLevels:
    """The keys above the base, each with the number of its newest level. Holds them in memory."""

    def __init__(self, keys: Keys, primary_key: tuple[str, ...]) -> None:
        self._keys = keys
        self._primary_key = primary_key

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        """The bytes in memory, about."""
        return self._keys.nbytes

    @classmethod
    def of(cls, levels: Iterable[tuple[int, pa.Table]], schema: TableSchema) -> Self:
        """Build it from the number, 0 or more, and the keys of each level; newer levels of a region come later."""
        names = list(schema.primary_key)
        fields = pa.schema([schema.columns.field(name).remove_metadata() for name in names])
        newest_first = list(levels)[::-1]
        keys = [rows.select(names).cast(fields) for _, rows in newest_first]
        of_levels = np.array([number for number, _ in newest_first])
        small = of_levels.astype(np.min_scalar_type(-1 - int(of_levels.max())))  # large arrays take time to allocate
        numbers = np.repeat(small, [len(found) for found in keys])
        return cls(Keys(pa.concat_tables(keys), numbers), schema.primary_key)

    def level_of(self, rows: pa.Table) -> Indexes:
        """Return the newest level that has the key of each row; `ABSENT` if no level above the base has it."""
        return self._keys.find(rows.select(self._primary_key))
