"""Regroup batches of rows: into tables large enough to work on at once, or of exactly one size; or copy slices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from lancelsm.record.admission import children

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
        del batch  # the caller may be the last one to hold it
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


def without_slices(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows. A column with a struct at any level is copied if a part of it is a slice.

    Lance 14 can't write such slices: it refuses bools in a struct with nulls, and crashes on a struct in a struct.
    """
    columns = [
        pa.concat_arrays([column]) if has_struct(column.type) and _is_slice(column) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def has_struct(kind: pa.DataType) -> bool:
    """Whether a struct is in the type. A map is a list of structs."""
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return True
    return any(has_struct(field.type) for field in children(kind))


def _is_slice(values: pa.Array) -> bool:
    if values.offset:
        return True
    if pa.types.is_struct(values.type):
        return any(_is_slice(values.field(at)) for at in range(values.type.num_fields))
    if pa.types.is_fixed_size_list(values.type):
        return _is_slice(values.values)
    if not children(values.type) or not len(values):
        return False
    return values.offsets[0].as_py() != 0 or _is_slice(values.values)
