"""Draw what waits in the levels of a table, and in each of its regions."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import Final

from lancelsm.common.error_text import counted, noun
from lancelsm.stack.table_report import charts
from lancelsm.stack.table_report.charts import duration
from lancelsm.stack.table_report.report_facts import RegionFacts, RegionLevels, ReportFacts

UNKNOWN: Final = "?"
NOT_READ: Final = '<p class="soft">This can\'t be read: see the problems above.</p>'


def readable(facts: ReportFacts) -> list[RegionLevels]:
    return [one.levels for one in facts.regions or () if one.levels is not None]


def all_readable(facts: ReportFacts) -> bool:
    return facts.regions is not None and all(one.levels is not None for one in facts.regions)


def lag_of(facts: ReportFacts) -> float | None:
    """Return for how long the oldest row waits; None if no row waits, or the time is not known."""
    found = [one.waits_since for one in readable(facts) if one.waits_since is not None]
    return max(0.0, facts.time - min(found)) if found else None


def waits(facts: ReportFacts) -> bool:
    """Return whether a row waits, or may wait."""
    return not all_readable(facts) or any(one.waits for one in readable(facts))


def at_least(number: int, *, is_whole: bool) -> str:
    """Return a number as text. If it is not the whole one, since something can't be read, say so."""
    if is_whole:
        return f"{number:,}"
    return f"at least {number:,}" if number else UNKNOWN


def levels_section(facts: ReportFacts) -> str:
    if facts.regions is None and facts.rows is None:
        return NOT_READ
    levels = readable(facts)
    stored = [one.generation_rows for one in levels]
    generations = sum(one or 0 for one in stored)
    logs = sum(one.wal_rows for one in levels)
    is_whole = all_readable(facts)
    shown = at_least(generations, is_whole=is_whole and None not in stored)
    rows = [
        ("log", "log", logs, f"{at_least(logs, is_whole=is_whole)} {noun(logs, 'row')}"),
        ("generations", "generation", generations, f"{shown} {noun(generations, 'row')}"),
        ("base", "base", facts.rows or 0, UNKNOWN if facts.rows is None else counted(facts.rows, "row")),
    ]
    text = (
        "<p>A row comes into the log, a flush moves it to a generation, and a merge moves it to the base. The log and "
        "generations count each version of a row, and deletes too.</p>"
    )
    return text + charts.bars(rows, title="Rows in each level")


def regions_section(facts: ReportFacts) -> str:
    if facts.regions is None:
        return NOT_READ
    if not facts.regions:
        return "<p>No region yet: the first row of a region creates it.</p>"
    levels = readable(facts)
    most_rows = max((one.wal_rows for one in levels), default=0)
    most = max((one.generations for one in levels), default=0)
    lags = {one.id: _lag(one, facts.time) for one in facts.regions}
    most_lag = max((lag for lag in lags.values() if lag is not None), default=0.0)
    several = any(one.spec != facts.spec for one in facts.regions)
    rows = []
    for one in sorted(facts.regions, key=lambda one: _urgency(one, facts.time), reverse=True):
        lag = lags[one.id]
        rows.append(
            [
                f"<code>{escape(one.id[:8])}</code>",
                escape(", ".join(f"{name}={value}" for name, value in one.values.items()) or "all"),
                *([f"{one.spec}"] if several else []),
                escape(one.status),
                *_level_cells(one.levels, most_rows=most_rows, most=most),
                _lag_cell(one.levels, lag, most_lag),
            ]
        )
    heads = [
        "region",
        "values",
        *(["spec"] if several else []),
        "status",
        "rows to flush",
        "generations to merge",
        "merged",
        "oldest row waits for",
    ]
    states = Counter(one.status for one in facts.regions)
    text = ", ".join(f"{number:,} {status}" for status, number in sorted(states.items()))
    moved = (
        f" The table was resharded: its present spec has the number {facts.spec}, and regions of earlier specs take no "
        "more rows once they are sealed."
        if several
        else ""
    )
    return f"<p>{counted(len(facts.regions), 'region')}: {text}.{moved}</p>{charts.table(heads, rows)}"


def _level_cells(levels: RegionLevels | None, *, most_rows: int, most: int) -> list[str]:
    if levels is None:
        return [UNKNOWN] * 3
    merged = f"{levels.merged:,} of {levels.newest:,}" if levels.newest else "none flushed"
    return [
        _counted(levels.wal_rows, most=most_rows, colour="log"),
        _counted(levels.generations, most=most, colour="generation"),
        merged,
    ]


def _counted(number: int, *, most: int, colour: str) -> str:
    return f"{number:,}{charts.cell_bar(number, most=most, colour=colour, label=f'{number:,}')}"


def _lag(one: RegionFacts, now: float) -> float | None:
    return None if one.levels is None or one.levels.waits_since is None else max(0.0, now - one.levels.waits_since)


def _lag_cell(levels: RegionLevels | None, lag: float | None, most: float) -> str:
    if lag is not None:
        return f"{duration(lag)}{charts.cell_bar(lag, most=most, colour='other', label='oldest row waits for')}"
    return UNKNOWN if levels is None or levels.waits else "none waits"


def _urgency(one: RegionFacts, now: float) -> tuple[float, ...]:
    if one.levels is None:
        return (1.0,)
    return (0.0, _lag(one, now) or 0.0, one.levels.wal_rows, one.levels.generations)
