"""Draw the facts of a report as a page: HTML and SVG without scripts, and without anything from elsewhere."""

from __future__ import annotations

from html import escape

from lancelsm.common.error_text import noun
from lancelsm.history.pin_records import Pin
from lancelsm.objects.location import local_path
from lancelsm.stack.cost import prices
from lancelsm.stack.table_report import charts
from lancelsm.stack.table_report.charts import duration, moment, money, size
from lancelsm.stack.table_report.history_sections import garbage_section, growth_section, history_section
from lancelsm.stack.table_report.region_sections import (
    NOT_READ,
    UNKNOWN,
    all_readable,
    at_least,
    lag_of,
    levels_section,
    readable,
    regions_section,
    waits,
)
from lancelsm.stack.table_report.report_facts import ReportFacts
from lancelsm.stack.table_report.style import STYLE


def page(facts: ReportFacts) -> str:
    """Return the page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(_name(facts))}: report of lancelsm</title>"
        "<style>:root { color-scheme: light dark } body { margin: 0; background: Canvas }"
        "@media (prefers-color-scheme: dark) { body { background: #12161c } }</style></head>\n"
        f"<body>{fragment(facts)}</body></html>\n"
    )


def fragment(facts: ReportFacts, *, theme: str = "") -> str:
    """Return the content of the page, with its style, to be shown inside of another page.

    Args:
        theme: `light` or `dark`; empty: as the browser prefers.
    """
    sections = [
        ("Levels", levels_section(facts)),
        ("Regions and their lag", regions_section(facts)),
        ("Growth of the base", growth_section(facts)),
        ("History of merges and collections", history_section(facts)),
        ("Snapshots and cursors", _pins(facts)),
    ]
    if facts.is_listed:
        sections[-1:-1] = [
            ("What a collection would delete now", garbage_section(facts)),
            ("Storage and its cost", _storage(facts)),
        ]
    body = "".join(f"<section><h2>{name}</h2>{text}</section>" for name, text in sections)
    chosen = f' data-theme="{escape(theme)}"' if theme else ""
    head = (
        f"<header><h1>{escape(_name(facts))}</h1>"
        f'<p class="soft">{escape(facts.table)}<br>As of {moment(facts.time)}</p></header>'
    )
    top = f"{head}{_tiles(facts)}{_problems(facts)}{_about(facts)}"
    return f'<style>{STYLE}</style><main class="lsm"{chosen}>{top}{body}</main>'


def _name(facts: ReportFacts) -> str:
    return facts.table.rstrip("/").rpartition("/")[2] or facts.table


def _tiles(facts: ReportFacts) -> str:
    levels, is_whole = readable(facts), all_readable(facts)
    rows, generations = sum(one.wal_rows for one in levels), sum(one.generations for one in levels)
    lag = lag_of(facts)
    if lag is not None:
        oldest = (duration(lag), "since the oldest row waits")
    elif waits(facts):
        oldest = (UNKNOWN, "since the oldest row waits")
    else:
        oldest = ("no row", "waits for a merge")
    tiles = [
        (UNKNOWN if facts.rows is None else f"{facts.rows:,}", f"{noun(facts.rows, 'row')} in the base"),
        (at_least(rows, is_whole=is_whole), f"{noun(rows, 'row')} to flush"),
        (at_least(generations, is_whole=is_whole), f"{noun(generations, 'generation')} to merge"),
        oldest,
    ]
    if facts.is_listed:
        tiles.append((UNKNOWN if facts.bytes is None else size(sum(facts.bytes.values())), "in storage"))
    boxes = "".join(f'<div class="tile"><b>{value}</b>{name}</div>' for value, name in tiles)
    number = len(facts.findings)
    bad = " bad" if number else ""
    last = f'<div class="tile{bad}"><b>{number:,}</b>{noun(number, "problem")} found</div>'
    return f'<div class="tiles">{boxes}{last}</div>'


def _problems(facts: ReportFacts) -> str:
    found = "".join(
        f'<li class="finding">{escape(one.problem)}<span>{escape(one.remedy)}</span></li>' for one in facts.findings
    )
    found = f"<ul>{found}</ul>" if found else "<p>None.</p>"
    if facts.checked is None:
        checked = "The content of objects was not checked: <code>lancelsm scrub</code> does that."
    else:
        checked = f"The content of {facts.checked.checked:,} objects and records was checked."
        checked += "" if facts.checked.complete else " It was not all: <code>lancelsm scrub</code> checks the rest too."
    return f'<section><h2>Problems found</h2>{found}<p class="soft">{checked}</p></section>'


def _about(facts: ReportFacts) -> str:
    rows = dict(facts.about)
    if facts.version is not None:
        rows["version of the base"] = f"{facts.version:,}"
    if facts.expires is not None:
        rows["rows live for"] = f"{facts.expires}; the base counts expired rows until maintenance removes them"
    if facts.cloned_from is not None:
        rows["clone of"] = facts.cloned_from
    if not rows:
        return ""
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows.items())
    return f"<section><h2>The table</h2><dl>{listed}</dl></section>"


def _storage(facts: ReportFacts) -> str:
    if facts.bytes is None:
        return NOT_READ
    price = prices.OBJECT_STORAGE
    total = sum(facts.bytes.values())
    most = max(facts.bytes.values(), default=0)
    cost = f"{money(total / 1e9 * price.usd)} a month"
    costs = f"In S3 this would cost {cost}" if local_path(facts.table) is not None else f"This costs {cost}"
    shared = (
        f" Files of the base that it shares with {escape(facts.cloned_from)} are not counted."
        if facts.cloned_from
        else ""
    )
    text = (
        f"<p>{size(total)}.{shared} {costs} at {price.usd} USD per {price.unit} ({price.name}, {prices.REGION}, list "
        f"price of {prices.CHECKED}), without requests and functions: <code>lancelsm cost</code> estimates these.</p>"
    )
    parts = [(_colour(part), count) for part, count in facts.bytes.items()]
    rows = [
        (
            escape(part),
            f"{size(count)}{charts.cell_bar(count, most=most, colour=_colour(part), label=part)}",
            money(count / 1e9 * price.usd),
        )
        for part, count in facts.bytes.items()
    ]
    return (
        text + charts.shares(parts, title="Bytes of each part") + charts.table(("part", "in storage", "a month"), rows)
    )


def _colour(part: str) -> str:
    return "base" if part.startswith("base") else {"generations": "generation", "log": "log"}.get(part, "other")


def _pins(facts: ReportFacts) -> str:
    if facts.pins is None:
        return NOT_READ
    rows = [(escape(one.kind), escape(one.name), moment(one.created), _expiry(one, facts.time)) for one in facts.pins]
    return charts.table(("kind", "name", "created", "expires"), rows) if rows else "<p>None.</p>"


def _expiry(pin: Pin, now: float) -> str:
    if pin.expires is None:
        return "never"
    return f"{moment(pin.expires)}{' (has expired)' if pin.expires <= now else ''}"
