"""Write rows that depend on the rows that they replace: one entry per region, right after the head that was read.

Within a region a transaction is linearizable: its entry follows exactly the entries whose rows the change was computed
from. A lost race costs a read of the entries since then, and one more call of the change, within the retry budget.
Model: tests/model/transactions.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from lancelsm.common.layout import RegionId
from lancelsm.errors import Invalid
from lancelsm.read.transact.read_token import Unchanged
from lancelsm.read.transact.rows_at_head import RowsAtHead
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.wal.entry import Draft, draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a transaction appends: rows in stored form, one per key. `skipped` counts given rows that are left out."""

    rows: pa.Table
    skipped: int = 0


Decide = Callable[[pa.Table], Decision]
"""Gets the live rows, and returns what to append. It may be called several times."""


class Transaction:
    """One transaction in one region.

    Args:
        rows: the live rows that the change depends on. None: `decide` gets None.
        unchanged: checks which keys must not have been written. None: no check.
    """

    def __init__(
        self, region: Region, decide: Decide, *, rows: RowsAtHead | None, unchanged: Unchanged | None = None
    ) -> None:
        self._region = region
        self._decide = decide
        self._rows = rows
        self._unchanged = unchanged
        self.skipped = 0
        self.is_drafted = False  # the last call of `draft_after` returned a draft

    @property
    def region(self) -> RegionId:
        return self._region.id

    def draft_after(self, head: Head) -> Draft | Head | None:
        """Return the draft to append right after this head; None if there is nothing to append.

        If what was read is newer than the head, return the newest head, to start again from it.

        Raises:
            Contended: what must not change has changed.
            Corrupt: an object is missing or damaged.
            Unavailable: a store or the registry did not answer.

        Raises also what `decide` raises.
        """
        current = None if self._rows is None else self._rows.at(head)
        if self._rows is not None and current is None:
            return self._region.head()
        if self._unchanged is not None and not self._unchanged.at(head):
            return self._newer_than(head)
        change = self._decide(current)
        self.skipped, self.is_drafted = change.skipped, bool(change.rows.num_rows)
        return draft(change.rows, at=self._region.context.clock.now()) if self.is_drafted else None

    def _newer_than(self, head: Head) -> Head:
        newest = self._region.head()
        if newest.next_position <= head.next_position:
            raise Invalid(
                "the token points past the end of the log",
                remedy="If the registry was restored from an older copy, rebuild it. Then read the rows again",
                **self._region.where,
                field="if_unchanged",
            )
        return newest
