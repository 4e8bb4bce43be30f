"""What an acknowledged write answers, the same for the library and for the client of a deployment."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.common.layout import Position, RegionId


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedEntry:
    """One entry of a log that holds acknowledged rows."""

    region: RegionId
    position: Position
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Rows that are durable and visible to every read that starts now, and the entries that hold them."""

    rows: int
    entries: tuple[CommittedEntry, ...]
