"""The sorted key index beside a generation: which row holds a key, in one page read.

`_pk_index/page_data.lance` holds (key, row offset) sorted by key, masked duplicates included, in pages of 8192 rows;
`page_lookup.lance` holds the bounds of each page. It is Lance's scalar BTREE index, standing alone; Lance's own scan of
a generation needs it. A composite key is one binary value that sorts as its columns do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileSession

from lancelsm.errors import Invalid

DIRECTORY = "_pk_index"
_DATA = f"{DIRECTORY}/page_data.lance"
_LOOKUP = f"{DIRECTORY}/page_lookup.lance"
_PAGE_ROWS = 8192
_PAGE_ROWS_UNSAID = 4096  # what Lance assumes of a file whose metadata does not say
_FILE_VERSION = "2.0"
_SIGN = np.uint64(1 << 63)


def index_values(keys: pa.Table) -> pa.ChunkedArray:
    """The key of each row as the index holds it: a lone column as it is, a composite key as Lance encodes its tuples.

    Tuple encoding, per column: 0x01, then eight big-endian bytes of an integer (sign flipped if signed), one byte of a
    bool, or the bytes of text and binary with 00 as 00 FF and 00 00 behind. Dates and timestamps, which Lance refuses
    in a composite key, go as the signed integers that they are. Keys are not null.
    """
    if keys.num_columns == 1:
        return keys.column(0)
    chunks = [_tuples(batch) for batch in keys.to_batches()]
    return pa.chunked_array(chunks, pa.binary())


def write_pk_index(*, files: LanceFileSession, keys: pa.Table) -> None:
    """Write both files of the index over these keys, row offset = position in `keys`."""
    values = index_values(keys)
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


def find_rows(*, files: LanceFileSession, values: pa.ChunkedArray) -> pa.Array | None:
    """Offsets of the rows that hold these keys, masked duplicates included; None for a generation without an index.

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
    wanted = values.combine_chunks().unique()
    runs = _runs([_may_hold(page, wanted) for page in lookup.read_all().to_table().to_pylist()])
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


def _tuples(keys: pa.RecordBatch) -> pa.Array:
    parts = [_ordered_bytes(column, field) for column, field in zip(keys.columns, keys.schema, strict=True)]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def _ordered_bytes(column: pa.Array, field: pa.Field) -> pa.Array:
    """One column's part of the tuple, order-preserving and self-delimiting."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return _prefixed(column.cast(pa.uint8()).to_numpy(zero_copy_only=False)[:, None])
    if pa.types.is_unsigned_integer(kind):
        return _prefixed(_big_endian(column.cast(pa.uint64()).to_numpy(zero_copy_only=False)))
    if pa.types.is_signed_integer(kind) or pa.types.is_temporal(kind):
        plain = column.cast(pa.int32()) if pa.types.is_date32(kind) else column
        signed = plain.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return _prefixed(_big_endian(signed.view(np.uint64) ^ _SIGN))
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        escaped = pc.replace_substring(column.cast(pa.binary()), pattern=b"\0", replacement=b"\0\xff")
        one, end, nothing = (pa.scalar(part, pa.binary()) for part in (b"\1", b"\0\0", b""))
        return pc.binary_join_element_wise(one, escaped, end, nothing)
    raise Invalid(f"a column of type {kind} cannot be part of a key", field=field.name)


def _big_endian(numbers: Any) -> Any:
    return np.ascontiguousarray(numbers, dtype=">u8").view(np.uint8).reshape(-1, 8)


def _prefixed(rows: Any) -> pa.Array:
    """0x01 and the row's bytes, as binary values."""
    framed = np.concatenate([np.ones((len(rows), 1), dtype=np.uint8), rows], axis=1)
    width = framed.shape[1]
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * width
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(framed.tobytes())]
    )
