"""The commands `schema show|add|drop|rename|widen|nullable|sync`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lancelsm.cli.arguments import Uri
from lancelsm.cli.session import Session, command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lancelsm.table import Table

group = typer.Typer()

Column = Annotated[str, typer.Argument(metavar="COLUMN", help="The name of a column.", show_default=False)]
_TYPES = "A type of Arrow, such as int64, string, double, timestamp[us, tz=UTC], decimal128(10, 2) or float[128]."
_TYPE_OR_SQL = f"{_TYPES} Or an SQL expression, whose value each row gets: 'price * quantity'."
Type = Annotated[str, typer.Argument(metavar="TYPE", help=_TYPES, show_default=False)]


@command(group, "show", example="lancelsm schema show orders")
def show(session: Session, uri: Uri) -> None:
    """Show the columns of a table, and how they have changed.

    As JSON: {"table", "version", "columns": [{"name", "type", "nullable", "field_id"}], "changes": [text]}.
    """
    _show(session, session.open(uri))


@command(group, "add", example="lancelsm schema add orders status string --default '\"new\"'")
def add(
    session: Session,
    uri: Uri,
    column: Column,
    kind: Annotated[str, typer.Argument(metavar="TYPE|SQL", help=_TYPE_OR_SQL, show_default=False)],
    default: Annotated[str | None, typer.Option(metavar="JSON", help="Its value in rows that are there or leave it "
                                                "out; null by default.", show_default=False)] = None,
) -> None:  # fmt: skip
    """Add a column, which may be null. As JSON: like `schema show`.

    Writers and readers go on. After a crash, the same command finishes it.
    """
    from decimal import Decimal

    from pyarrow import field

    from lancelsm.common.json_text import finite, parse_json
    from lancelsm.record.files import has_decimal
    from lancelsm.record.type_names import type_named
    from lancelsm.record.values import json_column

    table = session.open(uri)
    value = None
    if default is not None:
        wanted = field(column, type_named(kind, column=column))
        try:
            read = parse_json(default, parse_float=Decimal if has_decimal([wanted]) else finite)
        except ValueError:  # text without quotes
            read = default
        value = json_column([read], wanted)[0]
    with session.working(f"Adding {column}"):
        table.add_column(column, kind, default=value)
    _show(session, table)


@command(group, "drop", example="lancelsm schema drop orders note")
def drop(session: Session, uri: Uri, column: Column) -> None:
    """Drop a column. Snapshots keep its values. As JSON: like `schema show`."""
    table = session.open(uri)
    with session.working(f"Dropping {column}"):
        table.drop_column(column)
    _show(session, table)


@command(group, "rename", example="lancelsm schema rename orders note comment")
def rename(
    session: Session,
    uri: Uri,
    column: Column,
    to: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.", show_default=False)],
) -> None:
    """Rename a column. As JSON: like `schema show`."""
    table = session.open(uri)
    with session.working(f"Renaming {column}"):
        table.rename_column(column, to)
    _show(session, table)


@command(group, "widen", example="lancelsm schema widen orders quantity int64")
def widen(session: Session, uri: Uri, column: Column, kind: Type) -> None:
    """Give a column a wider type of its kind. As JSON: like `schema show`."""
    table = session.open(uri)
    with session.working(f"Widening {column}"):
        table.widen_column(column, kind)
    _show(session, table)


@command(group, "nullable", example="lancelsm schema nullable orders note")
def nullable(session: Session, uri: Uri, column: Column) -> None:
    """Let a column be null. The opposite is not possible. As JSON: like `schema show`."""
    table = session.open(uri)
    with session.working(f"Changing {column}"):
        table.set_nullable(column)
    _show(session, table)


@command(group, "sync", example="lancelsm schema sync orders")
def sync(session: Session, uri: Uri) -> None:
    """Take up columns that another tool has added, dropped, renamed or made nullable in the base.

    As JSON: like `schema show`, and "synced": the changes that were taken up.
    """
    from lancelsm.table import Table

    table = Table(session.handle(uri))  # without a warning of what is taken up
    with session.working("Taking up"):
        synced = table.sync_schema()
    _show(session, table, synced=synced)


def _show(session: Session, table: Table, *, synced: Sequence[str] | None = None) -> None:
    from lancelsm.cli.text import listing

    schema = table.config.schema
    columns = [
        {"name": one.name, "type": str(one.type), "nullable": one.nullable, "field_id": _field_id(one)}
        for one in schema.columns
    ]
    document: dict[str, Any] = {
        "table": table.uri,
        "version": schema.version,
        "columns": columns,
        "changes": [change.described for change in schema.history.changes],
    }
    if synced is not None:
        document["synced"] = list(synced)

    def text() -> Any:
        from rich.console import Group

        title = f"{table.uri}: version {schema.version} of the columns"
        taken = (
            [] if synced is None else ["Took up: " + ", ".join(synced) if synced else "There was nothing to take up"]
        )
        return Group(title, *taken, listing(columns, columns=("name", "type", "nullable", "field_id")))

    session.show(document, text)


def _field_id(column: Any) -> int:
    from lancelsm.record.schema import field_id

    return field_id(column)
