"""Rows of a base by condition or by key, for readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.dataset.base_table import BaseTable, open_dataset
from lancelsm.dataset.native import native_errors
from lancelsm.record.key import key_column

_BATCH_ROWS = 65_536


def scan_base(
    base: BaseTable, *, columns: Sequence[str], where: str | None = None, limit: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The live rows that match, streamed: these columns in this order.

    Raises:
        Invalid: a column is unknown, or the condition is no SQL over the table's columns.
        Corrupt: a file is gone or unreadable.
        Unavailable: the store did not answer.
    """
    with native_errors("the base can't be read", table=base.uri):
        dataset = open_dataset(uri=base.uri, version=base.version, storage_options=base.storage_options)
        yield from dataset.scanner(
            columns=list(columns), filter=where, limit=limit, batch_size=_BATCH_ROWS
        ).to_batches()


def rows_of_keys(base: BaseTable, keys: pa.Table, *, columns: Sequence[str]) -> pa.Table:
    """The live rows with these keys; by an index where the base has one on a key column.

    Args:
        keys: the key columns, distinct, at least one row.
        columns: at least the key columns.

    Returns: rows in no order. Raises as `scan_base`.
    """
    wanted = reduce(and_, (pc.field(name).isin(pc.unique(keys.column(name))) for name in keys.column_names))
    with native_errors("the base can't be read", table=base.uri):
        dataset = open_dataset(uri=base.uri, version=base.version, storage_options=base.storage_options)
        found: pa.Table = dataset.scanner(columns=list(columns), filter=wanted).to_table()
    # Column by column the condition lets through more tuples than were asked for.
    return found if keys.num_columns == 1 else found.filter(_among(found.select(keys.column_names), keys))


def _among(rows: pa.Table, keys: pa.Table) -> pa.Array:
    names = tuple(keys.column_names)
    return pc.is_in(key_column(rows, names), value_set=key_column(keys, names))
