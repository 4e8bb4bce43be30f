"""The commands of the change stream: `tail`, and `cursor list|set|drop`."""

from __future__ import annotations

import re
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lancelsm.cli.arguments import Name, Region, Uri
from lancelsm.cli.profile import Output
from lancelsm.cli.session import Session, command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from lancelsm.history.changes import Change

commands = typer.Typer()
group = typer.Typer()

_TERMINATED = 143  # the exit code that a shell reports for a program ended by SIGTERM
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_Start = Annotated[
    str | None,
    typer.Option(
        "--start",
        metavar="START",
        help="Where to start: earliest, latest, a position, or a time: ISO 8601 (UTC if it has no offset) or Unix "
        "seconds with a decimal point.",
        show_default="earliest",
    ),
]


@command(commands, "tail", example="lancelsm tail orders --cursor warehouse --follow --output json")
def tail(
    session: Session,
    uri: Uri,
    start: _Start = None,
    cursor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Continue at this cursor and save it; an existing cursor ignores --start, a new one is created there.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more changes until interrupted.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Stop after N rows; with a cursor, after the entry that reaches N rows."),
    ] = None,
    region: Region = None,
) -> None:
    """Print every committed upsert and delete, in order within each region. A delete has only the key columns.

    Rows that `init --load` put into the base are not in the change stream; `scan` shows them. With a cursor, the
    command saves the cursor after every few entries. After a crash it prints again only what it had not saved. SIGTERM
    ends the command like an interrupt, with exit code 143.

    As JSON: one object per row: {"_region", "_position", "_op": "upsert" | "delete", and the columns}; in a delete all
    columns except the key are null.
    """
    with _ended_by_sigterm():
        _tail(session, uri, start=start, cursor=cursor, follow=follow, limit=limit, region=region)


def _tail(
    session: Session,
    uri: str,
    *,
    start: str | None,
    cursor: str | None,
    follow: bool,
    limit: int | None,
    region: str | None,
) -> None:
    from lancelsm.region.catalog import select_regions

    table, begin = session.open(uri), _start(start)
    only = None if region is None else [one.id for one in select_regions(session.handle(uri).context, region)]
    if cursor is not None and start is not None and any(one.name == cursor for one in table.cursors()):
        print(f"Cursor {cursor} exists, so --start is ignored", file=sys.stderr)
    changes = table.changes(cursor=cursor, start=begin, region_ids=only, follow=follow, limit=limit)
    printed, header_printed = 0, session.json
    for change in changes:
        rows = _shown(change)
        if limit is not None and cursor is None:
            rows = rows.slice(0, limit - printed)
        _print(session, rows, header_printed=header_printed)
        printed, header_printed = printed + rows.num_rows, True
        if changes.ahead == 0:
            sys.stdout.flush()
            if cursor is not None:
                changes.save(fences=True)
    if cursor is not None:
        sys.stdout.flush()
        changes.save(fences=True)


@command(group, "list", example="lancelsm cursor list orders")
def list_(session: Session, uri: Uri) -> None:
    """Show every cursor with its next position in each region, and how far it is behind.

    `behind` is the number of log entries that the cursor has not passed, fences of claims included; `since` is when the
    oldest of them was written. These entries stay in storage, and so do the generations made of them, even if the base
    has their rows. Drop a cursor that nobody uses.

    As JSON: {"cursors": [{"name", "created", "positions": [{"region", "position"}], "behind", "since"}]}; `since` is
    null if the cursor has passed every row.
    """
    from lancelsm.cli.text import listing
    from lancelsm.history.changes import cursor_lag
    from lancelsm.history.cursor import list_cursors
    from lancelsm.stack import documents

    context = session.handle(uri).context
    found = [documents.cursor(pin) | documents.behind(cursor_lag(context, pin)) for pin in list_cursors(context)]
    columns = ("name", "created", "behind", "since", "positions")
    session.show({"cursors": found}, lambda: listing(map(_short, found), columns=columns) if found else "No cursors")


@command(group, "set", example="lancelsm cursor set orders --name warehouse --start latest")
def set_(session: Session, uri: Uri, name: Name, start: _Start = None, region: Region = None) -> None:
    """Create a cursor, or move it forward or back. It can't go before the oldest kept entry.

    With --region only that region is moved, and the cursor must exist. As JSON: {"name", "created", "positions":
    [{"region", "position"}]}.
    """
    from lancelsm.stack import documents

    document = documents.cursor(session.open(uri).set_cursor(name, start=_start(start), region=region))
    session.show(document, lambda: f"Set cursor {name}: {_short(document)['positions']}")


@command(group, "drop", example="lancelsm cursor drop orders --name warehouse")
def drop(session: Session, uri: Uri, name: Name) -> None:
    """Drop a cursor. What only the cursor kept may be collected. As JSON: {"dropped": name}."""
    session.open(uri).drop_cursor(name)
    session.show({"dropped": name}, lambda: f"Dropped cursor {name}")


def _short(cursor: dict[str, Any]) -> dict[str, Any]:
    """Return the cursor with its positions as short text; regions are shown by the start of their ids."""
    return {
        **cursor,
        "positions": ", ".join(f"{one['region'][:8]} at {one['position']}" for one in cursor["positions"]),
    }


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Make SIGTERM unwind the running code like an interrupt, and end the process with exit code 143."""

    def end(*_: object) -> None:
        sys.exit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _start(text: str | None) -> str | int | float:
    """Parse a start for `Table.changes`; the default is `earliest`. Raises `Invalid` if the text is not a start."""
    from datetime import UTC, datetime

    from lancelsm.errors import Invalid

    if text is None:
        return "earliest"
    if text in ("earliest", "latest"):
        return text
    if number := _NUMBER.fullmatch(text):
        return float(text) if number[1] else int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(
            f"a stream can't start at {text!r}",
            remedy="Give earliest, latest, a position (1 or more), or a time such as 2026-01-31T12:00:00Z",
            field="start",
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _shown(change: Change) -> pa.Table:
    """Return the rows of a change, preceded by the columns region, position and operation."""
    import pyarrow as pa

    from lancelsm.history.changes import OPERATION

    rows = change.rows
    operation = rows.column(OPERATION)
    plain = rows.drop_columns([OPERATION])
    where = [pa.repeat(change.region, rows.num_rows), pa.repeat(change.position, rows.num_rows), operation]
    return pa.table([*where, *plain.columns], names=["_region", "_position", OPERATION, *plain.column_names])


def _print(session: Session, rows: pa.Table, *, header_printed: bool) -> None:
    from lancelsm.cli.output import print_csv, print_lines, tabbed
    from lancelsm.record.json_lines import json_lines, json_objects

    lines: Iterable[str]
    if session.output is Output.CSV:
        print_csv(rows.schema, rows.to_batches(), header=not header_printed)
        return
    if not header_printed:
        print_lines(iter(["\t".join(map(tabbed, rows.column_names))]))
    for batch in rows.to_batches():
        lines = json_lines(batch) if session.json else ("\t".join(map(tabbed, r.values())) for r in json_objects(batch))
        print_lines(iter(lines))
