"""Keep the live rows of a part of one region up to date: as of a view, or as of any later head.

A transaction reads a view once. When another writer is faster, it reads only the entries since then.
Model: tests/model/transactions.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.layout import Position
from lancelsm.common.setsum import Setsum
from lancelsm.errors import error_context
from lancelsm.read.view import View
from lancelsm.record.batches import gathered
from lancelsm.record.casts import as_schema
from lancelsm.record.key import fold, key_column
from lancelsm.record.schema import TOMBSTONE, TableSchema
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.wal.replay import LogCollected, LogEnd, entries_between, stored_rows

_ROWS_AT_ONCE = 1 << 18  # of new entries that are looked at together
_BYTES_AT_ONCE = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewedRows:
    """Live rows of one region, with all columns, and where the log of the region ends in their view.

    `end` is None if the region was created after the view.
    """

    rows: pa.Table
    end: LogEnd | None

    @classmethod
    def of(cls, rows: pa.Table, view: View, region: Region) -> ViewedRows:
        """Find the end of the log of a region in the view of the rows."""
        return cls(rows=rows, end=next((one.end for one in view.regions if one.region == region.id), None))


class RowsAtHead:
    """The live rows of one region that belong to a write, as of the last head that was asked for.

    Args:
        viewed: the rows as of a view; None: `read_view` is called first.
        read_view: reads the rows from a new view.
        belong: returns those of some live rows that belong to the write.
    """

    def __init__(
        self,
        region: Region,
        schema: TableSchema,
        *,
        read_view: Callable[[], ViewedRows],
        belong: Callable[[pa.Table], pa.Table],
        viewed: ViewedRows | None = None,
    ) -> None:
        self._region = region
        self._schema = schema
        self._read_view = read_view
        self._belong = belong
        self._rows: pa.Table | None = None
        self._next = Position(1)
        self._sum = Setsum()
        if viewed is not None:
            self._take(viewed)

    def at(self, head: Head) -> pa.Table | None:
        """Return the live rows after exactly the entries of this head; None if the rows are newer than the head.

        If the log was collected since the last call, the rows are read from a new view.

        Raises:
            Corrupt: an object is missing or damaged.
            Unavailable: a store or the registry did not answer.
        """
        if self._rows is None:
            self._take(self._read_view())
        while head.next_position >= self._next:
            try:
                self._follow(head)  # guard: rows of a transaction follow its head
            except LogCollected:
                self._take(self._read_view())
            else:
                return self._rows
        return None

    def _take(self, viewed: ViewedRows) -> None:
        self._rows = as_schema(viewed.rows, live_columns(self._schema))
        self._next = Position(1) if viewed.end is None else viewed.end.next_position
        self._sum = Setsum() if viewed.end is None else viewed.end.entry_setsum

    def _follow(self, head: Head) -> None:
        """Apply the entries up to this head."""
        entries = entries_between(self._region, first=self._next, sum_before=self._sum, end=head)
        found = self._rows
        with error_context(**self._region.where):
            changed = (stored_rows(entry, self._schema) for entry in entries if entry.summary.rows)
            for rows in gathered(changed, rows=_ROWS_AT_ONCE, size=_BYTES_AT_ONCE):
                found = self._after(found, fold(rows, self._schema.primary_key).rows)
        self._rows = found  # only the end of the entries proves them
        self._next, self._sum = head.next_position, head.entry_setsum

    def _after(self, found: pa.Table, rows: pa.Table) -> pa.Table:
        """Return the live rows after these rows in stored form, which have distinct keys."""
        names = self._schema.primary_key
        replaced = pc.is_in(key_column(found, names), value_set=key_column(rows, names))
        live = rows.filter(pc.invert(rows.column(TOMBSTONE))).drop_columns([TOMBSTONE])
        added = self._belong(as_schema(live, live_columns(self._schema)))
        return pa.concat_tables([found.filter(pc.invert(replaced)), added])


def live_columns(schema: TableSchema) -> pa.Schema:
    """Return the columns of live rows, as reads return them."""
    return pa.schema([field.remove_metadata() for field in schema.columns])
