"""Format results: tables, names with values, CSV. Text is never interpreted as markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # rich is slow to load, and only what prints a table needs it
    from rich.table import Table
    from rich.text import Text

_CONTROLS = {**{code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}, 9: "\\t", 10: "\\n", 13: "\\r"}
_QUOTED = frozenset(',"\r\n')  # characters of a field of CSV that has quotes
_ESCAPED = str.maketrans({**_CONTROLS, ord("\\"): "\\\\"})


def listing(rows: Iterable[Mapping[str, Any]], *, columns: Sequence[str], absent: str = "-") -> Table:
    """Return a table of records, with numbers aligned right. `columns` are keys; `absent` is shown for None."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    found = list(rows)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        numbers = all(isinstance(row[name], int | float) for row in found) and bool(found)
        table.add_column(Text(one_line(name)), justify="right" if numbers else "left", overflow="fold")
    for row in found:
        table.add_row(*(cell(row[name], absent=absent) for name in columns))
    return table


def facts(values: Mapping[str, Any], *, absent: str = "-") -> Table:
    """Return a list of names with values, one per line. `absent` is shown for None."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in values.items():
        table.add_row(Text(one_line(name)), cell(value, absent=absent))
    return table


def cell(value: Any, *, absent: str) -> Text:
    """Format one value. Nested values are shown as JSON."""
    from rich.text import Text

    if value is None:
        return Text(absent, style="dim")
    return Text(one_line(plain(value)))


def one_line(text: str) -> str:
    """Escape control characters as in Python source, so that text can't break a line or control a terminal."""
    return text.translate(_ESCAPED)


def printable(text: str) -> str:
    """Escape control characters only: for a message, whose backslashes are no escapes."""
    return text.translate(_CONTROLS)


def plain(value: Any) -> str:
    """Return one value as text."""
    import json

    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def document_csv(document: object) -> str:
    """Return the records of a document as CSV: its first list of records, else the document itself. Null is empty."""
    records: Any = document if isinstance(document, list) else [] if document is None else [document]
    if isinstance(document, dict):
        lists = [value for value in document.values() if isinstance(value, list | tuple)]
        filled = [found for found in lists if found and all(isinstance(one, dict) for one in found)]
        if filled or lists in ([[]], [()]):
            records = filled[0] if filled else []
    rows = [one if isinstance(one, dict) else {"value": one} for one in records]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, *([row.get(name) for name in columns] for row in rows)] if columns else []
    return "".join(f"{','.join(map(_csv_field, line)) or _csv_field('')}\n" for line in lines)


def _csv_field(value: object) -> str:
    """Return a field of CSV. Null is empty, and empty text has quotes, so that `write` keeps them apart."""
    text = "" if value is None else plain(value)
    if (value is not None and not text) or not _QUOTED.isdisjoint(text):
        return '"' + text.replace('"', '""') + '"'
    return text
