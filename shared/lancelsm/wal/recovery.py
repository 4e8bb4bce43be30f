"""Find the committed entries of a log from storage alone, to derive a head that was lost.

They are the entries that follow the replay point of the manifest without a gap, as long as the epoch does not decrease.
Objects above the last of them have two possible causes. Either a crash left them: of several puts in flight the first
one failed. Or the log has a hole, and the objects above it were acknowledged. An ordinary object of ours above the end
proves neither. But each of these proves that the log continued, and then no head is derived, since new entries would
take the positions of acknowledged ones:

* the current head or the manifest records a committed position above the end,
* a fence above the end: a fence is put only when everything below it is committed,
* an entry of Lance's writer above the end: that writer puts one entry after the other and replays what it finds,
* an object above the end that can't be decoded: no put of ours leaves one there.

Model: tests/model/registry_rebuild.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from lancelsm.common.layout import Position, wal_entry, wal_position, wal_prefix
from lancelsm.errors import Corrupt
from lancelsm.region.catalog import Region
from lancelsm.region.head import Summary
from lancelsm.region.manifest import Manifest
from lancelsm.wal.entry import Entry, decode


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredLog:
    """The committed entries after a replay point, in order, and the positions of objects above the last of them."""

    entries: list[Summary]
    end: Position  # of the last entry
    orphans: tuple[Position, ...]


def recover_log(region: Region, manifest: Manifest) -> RecoveredLog:
    """Find the committed entries after the replay point of the manifest.

    Lance's writer may append meanwhile; lancelsm writers must be stopped.

    Raises:
        Corrupt: an acknowledged entry is damaged or missing, and the entries after it would be lost.
        Unavailable: the store or the registry did not answer.
    """
    head = region.find_head()
    # List before reading: then an entry that is appended meanwhile can't look like one above a hole.
    listed = sorted(
        position
        for item in region.context.objects.list(wal_prefix(region.id))
        if (position := wal_position(item.key)) is not None
    )
    entries = list(_following(region, manifest, highest=listed[-1] if listed else Position(0)))
    end = Position(manifest.replay_after + len(entries))
    orphans = tuple(position for position in listed if position > end)
    committed = max(manifest.last_seen, head.next_position - 1 if head is not None else 0)
    if committed > end:
        raise _hole(region, Position(end + 1), f"the log was committed through {committed}")
    for position in () if manifest.sealed else orphans:  # the manifest of a sealed log says where the log ends
        proof = _proof_of_hole(region, position, adjacent=position == end + 1)
        if proof:
            raise _hole(region, Position(end + 1), f"{proof} is at {position}", above=position)
    return RecoveredLog(entries=entries, end=end, orphans=orphans)


def _following(region: Region, manifest: Manifest, *, highest: Position) -> Iterator[Summary]:
    """Yield the committed entries.

    An entry with an older epoch than the entry before it comes from a stalled writer: no entry was committed there or
    after it. No entry was committed after the end of a sealed log either; there no later epoch would expose the object
    of a stalled writer.
    """
    epoch = manifest.replay_epoch
    last = manifest.last_seen if manifest.sealed else None
    for position in count(manifest.replay_after + 1):
        if last is not None and position > last:
            return
        entry = _entry(region, Position(position), highest=highest)
        if entry is None or entry.summary.epoch < epoch:
            return
        epoch = entry.summary.epoch
        yield entry.summary


def _entry(region: Region, position: Position, *, highest: Position) -> Entry | None:
    """Return the entry at a position, or None at the end of the log. Only the last object may be unreadable."""
    key = wal_entry(region.id, position)
    found = region.context.objects.get(key)
    if found is None:
        return None
    try:
        entry = decode(found.body, position=position, key=key)
        if entry.nonce is None or entry.sound:
            return entry
    except Corrupt:
        pass
    if position < highest:
        raise Corrupt(
            "an entry in the middle of the log is damaged",
            remedy="Restore the object from a copy of the bucket, then run the command again",
            **region.where,
            position=position,
            object=key,
        )
    return None


def _proof_of_hole(region: Region, position: Position, *, adjacent: bool) -> str:
    """Describe the object at a position above the end if it proves that the log continued; empty if it proves nothing.

    Args:
        adjacent: the position follows the last entry directly, where a crash may leave a fence or a partial object.
    """
    key = wal_entry(region.id, position)
    found = region.context.objects.get(key)
    if found is None:
        return ""
    try:
        entry = decode(found.body, position=position, key=key)
    except Corrupt:
        return "" if adjacent else "an object that can't be decoded"
    if entry.nonce is None:
        return "an entry of Lance's writer"
    return "a fence" if entry.fence and not adjacent else ""


def _hole(region: Region, position: Position, proof: str, *, above: Position | None = None) -> Corrupt:
    return Corrupt(
        f"the log has a hole: entry {position} is missing or was replaced, but {proof}",
        remedy="Restore the object from a copy of the bucket, then run the command again. Without a copy, move the "
        "objects above it elsewhere, run the command again, and write their rows again: they are Arrow streams",
        **region.where,
        position=position,
        object=wal_entry(region.id, position),
        above=None if above is None else wal_entry(region.id, above),
    )
