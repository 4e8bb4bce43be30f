"""Draw the levels of a table as HTML: for each region, what waits in its log and in its generations."""

from __future__ import annotations

from html import escape

from lancelsm.read.status import RegionStatus, TableStatus

_MOST_REGIONS = 32
_WIDTH = 160  # pixels of the longest bar


def status_html(status: TableStatus) -> str:
    """Return a table with one row per region: bars for the rows to flush and for the generations to merge."""
    rows = max((one.wal_rows for one in status.regions), default=0)
    generations = max((one.generations for one in status.regions), default=0)
    shown = sorted(status.regions, key=lambda one: (one.wal_rows, one.generations), reverse=True)[:_MOST_REGIONS]
    hidden = len(status.regions) - len(shown)
    lines = "".join(_line(one, rows=rows, generations=generations) for one in shown)
    more = f"<p>and {hidden:,} more regions, which wait less</p>" if hidden else ""
    return (
        f"<p>base version {status.base_version}, {len(status.regions):,} regions: "
        f"{sum(one.wal_rows for one in status.regions):,} rows to flush, "
        f"{sum(one.generations for one in status.regions):,} generations to merge</p>"
        "<table><thead><tr><th>region</th><th>values</th><th>status</th><th>rows to flush</th>"
        f"<th>generations to merge</th></tr></thead><tbody>{lines}</tbody></table>{more}"
        + "".join(f"<p>Problem: {escape(str(problem))}</p>" for problem in status.problems)
    )


def _line(one: RegionStatus, *, rows: int, generations: int) -> str:
    values = ", ".join(f"{name}={value}" for name, value in one.values.items())
    cells = (
        f"<code>{escape(one.region[:8])}</code>",
        escape(values),
        escape(one.status),
        _bar(one.wal_rows, most=rows, colour="#d9822b"),
        _bar(one.generations, most=generations, colour="#2f6fb5"),
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _bar(value: int, *, most: int, colour: str) -> str:
    width = round(_WIDTH * value / most) if most else 0
    style = f"display:inline-block;height:0.7em;width:{width}px;background:{colour}"
    return f'<span style="{style}"></span> {value:,}'
