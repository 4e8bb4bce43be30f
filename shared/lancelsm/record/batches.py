"""Regroup batches of rows: into tables large enough to work on at once, or of exactly one size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

_SMALL_ROWS = 1024  # on average, per chunk; smaller chunks are copied into one


def gathered(batches: Iterable[pa.RecordBatch | pa.Table], *, rows: int, size: int | None = None) -> Iterator[pa.Table]:
    """Combine batches into tables of at least `rows` rows or `size` bytes each; the last may be smaller.

    Looks at each batch once, and holds only the batches of one table.
    """
    waiting: list[pa.Table] = []
    count = held = 0
    for batch in batches:
        waiting.append(batch if isinstance(batch, pa.Table) else pa.table(batch))
        count += batch.num_rows
        held += 0 if size is None else batch.nbytes
        if count >= rows or (size is not None and held >= size):
            yield coalesced(pa.concat_tables(waiting))
            waiting, count, held = [], 0, 0
    if waiting:
        yield coalesced(pa.concat_tables(waiting))


def resized(batches: Iterable[pa.RecordBatch | pa.Table], rows: int) -> Iterator[pa.Table]:
    """Return the same rows in tables of exactly `rows` rows; the last may be smaller."""
    left: pa.Table | None = None
    for table in gathered(batches, rows=rows):
        whole = table if left is None else pa.concat_tables([left, table])
        full = whole.num_rows - whole.num_rows % rows
        for start in range(0, full, rows):
            yield whole.slice(start, rows)
        left = whole.slice(full)
    if left is not None and left.num_rows:
        yield left


def coalesced(table: pa.Table) -> pa.Table:
    """Return the same rows. Many small chunks, each of which costs time in every kernel, are copied into one."""
    chunks = max((column.num_chunks for column in table.columns), default=0)
    return table.combine_chunks() if chunks > 1 and table.num_rows < _SMALL_ROWS * chunks else table
