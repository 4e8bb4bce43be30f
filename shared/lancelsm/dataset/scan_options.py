"""Bound the memory of a scan. Lance bounds a batch by its rows alone, and reads many batches ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:  # a process that only looks at a table does not load Lance
    import lance

_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 65_536
_BATCHES_AHEAD = 2
_BUFFER_BYTES = 32 << 20


def scan_options(
    dataset: lance.LanceDataset,
    columns: Sequence[str],
    *,
    schema: pa.Schema | None = None,
    row_bytes: int = 0,
    small: bool = False,
) -> dict[str, Any]:
    """Return options for a scan of these columns, so that a batch has a few megabytes.

    Args:
        schema: of the dataset, if the caller has it: Lance builds it at each access.
        row_bytes: the mean size of a row in memory, if it is known: repeated values take less room in a file.
        small: half as large batches, and one of them decoded ahead, for a caller that holds other memory.
    """
    schema = schema or dataset.schema
    widths = [_width(schema.field(name).type) for name in columns]
    size = sum(widths) / 8 if all(widths) else max(row_bytes, _stored_row_bytes(dataset))
    rows = int(_BATCH_BYTES / (2 if small else 1) / max(size, 1))
    return {
        "batch_size": max(1, min(rows, _BATCH_ROWS)),
        "batch_readahead": 1 if small else _BATCHES_AHEAD,
        "io_buffer_size": _BUFFER_BYTES,
    }


def scanned(schema: pa.Schema, columns: Sequence[str]) -> list[str] | None:
    """Return what to pass to Lance as the columns of a scan of a dataset: None for all columns in their order.

    Lance takes time in the square of the number of columns that it is given.
    """
    return None if list(columns) == schema.names else list(columns)


def _stored_row_bytes(dataset: lance.LanceDataset) -> float:
    rows = size = 0
    for fragment in dataset.get_fragments():
        metadata = fragment.metadata
        rows += metadata.physical_rows
        size += sum(file.file_size_bytes or 0 for file in metadata.files)
    return size / max(rows, 1)


def _width(kind: pa.DataType) -> int:
    """Return the bits of a value; 0 if it varies."""
    try:
        return int(kind.bit_width)
    except ValueError:
        return 0
