"""Read the committed entries that are in no generation yet, and prove that they are the committed ones.

The setsum of an entry proves only that its bytes are intact. It does not prove that the entry was committed: a stalled
writer may have put an object into a slot that was already collected. The proof is the sum of all entries between a
manifest and a head, since both record their sums. Model: tests/model/reader_view.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol

import pyarrow as pa

from lancelsm.common.layout import Position, wal_entry, wal_prefix
from lancelsm.common.setsum import Setsum
from lancelsm.common.task_pool import PoolTask, TaskPool
from lancelsm.errors import Corrupt, Invalid, error_context
from lancelsm.objects.location import local_path
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TOMBSTONE, TableSchema, conform
from lancelsm.region import manifest_invariants
from lancelsm.region.catalog import Region
from lancelsm.region.manifest import Manifest
from lancelsm.wal.entry import Entry, decode

AHEAD_BYTES = 32 << 20  # of entries that are read before they are used
_SIZE_UNKNOWN = 2 << 20
_THREAD_BYTES = 1 << 20


class LogEnd(Protocol):
    """The end of a log for a reader: a head, or the part of a head that a snapshot records."""

    @property
    def next_position(self) -> Position: ...

    @property
    def entry_setsum(self) -> Setsum: ...

    @property
    def manifest_key(self) -> str: ...


class LogCollected(Exception):
    """The log was collected while it was read: read head and manifest again."""


def tail(region: Region, end: LogEnd, manifest: Manifest) -> list[Entry] | None:
    """Return the entries after the replay point of the manifest up to the end of the log, in order.

    Args:
        end: a head, or the end that a snapshot records.
        manifest: the manifest that `end` names.

    Returns:
        The entries, fences included. None if the log was collected meanwhile: read head and manifest again.

    Raises:
        Corrupt: entries are missing, unreadable or do not add up, and no collection explains it. The error names the
            first damaged entry, or the whole range if each entry is intact by itself. Or the manifest contradicts
            itself or the head; the error names the manifest.
        Unavailable: the store did not answer.
    """
    return _all(stream_tail(region, end, manifest))


def entries_between(region: Region, *, first: Position, sum_before: Setsum, end: LogEnd) -> Iterator[Entry]:
    """Yield the entries from position `first` up to the end of the log, like `stream_tail`.

    Args:
        sum_before: the sum of all entries before `first`, as a manifest or an earlier head recorded it.

    Raises: the same as `stream_tail`.
    """
    return _stream(region, first=first, sum_before=sum_before, end=end)


def stream_tail(region: Region, end: LogEnd, manifest: Manifest, *, size: int | None = None) -> Iterator[Entry]:
    """Yield the entries that `tail` returns, each read once, with only a few of them in memory.

    Only the end of the iteration proves that the entries are the committed ones: use nothing of them before.

    Args:
        size: the bytes of the tail, if the caller knows them.

    Raises:
        LogCollected: the log was collected meanwhile.
        Corrupt, Unavailable: the same as `tail`.
    """
    _check_consistent(region, end, manifest)
    first = Position(manifest.replay_after + 1)
    yield from _stream(region, first=first, sum_before=manifest.entry_setsum, end=end, size=size)


def _all(entries: Iterator[Entry]) -> list[Entry] | None:
    try:
        return list(entries)
    except LogCollected:
        return None


def _stream(
    region: Region, *, first: Position, sum_before: Setsum, end: LogEnd, size: int | None = None
) -> Iterator[Entry]:
    positions = range(first, end.next_position)
    if not positions:
        return
    total, damaged = Setsum(), None
    try:
        for entry in read_ahead(region, positions, size=size):
            total += entry.summary.entry_setsum
            if damaged is None and entry.nonce is not None and not entry.sound:
                damaged = entry.summary.position
            yield entry
            del entry  # the next one may take its memory
        if total != end.entry_setsum - sum_before:  # guard: sum of a tail is checked
            raise _sum_mismatch(region, positions, damaged)
    except Corrupt as error:
        problem = error
    else:
        return
    # The head must be read after the objects: below its floor, objects may be gone or replaced by late puts.
    if region.head().first_position > positions.start:  # guard: collected tail is not damage
        raise LogCollected from problem
    raise problem


def read_ahead(region: Region, positions: Sequence[int], *, size: int | None) -> Iterator[Entry]:
    """Read the entries at these positions in this order, several at a time but only few bytes ahead.

    The size of an entry is known only when it is read. It is taken to be the mean of the entries that are left, or that
    of the largest one before it.

    Args:
        size: the bytes of all of them, if the caller knows it.

    Raises: the same errors as `read_entry`.
    """
    parallel = min(region.context.parallel, len(positions))
    if size:  # more threads than entries that are in memory at a time would take memory of their own
        parallel = min(parallel, max(1, AHEAD_BYTES * len(positions) // size))
        if local_path(region.context.uri) is not None:  # to start a thread takes longer than to read small files
            parallel = min(parallel, max(1, size // _THREAD_BYTES))
    if parallel <= 1:
        yield from (read_entry(region, Position(position)) for position in positions)
        return
    unread, largest = size or 0, _SIZE_UNKNOWN if size is None else 0
    submitted, waiting = 0, deque[PoolTask[Entry]]()
    with TaskPool(parallel) as pool:
        for done in range(len(positions)):
            expected = max(1, largest, unread // (len(positions) - done))
            room = max(1, min(parallel, AHEAD_BYTES // expected))
            while submitted < len(positions) and len(waiting) < room:
                waiting.append(pool.submit(partial(read_entry, region, Position(positions[submitted]))))
                submitted += 1
            entry = waiting.popleft().result()
            unread = max(0, unread - entry.summary.bytes)
            largest = max(entry.summary.bytes, largest * 7 // 8)
            yield entry
            del entry


def stored_rows(entry: Entry, schema: TableSchema) -> pa.Table:
    """Return the rows of a committed entry in the stored form of a schema.

    If the entry has the schema of the table, the sum of the entry proves the rows. Under any other schema, such as an
    older one, the rows are summed and compared.

    Raises:
        Corrupt: the rows are not as written.
        NewerSchema: the entry was written under a newer version of the table's columns.
    """
    try:
        rows = entry.table()
        if rows.num_rows != entry.summary.rows or TOMBSTONE not in rows.schema.names:  # every writer adds it
            raise _unreadable(entry, "the rows of a committed entry are not the rows that were written")
        if not rows.schema.equals(schema.stored, check_metadata=True):
            if entry.row_setsum is not None and row_setsum(rows) != entry.row_setsum:
                raise _unreadable(entry, "the rows of a committed entry don't have the sum that it declares")
            rows.validate(full=True)
        return conform(rows, schema)
    except (pa.ArrowException, Invalid, ValueError) as error:
        raise _unreadable(entry, f"the rows of a committed entry can't be read: {error}") from error


def _unreadable(entry: Entry, message: str) -> Corrupt:
    return Corrupt(message, position=entry.summary.position, object=entry.key)


def read_entry(region: Region, position: Position) -> Entry:
    """Read and decode the entry at a position, without a proof that it is the committed one.

    Raises:
        Corrupt: there is no entry, or it is unreadable.
        Unavailable: the store did not answer.
    """
    key = wal_entry(region.id, position)
    found = region.context.objects.get(key)
    if found is None:
        raise Corrupt("a committed entry is gone", **region.where, position=position, object=key)
    with error_context(**region.where):
        return decode(found.body, position=position, key=key)


def _check_consistent(region: Region, end: LogEnd, manifest: Manifest) -> None:
    """Raise `Corrupt` if the manifest does not add up, or if the log ends before its replay point."""
    broken = manifest_invariants.violations(None, manifest)
    last = end.next_position - 1
    if last < manifest.replay_after:
        broken.append(f"the log ends at {last}, before the replay point {manifest.replay_after}")
    if last == manifest.replay_after and end.entry_setsum != manifest.entry_setsum:
        broken.append(f"head and manifest have different sums of the log through the replay point {last}")
    if broken:
        raise Corrupt(
            f"manifest and head contradict each other: {'; '.join(broken)}",
            remedy=f"Restore the object from a copy of the bucket. Without a copy: {region.context.rebuild_remedy}",
            **region.where,
            position=manifest.replay_after,
            object=end.manifest_key,
        )


def _sum_mismatch(region: Region, positions: range, damaged: Position | None) -> Corrupt:
    """Build the error for entries whose sum differs from the committed sum."""
    if damaged is not None:
        return Corrupt(
            "a committed entry is damaged: its bytes don't have the sum that it declares",
            **region.where,
            position=damaged,
            object=wal_entry(region.id, damaged),
        )
    first, last = Position(positions[0]), Position(positions[-1])
    one = first == last
    return Corrupt(
        "the entries don't have the sum that was committed, though each is intact by itself",
        remedy="One of them was replaced, or the head is wrong: compare them with a backup and restore what differs",
        **region.where,
        position=first if one else f"{first}..{last}",
        object=wal_entry(region.id, first) if one else wal_prefix(region.id),
    )
