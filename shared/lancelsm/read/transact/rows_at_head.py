"""Keep live rows of one region up to date: as of a view, and then as of any later head.

A transaction reads a view once. When another writer is faster, it reads only the entries since then.
Model: tests/model/transactions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.errors import error_context
from lancelsm.read.transact.read_token import LogPoint, point_of
from lancelsm.read.view import View
from lancelsm.record.batches import gathered
from lancelsm.record.casts import as_schema
from lancelsm.record.key import fold, has_key_of
from lancelsm.record.schema import TOMBSTONE, TableSchema
from lancelsm.record.ttl import Expiry
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.wal.replay import LogCollected, LogEnd, entries_between, stored_rows

# Limits of the new rows that are applied at once. Each step compares them with all rows that are kept.
_ROWS_AT_ONCE = 1 << 18
_BYTES_AT_ONCE = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewedRows:
    """Live rows of one region, and where the log of the region ends in their view.

    `end` is None if the region was created after the view. `expiry` tells which rows have expired at the time of the
    view: they count as deleted, also in entries behind the view.
    """

    rows: pa.Table
    end: LogEnd | None
    expiry: Expiry | None = None

    @classmethod
    def of(cls, rows: pa.Table, view: View, region: Region) -> ViewedRows:
        """Find the end of the log of a region in the view of the rows."""
        end = next((one.end for one in view.regions if one.region == region.id), None)
        return cls(rows=rows, end=end, expiry=view.expiry)


def new_rows(
    region: Region, schema: TableSchema, *, since: LogPoint, end: LogEnd, expiry: Expiry | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of the entries from a point up to the end of the log, oldest first, in stored form.

    Each table has the newest row of each of its keys. A row that has expired is a tombstone. Only the end of the
    iteration proves the entries: use nothing of them before.

    Raises:
        LogCollected: the log was collected past the point.
        Corrupt: an entry is missing or damaged.
        Unavailable: the store did not answer.
    """
    first, sum_before = since
    entries = entries_between(region, first=first, sum_before=sum_before, end=end)
    rows_of_entries = (stored_rows(entry, schema) for entry in entries if entry.summary.rows)
    for rows in gathered(rows_of_entries, rows=_ROWS_AT_ONCE, size=_BYTES_AT_ONCE):
        newest = fold(rows, schema.primary_key).rows
        yield newest if expiry is None else expiry.as_deletes(newest)


class RowsAtHead:
    """The live rows of one region that a write depends on, as of the last head that `at` got.

    Args:
        viewed: the rows as of a view; None: `read_view` is called first.
        read_view: reads the rows from a new view.
        select: returns, out of some live rows, those that the write depends on.
    """

    def __init__(
        self,
        region: Region,
        schema: TableSchema,
        *,
        read_view: Callable[[], ViewedRows],
        select: Callable[[pa.Table], pa.Table],
        viewed: ViewedRows | None = None,
    ) -> None:
        self._region = region
        self._schema = schema
        self._read_view = read_view
        self._select = select
        self._rows: pa.Table | None = None
        self._point = point_of(None)
        self._expiry: Expiry | None = None
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
        while head.next_position >= self._point[0]:
            try:
                self._follow(head)  # guard: rows of a transaction follow its head
            except LogCollected:
                self._take(self._read_view())
            else:
                return self._rows
        return None

    def _take(self, viewed: ViewedRows) -> None:
        self._rows = as_schema(viewed.rows, live_columns(self._schema))
        self._point, self._expiry = point_of(viewed.end), viewed.expiry

    def _follow(self, head: Head) -> None:
        """Apply the entries up to this head."""
        found = self._rows
        with error_context(**self._region.where):
            for rows in new_rows(self._region, self._schema, since=self._point, end=head, expiry=self._expiry):
                found = self._after(found, rows)
        self._rows, self._point = found, point_of(head)

    def _after(self, found: pa.Table, rows: pa.Table) -> pa.Table:
        """Return the live rows after these rows in stored form, which have distinct keys."""
        replaced = has_key_of(found, rows, self._schema.primary_key)
        live = rows.filter(pc.invert(rows.column(TOMBSTONE))).drop_columns([TOMBSTONE])
        added = self._select(as_schema(live, live_columns(self._schema)))
        return pa.concat_tables([found.filter(pc.invert(replaced)), added])


def live_columns(schema: TableSchema) -> pa.Schema:
    """Return the columns of live rows, as reads return them."""
    return pa.schema([field.remove_metadata() for field in schema.columns])
