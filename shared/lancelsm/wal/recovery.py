"""Which entries of a log count, as storage alone tells it: for heads that are derived from it.

They are the entries after a manifest's replay point, as long as there are any and their epoch does not fall. What lies
above may be what a crash left: of several puts in flight the first one failed. Or the log has a hole, and what lies
above was acknowledged. An object of ours above the end says neither. But others prove that the log went on, and then
nothing is derived, since the next entries would take their places:

* the head that is there, and the manifest, remember a committed position above the end,
* a fence is put only when everything below it is committed,
* Lance's writer puts one entry after the other, and replays what it finds,
* an object that nobody can read is none that was left by a put of ours.

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
    """The entries after a replay point that count, in order, and where objects lie above the last of them."""

    entries: list[Summary]
    end: Position  # of the last entry
    left: tuple[Position, ...]


def recover_log(region: Region, manifest: Manifest) -> RecoveredLog:
    """Count the entries after the manifest's replay point. Lance's writer may be appending; writers of ours must not.

    Raises:
        Corrupt: an entry that was acknowledged is damaged or gone, and what follows it would be lost.
        Unavailable: the store or the registry did not answer.
    """
    head = region.find_head()
    # Listed before anything is read: an entry that is appended meanwhile can't look like one above a hole.
    listed = sorted(
        position
        for item in region.context.objects.list(wal_prefix(region.id))
        if (position := wal_position(item.key)) is not None
    )
    entries = list(_following(region, manifest, highest=listed[-1] if listed else Position(0)))
    end = Position(manifest.replay_after + len(entries))
    left = tuple(position for position in listed if position > end)
    remembered = max(manifest.last_seen, head.next_position - 1 if head is not None else 0)
    if remembered > end:
        raise _hole(region, Position(end + 1), f"the log was committed through {remembered}")
    for position in () if manifest.sealed else left:  # a sealed log ends where its manifest says
        proof = _proof(region, position, next_one=position == end + 1)
        if proof:
            raise _hole(region, Position(end + 1), f"{proof} stands at {position}", above=position)
    return RecoveredLog(entries=entries, end=end, left=left)


def _following(region: Region, manifest: Manifest, *, highest: Position) -> Iterator[Summary]:
    """The entries that count.

    An entry of an older epoch than its elder's is a zombie's: nothing was committed there or after it. Nor behind the
    end of a sealed log, where no later epoch shows what a stalled writer put.
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
    """The entry at a position, None at the end of the log. What can't be read may stand at the very end only."""
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
            remedy="Put the object back from a copy of the bucket, then do this again",
            **region.where,
            position=position,
            object=key,
        )
    return None


def _proof(region: Region, position: Position, *, next_one: bool) -> str:
    """What stands above the end of the log that would not, if the log ended there; empty if it may.

    Args:
        next_one: it is right behind the last entry, where a crash may leave a fence, or half an object.
    """
    key = wal_entry(region.id, position)
    found = region.context.objects.get(key)
    if found is None:
        return ""
    try:
        entry = decode(found.body, position=position, key=key)
    except Corrupt:
        return "" if next_one else "an object that can't be read"
    if entry.nonce is None:
        return "an entry of Lance's"
    return "a fence" if entry.fence and not next_one else ""


def _hole(region: Region, position: Position, proof: str, *, above: Position | None = None) -> Corrupt:
    return Corrupt(
        f"the log has a hole: its entry {position} is gone or another, but {proof}",
        remedy="Put the object back from a copy of the bucket, then do this again. If there is none, move the objects "
        "above it elsewhere, do this again, and write their rows anew: they are Arrow streams",
        **region.where,
        position=position,
        object=wal_entry(region.id, position),
        above=None if above is None else wal_entry(region.id, above),
    )
