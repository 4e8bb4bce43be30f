"""Find the newest level of each key above the base: rows of older levels with this key are stale."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np
import pyarrow as pa

from lancelsm.dataset.key_lookup import ABSENT, Indexes, Keys
from lancelsm.record.key import key_column, newest
from lancelsm.record.schema import TableSchema

_LEVEL = "lancelsm.level"  # column names of tables have no dots


class NewestLevels:
    """The keys above the base, each with the number of its newest level. Holds them in memory."""

    def __init__(self, keys: Keys, levels: Indexes, primary_key: tuple[str, ...]) -> None:
        self._keys = keys
        self._levels = levels
        self._primary_key = primary_key

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        """The bytes in memory, about."""
        return self._keys.nbytes + int(self._levels.nbytes)

    @classmethod
    def of(cls, levels: Iterable[tuple[int, pa.Table]], schema: TableSchema) -> Self:
        """Build it from the number and the keys of at least one level; newer levels of a region come later."""
        names = list(schema.primary_key)
        fields = pa.schema([schema.columns.field(name).remove_metadata() for name in names])
        parts = [
            rows.select(names).cast(fields).append_column(_LEVEL, pa.repeat(pa.scalar(number, pa.int64()), len(rows)))
            for number, rows in levels
        ]
        known = newest(pa.concat_tables(parts).combine_chunks(), schema.primary_key)
        keys = Keys(pa.chunked_array([key_column(known, schema.primary_key)]))
        return cls(keys, known.column(_LEVEL).to_numpy(), schema.primary_key)

    def level_of(self, rows: pa.Table) -> Indexes:
        """Return the newest level that has the key of each row; `ABSENT` if no level above the base has it."""
        if not len(self._keys):
            return np.full(rows.num_rows, ABSENT, np.int64)
        found = self._keys.find(pa.chunked_array([key_column(rows, self._primary_key)]))
        return np.where(found == ABSENT, ABSENT, self._levels[found])
