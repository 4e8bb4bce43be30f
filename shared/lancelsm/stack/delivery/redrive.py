"""Append again what was set aside, unless the log holds something newer for its keys.

What came after a row is what the log holds from the position on that its letter names, save older rows that were driven
back themselves: their entries have lower sequences of the queue. The sum of those entries proves that all of them were
seen, at every head that the append tries. Once the log is collected past that position it can't be told any more what
is newer, and the letter stays. Model: tests/model/redelivery.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.layout import Position, wal_entry
from lancelsm.errors import Corrupt, Invalid, LsmError, Unavailable
from lancelsm.objects import ObjectStore
from lancelsm.record.key import key_column
from lancelsm.record.schema import conform
from lancelsm.region.catalog import Region, check_writable
from lancelsm.region.handle import TableHandle, WriteTarget
from lancelsm.region.head import Head
from lancelsm.stack.delivery.message import unpacked
from lancelsm.stack.delivery.quarantine import DeadLetter, described, read_dead_letter
from lancelsm.stack.delivery.queue import Delivery, Queue
from lancelsm.stack.delivery.validation import partition_valid
from lancelsm.wal.entry import Draft, Entry, decode, draft
from lancelsm.wal.region_writer import RegionWriter


class Verdict(StrEnum):
    APPENDED = "appended"  # at least one row; newer rows have the keys of the others
    SUPERSEDED = "superseded"  # newer rows have all its keys
    LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """What became of one letter, or would have, and why; `set_aside` is why it is one, empty if it does not say."""

    id: str  # of the message whose rows it holds; on the queue, if it does not say
    table: str
    region: str
    rows: int  # appended
    verdict: Verdict
    reason: str
    set_aside: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """How to get at what letters name by URI."""

    table: Callable[[str], TableHandle]
    inbox: Callable[[str], ObjectStore]


def redrive(dead_letters: Queue, *, places: Places, dry: bool) -> Iterator[Redriven]:
    """Go through the dead-letter queue.

    Args:
        dry: append and delete nothing, say only what would happen.

    Yields:
        What became of each letter, after its entry is committed. One that is appended or superseded is deleted once the
        next is asked for; any other is back on the queue when the iterator is closed.

    Raises:
        Unavailable, Invalid: the queue failed.

    A crash between append and deletion leaves the letter, and the row that was appended supersedes it.
    """
    out: dict[str, str] = {}  # the receipts of letters that are not deleted, by their ids on the queue
    try:
        # A few at a time: their time on the queue is for them alone.
        while taken := dead_letters.receive():
            unseen = [one for one in taken if one.id not in out]  # those that were left may come again
            out |= {one.id: one.receipt for one in taken}
            for one in unseen:
                done = _redriven(one, places, dry=dry)
                yield done
                if not dry and done.verdict is not Verdict.LEFT:
                    dead_letters.delete(one.receipt)
                    del out[one.id]
    finally:
        dead_letters.postpone(out.values(), seconds=0)


def _redriven(one: Delivery, places: Places, *, dry: bool) -> Redriven:
    message, cause = described(one.body)

    def explained(verdict: Verdict, rows: int, reason: str, *, table: str = "", region: str = "") -> Redriven:
        return Redriven(
            id=message or one.id,
            table=table,
            region=region,
            rows=rows,
            verdict=verdict,
            reason=reason,
            set_aside=cause,
        )

    try:
        dead_letter = read_dead_letter(one.body)
    except LsmError as error:
        return explained(Verdict.LEFT, 0, f"{error.message}. {error.remedy}")
    explained = partial(explained, table=dead_letter.message.table, region=dead_letter.message.region)

    try:
        target = places.table(dead_letter.message.table).target()
        attempt = _Attempt(dead_letter, target, _rows(dead_letter, target, places))
        rows = attempt.look() if dry else attempt.append()
    except LsmError as error:
        return explained(Verdict.LEFT, 0, error.message)
    if not rows:
        return explained(Verdict.SUPERSEDED, 0, "newer rows have its keys")
    return explained(Verdict.APPENDED, rows, "newer rows have its other keys" if rows < attempt.given else "")


def _rows(dead_letter: DeadLetter, target: WriteTarget, places: Places) -> pa.Table:
    """The letter's rows in stored form; raises `Invalid` if one of them still doesn't fit."""
    stream = dead_letter.message.rows
    if dead_letter.message.object is not None:
        found = places.inbox(dead_letter.inbox).get(dead_letter.message.object)
        stream = None if found is None else found.body
    if stream is None:
        raise Invalid("its object is not in the inbox any more")
    rows, rejected = partition_valid(unpacked(stream), target=target, values=dead_letter.message.values)
    if rejected is not None:
        raise rejected.error
    return rows


class _Attempt:
    """One letter on its way back, and what of its keys the log was seen to hold since."""

    def __init__(self, dead_letter: DeadLetter, target: WriteTarget, rows: pa.Table) -> None:
        region = target.directory.find(dead_letter.message.values)
        if region is None or region.id != dead_letter.message.region:
            raise Invalid("the table has no such region any more")
        self._region: Region = region
        self._dead_letter = dead_letter
        self._target = target
        self._rows = rows
        self._keys = key_column(rows, target.schema.primary_key)
        self._newer = pa.repeat(False, rows.num_rows)
        self._next = dead_letter.position
        self._sum = dead_letter.entry_setsum

    @property
    def given(self) -> int:
        return int(self._rows.num_rows)

    def look(self) -> int:
        """How many rows `append` would append now; raises as it."""
        head = self._region.head()
        check_writable(self._region, head, owner=self._target.owner)
        return int(self._left(head).num_rows)

    def append(self) -> int:
        """Append the rows that nothing newer supersedes; returns their number. Raises as `wal.append.append_after`."""
        dead_letter = self._dead_letter
        writer = RegionWriter(self._region, self._target, owner=self._target.owner, previous_owners=(), depth=1)

        def next_draft(head: Head) -> Draft | None:
            left = self._left(head)
            return (
                draft(left, applied_sequences={dead_letter.queue: str(dead_letter.sequence)}) if left.num_rows else None
            )

        entry = writer.append_after(next_draft)
        return 0 if entry is None else entry.rows

    def _left(self, head: Head) -> pa.Table:
        """The rows whose keys nothing in the log has that was committed after them, as of this head."""
        entries_sum = self._sum
        newer = self._newer
        if head.first_position > self._dead_letter.position:
            raise _collected(head)
        if not self._dead_letter.whole and self._dead_letter.sequence > head.applied(self._dead_letter.queue):
            raise Unavailable("other rows of its message are still to be applied")
        for number in range(self._next, head.next_position):
            entry = self._entry(Position(number))
            if entry is not None:
                newer = pc.or_(newer, pc.is_in(self._keys, value_set=self._newer_keys(entry)))
                entries_sum = entries_sum + entry.summary.entry_setsum
        if entries_sum != head.entry_setsum:
            fresh = self._region.head()
            raise _collected(fresh) if fresh.first_position > self._dead_letter.position else self._corrupt()
        self._next, self._sum, self._newer = head.next_position, entries_sum, newer
        return self._rows.filter(pc.invert(newer))

    def _entry(self, position: Position) -> Entry | None:
        """The entry there, if one can be read; the sum tells whether that was all of them."""
        key = wal_entry(self._region.id, position)
        found = self._region.context.objects.get(key)
        try:
            return None if found is None else decode(found.body, position=position, key=key)
        except Corrupt:
            return None

    def _newer_keys(self, entry: Entry) -> pa.Array:
        """The keys in an entry, if what it holds is newer than the letter."""
        older = (
            int(entry.summary.applied_sequences.get(self._dead_letter.queue, self._dead_letter.sequence))
            < self._dead_letter.sequence
        )
        if entry.fence or older:
            return self._keys.slice(0, 0)
        schema = self._target.schema
        return key_column(conform(entry.table(), schema), schema.primary_key)

    def _corrupt(self) -> Corrupt:
        return Corrupt(
            f"the entries from position {self._dead_letter.position} on don't add up to what was committed",
            **self._region.where,
        )


def _collected(head: Head) -> Invalid:
    return Invalid(
        f"the log is collected below {head.first_position}, so it can't be told any more what is newer",
        remedy="Compare it with the table, then write it again or drop it",
    )
