"""Read rows from files and stdin, check them, and write them batch by batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from lancelsm.cli.session import console
from lancelsm.common.json_text import parse_json
from lancelsm.common.settings import Settings
from lancelsm.common.write_result import Committed
from lancelsm.errors import Invalid, LsmError, error_context
from lancelsm.record.files import json_keys, read_file, read_ndjson
from lancelsm.record.normalize import deletes, partial_upserts, upserts
from lancelsm.record.schema import TableSchema
from lancelsm.region.handle import TableHandle
from lancelsm.wal.region_writer import committed

STDIN = "-"
ROWS_AT_ONCE = 100_000

Append = Callable[[pa.Table], Committed]


def upserts_of(table: TableHandle, files: Iterable[str], *, partial_rows: bool = False) -> Iterator[pa.Table]:
    """Read the rows of several sources, in order. A file is read and checked as a whole, stdin in parts.

    Args:
        partial_rows: the rows may lack columns other than those of the key.
    """
    schema = table.config.schema

    def checked(rows: pa.Table) -> pa.Table:
        if not partial_rows:
            return upserts(rows, schema=schema).select(schema.names)
        found, names = partial_upserts(rows, schema=schema)
        return found.select(names)

    for file in files:
        if file == STDIN:
            yield from _from_stdin(schema.columns, bytes_max=table.settings.group_commit_bytes)
        else:
            yield _checked(file, schema.columns, checked)


def deletes_of(table: TableHandle, file: str) -> Iterator[pa.Table]:
    """Read the keys of one source, like `upserts_of`."""
    schema = table.config.schema
    if file == STDIN:
        yield from _from_stdin(schema.key, bytes_max=table.settings.group_commit_bytes)
    else:
        yield _checked(file, schema.key, partial(deletes, schema=schema)).select(list(schema.primary_key))


def feed(append: Append, sources: Iterable[pa.Table], *, settings: Settings) -> Committed:
    """Write all rows in order, batch by batch, and show progress on a terminal.

    Raises:
        The errors of `append` and of the sources, with `rows_written`: the number of rows that are already durable.
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
    whole = committed(entry for one in done for entry in one.entries)
    return replace(whole, skipped=sum(one.skipped for one in done))


def key_row(schema: TableSchema, text: str) -> pa.Table:
    """Parse one key from JSON: an object of the key columns, or the plain value of a key of one column.

    Raises:
        Invalid: the text is neither, or a value does not fit its column.
    """
    try:
        value: Any = parse_json(text)
    except ValueError:
        value = text  # a word without quotes
    kind = schema.key.field(0).type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if is_text and not isinstance(value, dict | str | None):
        value = text  # a text key that looks like a JSON number
    return json_keys([value], schema=schema.key)


def _checked(file: str, columns: pa.Schema, check: Callable[[pa.Table], pa.Table]) -> pa.Table:
    with error_context(file=file):
        return check(read_file(file, schema=columns))


def _from_stdin(columns: pa.Schema, *, bytes_max: int) -> Iterator[pa.Table]:
    """Read JSON lines as they arrive. An error says how many lines were read before the failed part."""
    lines: list[bytes] = []
    size = before = 0
    for line in stdin_lines():
        lines.append(line)
        size += len(line)
        if size >= bytes_max or len(lines) >= ROWS_AT_ONCE:
            yield _part(lines, columns, before)
            before += len(lines)
            lines, size = [], 0
    if lines:
        yield _part(lines, columns, before)


def stdin_lines() -> Iterator[bytes]:
    """Yield the lines of stdin as they arrive; raise `Invalid` if it can't be read."""
    try:
        yield from sys.stdin.buffer
    except OSError as error:
        raise Invalid(f"stdin can't be read: {error.strerror}", remedy="Give a file, or rows on stdin") from error


def _part(lines: list[bytes], columns: pa.Schema, before: int) -> pa.Table:
    with error_context(file="stdin", **({"lines_before": before} if before else {})):
        return read_ndjson(lines, schema=columns)


def _batches(rows: pa.Table, *, bytes_max: int) -> Iterator[pa.Table]:
    """Split the rows into batches of about `bytes_max` bytes and at most `ROWS_AT_ONCE` rows."""
    step = ROWS_AT_ONCE
    if rows.num_rows:
        step = min(step, max(1, bytes_max * rows.num_rows // max(rows.nbytes, 1)))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


@contextmanager
def _progress() -> Iterator[Callable[[int], Callable[[int], object]]]:
    """Yield a function that adds a number of rows to the total and returns a function that counts rows as done."""
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
