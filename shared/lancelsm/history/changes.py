"""The change stream: every committed upsert and delete of a table, in order within each region.

An entry is yielded once a head that was read after it shows that it was committed and not collected: what stands at a
position below `next_position` and at or above `first_position` is what was acknowledged there. Below `first_position`
that is so for as long as a cursor keeps it: the cursor's record is read after the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.layout import Epoch, Position, RegionId, wal_entry
from lancelsm.errors import Corrupt, Invalid, error_context
from lancelsm.history import cursor as cursors
from lancelsm.history.pins import Pin
from lancelsm.objects import Object
from lancelsm.record.schema import TOMBSTONE, TableSchema
from lancelsm.region.catalog import Region, TableContext, regions, with_heads
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.head import Head
from lancelsm.wal.entry import Entry, decode
from lancelsm.wal.replay import stored_rows

OPERATION = "_op"
UPSERT, DELETE = "upsert", "delete"

Start = str | int | float | Mapping[RegionId, Position]
"""`earliest`, `latest`, a position, Unix seconds as a float, or the next position of each region."""

_TRIES = 5
_AT_ONCE = 16  # entries read ahead in one region
_POLL_SECONDS = 0.2
_POLL_LONGEST = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One committed entry: the rows of one acknowledged write, or of several that travelled together.

    `rows` has the table's columns, null but for the key in a delete, and `_op`: `upsert` or `delete`. `at` is when the
    writer got them, by its own clock; None where it did not say.
    """

    region: RegionId
    position: Position
    epoch: Epoch
    at: float | None
    rows: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorLag:
    """What a cursor has yet to read: so many entries, fences among them.

    `since` is when the oldest of their rows were written, by the writer's clock; None if there are none, or unknown.
    """

    entries: int
    since: float | None


class Changes:
    """A stream of changes, as `Table.changes` describes it. Iterate it once; one thread at a time."""

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
        self._passed: dict[RegionId, Position] = {}  # the same, but before the fences that follow what was yielded
        self._begun = False
        self._unread: set[RegionId] = set()  # where the stream begins at the earliest that there is
        self._ahead = 0

    @property
    def positions(self) -> dict[RegionId, Position]:
        """The position after what was yielded, in each region that there was when the stream began or was read since.

        Whoever commits it together with what it made of the changes reads each of them exactly once: it is a `start`,
        by which a region that it does not name is read from its first entry on.
        """
        return dict(self._passed)

    @property
    def ahead(self) -> int:
        """How many entries are read but not yielded yet: a consumer that saves now and then does so when there is none.

        It is 0 when a stream that follows is about to wait.
        """
        return self._ahead

    def save(self, *, fences: bool = False) -> None:
        """Move the cursor past what was yielded.

        Args:
            fences: past the fences behind it too. Not for a consumer that keeps `positions` itself: what it has kept
                lies before them, where they may be collected then.

        Raises: as `history.cursor.save_cursor`, and `Invalid` without a cursor.
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
            for region in listed:
                entries = self._read(region, ends)
                idle = idle and not entries
                yield from self._changes(region, entries)
            if idle and not self._follow:
                return
            pause = min(pause * 2, _POLL_LONGEST) if idle else _POLL_SECONDS
            if idle:
                self._context.clock.sleep(pause)

    def _regions(self) -> list[Region]:
        """The regions to read, as of now; those that are there at first get their start before anything is read."""
        found = [one for one in regions(self._context) if self._only is None or one.id in self._only]
        begin = with_heads(self._context, [one for one in found if one.id not in self._next])
        ends = [head.next_position for _, head in begin]
        for region, head in begin:
            self._next[region.id] = self._passed[region.id] = self._first(region, head, ends)
            if self._start == "earliest" and self._pin is None and not self._begun:
                self._unread.add(region.id)
        self._begun = True
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
                rows = _shown(stored_rows(entry, self._schema), self._schema)
            if self._left is not None:
                self._left -= rows.num_rows
            self._next[region.id] = self._passed[region.id] = Position(position + 1)
            yield Change(region=region.id, position=position, epoch=entry.summary.epoch, at=entry.at, rows=rows)

    def _read(self, region: Region, ends: dict[RegionId, Position] | None) -> list[Entry]:
        """The next entries of one region up to its head as of now, but not much more than others wait for.

        Args:
            ends: where each region was to end when it was first asked for.
        """
        for _ in range(_TRIES):
            head = region.find_head()
            if head is None or region.id not in self._next:
                return []
            start = self._next[region.id]
            end = head.next_position if ends is None else ends.setdefault(region.id, head.next_position)
            wanted = range(start, min(end, start + _AT_ONCE))
            entries = committed(region, wanted, kept=partial(self._keeps, region, start))
            if entries is not None:
                self._unread.discard(region.id)
                return entries
            if region.id not in self._unread:
                break
            # The earliest has moved before it was read.
            self._next[region.id] = self._passed[region.id] = region.head().first_position
        raise _collected(region, region.head(), start)

    def _first(self, region: Region, head: Head, ends: Collection[Position]) -> Position:
        """Where the stream begins in a region: positions that a consumer keeps itself come before its cursor's."""
        if isinstance(self._start, Mapping) and region.id in self._start:
            return first_position(region, head, self._start)
        needs = None if self._pin is None else self._pin.of(region.id)
        if needs is not None:
            return needs.first_position
        if self._begun:
            return Position(1)  # of a region that was made after the stream began nothing may be left out
        start = self._start
        if isinstance(start, int) and any(end >= start for end in ends):
            start = min(start, head.next_position)  # one number for regions that are not as long as each other
        return first_position(region, head, start)

    def _keeps(self, region: Region, position: Position) -> bool:
        return self._pin is not None and cursors.keeps(self._context, self._pin, region.id, position)


def committed(
    region: Region, positions: Sequence[int], *, kept: Callable[[], bool] = lambda: False
) -> list[Entry] | None:
    """The committed entries at these positions, all below the head, proven by a head that is read after them.

    One that is missing or damaged ends them, or is told if it is the first.

    Args:
        kept: whether a pin keeps them all; called after they were read, if the head does not prove them.

    Returns:
        None if the log was collected past the first one.

    Raises:
        Corrupt: the first is missing or damaged.
        Unavailable: the store or the registry did not answer.
    """
    if not positions:
        return []
    keys = [wal_entry(region.id, Position(position)) for position in positions]
    found = region.context.each(region.context.objects.get, keys)
    # Nothing of them is looked at before a head that is read after them: a swept slot may hold what came late.
    if region.head().first_position > positions[0] and not kept():
        return None
    entries: list[Entry] = []
    for position, key, stored in zip(positions, keys, found, strict=True):
        try:
            with error_context(**region.where, position=position, object=key):
                entries.append(_sound(stored, position=Position(position), key=key))
        except Corrupt:
            if not entries:
                raise
            break
    return entries


def _sound(stored: Object | None, *, position: Position, key: str) -> Entry:
    if stored is None:
        raise Corrupt("a committed entry is gone")
    entry = decode(stored.body, position=position, key=key)
    if not (entry.sound or entry.nonce is None):
        raise Corrupt("a committed entry is damaged")
    return entry


def behind(context: TableContext, cursor: Pin) -> CursorLag:
    """How far a cursor is behind the logs as of now.

    Raises:
        Unavailable: the store or the registry did not answer.
    """

    def oldest(region: Region, unread: Sequence[int]) -> float | None:
        for position in map(Position, unread):
            entries = committed(region, [position], kept=partial(cursors.keeps, context, cursor, region.id, position))
            if entries is None:  # its consumer has just moved it
                return None
            if entries[0].summary.rows:
                return entries[0].at
        return None

    def of_region(region: Region) -> tuple[int, float | None]:
        needs, head = cursor.of(region.id), region.find_head()
        if needs is None or head is None:
            return 0, None
        at = None
        with suppress(Corrupt):  # whoever reads it, or a scrub, names what is wrong; the cursor is shown all the same
            at = oldest(region, range(needs.first_position, head.next_position))
        return head.next_position - needs.first_position, at

    found = context.each(of_region, regions(context))
    return CursorLag(
        entries=sum(entries for entries, _ in found),
        since=min((at for _, at in found if at is not None), default=None),
    )


def check_start(context: TableContext, start: Start) -> None:
    """Refuse what is no start of this table's streams, before anything is read or made by it.

    A region that is in the catalog but not created to the end is one of the table's.

    Raises:
        Invalid: `start` is none of its forms, or names a region that the table does not have: where those positions
            are from, another log was read.
        Corrupt, Unavailable: the catalog could not be read for it.
    """
    if not isinstance(start, Mapping):
        _check_form(start, table=context.uri)
        return
    if start and (unknown := sorted(start.keys() - {region.id for region in regions(context)}, key=str)):
        raise Invalid(
            "a stream can't start at a position of a region that the table does not have",
            remedy="Positions belong to the table that they were read from; a restored one begins anew: start at "
            "earliest",
            table=context.uri,
            region=unknown[0],
            field="start",
        )
    for region, position in start.items():
        if not _is_position(position):
            raise Invalid(
                f"a stream can't start at {position!r} in a region",
                remedy="Give the next position of each region, from 1 on, as Changes.positions does",
                table=context.uri,
                region=region,
                field="start",
            )


def _check_form(start: object, *, table: str) -> None:
    moment = isinstance(start, float) and start >= 0  # not NaN, which is no time
    if start not in ("earliest", "latest") and not moment and not _is_position(start):
        remedy = "Give earliest, latest, a position from 1 on, or a time from 1970 on in Unix seconds, as a float"
        raise Invalid(f"a stream can't start at {start!r}", remedy=remedy, table=table, field="start")


def _is_position(start: object) -> bool:
    return isinstance(start, int) and not isinstance(start, bool) and start >= 1


def first_position(region: Region, head: Head, start: Start) -> Position:
    """Where a stream begins in a region.

    Args:
        start: of which `check_start` has seen that it names no other table's regions, if it names any.

    Raises:
        Invalid: `start` is none of its forms, lies past the end of the log, or asks for what was collected.
    """
    if isinstance(start, Mapping):
        start = start.get(region.id, Position(1))
    _check_form(start, table=region.context.uri)
    if isinstance(start, str):
        return head.first_position if start == "earliest" else head.next_position
    if isinstance(start, float):
        return _at(region, head, start)
    if start > head.next_position:
        raise Invalid(
            f"position {start} lies past the end of the log: the next one is {head.next_position}",
            remedy="Start there at most, or at latest; each region has positions of its own: --region chooses one",
            **region.where,
            position=start,
        )
    return Position(start)


def _at(region: Region, head: Head, moment: float) -> Position:
    """The first entry that was written at or after a moment, by the clocks of its writers, which may differ.

    Raises:
        Invalid: it may have been collected: none that is left is older, and the newest round is not either.
    """
    low, high = head.first_position, head.next_position
    while low < high:
        middle = probe = (low + high) // 2
        while probe < high and (at := _written(region, Position(probe))) is None:  # a fence, or Lance's
            probe += 1
        if probe < high and at is not None and at < moment:
            low = Position(probe + 1)
        else:
            high = Position(middle)
    if low == head.first_position > 1:
        collected = newest(region, head)[1].collector_committed
        if not collected or moment < collected:  # what is gone was written before its round, and maybe after `moment`
            raise Invalid(
                f"the log begins at position {low}, and may have been collected since that time",
                remedy="Start at earliest, or scan the table and go on from there; a cursor keeps what it has not read",
                **region.where,
                position=low,
            )
    return Position(low)


def _written(region: Region, position: Position) -> float | None:
    entries = committed(region, [position])
    if entries is None:
        raise _collected(region, region.head(), position)
    return entries[0].at


def _collected(region: Region, head: Head, position: Position) -> Invalid:
    return Invalid(
        f"the log was collected below position {head.first_position}",
        remedy="Start at earliest, or scan the table and go on from there; a cursor keeps what it has not read",
        **region.where,
        position=position,
    )


def _opened(context: TableContext, name: str, start: Start) -> Pin:
    """The cursor of this name, made at `start` if there is none."""
    found = cursors.find_cursor(context, name)
    if found is not None:
        return found
    try:
        return cursors.make_cursor(context, name, start=lambda region, head: first_position(region, head, start))
    except Invalid:
        found = cursors.find_cursor(context, name)  # another consumer of it may have made it since
        if found is None:
            raise
        return found


def _shown(stored: pa.Table, schema: TableSchema) -> pa.Table:
    """Rows in stored form as a change shows them."""
    operation = pc.if_else(stored.column(TOMBSTONE), DELETE, UPSERT)
    columns = pa.schema([field.with_nullable(True).remove_metadata() for field in schema.columns])
    plain = stored.select(schema.names).cast(columns)
    return plain.append_column(OPERATION, operation)
