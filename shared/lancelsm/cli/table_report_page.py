"""Draw the facts of a report as a page: HTML and SVG without scripts, and without anything from elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from lancelsm.cli.table_report_facts import ReportFacts
from lancelsm.common.html import bar_html, table_html
from lancelsm.read.picture import LEVELS, level_cells
from lancelsm.stack.cost import prices

_WIDTH, _HEIGHT, _MARGIN = 720, 160, 8
_MOST_ROWS = 200  # of a table on the page
_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; color: #1b1f24 }
h1 { font-size: 1.5em; overflow-wrap: anywhere }
h2 { font-size: 1.15em; margin-top: 2em; border-bottom: 1px solid #d0d7de }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: 0.25em 0.6em; border-bottom: 1px solid #eaeef2 }
svg { width: 100%; height: auto; background: #f6f8fa }
.sums { display: flex; flex-wrap: wrap; gap: 1em }
.sums div { background: #f6f8fa; padding: 0.6em 1em; border-radius: 6px }
.sums b { display: block; font-size: 1.4em }
.problem { color: #a40e26 }
"""


def page(facts: ReportFacts) -> str:
    """Return the page."""
    title = f"lancelsm report: {escape(facts.status.table)}"
    sections = (
        ("Levels and lag of each region", _levels(facts)),
        ("Growth of the base", _growth(facts)),
        ("Merges", _merges(facts)),
        ("Collections", _collections(facts)),
        ("Snapshots and cursors", _pins(facts)),
        ("Storage and its cost", _storage(facts)),
        ("Problems", _problems(facts)),
    )
    body = "".join(f"<section><h2>{name}</h2>{text}</section>" for name, text in sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{title}</h1>{_summary(facts)}{body}</body></html>\n"
    )


def _summary(facts: ReportFacts) -> str:
    regions = facts.status.regions
    sums = (
        ("rows in the base", f"{facts.versions[-1].rows:,}" if facts.versions else "?"),
        ("rows to flush", f"{sum(one.wal_rows for one in regions):,}"),
        ("generations to merge", f"{sum(one.generations for one in regions):,}"),
        ("regions", f"{len(regions):,}"),
        ("base version", f"{facts.status.base_version:,}"),
        ("problems", f"{len(facts.status.problems):,}"),
    )
    boxes = "".join(f"<div><b>{value}</b>{name}</div>" for name, value in sums)
    about = f"As of {_moment(facts.time)}. Key {escape(', '.join(facts.key))}, regions {escape(facts.spec)}."
    return f'<p>{about}</p><div class="sums">{boxes}</div>'


def _levels(facts: ReportFacts) -> str:
    most_rows = max((one.wal_rows for one in facts.status.regions), default=0)
    most = max((one.generations for one in facts.status.regions), default=0)
    rows = []
    for one in sorted(facts.status.regions, key=lambda one: (one.wal_rows, one.generations), reverse=True):
        since = facts.regions[one.region].dirty_since if one.region in facts.regions else None
        rows.append(
            (
                *level_cells(one, rows=most_rows, generations=most),
                f"{one.merged_generation:,} of {one.newest_generation:,}",
                "-" if since is None else _span(facts.time - since),
            )
        )
    return _table((*LEVELS, "merged", "lags for"), rows)


def _growth(facts: ReportFacts) -> str:
    points = [(one.time.timestamp(), float(one.rows)) for one in facts.versions]
    if len(points) < 2:
        return "<p>One version of the base is kept, so no growth is known.</p>"
    first, last = facts.versions[0], facts.versions[-1]
    seconds = (last.time - first.time).total_seconds()
    rate = f", {(last.rows - first.rows) / seconds * 86_400:+,.0f} rows a day" if seconds >= 1 else ""
    text = (
        f"{first.rows:,} rows in version {first.version} ({_moment(points[0][0])}), {last.rows:,} in version "
        f"{last.version} ({_moment(points[-1][0])}){rate}."
    )
    return f"<p>{text}</p>{_line(points, label='rows in the base by time')}"


def _merges(facts: ReportFacts) -> str:
    merged = [one for one in facts.versions if one.merged]
    per_day = Counter(one.time.date().isoformat() for one in merged)
    days = sorted(per_day.items())
    rows = [
        (
            f"{one.version:,}",
            _moment(one.time.timestamp()),
            escape(one.operation or "?"),
            f"{one.rows:,}",
            f"{len(one.merged or {}):,}",
        )
        for one in reversed(merged)
    ]
    heads = ("version", "committed", "operation of Lance", "rows", "regions merged")
    text = f"<p>{len(merged):,} of the newest {len(facts.versions):,} versions are merges.</p>"
    return text + (_bars(days, label="merges by day") if days else "") + _table(heads, rows)


def _collections(facts: ReportFacts) -> str:
    rows = [
        (f"<code>{escape(region[:8])}</code>", f"{one.rounds:,}", f"{one.first_position:,}")
        for region, one in sorted(facts.regions.items(), key=lambda item: -item[1].rounds)
    ]
    kinds = Counter(one.kind for one in facts.garbage.candidates)
    sizes: Counter[str] = Counter()
    for found in facts.garbage.candidates:
        sizes[found.kind] += found.bytes
    waiting = [(escape(kind), f"{kinds[kind]:,}", _bytes(sizes[kind])) for kind in sorted(kinds)]
    kept = Counter(one.why for one in facts.garbage.kept)
    reasons = [(escape(why), f"{number:,}") for why, number in kept.most_common()]
    return (
        _table(("region", "rounds", "first position of the log"), rows)
        + f"<p>A collection now would delete {sum(kinds.values()):,} objects, {_bytes(sum(sizes.values()))}.</p>"
        + (_table(("kind", "objects", "bytes"), waiting) if waiting else "")
        + (f"<p>What stays, and why:</p>{_table(('reason', 'objects'), reasons)}" if reasons else "")
    )


def _pins(facts: ReportFacts) -> str:
    rows = [
        (
            escape(one.kind),
            escape(one.name),
            _moment(one.created),
            "never" if one.expires is None else _moment(one.expires),
        )
        for one in facts.pins
    ]
    return _table(("kind", "name", "created", "expires"), rows) if rows else "<p>None.</p>"


def _storage(facts: ReportFacts) -> str:
    price = prices.OBJECT_STORAGE
    most = max(facts.bytes.values(), default=0)
    rows = [
        (
            escape(part),
            bar_html(size, most=most, colour="#4d8f6f", shown=_bytes(size)),
            f"${size / 1e9 * price.usd:,.4f}",
        )
        for part, size in facts.bytes.items()
    ]
    total = sum(facts.bytes.values())
    text = (
        f"{_bytes(total)}: ${total / 1e9 * price.usd:,.4f} a month at {price.usd} USD per {price.unit} "
        f"({price.name}, {prices.REGION}, list price of {prices.CHECKED}). Requests are not counted here; "
        "<code>lancelsm cost</code> estimates them."
    )
    return f"<p>{text}</p>{_table(('part', 'bytes', 'a month'), rows)}"


def _problems(facts: ReportFacts) -> str:
    found = "".join(f'<li class="problem">{escape(str(problem))}</li>' for problem in facts.status.problems)
    return f"<ul>{found}</ul>" if found else "<p>None found.</p>"


# Parts of the page


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table_html(heads, rows, most=_MOST_ROWS)


def _line(points: Sequence[tuple[float, float]], *, label: str) -> str:
    left, right = points[0][0], points[-1][0]
    top = max(value for _, value in points) or 1.0
    steps = " ".join(
        f"{_across((at - left) / ((right - left) or 1.0)):.1f},{_up(value / top):.1f}" for at, value in points
    )
    return _svg(f'<polyline fill="none" stroke="#2f6fb5" stroke-width="2" points="{steps}"/>', label)


def _bars(values: Sequence[tuple[str, int]], *, label: str) -> str:
    most = max(value for _, value in values)
    width = (_WIDTH - 2 * _MARGIN) / len(values)
    bars = "".join(
        f'<rect x="{_MARGIN + at * width:.1f}" y="{_up(value / most):.1f}" width="{max(width - 1, 1):.1f}" '
        f'height="{_HEIGHT - _MARGIN - _up(value / most):.1f}" fill="#2f6fb5">'
        f"<title>{escape(name)}: {value:,}</title></rect>"
        for at, (name, value) in enumerate(values)
    )
    return _svg(bars, label)


def _svg(inside: str, label: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">{inside}</svg>'


def _across(share: float) -> float:
    return _MARGIN + share * (_WIDTH - 2 * _MARGIN)


def _up(share: float) -> float:
    return _HEIGHT - _MARGIN - share * (_HEIGHT - 2 * _MARGIN)


def _moment(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _bytes(size: int) -> str:
    amount, unit = float(size), 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:,.1f} {_UNITS[unit]}" if unit else f"{size:,} bytes"
