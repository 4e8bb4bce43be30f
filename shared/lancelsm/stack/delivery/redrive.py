"""Redrive: append quarantined rows again, unless the log has newer rows with their keys.

Newer than a row are the entries from its dead letter's position on, except older rows that were redriven: their entries
have lower sequences of the queue. The sum of the entries proves that all of them were read, for every head that the
append tries. Once the log is collected past that position, newer rows can't be ruled out, and the dead letter stays.
Model: tests/model/redelivery.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

import pyarrow as pa

from lancelsm.errors import Invalid, LsmError, Unavailable
from lancelsm.objects import ObjectStore
from lancelsm.region.catalog import Region, check_takes_plain_writes, check_writable
from lancelsm.region.handle import TableHandle, WriteTarget
from lancelsm.region.head import Head
from lancelsm.stack.delivery.message import unpacked
from lancelsm.stack.delivery.moved import old_region
from lancelsm.stack.delivery.newer_rows import NewerRows
from lancelsm.stack.delivery.quarantine import DeadLetter, describe_dead_letter, read_dead_letter
from lancelsm.stack.delivery.queue import Delivery, Queue
from lancelsm.stack.delivery.redrive_moved import MovedAttempt
from lancelsm.stack.delivery.validation import partition_valid
from lancelsm.wal.entry import Draft, draft
from lancelsm.wal.region_writer import RegionWriter


class Verdict(StrEnum):
    APPENDED = "appended"  # at least one row; newer rows exist for the keys of the others
    SUPERSEDED = "superseded"  # newer rows exist for all its keys
    LEFT = "left"  # the dead letter stays in the queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """The result of one dead letter, or the expected result in a dry run.

    `reason` explains the verdict. `quarantine_reason` is why the rows were quarantined; empty if the dead letter does
    not say.
    """

    id: str  # the id of the quarantined message, or of the dead letter if it does not name one
    table: str
    region: str
    rows: int  # appended
    verdict: Verdict
    reason: str
    quarantine_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Openers:
    """How to open the table and the inbox that a dead letter names by URI."""

    table: Callable[[str], TableHandle]
    inbox: Callable[[str], ObjectStore]


def redrive(dead_letters: Queue, *, openers: Openers, dry: bool) -> Iterator[Redriven]:
    """Process the dead-letter queue.

    Args:
        dry: append and delete nothing, only report what would happen.

    Yields:
        The result of each dead letter, after its entry is committed. An appended or superseded dead letter is deleted
        when the next result is requested. The others return to the queue when the iterator is closed.

    Raises:
        Unavailable, Invalid: the queue failed.

    After a crash between append and deletion the dead letter remains, superseded by the appended rows.
    """
    out: dict[str, str] = {}  # receipts of dead letters that are not deleted, by id on the queue
    try:
        # Receive few at a time, so that each is processed within its visibility timeout.
        while taken := dead_letters.receive():
            unseen = [one for one in taken if one.id not in out]  # dead letters that stay may be delivered again
            out |= {one.id: one.receipt for one in taken}
            for one in unseen:
                done = _redrive_one(one, openers, dry=dry)
                yield done
                if not dry and done.verdict is not Verdict.LEFT:
                    dead_letters.delete(one.receipt)
                    del out[one.id]
    finally:
        dead_letters.postpone(out.values(), seconds=0)


def _redrive_one(one: Delivery, openers: Openers, *, dry: bool) -> Redriven:
    message, cause = describe_dead_letter(one.body)

    def explained(verdict: Verdict, rows: int, reason: str, *, table: str = "", region: str = "") -> Redriven:
        return Redriven(
            id=message or one.id,
            table=table,
            region=region,
            rows=rows,
            verdict=verdict,
            reason=reason,
            quarantine_reason=cause,
        )

    try:
        dead_letter = read_dead_letter(one.body)
    except LsmError as error:
        return explained(Verdict.LEFT, 0, f"{error.message}. {error.remedy}")
    explained = partial(explained, table=dead_letter.message.table, region=dead_letter.message.region)

    try:
        attempt = _attempt(dead_letter, openers)
        rows = attempt.count() if dry else attempt.append()
    except LsmError as error:
        return explained(Verdict.LEFT, 0, ". ".join(filter(None, (error.message, error.remedy))))
    if not rows:
        return explained(Verdict.SUPERSEDED, 0, "newer rows exist for all its keys")
    return explained(Verdict.APPENDED, rows, "newer rows exist for its other keys" if rows < attempt.row_count else "")


def _attempt(dead_letter: DeadLetter, openers: Openers) -> _Attempt | MovedAttempt:
    """Begin to redrive a dead letter. Raises the same errors as `_rows`."""
    handle = openers.table(dead_letter.message.table)
    target, old = handle.target(), old_region(dead_letter.message, handle)
    spec = None if old is None else handle.config.regions_of(old.number)
    if old is None or spec is None:
        return _Attempt(dead_letter, target, _rows(dead_letter, target, openers))
    rows = _rows(dead_letter, replace(target, regions=spec), openers)
    return MovedAttempt(dead_letter, old, target, rows)


def _rows(dead_letter: DeadLetter, target: WriteTarget, openers: Openers) -> pa.Table:
    """Return the dead letter's rows in stored form. Raises `Invalid` if a row still does not fit."""
    stream = dead_letter.message.rows
    if dead_letter.message.object is not None:
        found = openers.inbox(dead_letter.inbox).get(dead_letter.message.object)
        stream = None if found is None else found.body
    if stream is None:
        raise Invalid("its object is no longer in the inbox")
    rows, rejected = partition_valid(unpacked(stream), target=target, values=dead_letter.message.values)
    if rejected is not None:
        raise rejected.error
    return rows


class _Attempt:
    """A redrive of one dead letter, with the newer rows that the log was found to have."""

    def __init__(self, dead_letter: DeadLetter, target: WriteTarget, rows: pa.Table) -> None:
        region = target.directory.find(dead_letter.message.values)
        if region is None or region.id != dead_letter.message.region:
            raise Invalid("the table no longer has this region")
        self._region: Region = region
        self._dead_letter = dead_letter
        self._target = target
        self._rows = rows
        self._newer = NewerRows(
            region,
            target.schema,
            rows,
            producer=dead_letter.queue,
            sequence=dead_letter.sequence,
            position=dead_letter.position,
            entry_setsum=dead_letter.entry_setsum,
        )

    @property
    def row_count(self) -> int:
        return int(self._rows.num_rows)

    def count(self) -> int:
        """Return how many rows `append` would append now. Raises the same errors."""
        head = self._region.head()
        check_writable(self._region, head, owner=self._target.owner)
        is_ordered = head.ordered or self._target.context.ordered
        check_takes_plain_writes(self._region.where, ordered=is_ordered)
        return int(self._rows_to_append(head).num_rows)

    def append(self) -> int:
        """Append the rows without newer rows and return their number.

        Raises: the same errors as `wal.append.append_after`.
        """
        dead_letter = self._dead_letter
        writer = RegionWriter(self._region, self._target, owner=self._target.owner, previous_owners=(), depth=1)

        def next_draft(head: Head) -> Draft | None:
            left = self._rows_to_append(head)
            applied = {dead_letter.queue: str(dead_letter.sequence)}
            at = self._region.context.clock.now()
            return draft(left, applied_sequences=applied, at=at) if left.num_rows else None

        entry = writer.append_after(next_draft)
        return 0 if entry is None else entry.rows

    def _rows_to_append(self, head: Head) -> pa.Table:
        """Return the rows whose keys have no newer row in the log, as of this head."""
        left = self._newer.rows_to_append(head)
        if not self._dead_letter.whole and self._dead_letter.sequence > head.applied(self._dead_letter.queue):
            raise Unavailable("other rows of its message are not applied yet")
        return left
