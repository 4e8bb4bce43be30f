"""Count and sum rows while they pass through, to compare a copy of them with what was read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from lancelsm.common.setsum import Setsum
from lancelsm.record.rowsum import row_setsum


@dataclass(slots=True)
class SummedRows:
    """The number and the setsum of the rows that have passed through.

    Args:
        schema: sum the rows as rows of these columns.
    """

    schema: pa.Schema
    rows: int = 0
    setsum: Setsum = Setsum.ZERO

    @property
    def total(self) -> tuple[int, Setsum]:
        """What two equal sets of rows have in common."""
        return self.rows, self.setsum

    def through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the same batches, and add their rows."""
        for batch in batches:
            self.rows += batch.num_rows
            self.setsum += row_setsum(batch, schema=self.schema)
            yield batch

    def add(self, batches: Iterable[pa.RecordBatch]) -> Self:
        """Add the rows of all batches."""
        for _ in self.through(batches):
            pass
        return self
