"""The commands `write`, `delete`, `scan` and `get`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from lancelsm.cli.arguments import At, Explain, Uri
from lancelsm.cli.hidden_modules import without_numpy
from lancelsm.cli.profile import Output
from lancelsm.cli.session import Session, command, names, pairs
from lancelsm.errors import error_context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyarrow import RecordBatch, Table

    from lancelsm.common.write_result import Committed

STDOUT = "-"
commands = typer.Typer()
_SQL = "text in 'quotes', special column names in `backticks`"
_Key = Annotated[
    str | None,
    typer.Option("--key", metavar="JSON", help="An object of the key columns, or the value if the key is one column."),
]


@command(commands, "write", example="lancelsm write orders monday.parquet tuesday.csv")
def write(
    session: Session,
    uri: Uri,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE", help="Parquet, CSV, JSON lines or Arrow, written in order; - is JSON lines on stdin."
        ),
    ],
    if_absent: Annotated[bool, typer.Option("--if-absent", help="Write only rows whose keys have no row.")] = False,
    if_newer: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Write only rows with a greater value in this column than the row there."),
    ] = None,
    if_unchanged: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="Write only if no row of these keys was written since `get --with-token`."),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Columns that the rows leave out keep their values.")
    ] = False,
) -> None:
    """Write rows by primary key. Return when they are durable and visible to every reader.

    A file is checked as a whole before its first row is written; if it has a key twice, the later row wins. Stdin is
    written as it arrives, 8 MB or 100,000 rows at a time. As JSON: {"rows", "entries": [{"region", "position",
    "rows"}]}; with --if-absent, --if-newer, --if-unchanged or --partial also "skipped", the rows left out.
    """
    if if_absent or if_newer is not None or if_unchanged is not None or partial:
        from lancelsm.cli.input import feed, upserts_of

        table = session.open(uri)

        def upsert(rows: Table) -> Committed:
            return table.upsert(
                rows, if_absent=if_absent, if_newer=if_newer, if_unchanged=if_unchanged, partial=partial
            )

        with error_context(table=table.uri):
            rows = upserts_of(session.handle(uri), files, partial_rows=partial)
            committed = feed(upsert, rows, settings=table.settings)
        _show_committed(session, "Wrote", committed, conditional=True)
        return
    without_numpy()
    from lancelsm.cli.input import feed, upserts_of

    log = session.log(uri)
    with error_context(table=log.handle.context.uri):
        committed = feed(log.upsert, upserts_of(log.handle, files), settings=log.handle.settings)
    _show_committed(session, "Wrote", committed)


@command(commands, "update", example="""lancelsm update orders --set "total = total + 1" --where "state = 'new'\"""")
def update(
    session: Session,
    uri: Uri,
    assignments: Annotated[
        list[str],
        typer.Option("--set", metavar="COLUMN=SQL", help=f"The new value, from the old row; repeatable; {_SQL}."),
    ],
    where: Annotated[str, typer.Option(metavar="SQL", help="Change every row that matches now; true: every row.")],
) -> None:
    """Set columns of the rows that match a condition, from the values that they have right before the write.

    As JSON: {"rows", "entries": [{"region", "position", "rows"}]}.
    """
    texts: dict[str, str] = {}
    for assignment in assignments:
        ((name, text),) = pairs([assignment], option="--set", form="COLUMN=SQL").items()
        if name.strip() in texts:
            raise typer.BadParameter(f"column {name.strip()!r} is set twice", param_hint="--set")
        texts[name.strip()] = text.strip()
    table = session.open(uri)
    with session.working("Updating"):
        done = table.update(where=where, set=texts)
    _show_committed(session, "Updated", done)


@command(commands, "delete", example="""lancelsm delete orders --where "state = 'void'\"""")
def delete(
    session: Session,
    uri: Uri,
    keys: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file with the key columns; - is JSON lines on stdin.")
    ] = None,
    key: _Key = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help=f"Delete every row that matches now; {_SQL}.")
    ] = None,
) -> None:
    """Delete rows: those in a file of keys, one key, or those that match a condition. A key without a row is no error.

    As JSON: {"rows", "entries": [{"region", "position", "rows"}]}; rows are the tombstones that were written.
    """
    if [keys, key, where].count(None) != 2:
        raise typer.BadParameter("give one of --keys, --key and --where")
    if where is not None:
        table = session.open(uri)
        with session.working("Deleting"):
            done = table.delete(where=where)
        _show_committed(session, "Deleted", done)
        return
    without_numpy()
    from lancelsm.cli.input import deletes_of, feed, key_row

    log = session.log(uri)
    with error_context(table=log.handle.context.uri):
        if keys is not None:
            committed = feed(log.delete, deletes_of(log.handle, keys), settings=log.handle.settings)
        else:
            committed = log.delete(key_row(log.handle.config.schema, key or ""))
    _show_committed(session, "Deleted", committed)


@command(commands, "scan", example="""lancelsm scan orders --columns id,state --where "state = 'paid'" --to paid.csv""")
def scan(  # noqa: PLR0917 - one for each option
    session: Session,
    uri: Uri,
    columns: Annotated[str | None, typer.Option(metavar="A[,B]", help="Columns, in this order; default all.")] = None,
    where: Annotated[str | None, typer.Option(metavar="SQL", help=f"Only rows that match; {_SQL}.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, metavar="N", help="At most N rows.")] = None,
    order_by: Annotated[
        str | None, typer.Option(metavar="A[ desc][,B]", help="Sort by these columns; null comes last.")
    ] = None,
    count: Annotated[bool, typer.Option("--count", help="Only count the rows.")] = False,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write to a file; the suffix is .parquet .csv .ndjson or .arrow. - is stdout: CSV, or JSON lines "
            "with --output json.",
        ),
    ] = None,
    at: At = None,
    explain: Explain = False,
) -> None:
    """Read every live row, as of now or as of a snapshot.

    A terminal shows the first 50 rows unless --limit is given. In a pipe all rows are printed, separated by tabs.

    As JSON: one object per row. Values that JSON lacks are text: ISO 8601 times, decimals, base64 for binary, "NaN",
    "Infinity", "-Infinity". With --count {"count"}, with --to {"file", "rows"}, with --explain
    {"rows", "base_version", "levels", "skipped_regions", "skipped_levels", "indexes", "rows_without_index", "requests",
    "steps"}.
    """
    from lancelsm.cli.output import show_rows
    from lancelsm.common.error_text import counted
    from lancelsm.record.export import write_file
    from lancelsm.stack.query import count_rows

    if count and to is not None:
        raise typer.BadParameter("--count and --to exclude each other")
    if order_by is not None and (count or explain):
        raise typer.BadParameter("--order-by only sorts rows that are printed or written")
    if explain and to is not None:
        raise typer.BadParameter("--explain and --to exclude each other")
    table = session.open(uri, at=at)
    if explain:
        plain = count and columns is None and limit is None
        read = names(columns) or (table.config.schema.primary_key if count and not plain else None)
        session.explain(table.explain(columns=read, where=where, limit=limit, count=plain))
        return
    if count:
        with session.working("Counting"):
            number = count_rows(table, columns=names(columns), where=where, limit=limit)
        session.show({"count": number}, lambda: str(number))
        return
    rows = table.scan(columns=names(columns), where=where, limit=limit, order_by=order_by)
    if to is None:
        show_rows(session, rows, capped=limit is None)
        return
    if to == STDOUT:
        whole = session if session.json else replace(session, output=Output.CSV)
        show_rows(whole, rows, capped=False)
        return
    with session.working(f"Writing {to}") as advance:

        def batches() -> Iterator[RecordBatch]:
            for batch in rows:
                yield batch
                advance(batch.num_rows)

        written = write_file(to, rows.schema, batches())
    session.show({"file": to, "rows": written}, lambda: f"Wrote {counted(written, 'row')} to {to}")


@command(commands, "get", example="""lancelsm get orders --key '{"id": 7}'""")
def get(
    session: Session,
    uri: Uri,
    key: _Key = None,
    at: At = None,
    with_token: Annotated[
        bool, typer.Option("--with-token", help="Also print a token, for `write --if-unchanged`.")
    ] = False,
    explain: Explain = False,
) -> None:
    """Look up one row by its key.

    As JSON: the row, or null if there is no such row, which is no error. With --with-token {"row", "token"}; with
    --explain as `scan`.
    """
    from lancelsm.cli.input import key_row
    from lancelsm.cli.text import facts
    from lancelsm.record.json_lines import json_objects

    if key is None:
        raise typer.BadParameter("give the --key to look up")
    table = session.open(uri, at=at)
    with error_context(table=table.uri):
        wanted = key_row(table.config.schema, key)
        if explain:
            session.explain(table.explain(wanted))
            return
        read = table.get(wanted, with_token=True) if with_token else None
        row = next(json_objects(table.get(wanted) if read is None else read.rows), None)
    if read is not None:
        token = read.token
        session.show({"row": row, "token": token}, lambda: facts({**(row or {}), "token": token}, absent="null"))
        return
    session.show(row, lambda: "No row has this key" if row is None else facts(row, absent="null"))


def _show_committed(session: Session, verb: str, committed: Committed, *, conditional: bool = False) -> None:
    from lancelsm.common.error_text import counted
    from lancelsm.stack import documents

    document = documents.committed_or_skipped(committed) if conditional else documents.committed(committed)
    entries = document["entries"]
    regions = len({entry.region for entry in committed.entries})
    session.show(
        document,
        lambda: (
            f"{verb} {counted(committed.rows, 'row')} in {counted(len(entries), 'entry')} of "
            f"{counted(regions, 'region')}" + (f", skipped {committed.skipped}" if committed.skipped else "")
        ),
    )
