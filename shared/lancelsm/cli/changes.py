"""Commands about the change stream: `tail`, and `cursor list|set|drop`."""

from __future__ import annotations

import re
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lancelsm.cli.arguments import Name, Region, Uri
from lancelsm.cli.session import Session, command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from lancelsm.history.changes import Change

commands = typer.Typer()
group = typer.Typer()

_TERMINATED = 143  # what a shell reports of a program that SIGTERM ends
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_Start = Annotated[
    str | None,
    typer.Option(
        "--start",
        metavar="START",
        help="Where to begin: earliest that is kept, latest, a position, or a time: ISO 8601, UTC unless it says, or "
        "Unix seconds with a point.",
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
            help="Go on after what it has passed, whatever --start says; it is made at --start if there is none.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more, until interrupted.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="At most so many rows; with a cursor whole writes, so perhaps a few more."
        ),
    ] = None,
    region: Region = None,
) -> None:
    """Print every committed upsert and delete, in order within each region; of a delete the key alone.

    Rows that `init --load` put into the base are not among them: scan for those. With a cursor, what was printed is
    printed again only if this ends before it saved: after a few writes at most. SIGTERM ends it as an interrupt does,
    with exit code 143. As JSON: one object a row: {"_region", "_position", "_op": "upsert" | "delete", and the
    columns}; of a delete the columns beside the key are null.
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
    from lancelsm.region.catalog import chosen

    table, place = session.open(uri), _start(start)
    only = None if region is None else [one.id for one in chosen(session.handle(uri).context, region)]
    if cursor is not None and start is not None and any(one.name == cursor for one in table.cursors()):
        print(f"Cursor {cursor} goes on where it is; --start is for a new one", file=sys.stderr)
    changes = table.changes(cursor=cursor, start=place, regions=only, follow=follow, limit=limit)
    printed, headed = 0, session.json
    for change in changes:
        rows = _shown(change)
        if limit is not None and cursor is None:
            rows = rows.slice(0, limit - printed)
        _print(session, rows, headed=headed)
        printed, headed = printed + rows.num_rows, True
        if changes.ahead == 0:
            sys.stdout.flush()
            if cursor is not None:
                changes.save(fences=True)
    if cursor is not None:
        sys.stdout.flush()
        changes.save(fences=True)


@command(group, "list", example="lancelsm cursor list orders")
def list_(session: Session, uri: Uri) -> None:
    """Show every cursor with the next position that it reads in each region, and how far it is behind.

    `behind` is how many entries of the logs it has not passed, fences of claims among them, `since` when the oldest of
    them was written. They stay in storage, and so does every generation that was made of one of them, though the base
    has its rows: drop a cursor that nobody reads by.

    As JSON: {"cursors": [{"name", "created", "positions": [{"region", "position"}], "behind", "since"}]}; since is null
    if it has passed every row.
    """
    from lancelsm.cli.text import listing
    from lancelsm.history.changes import behind
    from lancelsm.history.cursor import list_cursors
    from lancelsm.stack import documents

    context = session.handle(uri).context
    found = [documents.cursor(pin) | documents.behind(behind(context, pin)) for pin in list_cursors(context)]
    columns = ("name", "created", "behind", "since", "positions")
    session.show(
        {"cursors": found}, lambda: listing(map(_short, found), columns=columns) if found else "There are no cursors"
    )


@command(group, "set", example="lancelsm cursor set orders --name warehouse --start latest")
def set_(session: Session, uri: Uri, name: Name, start: _Start = None, region: Region = None) -> None:
    """Make a cursor, or put it somewhere else, backwards too as far as the log is kept.

    With --region it moves in that region alone, and has to be there already. As JSON: {"name", "created", "positions":
    [{"region", "position"}]}.
    """
    from lancelsm.stack import documents

    document = documents.cursor(session.open(uri).set_cursor(name, start=_start(start), region=region))
    session.show(document, lambda: f"Set cursor {name}: {_short(document)['positions']}")


@command(group, "drop", example="lancelsm cursor drop orders --name warehouse")
def drop(session: Session, uri: Uri, name: Name) -> None:
    """End a cursor: what only it kept may be collected. As JSON: {"dropped": name}."""
    session.open(uri).drop_cursor(name)
    session.show({"dropped": name}, lambda: f"Dropped cursor {name}")


def _short(cursor: dict[str, Any]) -> dict[str, Any]:
    """The cursor with its positions as people read them, regions by the start of their ids."""
    return {
        **cursor,
        "positions": ", ".join(f"{one['region'][:8]} at {one['position']}" for one in cursor["positions"]),
    }


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind what runs, as an interrupt does, and end the process with the code that a shell knows."""

    def end(*_: object) -> None:
        sys.exit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _start(text: str | None) -> str | int | float:
    """A start as `Table.changes` takes it, by default the earliest; raises `Invalid` for what is none."""
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
            remedy="Give earliest, latest, a position from 1 on, or a time like 2026-01-31T12:00:00Z",
            field="start",
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _shown(change: Change) -> pa.Table:
    """The rows of a change after the columns that say where it is."""
    import pyarrow as pa

    from lancelsm.history.changes import OPERATION

    rows = change.rows
    operation = rows.column(OPERATION)
    plain = rows.drop_columns([OPERATION])
    where = [pa.repeat(change.region, rows.num_rows), pa.repeat(change.position, rows.num_rows), operation]
    return pa.table([*where, *plain.columns], names=["_region", "_position", OPERATION, *plain.column_names])


def _print(session: Session, rows: pa.Table, *, headed: bool) -> None:
    from lancelsm.cli.output import print_lines, tabbed
    from lancelsm.record.json_lines import json_lines, json_objects

    lines: Iterable[str]
    if not headed:
        print_lines(iter(["\t".join(rows.column_names)]))
    for batch in rows.to_batches():
        lines = json_lines(batch) if session.json else ("\t".join(map(tabbed, r.values())) for r in json_objects(batch))
        print_lines(iter(lines))
