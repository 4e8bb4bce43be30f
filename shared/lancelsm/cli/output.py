"""Print rows on stdout: a table on a terminal, tab-separated values in a pipe, CSV, or JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from lancelsm.cli.profile import Output
from lancelsm.cli.session import Session, console
from lancelsm.cli.text import listing, one_line, plain
from lancelsm.read.result import Rows
from lancelsm.record.export import csv_parts
from lancelsm.record.json_lines import json_lines, json_objects

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_ON_A_TERMINAL = 50


def show_rows(session: Session, rows: Rows, *, capped: bool) -> None:
    """Print rows as they arrive.

    Args:
        capped: print only the first rows on a terminal and count the others.
    """
    if session.json:
        for batch in rows:
            print_lines(json_lines(batch))
    elif session.output is Output.CSV:
        print_csv(rows.schema, rows)
    elif session.output is Output.TABLE or sys.stdout.isatty():
        _show_table(session, rows, limit=ROWS_ON_A_TERMINAL if capped else None)
    else:
        print_lines(iter(["\t".join(map(tabbed, rows.schema.names))]))
        for batch in rows:
            print_lines("\t".join(map(tabbed, row.values())) for row in json_objects(batch))


def _show_table(session: Session, rows: Rows, *, limit: int | None) -> None:
    shown: list[dict[str, Any]] = []
    total = 0
    with session.working("Reading") as advance:
        for batch in rows:
            room = None if limit is None else limit - total
            if room is None or room > 0:
                shown += json_objects(batch if room is None else batch.slice(0, room))
            total += batch.num_rows
            advance(batch.num_rows)
    console().print(listing(shown, columns=rows.schema.names, absent="null"))
    hidden = total - len(shown)
    print(f"{total:,} rows" + (f", {hidden:,} of them not shown: use --limit, --to, or a pipe" if hidden else ""))


def print_csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, header: bool = True) -> None:
    """Print rows as CSV, in the form that `write` reads."""
    for part in csv_parts(schema, batches, header=header):
        sys.stdout.write(part)


def print_lines(lines: Iterator[str]) -> None:
    """Print lines on stdout."""
    for line in lines:
        sys.stdout.write(f"{line}\n")


def tabbed(value: object) -> str:
    """Return one value as text; null is empty."""
    return "" if value is None else one_line(plain(value))
