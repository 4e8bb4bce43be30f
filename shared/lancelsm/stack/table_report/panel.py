"""Draw all tables of a deployment, for the dashboard: one row for each, and the report of one of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from lancelsm.common.error_text import counted
from lancelsm.stack.table_report import charts
from lancelsm.stack.table_report.page import fragment
from lancelsm.stack.table_report.region_sections import UNKNOWN, all_readable, at_least, lag_of, readable, waits
from lancelsm.stack.table_report.report_facts import ReportFacts
from lancelsm.stack.table_report.style import STYLE

_MOST_LEFT = 50  # names of tables that are not shown
_HEADS = ("table", "rows in the base", "rows to flush", "generations to merge", "oldest row waits for", "problems", "")


def order(tables: Sequence[ReportFacts]) -> list[ReportFacts]:
    """Return tables in the order of a panel: those first that have problems or wait the longest."""
    return sorted(tables, key=lambda one: (not one.findings, -(lag_of(one) or 0.0), one.table))


def panel(
    tables: Sequence[ReportFacts],
    first: ReportFacts | None,
    *,
    root: str,
    left: Sequence[str],
    endpoint: str,
    theme: str,
) -> str:
    """Return a list of tables, and the report of the first one.

    Args:
        tables: in the order of `order`, as `gather_levels` returned them.
        first: the first one, as `gather` returned it; None if there is none.
        root: the location of the tables, which is left out of their names.
        left: the locations of the tables that are not in the list.
        endpoint: the ARN of the function that a click calls to draw the report of a table.
        theme: `light` or `dark`.
    """
    most = max((lag_of(one) or 0.0 for one in tables), default=0.0)
    rows = [_row(one, root=root, most=most, endpoint=endpoint) for one in tables]
    names = [_name(one, root) for one in left[:_MOST_LEFT]] + ["..."] * (len(left) > _MOST_LEFT)
    more = f", and {len(left):,} more that are not shown: {', '.join(names)}" if left else ""
    text = f'<p class="soft">{counted(len(tables), "table")}{more}</p>'
    listed = charts.table(_HEADS, rows, most=len(rows)) if rows else ""
    listing = f'<style>{STYLE}</style><main class="lsm" data-theme="{escape(theme)}">{text}{listed}</main>'
    return listing + ("" if first is None else fragment(first, theme=theme))


def _row(facts: ReportFacts, *, root: str, most: float, endpoint: str) -> list[str]:
    levels, is_whole, lag = readable(facts), all_readable(facts), lag_of(facts)
    if lag is not None:
        shown = f"{charts.duration(lag)}{charts.cell_bar(lag, most=most, colour='other', label='lag')}"
    else:
        shown = UNKNOWN if waits(facts) else "none waits"
    return [
        _name(facts.table, root),
        UNKNOWN if facts.rows is None else f"{facts.rows:,}",
        at_least(sum(one.wal_rows for one in levels), is_whole=is_whole),
        at_least(sum(one.generations for one in levels), is_whole=is_whole),
        shown,
        "".join(f"<p>{escape(one.problem)}</p>" for one in facts.findings) or "none",
        _button(facts.table, endpoint),
    ]


def _name(table: str, root: str) -> str:
    return escape(table.removeprefix(f"{root.rstrip('/')}/"))


def _button(table: str, endpoint: str) -> str:
    """Return a link that shows the report of a table in a window of the dashboard."""
    event = escape(json.dumps({"table": table}), quote=False)
    action = f'<cwdb-action action="call" display="popup" endpoint="{escape(endpoint)}">{event}</cwdb-action>'
    return f'<a class="btn">Report</a>{action}'
