"""Find the keys of a region that match a condition, and keep the answer right while other writers append."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.layout import Position
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.conditions import Condition
from lancelsm.errors import Contended, error_context
from lancelsm.record.batches import gathered
from lancelsm.record.key import fold, key_column
from lancelsm.record.normalize import deletes
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TOMBSTONE, TableSchema
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.wal.entry import Draft, draft
from lancelsm.wal.replay import LogCollected, LogEnd, entries_between, stored_rows

# Of new entries that are checked at once. Each check looks at all keys that matched before.
_ROWS_AT_ONCE = 1 << 18
_BYTES_AT_ONCE = 32 << 20


class MatchingKeys:
    """The keys of one region whose rows match a condition, as of a view or any later head.

    At a later head, only the keys in the entries since the last answer are checked again.

    Args:
        tombstones: the matching keys as of the view, as tombstones in stored form.
        end: the end of the region's log in the view; None if the region was created later.
    """

    def __init__(
        self, region: Region, schema: TableSchema, condition: Condition, tombstones: pa.Table, *, end: LogEnd | None
    ) -> None:
        self._region = region
        self._schema = schema
        self._condition = condition
        self._tombstones = tombstones
        self._sum_of_rows = row_setsum(tombstones)
        self._next = Position(1) if end is None else end.next_position
        self._sum = Setsum() if end is None else end.entry_setsum

    def delete_after(self, head: Head) -> Draft | None:
        """Return the draft that deletes exactly the rows that match after the entries of this head; None for no row.

        Raises:
            Contended: the log was collected since the view was read.
            Corrupt: an entry is missing or damaged.
            Unavailable: the store did not answer.
        """
        entries = entries_between(self._region, first=self._next, sum_before=self._sum, end=head)
        found = (self._tombstones, self._sum_of_rows)
        try:
            with error_context(**self._region.where):
                changed = (stored_rows(entry, self._schema) for entry in entries if entry.summary.rows)
                for rows in gathered(changed, rows=_ROWS_AT_ONCE, size=_BYTES_AT_ONCE):
                    found = self._checked_again(*found, fold(rows, self._schema.primary_key).rows)
        except LogCollected:
            raise Contended(
                "the log was collected while the condition was checked",
                remedy="Nothing was written: run it again",
                **self._region.where,
            ) from None
        self._tombstones, self._sum_of_rows = found  # only the end of the entries proves them
        self._next, self._sum = head.next_position, head.entry_setsum
        if not self._tombstones.num_rows:
            return None
        return draft(self._tombstones, at=self._region.context.clock.now(), sum_of_rows=self._sum_of_rows)

    def _checked_again(self, tombstones: pa.Table, sum_of_rows: Setsum, rows: pa.Table) -> tuple[pa.Table, Setsum]:
        """Return tombstones of the keys that match after these rows, and their sum."""
        names = self._schema.primary_key
        changed = pc.is_in(key_column(tombstones, names), value_set=key_column(rows, names))
        live = rows.filter(pc.invert(rows.column(TOMBSTONE))).drop_columns([TOMBSTONE])
        matching = self._condition.matching(live, table=self._region.context.uri).select(names)
        added, removed = deletes(matching, schema=self._schema), tombstones.filter(changed)
        # Summed by what differs: a large delete must keep up with writers of single rows.
        total = sum_of_rows + row_setsum(added) - row_setsum(removed)
        return pa.concat_tables([tombstones.filter(pc.invert(changed)), added]), total
