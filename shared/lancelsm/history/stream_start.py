"""Decide where a change stream or a cursor starts in each region: at an end of the log, a position or a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from lancelsm.common.error_text import shown
from lancelsm.common.layout import Position, RegionId
from lancelsm.errors import Invalid
from lancelsm.history.committed_entries import committed, log_collected
from lancelsm.region.catalog import Region, TableContext, regions
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.head import Head

Start = Annotated[str | int | float | Mapping[RegionId, Position], "checked by check_start"]
"""`earliest`, `latest`, a position, a time in Unix seconds as a float, or the next position of each region."""


def check_start(context: TableContext, start: Start) -> None:
    """Refuse an invalid start before anything is read or created with it.

    A region that is in the catalog is valid, even if its creation is not finished.

    Raises:
        Invalid: `start` has none of the forms of `Start`; or it names a region that the table does not have, so the
            positions belong to another table.
        Corrupt, Unavailable: the catalog could not be read.
    """
    if not isinstance(start, Mapping):
        _check_form(start, table=context.uri)
        return
    if start and (unknown := sorted(start.keys() - {region.id for region in regions(context)}, key=shown)):
        raise Invalid(
            "a stream can't start at a position of a region that the table does not have",
            remedy="Positions belong to the table that they were read from. For a restored table start at earliest",
            table=context.uri,
            region=unknown[0],
            field="start",
        )
    for region, position in start.items():
        if not _is_position(position):
            raise Invalid(
                f"a stream can't start at {shown(position)} in a region",
                remedy="Give the next position of each region, 1 or more, in the form of Changes.positions",
                table=context.uri,
                region=region,
                field="start",
            )


def _check_form(start: object, *, table: str) -> None:
    moment = isinstance(start, float) and start >= 0  # excludes NaN
    is_name = isinstance(start, str) and start in ("earliest", "latest")
    if not is_name and not moment and not _is_position(start):
        remedy = "Give earliest, latest, a position of 1 or more, or a time in Unix seconds as a float of 0 or more"
        raise Invalid(f"a stream can't start at {shown(start)}", remedy=remedy, table=table, field="start")


def _is_position(start: object) -> bool:
    return isinstance(start, int) and not isinstance(start, bool) and start >= 1


def first_position(region: Region, head: Head, start: Start) -> Position:
    """Return the first position of a stream in a region.

    Args:
        start: if it names regions, `check_start` must have accepted it.

    Raises:
        Invalid: `start` has none of the forms of `Start`, is past the end of the log, or is a time after which entries
            may have been collected.
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
            f"position {start} is past the end of the log: the next position is {head.next_position}",
            remedy="Start there, before it, or at latest. Each region has its own positions: --region selects one",
            **region.where,
            position=start,
        )
    return Position(start)


def _at(region: Region, head: Head, moment: float) -> Position:
    """Find the first entry that was written at or after a moment, by the clocks of the writers, which may differ.

    Raises:
        Invalid: that entry may be collected: no remaining entry is older than the moment, and the newest round was
            committed after it.
    """
    low, high = head.first_position, head.next_position
    while low < high:
        middle = probe = (low + high) // 2
        while (
            probe < high and (at := _written(region, Position(probe))) is None
        ):  # a fence, or an entry of Lance's writer
            probe += 1
        if probe < high and at is not None and at < moment:
            low = Position(probe + 1)
        else:
            high = Position(middle)
    if low == head.first_position > 1:
        collected = newest(region, head)[1].collector_committed
        if not collected or moment < collected:  # collected entries may be newer than `moment`
            raise Invalid(
                f"the log begins at position {low}; entries since that time may have been collected",
                remedy="Start at earliest, or scan the table and continue from there. A cursor keeps unread entries",
                **region.where,
                position=low,
            )
    return Position(low)


def _written(region: Region, position: Position) -> float | None:
    entries = committed(region, [position])
    if entries is None:
        raise log_collected(region, region.head(), position)
    return entries[0].at
