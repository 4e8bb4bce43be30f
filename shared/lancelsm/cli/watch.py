"""A live picture of a table for `status --watch`: its levels, its lag, and the work that is under way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lancelsm.common.error_text import counted
from lancelsm.read.status import RegionStatus, TableStatus, read_status
from lancelsm.region.lease import BASE_LEASE, COLLECTOR_LEASE, INDEXES_LEASE, RESHARD_LEASE, is_held

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lancelsm.region.handle import TableHandle

SECONDS = 2.0
_BAR = 24
_MOST_REGIONS = 30
_WORK = {
    BASE_LEASE: "merge or optimize",
    INDEXES_LEASE: "index maintenance",
    RESHARD_LEASE: "reshard",
    COLLECTOR_LEASE: "collection service",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A status, when it was read, and which leases are held."""

    status: TableStatus
    time: float
    work: tuple[str, ...]

    def document(self, before: Seen | None) -> dict[str, Any]:
        """Return sums for a script: one JSON line per reading."""
        regions = self.status.regions
        return {
            "table": self.status.table,
            "base_version": self.status.base_version,
            "regions": len(regions),
            "wal_rows": sum(one.wal_rows for one in regions),
            "wal_bytes": sum(one.wal_bytes for one in regions),
            "generations": sum(one.generations for one in regions),
            "entries_per_second": round(self.entries_per_second(before), 3),
            "work": list(self.work),
        }

    def entries_per_second(self, before: Seen | None) -> float:
        """Return the entries that were appended since another reading, by time."""
        if before is None or self.time <= before.time:
            return 0.0
        return max(0, _entries(self.status) - _entries(before.status)) / (self.time - before.time)


def readings(handle: TableHandle) -> Iterator[Seen]:
    """Read the status again and again, with a pause of `SECONDS`."""
    context = handle.context
    while True:
        work = tuple(shown for name, shown in _WORK.items() if is_held(context, name))
        yield Seen(status=read_status(handle), time=context.clock.monotonic(), work=work)
        context.clock.sleep(SECONDS)


def picture(seen: Seen, before: Seen | None) -> RenderableType:
    """Draw a reading: a line of sums, and for each region a bar of rows to flush and one of generations to merge."""
    from rich.console import Group
    from rich.table import Table

    regions = sorted(seen.status.regions, key=lambda one: (one.wal_rows, one.generations), reverse=True)
    sums = seen.document(before)
    title = (
        f"{sums['table']}: base version {sums['base_version']}, {counted(len(regions), 'region')}, "
        f"{counted(sums['wal_rows'], 'row')} to flush, {counted(sums['generations'], 'generation')} to merge, "
        f"{sums['entries_per_second']:,.1f} entries/s"
    )
    table = Table(box=None, pad_edge=False)
    for name in ("region", "status", "rows to flush", "generations to merge", "merged"):
        table.add_column(name)
    most = {
        "rows": max((one.wal_rows for one in regions), default=0),
        "generations": max((one.generations for one in regions), default=0),
    }
    for one in regions[:_MOST_REGIONS]:
        table.add_row(*_cells(one, most))
    hidden = len(regions) - _MOST_REGIONS
    more = [f"and {hidden:,} more regions, which wait less"] if hidden > 0 else []
    return Group(title, f"work: {', '.join(seen.work) or 'none'}", table, *more)


def _cells(one: RegionStatus, most: Mapping[str, int]) -> tuple[str, ...]:
    return (
        one.region[:8],
        one.status,
        _bar(one.wal_rows, most["rows"]),
        _bar(one.generations, most["generations"]),
        f"{one.merged_generation} of {one.newest_generation}",
    )


def _bar(value: int, most: int) -> str:
    length = -(-_BAR * value // most) if most else 0
    return f"{'█' * length}{' ' if length else ''}{value:,}"


def _entries(status: TableStatus) -> int:
    return sum(one.next_position for one in status.regions)
