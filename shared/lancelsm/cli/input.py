"""From files and stdin to writes: checked whole, then written batch by batch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from lancelsm.cli.session import console
from lancelsm.common.committed import Committed
from lancelsm.common.settings import Settings
from lancelsm.errors import LsmError, error_context
from lancelsm.record.files import read_file, read_ndjson
from lancelsm.record.normalize import deletes, upserts
from lancelsm.stack.query import key_rows
from lancelsm.table import Table
from lancelsm.wal.region_writer import committed

STDIN = "-"
ROWS_AT_ONCE = 100_000

Append = Callable[[pa.Table], Committed]


def upserts_of(table: Table, files: Iterable[str]) -> Iterator[pa.Table]:
    """The rows of several sources, in order. A file comes whole, checked; stdin in parts."""
    schema = table.config.schema
    for file in files:
        if file == STDIN:
            yield from _from_stdin(schema.columns, bytes_max=table.settings.group_commit_bytes)
        else:
            yield _checked(file, schema.columns, partial(upserts, schema=schema)).select(schema.names)


def deletes_of(table: Table, file: str) -> Iterator[pa.Table]:
    """The keys in one source, as `upserts_of`."""
    schema = table.config.schema
    if file == STDIN:
        yield from _from_stdin(schema.key, bytes_max=table.settings.group_commit_bytes)
    else:
        yield _checked(file, schema.key, partial(deletes, schema=schema)).select(list(schema.primary_key))


def feed(append: Append, sources: Iterable[pa.Table], *, settings: Settings) -> Committed:
    """Write all rows, batch by batch in order, with progress on a terminal.

    Raises:
        What `append` or a source raises, with `rows_written`: how many rows are durable already.
    """
    done: list[Committed] = []
    try:
        with _progress() as begin:
            for source in sources:
                advance = begin(source.num_rows)
                for batch in _batches(source, bytes_max=settings.group_commit_bytes):
                    done.append(append(batch))
                    advance(batch.num_rows)
    except LsmError as error:
        if done:
            error.where["rows_written"] = sum(one.rows for one in done)
        raise
    return committed(entry for one in done for entry in one.entries)


def key_row(table: Table, text: str) -> pa.Table:
    """One key from its JSON: an object of the key columns, or the plain value of a key of one column.

    Raises:
        Invalid: neither, or a value that doesn't fit its column.
    """
    schema = table.config.schema
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = text  # a word without quotes
    kind = schema.key.field(0).type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if is_text and not isinstance(value, dict | str | None):
        value = text  # digits that are meant as text
    return key_rows([value], table=table)


def _checked(file: str, columns: pa.Schema, check: Callable[[pa.Table], pa.Table]) -> pa.Table:
    with error_context(file=file):
        return check(read_file(file, schema=columns))


def _from_stdin(columns: pa.Schema, *, bytes_max: int) -> Iterator[pa.Table]:
    """JSON lines as they come; an error tells how many lines were read before the part that it is in."""
    lines: list[bytes] = []
    size = before = 0
    for line in sys.stdin.buffer:
        lines.append(line)
        size += len(line)
        if size >= bytes_max or len(lines) >= ROWS_AT_ONCE:
            yield _part(lines, columns, before)
            before += len(lines)
            lines, size = [], 0
    if lines:
        yield _part(lines, columns, before)


def _part(lines: list[bytes], columns: pa.Schema, before: int) -> pa.Table:
    with error_context(file="stdin", **({"lines_before": before} if before else {})):
        return read_ndjson(lines, schema=columns)


def _batches(rows: pa.Table, *, bytes_max: int) -> Iterator[pa.Table]:
    """The rows in pieces of about so many bytes, and of no more than `ROWS_AT_ONCE`."""
    step = ROWS_AT_ONCE
    if rows.num_rows:
        step = min(step, max(1, bytes_max * rows.num_rows // max(rows.nbytes, 1)))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


@contextmanager
def _progress() -> Iterator[Callable[[int], Callable[[int], object]]]:
    """Gives a function that takes a number of rows to come and gives one that takes numbers of rows done."""
    if not sys.stderr.isatty():
        yield lambda _total: lambda _done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("Writing"), BarColumn(), MofNCompleteColumn(), TextColumn("rows"), TimeElapsedColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True) as shown:
        task = shown.add_task("", total=0)

        def begin(total: int) -> Callable[[int], object]:
            shown.update(task, total=(shown.tasks[0].total or 0) + total)
            return lambda done: shown.advance(task, done)

        yield begin
