"""The sorted key index beside a generation: which row holds a key, in one page read.

`_pk_index/page_data.lance` holds (key, row offset) sorted by key, masked duplicates included, in pages of 8192 rows;
`page_lookup.lance` holds the bounds of each page. It is Lance's scalar BTREE index, standing alone; Lance's own scan of
a generation needs it. A composite key is one binary value (`lancelsm.record.key`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileSession

from lancelsm.errors import Corrupt
from lancelsm.record.key import key_column

DIRECTORY = "_pk_index"
_DATA = f"{DIRECTORY}/page_data.lance"
_LOOKUP = f"{DIRECTORY}/page_lookup.lance"
_PAGE_ROWS = 8192
_PAGE_ROWS_UNSAID = 4096  # what Lance assumes of a file whose metadata does not say
_FILE_VERSION = "2.0"


def write_pk_index(*, files: LanceFileSession, keys: pa.Table) -> None:
    """Write both files of the index over these keys, row offset = position in `keys`."""
    values = key_column(keys, tuple(keys.column_names))
    order = pc.sort_indices(values)
    ordered = values.take(order)
    schema = pa.schema([pa.field("values", values.type), pa.field("ids", pa.uint64(), nullable=False)])
    with files.open_writer(_DATA, schema=schema, version=_FILE_VERSION) as data:
        data.write_batch(pa.table([ordered, order.cast(pa.uint64())], schema=schema))
    firsts = np.arange(0, len(ordered), _PAGE_ROWS)
    lasts = np.minimum(firsts + _PAGE_ROWS, len(ordered)) - 1
    schema = pa.schema(
        [
            pa.field("min", values.type),
            pa.field("max", values.type),
            pa.field("null_count", pa.uint32(), nullable=False),
            pa.field("page_idx", pa.uint32(), nullable=False),
        ]
    )
    pages = np.arange(len(firsts), dtype=np.uint32)
    bounds = [ordered.take(pa.array(firsts)), ordered.take(pa.array(lasts))]
    with files.open_writer(_LOOKUP, schema=schema, version=_FILE_VERSION) as lookup:
        lookup.add_schema_metadata("batch_size", str(_PAGE_ROWS))
        lookup.add_schema_metadata("range_partitioned", "false")
        lookup.write_batch(pa.table([*bounds, pa.array(np.zeros_like(pages)), pa.array(pages)], schema=schema))


def find_rows(*, files: LanceFileSession, values: pa.Array) -> pa.Array | None:
    """Offsets of the rows that hold these keys, masked duplicates included; None for a generation without an index.

    Args:
        values: keys as `lancelsm.record.key.key_column` gives them.

    Reads the page bounds, then only the pages that can hold a key; neighbouring pages in one read.
    """
    try:
        lookup = files.open_reader(_LOOKUP)
    except (OSError, ValueError) as cause:
        if "not found" in str(cause).lower():
            return None
        raise
    said = (lookup.metadata().schema.metadata or {}).get(b"batch_size")
    page_rows = int(said) if said else _PAGE_ROWS_UNSAID
    wanted = values.unique()
    bounds = lookup.read_all().to_table()
    if not {"min", "max"} <= set(bounds.column_names):
        raise Corrupt(f"the key index has other columns: {bounds.column_names}", object=_LOOKUP)
    runs = _runs([_may_hold(page, wanted) for page in bounds.to_pylist()])
    if not runs:
        return pa.array([], pa.uint64())
    data = files.open_reader(_DATA)
    found = []
    for first, last in runs:
        start = first * page_rows
        rows = min(last * page_rows, data.num_rows()) - start
        pages = data.read_range(start, rows, batch_size=page_rows).to_table()
        found.append(pages.filter(pc.is_in(pages["values"], value_set=wanted))["ids"])
    return pa.chunked_array([chunk for ids in found for chunk in ids.chunks], pa.uint64()).combine_chunks()


def _may_hold(page: dict[str, Any], wanted: pa.Array) -> bool:
    low, high = (pa.scalar(page[bound], wanted.type) for bound in ("min", "max"))
    within = pc.and_(pc.greater_equal(wanted, low), pc.less_equal(wanted, high))
    return bool(pc.any(within).as_py())


def _runs(flags: list[bool]) -> list[tuple[int, int]]:
    """Half-open ranges of neighbouring True."""
    edges = np.flatnonzero(np.diff(np.array([False, *flags, False]).astype(np.int8)))
    return [(int(first), int(last)) for first, last in edges.reshape(-1, 2)]
