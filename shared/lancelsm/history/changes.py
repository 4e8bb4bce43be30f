"""Stream the committed upserts and deletes of a table, in order within each region.

After a reshard, the regions of the earlier spec are read to their end before a region of the later one. Model:
tests/model/resharded_stream.py.

The stream reads an entry, then the head. If the position is from `first_position` to `next_position` - 1 of that head,
the entry is the committed one. Below `first_position` this holds while a cursor keeps the position; so the stream reads
the cursor's record after the entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.argument_checks import checked
from lancelsm.common.layout import Epoch, Position, RegionId
from lancelsm.errors import Corrupt, Invalid, error_context
from lancelsm.history import cursor as cursors
from lancelsm.history.committed_entries import committed, log_collected
from lancelsm.history.pin_records import Pin
from lancelsm.history.stream_start import Start, check_start, first_position
from lancelsm.record.casts import as_schema
from lancelsm.record.schema import TOMBSTONE, NewerSchema, TableSchema
from lancelsm.region.catalog import Region, TableContext, regions, with_heads
from lancelsm.region.handle import newest_columns
from lancelsm.region.head import Head, RegionState
from lancelsm.wal.entry import Entry
from lancelsm.wal.replay import stored_rows

OPERATION = "_op"
UPSERT, DELETE = "upsert", "delete"

_TRIES = 5
_AT_ONCE = 16  # entries of one region that are read at once
_POLL_SECONDS = 0.2
_POLL_LONGEST = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One committed entry: the rows of one acknowledged write, or of several writes that share the entry.

    `rows` has the table's columns and `_op`, which is `upsert` or `delete`. In a delete all columns but the key are
    null. If the columns have changed since the entry was written, it is converted. `at` is when the writer received the
    rows, by its clock; None if unknown.
    """

    region: RegionId
    position: Position
    epoch: Epoch
    at: float | None
    rows: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorLag:
    """What a cursor has not read yet: the number of entries, including fences.

    `since` is when the oldest unread rows were written, by the writer's clock; None if there are none, or if unknown.
    """

    entries: int
    since: float | None


class Changes:
    """The committed upserts and deletes of a table, in commit order in each region. `Table.changes` returns it.

    It can be iterated once, by one thread at a time.
    """

    def __init__(
        self,
        context: TableContext,
        schema: TableSchema,
        *,
        start: Start = "earliest",
        cursor: str | None = None,
        only: Collection[RegionId] | None = None,
        follow: bool = False,
        limit: int | None = None,
    ) -> None:
        self._context = context
        self._schema = schema
        self._only = only
        self._follow = follow
        self._left = limit
        if limit is not None and limit < 1:
            raise Invalid(f"the limit is {limit}", remedy="Give 1 or more", table=context.uri, field="limit")
        check_start(context, start)
        self._start = start
        self._consumer = context.ids.nonce()
        self._pin = None if cursor is None else _opened(context, cursor, start)
        self._next: dict[RegionId, Position] = {}
        self._passed: dict[RegionId, Position] = {}  # like `_next`, but before the fences after the last change
        self._ended: set[RegionId] = set()  # sealed regions that were read to their end
        self._started = False
        self._at_earliest: set[RegionId] = set()  # regions at `earliest` from which nothing is read yet
        self._ahead = 0

    @property
    def positions(self) -> dict[RegionId, Position]:
        """The next position of each region that the stream has seen, before any fences after the last change.

        A consumer that commits it together with its own results gets each change exactly once: it passes it as `start`
        next time. Regions that are not in it are then read from their first entry.
        """
        return dict(self._passed)

    @property
    def ahead(self) -> int:
        """The number of entries that are read but not yielded; save the cursor when it is 0.

        It is 0 when a stream with `follow` is about to wait.
        """
        return self._ahead

    @checked
    def save(self, *, fences: bool = False) -> None:
        """Move the cursor past the changes that were yielded.

        Args:
            fences: also move past the fences after the last change. Not for a consumer that stores `positions` itself:
                its positions are before these fences, and the log may then be collected there.

        Raises:
            Invalid: the stream has no cursor, or a position is before the cursor.
            Contended: another consumer moved the cursor, or collections overtook the change several times.
            Unavailable: the registry did not answer; the cursor may have moved. Save again.
        """
        if self._pin is None:
            raise Invalid("the stream has no cursor", remedy="Name one: changes(cursor=...)", table=self._context.uri)
        positions = self._next if fences else self._passed
        self._pin = cursors.save_cursor(self._context, self._pin, positions, consumer=self._consumer)

    def __iter__(self) -> Iterator[Change]:
        pause = _POLL_SECONDS
        ends: dict[RegionId, Position] | None = None if self._follow else {}
        listed: list[Region] = []
        while self._left is None or self._left > 0:
            idle = True
            if self._follow or not listed:
                listed = self._regions()
            number = min((region.number for region in listed), default=1)
            for region in listed:
                if region.number > number and not idle:  # guard: old regions are read to their end first
                    break
                number = region.number
                entries = self._read(region, ends)
                idle = idle and not entries
                yield from self._changes(region, entries)
            if idle and not self._follow:
                return
            pause = min(pause * 2, _POLL_LONGEST) if idle else _POLL_SECONDS
            if idle:
                self._context.clock.sleep(pause)

    def _regions(self) -> list[Region]:
        """List the regions to read, those of earlier region specs first.

        All regions of the first listing get their start before anything is read. A region of a later spec is listed
        only after those of earlier specs were sealed, and their heads are read after the listing. So an old region that
        had no more entries then never gets one, and what the later region has is newer.
        """
        found = [one for one in regions(self._context) if self._only is None or one.id in self._only]
        found.sort(key=lambda one: one.number)
        begin = with_heads(self._context, [one for one in found if one.id not in self._next])
        ends = [head.next_position for _, head in begin]
        for region, head in begin:
            self._next[region.id] = self._passed[region.id] = self._first(region, head, ends)
            if self._start == "earliest" and self._pin is None and not self._started:
                self._at_earliest.add(region.id)
        self._started = True
        return found

    def _changes(self, region: Region, entries: Sequence[Entry]) -> Iterator[Change]:
        last = max((at for at, entry in enumerate(entries) if entry.summary.rows), default=-1)
        for at, entry in enumerate(entries):
            if self._left is not None and self._left <= 0:
                return
            self._ahead = max(0, last - at)
            position = entry.summary.position
            if not entry.summary.rows:
                self._next[region.id] = Position(position + 1)
                continue
            with error_context(**region.where):
                rows = self._rows_of(entry)
            if self._left is not None:
                self._left -= rows.num_rows
            self._next[region.id] = self._passed[region.id] = Position(position + 1)
            yield Change(region=region.id, position=position, epoch=entry.summary.epoch, at=entry.at, rows=rows)

    def _rows_of(self, entry: Entry) -> pa.Table:
        """Return the rows of an entry in the newest columns that the stream knows."""
        try:
            rows = stored_rows(entry, self._schema)
        except NewerSchema:
            self._schema = newest_columns(self._context, self._schema)
            rows = stored_rows(entry, self._schema)
        return _to_change_rows(rows, self._schema)

    def _read(self, region: Region, ends: dict[RegionId, Position] | None) -> list[Entry]:
        """Read the next entries of one region, up to its head; a limited number, so that other regions don't wait long.

        Args:
            ends: the end of each region, from its first read, for a stream that does not follow.
        """
        for _ in range(_TRIES):
            head = None if region.id in self._ended else region.find_head()
            if head is None or region.id not in self._next:
                return []
            start = self._next[region.id]
            if head.status is RegionState.SEALED and start == head.next_position:
                self._ended.add(region.id)
            end = head.next_position if ends is None else ends.setdefault(region.id, head.next_position)
            wanted = range(start, min(end, start + _AT_ONCE))
            entries = committed(region, wanted, kept=partial(self._keeps, region, start))
            if entries is not None:
                self._at_earliest.discard(region.id)
                return entries
            if region.id not in self._at_earliest:
                break
            # A collection raised the floor before the first read.
            self._next[region.id] = self._passed[region.id] = region.head().first_position
        raise log_collected(region, region.head(), start)

    def _first(self, region: Region, head: Head, ends: Collection[Position]) -> Position:
        """Return the start of the stream in a region. A position in `start` has priority over that of the cursor."""
        if isinstance(self._start, Mapping) and region.id in self._start:
            return first_position(region, head, self._start)
        needs = None if self._pin is None else self._pin.of(region.id)
        if needs is not None:
            return needs.first_position
        if self._started:  # guard: new region is read from its start
            return Position(1)  # the region was created after the start: yield all of it
        start = self._start
        if isinstance(start, int) and any(end >= start for end in ends):
            start = min(start, head.next_position)  # one position for all regions; some logs are shorter
        return first_position(region, head, start)

    def _keeps(self, region: Region, position: Position) -> bool:
        return self._pin is not None and cursors.keeps(self._context, self._pin, region.id, position)


def cursor_lag(context: TableContext, cursor: Pin) -> CursorLag:
    """Measure how far a cursor is behind the logs now.

    Raises:
        Unavailable: the store or the registry did not answer.
    """

    def oldest(region: Region, unread: Sequence[int]) -> float | None:
        for position in map(Position, unread):
            entries = committed(region, [position], kept=partial(cursors.keeps, context, cursor, region.id, position))
            if entries is None:  # its consumer moved it meanwhile
                return None
            if entries[0].summary.rows:
                return entries[0].at
        return None

    def of_region(region: Region) -> tuple[int, float | None]:
        needs, head = cursor.of(region.id), region.find_head()
        if needs is None or head is None:
            return 0, None
        at = None
        with suppress(Corrupt):  # still report the cursor; readers and scrub report the damage
            at = oldest(region, range(needs.first_position, head.next_position))
        return head.next_position - needs.first_position, at

    found = context.each(of_region, regions(context))
    return CursorLag(
        entries=sum(entries for entries, _ in found),
        since=min((at for _, at in found if at is not None), default=None),
    )


def _opened(context: TableContext, name: str, start: Start) -> Pin:
    """Find the cursor of this name, or create it at `start`."""
    found = cursors.find_cursor(context, name)
    if found is not None:
        return found
    try:
        return cursors.create_cursor(context, name, start=lambda region, head: first_position(region, head, start))
    except Invalid:
        found = cursors.find_cursor(context, name)  # another consumer may have created it meanwhile
        if found is None:
            raise
        return found


def _to_change_rows(stored: pa.Table, schema: TableSchema) -> pa.Table:
    """Convert rows from stored form to the form of `Change.rows`."""
    operation = pc.if_else(stored.column(TOMBSTONE), DELETE, UPSERT)
    columns = pa.schema([field.with_nullable(True).remove_metadata() for field in schema.columns])
    plain = as_schema(stored.select(schema.names), columns)
    return plain.append_column(OPERATION, operation)
