"""The result of an acknowledged write, the same in the library and in the client of a deployment."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.common.layout import Position, RegionId


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedEntry:
    """One log entry with acknowledged rows.

    Args:
        region: the id of its region.
        position: its position in the log of the region, from 1.
        rows: how many rows and deletes it has.
    """

    region: RegionId
    position: Position
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The number of rows that are durable and visible to every later read, and the entries that contain them.

    `skipped` counts the rows that a conditional write did not write, because their condition was false.
    """

    rows: int
    entries: tuple[CommittedEntry, ...]
    skipped: int = 0
