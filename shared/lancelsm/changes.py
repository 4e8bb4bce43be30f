"""The change stream: every committed upsert and delete of a table, in order within each region.

An entry is yielded once a head that was read after it shows that it was committed and not collected: what stands at a
position below `next_position` and at or above `first_position` is what was acknowledged there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm import cursor as cursors
from lancelsm.errors import Corrupt, Invalid
from lancelsm.head import Head
from lancelsm.layout import Epoch, Position, RegionId, wal_entry
from lancelsm.pins import Pin
from lancelsm.record.schema import TOMBSTONE, TableSchema, conform
from lancelsm.region import Region, Storage, regions
from lancelsm.wal.entry import Entry, decode

OPERATION = "_op"
UPSERT, DELETE = "upsert", "delete"

Start = str | int | float | Mapping[RegionId, Position]
"""`earliest`, `latest`, a position, Unix seconds as a float, or the next position of each region."""

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


class Changes:
    """A stream of changes, as `Table.changes` describes it. Iterate it once; one thread at a time."""

    def __init__(
        self,
        storage: Storage,
        schema: TableSchema,
        *,
        start: Start = "earliest",
        cursor: str | None = None,
        only: Collection[RegionId] | None = None,
        follow: bool = False,
        limit: int | None = None,
    ) -> None:
        self._storage = storage
        self._schema = schema
        self._only = only
        self._follow = follow
        self._left = limit
        self._start = start
        self._pin = None if cursor is None else _opened(storage, cursor, start)
        self._next: dict[RegionId, Position] = {}

    @property
    def positions(self) -> dict[RegionId, Position]:
        """The next position to read in each region, after what was yielded.

        Whoever commits it together with what it made of the changes reads each of them exactly once: it is a `start`.
        """
        return dict(self._next)

    def save(self) -> None:
        """Move the cursor past what was yielded; raises as `cursor.save_cursor`, and `Invalid` without a cursor."""
        if self._pin is None:
            raise Invalid("the stream has no cursor", remedy="Name one: changes(cursor=...)", table=self._storage.uri)
        self._pin = cursors.save_cursor(self._storage, self._pin, self._next)

    def __iter__(self) -> Iterator[Change]:
        pause = _POLL_SECONDS
        while self._left is None or self._left > 0:
            idle = True
            for region in regions(self._storage):
                if self._only is not None and region.id not in self._only:
                    continue
                for change in self._of(region):
                    idle = False
                    yield change
            if idle and not self._follow:
                return
            pause = min(pause * 2, _POLL_LONGEST) if idle else _POLL_SECONDS
            if idle:
                self._storage.clock.sleep(pause)

    def _of(self, region: Region) -> Iterator[Change]:
        """The changes of one region up to its head as of now, but not much more than others wait for."""
        head = region.find_head()
        if head is None:
            return
        start = self._next.setdefault(region.id, self._first(region, head))
        end = min(head.next_position, start + _AT_ONCE)
        for entry in committed(region, range(start, end)):
            if self._left is not None and self._left <= 0:
                return
            position = entry.summary.position
            if entry.summary.rows:
                rows = _shown(entry.table(), self._schema)
                if self._left is not None:
                    self._left -= rows.num_rows
                self._next[region.id] = Position(position + 1)
                yield Change(region=region.id, position=position, epoch=entry.summary.epoch, at=entry.at, rows=rows)
            self._next[region.id] = Position(position + 1)

    def _first(self, region: Region, head: Head) -> Position:
        needs = None if self._pin is None else self._pin.of(region.id)
        return first_position(region, head, self._start) if needs is None else needs.first_position


def committed(region: Region, positions: Sequence[int]) -> list[Entry]:
    """The committed entries at these positions, all below the head, proven by a head that is read after them.

    Raises:
        Invalid: the log was collected past the first one.
        Corrupt: one is missing or damaged.
        Unavailable: the store or the registry did not answer.
    """
    if not positions:
        return []
    bodies = region.storage.each(lambda position: _read(region, Position(position)), positions)
    floor = region.head().first_position
    if floor > positions[0]:
        raise Invalid(
            f"the log was collected below position {floor}",
            remedy="Start at earliest, or scan the table and go on from there; a cursor keeps what it has not read",
            **region.where,
            position=positions[0],
        )
    for position, entry in zip(positions, bodies, strict=True):
        if entry is None or not (entry.sound or entry.nonce is None):
            raise Corrupt(
                "a committed entry is damaged" if entry else "a committed entry is gone",
                remedy="Restore it from a backup",
                **region.where,
                position=position,
                object=wal_entry(region.id, Position(position)),
            )
    return [entry for entry in bodies if entry is not None]


def first_position(region: Region, head: Head, start: Start) -> Position:
    """Where a stream begins in a region.

    Raises:
        Invalid: `start` is none of its forms, or asks for what was collected.
    """
    if isinstance(start, Mapping):
        return start.get(region.id, head.first_position)
    if start == "earliest":
        return head.first_position
    if start == "latest":
        return head.next_position
    if isinstance(start, float):
        return _at(region, head, start)
    if isinstance(start, int) and start > 0:
        return Position(min(start, head.next_position))
    raise Invalid(f"a stream can't start at {start!r}", remedy="Give earliest, latest, a position or a time")


def _at(region: Region, head: Head, moment: float) -> Position:
    """The first entry that was written at or after a moment, by the clocks of its writers, which may differ."""
    low, high = head.first_position, head.next_position
    while low < high:
        middle = probe = (low + high) // 2
        while probe < high and (at := committed(region, [probe])[0].at) is None:  # a fence, or Lance's
            probe += 1
        if probe < high and at is not None and at < moment:
            low = Position(probe + 1)
        else:
            high = Position(middle)
    return Position(low)


def _opened(storage: Storage, name: str, start: Start) -> Pin:
    """The cursor of this name, made at `start` if there is none."""
    found = cursors.find_cursor(storage, name)
    if found is not None:
        return found
    return cursors.make_cursor(storage, name, start=lambda region, head: first_position(region, head, start))


def _read(region: Region, position: Position) -> Entry | None:
    key = wal_entry(region.id, position)
    found = region.storage.objects.get(key)
    return None if found is None else decode(found.body, position=position, key=key)


def _shown(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """Rows in stored form as a change shows them."""
    stored = conform(rows, schema)
    operation = pc.if_else(stored.column(TOMBSTONE), DELETE, UPSERT)
    columns = pa.schema([field.with_nullable(True).remove_metadata() for field in schema.columns])
    plain = stored.select(schema.names).cast(columns)
    return plain.append_column(OPERATION, operation)
