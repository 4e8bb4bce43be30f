"""The command `apply`."""

from __future__ import annotations

import stat
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lancelsm.cli.arguments import Uri
from lancelsm.cli.session import Session, command, names, pairs
from lancelsm.common.json_text import parse_json
from lancelsm.errors import Invalid, LsmError, error_context

if TYPE_CHECKING:
    from lancelsm.read.transact.change_capture import Applied
    from lancelsm.table import Table

commands = typer.Typer()
_LINES_AT_ONCE = 10_000


class EventFormat(StrEnum):
    ROWS = "rows"
    DEBEZIUM = "debezium"
    FLATTENED = "flattened"


class BadRow(StrEnum):
    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "dead_letter"


@command(commands, "apply", example="lancelsm apply orders a.jsonl --format debezium --sequence-by lsn --source a")
def apply(  # noqa: PLR0917 - one for each option
    session: Session,
    uri: Uri,
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="JSON lines, in order; - is stdin.")],
    format: Annotated[EventFormat, typer.Option("--format", help="The format of the events.")] = EventFormat.ROWS,  # noqa: A002
    sequence_by: Annotated[
        str | None,
        typer.Option(metavar="A[,B]", help="Columns whose highest value wins; COLUMN=PATH for its path in an event."),
    ] = None,
    apply_as_deletes: Annotated[
        str | None, typer.Option(metavar="SQL", help="Events that meet this condition are deletes.")
    ] = None,
    column_list: Annotated[str | None, typer.Option(metavar="A[,B]", help="The columns that events change.")] = None,
    except_column_list: Annotated[
        str | None, typer.Option(metavar="A[,B]", help="Columns that events don't change, and fields to leave out.")
    ] = None,
    ignore_null_updates: Annotated[
        bool, typer.Option("--ignore-null-updates", help="Null leaves a column as it is.")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Apply each event of this source once, by its line number."),
    ] = None,
    first: Annotated[int, typer.Option(min=1, metavar="N", help="The number of the first line of the source.")] = 1,
    on_bad_row: Annotated[
        BadRow,
        typer.Option("--on-bad-row", help="An event that does not fit: end with an error, count it, or also keep it."),
    ] = BadRow.FAIL,
) -> None:
    """Apply change events: upserts and deletes by key, in the order that a sequence gives.

    10,000 lines at a time are durable at once. With --source, a repeated command goes on after the lines that are
    applied. docs/how-to/cdc.md has the rules. As JSON: {"written", "deleted", "late", "skipped", "rejected", "offset"}.
    """
    from dataclasses import asdict

    from lancelsm.read.transact.change_capture import Applied

    table = session.open(uri)
    done = Applied()
    total = _bytes(files)
    with error_context(table=table.uri), session.working("Applying", total=total) as advance:
        for numbers, lines in _parts(_lines(files) if source is None else _whole_lines(_lines(files)), first):
            with _naming_lines(numbers):
                done += table.apply_changes(
                    lines,
                    format=format.value,
                    sequence_by=_sequence(sequence_by),
                    apply_as_deletes=apply_as_deletes,
                    column_list=names(column_list),
                    except_column_list=names(except_column_list),
                    ignore_null_updates=ignore_null_updates,
                    source=source,
                    offset=None if source is None else numbers,
                    on_bad_row=on_bad_row.value,
                )
            advance(len(lines) if total is None else sum(len(line.encode(errors="surrogateescape")) for line in lines))
    offset = None if source is None else table.source_offset(source)
    session.show({**asdict(done), "offset": offset}, lambda: _text(done, table, offset))


@contextmanager
def _naming_lines(numbers: Sequence[int]) -> Iterator[None]:
    """Let an error name the line of its event, or the lines of the call."""
    try:
        yield
    except LsmError as error:
        event = error.where.pop("row", None)
        where = {"lines": f"{numbers[0]}-{numbers[-1]}"} if event is None else {"line": numbers[int(str(event))]}
        error.where.update(where)
        raise


def _text(done: Applied, table: Table, offset: int | None) -> str:
    counts = f"{done.late} late, {done.skipped} skipped, {done.rejected} rejected"
    tail = "" if offset is None else f"; the source is applied up to {offset}"
    return f"Wrote {done.written} and deleted {done.deleted} rows of {table.uri}: {counts}{tail}"


def _sequence(text: str | None) -> list[str] | dict[str, str] | None:
    found = names(text)
    if found is None or not any("=" in one for one in found):
        return found
    return pairs(found, option="--sequence-by", form="COLUMN=PATH")


def _parts(lines: Iterable[str], first: int) -> Iterator[tuple[list[int], list[str]]]:
    """Yield lines that are not blank, with their numbers."""
    left = ((number, line) for number, line in enumerate(lines, first) if line.strip())
    while part := list(islice(left, _LINES_AT_ONCE)):
        yield [number for number, _ in part], [line for _, line in part]


def _whole_lines(lines: Iterable[str]) -> Iterator[str]:
    """End before a line that is still being written: it would be a bad row, and skipped when it is whole."""
    for line in lines:
        if line.strip() and not line.endswith("\n") and not _is_json(line):
            what = "the last line is not whole: it is left for the next run"
            warnings.warn(what, UserWarning, stacklevel=1)
            return
        yield line


def _is_json(line: str) -> bool:
    try:
        parse_json(line)
    except ValueError:
        return False
    return True


def _bytes(files: Iterable[str]) -> int | None:
    """Return the size of the files; None if one of them is no regular file, or can't be read."""
    try:
        found = [Path(file).stat() for file in files]
    except OSError:
        return None
    return sum(one.st_size for one in found) if all(stat.S_ISREG(one.st_mode) for one in found) else None


def _lines(files: Iterable[str]) -> Iterator[str]:
    return chain.from_iterable(map(_lines_of, files))


def _lines_of(file: str) -> Iterator[str]:
    from lancelsm.cli.input import STDIN, stdin_lines

    if file == STDIN:
        yield from (line.decode(errors="surrogateescape") for line in stdin_lines())
        return
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as opened:
            yield from opened
    except OSError as error:
        raise Invalid(
            f"the file can't be read: {error.strerror}", remedy="Correct the path; - is stdin", file=file
        ) from error
