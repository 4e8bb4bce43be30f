"""Draw the plots and tables of a report.

Plots are SVG without text: they are stretched to the width of the page, and the texts around them are HTML, so these
stay legible on a phone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

_WIDTH, _HEIGHT = 1000.0, 100.0  # of a plot, in its own units
_LEAST = 4.0  # width of what is more than nothing
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")
_THOUSANDS = ("", "k", "M", "G", "T")
_EXACT = 100_000  # numbers from here on are shortened beside an axis
_MOST_ROWS = 200
_CENT = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """The times that a plot shows, in Unix seconds."""

    first: float
    last: float

    def across(self, time: float) -> float:
        """Return where a time is in a plot."""
        return _WIDTH * (time - self.first) / ((self.last - self.first) or 1.0)


def steps(points: Sequence[tuple[float, int]], *, span: TimeSpan, title: str, colour: str) -> str:
    """Return a plot of a number that changes at some times, oldest first, until the end of the span."""
    top = nice(max(value for _, value in points))
    path: list[str] = []
    for time, value in points:
        x, y = span.across(time), _HEIGHT * (1 - value / top)
        path.append(f"M{x:.1f},{y:.2f}" if not path else f"H{x:.1f}V{y:.2f}")
    curve = f"{''.join(path)}H{_WIDTH:.0f}"
    left = span.across(points[0][0])
    grid = f'<line class="grid" x1="0" x2="{_WIDTH:.0f}" y1="{_HEIGHT / 2}" y2="{_HEIGHT / 2}"/>'
    area = f'<path class="area {colour}" d="{curve}V{_HEIGHT:.0f}H{left:.1f}Z"/>'
    svg = _svg(f'{grid}{area}<path class="curve {colour}" d="{curve}"/>', label=title, style="line")
    ticks = "".join(f"<span>{short(value)}</span>" for value in (top, top / 2, 0))
    return _figure(title, f'<div class="frame"><div class="ticks">{ticks}</div>{svg}{_times(span)}</div>')


def events(lanes: Sequence[tuple[str, str, Sequence[tuple[float, str]]]], *, span: TimeSpan, title: str) -> str:
    """Return a plot with one lane for each name: a colour, and events, each a time and its text."""
    drawn = []
    for name, colour, found in lanes:
        marks = "".join(_mark(span.across(time), colour, text) for time, text in found)
        drawn.append(f'<span class="lane">{escape(name)}</span>{_svg(marks, label=f"{title}: {name}", style="events")}')
    return _figure(title, f'<div class="frame">{"".join(drawn)}{_times(span)}</div>')


def bars(rows: Sequence[tuple[str, str, int, str]], *, title: str) -> str:
    """Return a plot of horizontal bars: each has a name, a colour, a value, and the text of the value."""
    most = max((value for _, _, value, _ in rows), default=0)
    drawn = "".join(
        f"<span>{escape(name)}</span>{bar(value, most=most, colour=colour, label=name)}<span>{escape(shown)}</span>"
        for name, colour, value, shown in rows
    )
    return _figure(title, f'<div class="levels">{drawn}</div>')


def shares(parts: Sequence[tuple[str, int]], *, title: str) -> str:
    """Return a plot of one bar that is divided: each part has a colour and a value."""
    total = sum(value for _, value in parts) or 1
    left, drawn = 0.0, ""
    for colour, value in parts:
        width = _WIDTH * value / total
        drawn += f'<rect class="{colour}" x="{left:.1f}" y="0" width="{width:.1f}" height="{_HEIGHT:.0f}"/>'
        left += width
    return _figure(title, f'<div class="share">{_svg(drawn, label=title)}</div>')


def bar(value: float, *, most: float, colour: str, label: str) -> str:
    """Return a bar whose length is the share of `value` in `most`."""
    width = max(_LEAST, _WIDTH * value / most) if value > 0 and most > 0 else 0.0
    return _svg(f'<rect class="{colour}" width="{width:.1f}" height="{_HEIGHT:.0f}"/>', label=f"bar: {label}")


def cell_bar(value: float, *, most: float, colour: str, label: str) -> str:
    """Return a bar for a cell of a table; nothing for 0."""
    return bar(value, most=most, colour=colour, label=label) if value > 0 else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, most: int = _MOST_ROWS) -> str:
    """Return a table with at most so many rows, and how many more there are. The cells are HTML.

    On a narrow screen, a row is a list of the names of the columns with the cells.
    """
    cells = list(rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{_cells(heads, row)}</tr>" for row in cells[:most])
    more = f'<p class="soft">and {len(cells) - most:,} more</p>' if len(cells) > most else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def nice(value: float) -> int:
    """Return the next number of 2, 4, 10 or 20 times a power of ten, so that a half of it is a plain number too."""
    power = 1
    while power * 10 < value:
        power *= 10
    return next(power * factor for factor in (2, 4, 10, 20) if power * factor >= value)


def short(value: float) -> str:
    """Return a number beside an axis: `12,500`, `1.5M`."""
    if value < _EXACT:
        return f"{value:,.0f}"
    unit = 0
    while value >= 1000 and unit < len(_THOUSANDS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:,.4g}{_THOUSANDS[unit]}"


def moment(time: float) -> str:
    """Return a time as text."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(seconds: float) -> str:
    """Return a duration in its largest unit."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "less than 1 s"


def size(count: int) -> str:
    """Return a number of bytes in a fitting unit: `1 byte`, `1.5 MB`."""
    if count < 1000:
        return "1 byte" if count == 1 else f"{count} bytes"
    amount, unit = float(count), 0
    while amount >= 999.95 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:,.1f} {_UNITS[unit]}"


def money(dollars: float) -> str:
    """Return an amount of US dollars."""
    if 0 < dollars < _CENT:
        return "less than $0.01"
    return f"${dollars:,.2f}"


def _mark(x: float, colour: str, text: str) -> str:
    x = min(max(x, 2.0), _WIDTH - 2)  # a whole line, also at an edge
    line = f'<line class="event {colour}" x1="{x:.1f}" x2="{x:.1f}" y1="12" y2="88">'
    return f"{line}<title>{escape(text)}</title></line>"


def _cells(heads: Sequence[str], row: Sequence[str]) -> str:
    named = zip(heads, row, strict=True)
    return "".join(f'<td data-label="{escape(name)}"><div>{cell}</div></td>' for name, cell in named)


def _svg(inside: str, *, label: str, style: str = "") -> str:
    named = f' class="{style}"' if style else ""
    return (
        f'<svg{named} viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{inside}</svg>'
    )


def _figure(title: str, inside: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{inside}</figure>"


def _times(span: TimeSpan) -> str:
    return f'<div class="times"><span>{moment(span.first)}</span><span>{moment(span.last)}</span></div>'
