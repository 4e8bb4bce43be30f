"""Sort the rows of a scan: all of them in memory, or with a limit only the best ones so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.error_text import did_you_mean, shown
from lancelsm.errors import Invalid

_ROWS_AT_ONCE = 65_536
_DIRECTIONS: dict[str, Literal["ascending", "descending"]] = {"asc": "ascending", "desc": "descending"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The columns by which rows are sorted, the first one first."""

    keys: tuple[tuple[str, Literal["ascending", "descending"]], ...]

    @property
    def columns(self) -> list[str]:
        return [name for name, _ in self.keys]

    def sorted(self, rows: pa.Table, *, limit: int | None = None) -> pa.Table:
        """Return the rows in this order, at most `limit`."""
        # By number, since Arrow takes some names for paths.
        keys = pa.table({str(at): _sortable(rows.column(name)) for at, name in enumerate(self.columns)})
        directions = [(str(at), direction) for at, (_, direction) in enumerate(self.keys)]
        return rows.take(pc.sort_indices(keys, sort_keys=directions)[:limit])


def parse_order(order_by: str | Sequence[str], schema: pa.Schema) -> Order:
    """Parse columns, each perhaps followed by `asc` or `desc`; text may have several, separated by commas.

    Raises:
        Invalid: a column is unknown or named twice, has a type that can't be sorted, or the text is malformed.
    """
    texts = order_by.split(",") if isinstance(order_by, str) else order_by
    keys = []
    for text in texts:
        stripped = text.strip()
        name, _, last = stripped.rpartition(" ")
        direction = _DIRECTIONS.get(last.lower()) if name and stripped not in schema.names else None
        column = stripped if direction is None else name.strip()
        if column not in schema.names:
            remedy = did_you_mean(column, schema.names, what="Columns are")
            raise Invalid(f"rows can't be sorted by {shown(stripped)}", remedy=remedy, field="order_by")
        _check_sortable(column, schema.field(column).type)
        keys.append((column, direction or "ascending"))
    if not keys or len({name for name, _ in keys}) < len(keys):
        raise Invalid(
            f"order_by is {shown(order_by)}", remedy="Name each column once, such as 'total desc, id'", field="order_by"
        )
    return Order(keys=tuple(keys))


def in_order(stream: pa.RecordBatchReader, order: Order, *, limit: int | None) -> pa.RecordBatchReader:
    """Return the rows in this order, at most `limit`. With a limit, few more rows than these are in memory at once."""
    if limit is None:
        return order.sorted(stream.read_all()).to_reader()
    best = stream.schema.empty_table()
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in stream:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= max(limit, _ROWS_AT_ONCE):
            best = _best(best, waiting, order, limit)
            waiting, rows = [], 0
    return _best(best, waiting, order, limit).to_reader()


def _best(best: pa.Table, more: list[pa.RecordBatch], order: Order, limit: int) -> pa.Table:
    return order.sorted(pa.concat_tables([best, pa.Table.from_batches(more, best.schema)]), limit=limit)


def _sortable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a dictionary column, which Arrow does not sort; other columns as they are."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _check_sortable(name: str, kind: pa.DataType) -> None:
    try:
        pc.sort_indices(
            pa.table({"0": _sortable(pa.chunked_array([pa.nulls(1, kind)]))}), sort_keys=[("0", "ascending")]
        )
    except pa.ArrowException as error:
        raise Invalid(
            f"rows can't be sorted by column {name!r} of type {kind}", remedy="Sort by other columns", field="order_by"
        ) from error
