"""Read back the committed entries that are in no generation yet, with proof that they are the committed ones.

An entry's own setsum says only that its bytes are whole. That it was committed follows from the sum of all entries
between a manifest and a head, which both recorded: a swept slot may hold what a zombie put there late. Model:
tests/model/reader_view.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from lancelsm.common.layout import Position, wal_entry, wal_prefix
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt, Invalid, error_context
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TOMBSTONE, TableSchema, conform
from lancelsm.region import manifest as manifests
from lancelsm.region.catalog import Region
from lancelsm.region.manifest import Manifest
from lancelsm.wal.entry import Entry, decode


class LogEnd(Protocol):
    """Where a log ends for a reader: a head, or what a snapshot remembers of one."""

    @property
    def next_position(self) -> Position: ...

    @property
    def entry_setsum(self) -> Setsum: ...

    @property
    def manifest_key(self) -> str: ...


def tail(region: Region, end: LogEnd, manifest: Manifest) -> list[Entry] | None:
    """The entries after the manifest's replay point up to the end, in order.

    Args:
        end: the head as read, or what a snapshot remembers.
        manifest: the one that this head names.

    Returns:
        The entries, fences included. None if the log was collected meanwhile: read head and manifest again.

    Raises:
        Corrupt: entries are missing, unreadable, or don't add up, and no collection explains it. It names the first
            one that is not what its writer put there; if each is sound by itself, their range. Or head and manifest
            contradict each other, or the manifest itself: it is named.
        Unavailable: the store did not answer.
    """
    _agree(region, end, manifest)
    positions = range(manifest.replay_after + 1, end.next_position)
    if not positions:
        return []
    try:
        entries = region.context.each(lambda position: _entry(region, Position(position)), positions)
        total = sum((entry.summary.entry_setsum for entry in entries), start=Setsum())
        if total != end.entry_setsum - manifest.entry_setsum:
            raise _other(region, entries)
        return entries
    except Corrupt as error:
        problem = error
    # Proof needs a head read after the objects: below its floor, slots may be gone or refilled.
    if region.head().first_position > positions.start:
        return None
    raise problem


def stored_rows(entry: Entry, schema: TableSchema) -> pa.Table:
    """The rows of a committed entry in the stored form of a schema.

    The sum of an entry covers its rows, not the schema before them. If that is the table's, the rows are what was
    written; under any other, an older one or a damaged one, they are summed.

    Raises:
        Corrupt: they are not what was written.
    """
    try:
        rows = entry.table()
        if rows.num_rows != entry.summary.rows or TOMBSTONE not in rows.schema.names:  # which every writer puts last
            raise _unreadable(entry, "a committed entry holds other rows than were written")
        if not rows.schema.equals(schema.stored, check_metadata=True):
            if entry.row_setsum is not None and row_setsum(rows) != entry.row_setsum:
                raise _unreadable(entry, "the rows of a committed entry don't add up to what it declares")
            rows.validate(full=True)
        return conform(rows, schema)
    except (pa.ArrowException, Invalid, ValueError) as error:
        raise _unreadable(entry, f"the rows of a committed entry can't be read: {error}") from error


def _unreadable(entry: Entry, message: str) -> Corrupt:
    return Corrupt(message, position=entry.summary.position, object=entry.key)


def _entry(region: Region, position: Position) -> Entry:
    key = wal_entry(region.id, position)
    found = region.context.objects.get(key)
    if found is None:
        raise Corrupt("a committed entry is gone", **region.where, position=position, object=key)
    with error_context(**region.where):
        return decode(found.body, position=position, key=key)


def _agree(region: Region, end: LogEnd, manifest: Manifest) -> None:
    """Whether the manifest adds up, and the log ends where it does or later; raises `Corrupt` if not."""
    broken = manifests.violations(None, manifest)
    last = end.next_position - 1
    if last < manifest.replay_after:
        broken.append(f"the log ends at {last}, before the replay point {manifest.replay_after}")
    if last == manifest.replay_after and end.entry_setsum != manifest.entry_setsum:
        broken.append(f"the log through the replay point {last} has another sum in the head than in the manifest")
    if broken:
        raise Corrupt(
            f"manifest and head contradict each other: {'; '.join(broken)}",
            remedy=f"Restore the object, or stop all writers, then: lancelsm registry rebuild {region.context.uri}",
            **region.where,
            position=manifest.replay_after,
            object=end.manifest_key,
        )


def _other(region: Region, entries: Sequence[Entry]) -> Corrupt:
    """What to say of entries that are not those that were committed."""
    for entry in entries:
        position = entry.summary.position
        if entry.nonce is not None and not entry.sound:
            return Corrupt(
                "a committed entry is not what was written there: its bytes don't have the sum that it declares",
                **region.where,
                position=position,
                object=wal_entry(region.id, position),
            )
    first, last = entries[0].summary.position, entries[-1].summary.position
    one = first == last
    return Corrupt(
        "the entries after the replay point don't add up to what was committed, though each is sound by itself",
        remedy="One of them is another's, or the head is: restore the one that a backup has otherwise",
        **region.where,
        position=first if one else f"{first}..{last}",
        object=wal_entry(region.id, first) if one else wal_prefix(region.id),
    )
