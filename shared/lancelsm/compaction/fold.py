"""Fold the rows of one new generation: the newest row of each key, tombstones included, in one pass over the rows.

First only the keys are compared. Then the rows are summed, filtered and handed on in small batches. Each row is hashed
once, before the filter: the sum of all rows must be the known one, and the sum of the newest rows is known too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt
from lancelsm.record.batches import gathered
from lancelsm.record.key import last_of_key
from lancelsm.record.rowsum import row_setsums
from lancelsm.record.schema import TableSchema

_BATCH_ROWS = 4096
_BATCH_BYTES = 4 << 20


class FoldedRows:
    """The newest row of each key among some rows in stored form.

    Args:
        keys: the key columns of all rows, in arrival order; at least one row.
        rows: all rows, in the same order; read once.
        bytes_given: the size of all rows in memory.
        expected: the sum of all rows.
        problem: the message of the error if they have another sum.
        where: the fields of this error.

    Attributes:
        keys: the key columns of the newest rows, in the order of `batches`.
        setsum: the sum of the rows that `batches` has yielded.
        bytes: the size of these rows in memory.
        bytes_given: the size of all rows in memory.
    """

    def __init__(
        self,
        keys: pa.Table,
        rows: Iterable[pa.Table | pa.RecordBatch],
        schema: TableSchema,
        *,
        bytes_given: int,
        expected: Setsum,
        problem: str,
        where: dict[str, Any],
    ) -> None:
        self._rows = rows
        self.bytes_given = bytes_given
        self._expected = expected
        self._problem = problem
        self._where = where
        keys = keys.combine_chunks()
        last = last_of_key(keys, schema.primary_key)
        self._wins = pc.equal(last, pa.arange(0, keys.num_rows))
        self.keys = keys.filter(self._wins)
        self.setsum = Setsum.ZERO
        self.bytes = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the newest rows once.

        Raises:
            Corrupt: the rows don't have the expected sum.
        """
        every, start = Setsum.ZERO, 0
        for table in gathered(self._rows, rows=_BATCH_ROWS, size=_BATCH_BYTES):
            for batch in table.to_batches(max_chunksize=_rows_at_once(table)):
                wins = self._wins.slice(start, batch.num_rows)
                start += batch.num_rows
                of_batch, kept = row_setsums(batch, wins)
                every += of_batch
                self.setsum += kept
                if not wins.true_count:
                    continue
                newest = batch if wins.true_count == batch.num_rows else batch.filter(wins)
                self.bytes += newest.nbytes
                yield newest
                del batch, newest
            del table  # before the next one is read
        if every != self._expected:  # guard: flush loses no row
            raise Corrupt(self._problem, **self._where)


def _rows_at_once(table: pa.Table) -> int:
    by_size: int = _BATCH_BYTES * table.num_rows // max(1, table.nbytes)
    return max(1, min(_BATCH_ROWS, by_size))
