"""Draw tables and bars as HTML, for notebooks and reports. They need no style sheet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

_MOST = 100
_WIDTH = 12.0  # of the longest bar, in em


def table_html(heads: Sequence[str], rows: Iterable[Sequence[str]], *, most: int = _MOST) -> str:
    """Return a table with at most so many rows, and how many more there are. The cells are HTML."""
    cells = list(rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells[:most])
    more = f"<p>and {len(cells) - most:,} more</p>" if len(cells) > most else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def records_html(title: str, columns: Sequence[str], records: Iterable[Mapping[str, object]]) -> str:
    """Return a title and a table, in which text of a record is never markup: what classes show in a notebook."""
    rows = [[escape(str(row.get(name, ""))) for name in columns] for row in records]
    return f"<p>{escape(title)}</p>{table_html(columns, rows) if rows else ''}"


def bar_html(value: int, *, most: int, colour: str, shown: str = "") -> str:
    """Return a bar whose length is the share of `value` in `most`, and the value behind it."""
    width = round(_WIDTH * value / most, 2) if most else 0
    style = f"display:inline-block;height:0.7em;width:{width}em;background:{colour}"
    return f'<span style="{style}"></span> {shown or f"{value:,}"}'
