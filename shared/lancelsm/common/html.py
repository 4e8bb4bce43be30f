"""Show records in a notebook: the HTML that classes return from `_repr_html_`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

_MOST = 100


def records_html(title: str, columns: Sequence[str], records: Iterable[Mapping[str, object]]) -> str:
    """Return a title and a table, in which text of a record is never markup."""
    rows = list(records)
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = ("".join(f"<td>{escape(str(row.get(name, '')))}</td>" for name in columns) for row in rows[:_MOST])
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
    more = f"<p>and {len(rows) - _MOST:,} more</p>" if len(rows) > _MOST else ""
    return f"<p>{escape(title)}</p>{table}{more}"
