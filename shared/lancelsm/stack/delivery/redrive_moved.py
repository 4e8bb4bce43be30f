"""Redrive rows of a region that a reshard sealed: append them to the new regions of their keys.

Newer than a row are the entries of its old region from the dead letter's position on, and all entries of its new
region, except those of lower messages of the old region. Model: tests/model/resharded_queue.py.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from lancelsm.common.layout import Position
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Unavailable
from lancelsm.region.catalog import Region
from lancelsm.region.handle import WriteTarget
from lancelsm.region.head import Head
from lancelsm.routing.route import Routed, route
from lancelsm.stack.delivery.newer_rows import NewerRows
from lancelsm.stack.delivery.quarantine import DeadLetter
from lancelsm.wal.entry import Draft, draft
from lancelsm.wal.region_writer import RegionWriter, find_or_create_region


class MovedAttempt:
    """A redrive of one dead letter of an old region.

    Args:
        old: the region of the dead letter.
        target: the table under its newest region spec.
        rows: in stored form.
    """

    def __init__(self, dead_letter: DeadLetter, old: Region, target: WriteTarget, rows: pa.Table) -> None:
        self._dead_letter = dead_letter
        self._target = target
        self._rows = rows
        self._producer = f"{dead_letter.queue}@{old.id}"
        head = old.find_head()
        self._is_settled = dead_letter.whole
        self._left = rows
        if head is not None:
            self._is_settled |= dead_letter.sequence <= head.applied(dead_letter.queue)
            self._left = self._newer_rows(
                old, rows, producer=dead_letter.queue, position=dead_letter.position, before=dead_letter.entry_setsum
            ).rows_to_append(head)

    @property
    def row_count(self) -> int:
        return int(self._rows.num_rows)

    def count(self) -> int:
        """Return how many rows `append` would append now. Raises the same errors."""
        return sum(self._count(part) for part in route(self._left, self._target.regions))

    def append(self) -> int:
        """Append the rows without newer rows and return their number.

        Raises: the same errors as `wal.append.append_after`. If some regions have their rows, the same call appends the
        others.
        """
        return sum(self._append(part) for part in route(self._left, self._target.regions))

    def _count(self, part: Routed) -> int:
        region = self._target.directory.find(part.values)
        head = None if region is None else region.find_head()
        if region is None or head is None:
            return int(part.rows.num_rows)
        return int(self._rows_to_append(self._newer_in(region, part), head).num_rows)

    def _newer_in(self, region: Region, part: Routed) -> NewerRows:
        return self._newer_rows(region, part.rows, producer=self._producer, position=Position(1), before=Setsum.ZERO)

    def _newer_rows(
        self, region: Region, rows: pa.Table, *, producer: str, position: Position, before: Setsum
    ) -> NewerRows:
        return NewerRows(
            region,
            self._target.schema,
            rows,
            producer=producer,
            sequence=self._dead_letter.sequence,
            position=position,
            entry_setsum=before,
        )

    def _append(self, part: Routed) -> int:
        region, _ = find_or_create_region(self._target, part.values)
        newer = self._newer_in(region, part)
        writer = RegionWriter(region, self._target, owner=self._target.owner, previous_owners=(), depth=1)
        entry = writer.append_after(partial(self._next_draft, region, newer))
        return 0 if entry is None else entry.rows

    def _next_draft(self, region: Region, newer: NewerRows, head: Head) -> Draft | None:
        left = self._rows_to_append(newer, head)
        applied = {self._producer: str(self._dead_letter.sequence)}
        return draft(left, applied_sequences=applied, at=region.context.clock.now()) if left.num_rows else None

    def _rows_to_append(self, newer: NewerRows, head: Head) -> pa.Table:
        if not self._is_settled and self._dead_letter.sequence > head.applied(self._producer):
            raise Unavailable("other rows of its message are not applied yet")
        return newer.rows_to_append(head)
