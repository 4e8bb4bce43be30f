"""Find rows whose long values repeat. Their entry is compressed: it takes a fraction of the bytes, and less time."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from lancelsm.record.admission import is_any
from lancelsm.record.words import mixed

_LEAST_BYTES: Final = 1 << 20  # to compress less saves nothing
_LEAST_ROWS: Final = 1024
_SAMPLE: Final = tuple(mixed(number) for number in range(1, 129))  # of 2**64
_NEAR_BYTES: Final = 128 << 10  # zstd finds a value again within 512 KiB
_TEXTS: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


def is_repetitive(rows: pa.Table) -> bool:
    """Return whether most bytes of the rows are in columns of text or bytes with few distinct values, by a sample."""
    if rows.num_rows < _LEAST_ROWS:
        return False
    size: int = rows.nbytes
    if size < _LEAST_BYTES:
        return False
    large = [column for column in rows.columns if is_any(column.type, _TEXTS) and 8 * column.nbytes >= size]
    repeated: int = sum(column.nbytes for column in large if _repeats(column))
    return 4 * repeated >= 3 * size


def _repeats(column: pa.ChunkedArray) -> bool:
    values = max(column.chunks, key=len)
    sample = values.take(pa.array([len(values) * word >> 64 for word in _SAMPLE], pa.int64())).drop_null()
    distinct = sample.unique()
    return 8 * len(distinct) <= 7 * len(sample) and bool(distinct.nbytes <= _NEAR_BYTES)
