"""Draw the levels of a table as HTML: for each region, what waits in its log and in its generations."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from lancelsm.common.html import bar_html, table_html

if TYPE_CHECKING:
    from lancelsm.read.status import RegionStatus, TableStatus

_LEVELS = ("region", "values", "status", "rows to flush", "generations to merge")
_MOST_REGIONS = 32


def status_html(status: TableStatus) -> str:
    """Return a table with one row per region: bars for the rows to flush and for the generations to merge."""
    rows = max((one.wal_rows for one in status.regions), default=0)
    generations = max((one.generations for one in status.regions), default=0)
    shown = sorted(status.regions, key=lambda one: (one.wal_rows, one.generations), reverse=True)[:_MOST_REGIONS]
    hidden = len(status.regions) - len(shown)
    table = table_html(_LEVELS, [_level_cells(one, rows=rows, generations=generations) for one in shown])
    more = f"<p>and {hidden:,} more regions, which wait less</p>" if hidden else ""
    return (
        f"<p>base version {status.base_version}, {len(status.regions):,} regions: "
        f"{sum(one.wal_rows for one in status.regions):,} rows to flush, "
        f"{sum(one.generations for one in status.regions):,} generations to merge</p>"
        f"{table}{more}" + "".join(f"<p>Problem: {escape(str(problem))}</p>" for problem in status.problems)
    )


def _level_cells(one: RegionStatus, *, rows: int, generations: int) -> list[str]:
    """Return the cells of a region for `_LEVELS`: bars for what it has of the most rows and generations of a region."""
    return [
        f"<code>{escape(one.region[:8])}</code>",
        escape(", ".join(f"{name}={value}" for name, value in one.values.items())),
        escape(one.status),
        bar_html(one.wal_rows, most=rows, colour="#d9822b"),
        bar_html(one.generations, most=generations, colour="#2f6fb5"),
    ]
