"""Bring the part of a region in an earlier view up to a newer head, by reading only the entries since then."""

from __future__ import annotations

from dataclasses import replace

from lancelsm.read.view import RegionView
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.wal.replay import LogCollected, entries_between


def followed(part: RegionView, region: Region, head: Head, *, held_bytes: int) -> RegionView | None:
    """Return the part as of a newer head that names the same manifest; None if the region must be read again.

    The sums of both heads prove the entries between them. The manifest is the same, so these entries extend the tail.

    Args:
        held_bytes: the largest log of a tail that is held in memory.

    Raises:
        Corrupt: an entry is missing or damaged.
        Unavailable: the store did not answer.
    """
    end = part.end
    if (
        head.manifest_key != end.manifest_key
        or head.next_position <= end.next_position
        or head.wal_bytes - part.manifest.wal_bytes > held_bytes
        or not part.tail.is_held
        or head.schema_version > part.tail.schema.version
    ):
        return None
    try:
        entries = list(entries_between(region, first=end.next_position, sum_before=end.entry_setsum, end=head))
    except LogCollected:
        return None
    return replace(part, tail=part.tail.followed_by(entries), end=head)
