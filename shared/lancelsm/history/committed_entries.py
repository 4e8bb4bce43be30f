"""Read committed entries of a log again, proven by a head that is read after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lancelsm.common.layout import Position, wal_entry
from lancelsm.errors import Corrupt, Invalid, error_context
from lancelsm.objects import Object
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.wal.entry import Entry, decode


def committed(
    region: Region, positions: Sequence[int], *, kept: Callable[[], bool] = lambda: False
) -> list[Entry] | None:
    """Read the committed entries at these positions, which must be below the head.

    A head that is read after the entries proves that they are the committed ones. The result ends before the first
    missing or damaged entry.

    Args:
        kept: returns whether a pin keeps all these positions. Called after the entries were read, if they are below the
            floor.

    Returns:
        The entries; None if the log was collected past the first position.

    Raises:
        Corrupt: the first entry is missing or damaged.
        Unavailable: the store or the registry did not answer.
    """
    if not positions:
        return []
    keys = [wal_entry(region.id, Position(position)) for position in positions]
    found = region.context.each(region.context.objects.get, keys)  # guard: head and cursor are read after the entries
    # Read the head after the entries, before using them: a late put may have refilled a collected slot.
    if (  # guard: changes are proven by a head
        region.head().first_position > positions[0] and not kept()  # guard: kept entries are read below the floor
    ):
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
    if not (entry.sound or entry.nonce is None):  # guard: change stream checks entries
        raise Corrupt("a committed entry is damaged")
    return entry


def log_collected(region: Region, head: Head, position: Position) -> Invalid:
    """Build the error for a position below the floor of a log."""
    return Invalid(
        f"the log was collected below position {head.first_position}",
        remedy="Start at earliest, or scan the table and continue from there. A cursor keeps unread entries",
        **region.where,
        position=position,
    )
