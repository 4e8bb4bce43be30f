"""Find the keys of a region that match a condition, and keep them up to date while other writers append."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.setsum import Setsum
from lancelsm.dataset.conditions import Condition
from lancelsm.errors import error_context
from lancelsm.read.transact.read_token import point_of
from lancelsm.read.transact.rows_at_head import ViewedRows, new_rows
from lancelsm.record.key import has_key_of
from lancelsm.record.normalize import deletes
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TOMBSTONE, TableSchema
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.wal.entry import Draft, draft
from lancelsm.wal.replay import LogCollected


class MatchingKeys:
    """The keys of one region whose rows match a condition, as of a view or any later head.

    At a later head, only the keys in the entries since the last call are checked again.

    Args:
        viewed: the key columns of the matching rows as of a view.
        read_view: reads them from a new view.
    """

    def __init__(
        self,
        region: Region,
        schema: TableSchema,
        condition: Condition,
        viewed: ViewedRows,
        *,
        read_view: Callable[[], ViewedRows],
    ) -> None:
        self._region = region
        self._schema = schema
        self._condition = condition
        self._read_view = read_view
        self._take(viewed)

    def _take(self, viewed: ViewedRows) -> None:
        self._tombstones = deletes(viewed.rows.select(list(self._schema.primary_key)), schema=self._schema)
        self._sum_of_rows = row_setsum(self._tombstones)
        self._point, self._expiry = point_of(viewed.end), viewed.expiry

    def delete_after(self, head: Head) -> Draft | Head | None:
        """Return the draft that deletes the rows that match after the entries of this head; None if no row matches.

        If the keys are newer than the head, return the newest head, to start again from it. Do the same if the log was
        collected since the last call: the keys are then read from a new view.

        Raises:
            Corrupt: an entry is missing or damaged.
            Unavailable: the store did not answer.
        """
        if head.next_position < self._point[0]:
            return self._region.head()
        try:
            self._follow(head)
        except LogCollected:
            self._take(self._read_view())
            return self._region.head()
        if not self._tombstones.num_rows:
            return None
        return draft(self._tombstones, at=self._region.context.clock.now(), sum_of_rows=self._sum_of_rows)

    def _follow(self, head: Head) -> None:
        """Check the keys in the entries up to this head again."""
        found = (self._tombstones, self._sum_of_rows)
        with error_context(**self._region.where):
            for rows in new_rows(self._region, self._schema, since=self._point, end=head, expiry=self._expiry):
                found = self._checked_again(*found, rows)
        self._tombstones, self._sum_of_rows = found
        self._point = point_of(head)

    def _checked_again(self, tombstones: pa.Table, sum_of_rows: Setsum, rows: pa.Table) -> tuple[pa.Table, Setsum]:
        """Return tombstones of the keys that match after these rows, and their sum."""
        names = self._schema.primary_key
        changed = has_key_of(tombstones, rows, names)
        live = rows.filter(pc.invert(rows.column(TOMBSTONE))).drop_columns([TOMBSTONE])
        matching = self._condition.matching(live, table=self._region.context.uri).select(names)
        added, removed = deletes(matching, schema=self._schema), tombstones.filter(changed)
        # Only the difference is summed: a large delete must keep up with writers of single rows.
        total = sum_of_rows + row_setsum(added) - row_setsum(removed)
        return pa.concat_tables([tombstones.filter(pc.invert(changed)), added]), total
