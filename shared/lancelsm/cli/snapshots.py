"""Commands about snapshots and copies: `snapshot create|refresh|list|drop|clone`, `backup`, `restore`, `drop`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lancelsm.cli.arguments import At, Name, Uri
from lancelsm.cli.session import Session, command

if TYPE_CHECKING:
    from lancelsm.admin.clone import Copied
    from lancelsm.history.pins import Pin

commands = typer.Typer()
group = typer.Typer()

_Ttl = Annotated[
    str | None,
    typer.Option(
        "--ttl", metavar="DURATION", help="Seconds, 90s, 15m, 1h, 7d, or never.", show_default="the table's setting"
    ),
]


@command(group, "create", example="lancelsm snapshot create orders --name monday --ttl 1h")
def create(session: Session, uri: Uri, name: Name, ttl: _Ttl = None) -> None:
    """Keep a table as it is now under a name, until the snapshot expires or is dropped.

    All that was acknowledged before is in it. While it stands, the whole log that is written after it and every
    generation that is made of it stay in storage too, as for a cursor, so with --ttl never storage grows without bound.

    As JSON: {"name", "created", "expires", "base_version", "clone"}; expires is null for never, clone the table whose
    files it keeps.
    """
    _show(session, "Made", session.open(uri).snapshot(name, ttl))


@command(group, "refresh", example="lancelsm snapshot refresh orders --name monday --ttl 1h")
def refresh(session: Session, uri: Uri, name: Name, ttl: _Ttl = None) -> None:
    """Let a snapshot live that long from now on. One that has expired and is gone is refused.

    As JSON: as `snapshot create`.
    """
    _show(session, "Refreshed", session.open(uri).refresh_snapshot(name, ttl))


@command(group, "list", example="lancelsm snapshot list orders")
def list_(session: Session, uri: Uri) -> None:
    """Show every snapshot, also those that keep files of clones, and expired ones that no collection has removed yet.

    As JSON: {"snapshots": [as `snapshot create`]}, each with "expired" too: that one can't be read any more.
    """
    from lancelsm.cli.text import listing
    from lancelsm.history.snapshot import list_snapshots
    from lancelsm.stack import documents

    context = session.handle(uri).context
    pins, now = list_snapshots(context), context.clock.now()

    found = [documents.snapshot(pin) | {"expired": pin.expires is not None and pin.expires <= now} for pin in pins]

    def text() -> Any:
        shown = [{**one, "expires": _expires(one)} for one in found]
        return listing(shown, columns=("name", "created", "expires", "base_version", "clone"))

    session.show({"snapshots": found}, text if found else lambda: "There are no snapshots")


def _expires(snapshot: dict[str, Any]) -> str:
    """When a snapshot ends, for people."""
    if snapshot["expires"] is None:
        return "never"
    return f"{snapshot['expires']}{', has expired' if snapshot['expired'] else ''}"


@command(group, "drop", example="lancelsm snapshot drop orders --name monday")
def drop_snapshot(session: Session, uri: Uri, name: Name) -> None:
    """End a snapshot: the next collection may delete what it kept.

    One that keeps files of a clone ends by `drop` of the clone, or here once somebody removed the clone by hand. As
    JSON: {"dropped": name}.
    """
    session.open(uri).drop_snapshot(name)
    session.show({"dropped": name}, lambda: f"Dropped snapshot {name}")


@command(group, "clone", example="lancelsm snapshot clone orders orders-test --name monday")
def clone(
    session: Session,
    uri: Uri,
    to: Annotated[str, typer.Argument(metavar="TO", help="The new table: a path or a URL.")],
    name: Name,
) -> None:
    """Make a new table of a snapshot without copying its base: it shares the source's files until it rewrites them.

    The source keeps these files, as a snapshot without expiry that `snapshot list` shows, until the clone is dropped.
    Run again after a crash, it finishes what was begun. As JSON: {"table", "rows", "from"}.
    """
    from lancelsm.admin.clone import clone_snapshot

    handle = session.handle(uri)
    with session.working(f"Cloning {uri}"):
        copied = clone_snapshot(handle, name, to)
    _show_copied(session, "Cloned", copied)


@command(commands, "backup", example="lancelsm backup orders s3://backups/orders-monday")
def backup(
    session: Session,
    uri: Uri,
    to: Annotated[str, typer.Argument(metavar="TO", help="An empty place: a path or a URL.")],
    at: At = None,
) -> None:
    """Copy every row to a place that needs nothing of the table any more; read it back and compare.

    In it are schema, key, regions, settings and rows; not in it are indexes, older versions, snapshots and cursors, nor
    the table's objects: `restore` makes a new table of it, and repairs none. As JSON: {"table": the backup's place,
    "rows", "from": the table's}.
    """
    from lancelsm.backup import back_up

    table = session.open(uri)
    with session.working(f"Backing up {uri}"):
        copied = back_up(table if at is None else table.at(at), to, storage_options=session.storage_options)
    _show_copied(session, "Backed up", copied)


@command(commands, "restore", example="lancelsm restore s3://backups/orders-monday orders")
def restore(
    session: Session,
    source: Annotated[str, typer.Argument(metavar="FROM", help="A backup: a path or a URL.")],
    uri: Uri,
    registry: Annotated[
        str | None, typer.Option(metavar="KIND", help="sqlite, object or dynamodb:NAME, as for init.")
    ] = None,
) -> None:
    """Make a new table of a backup, with new regions; compare its rows with those that were backed up.

    Run again after a crash, it finishes what was begun. As JSON: {"table", "rows", "from"}.
    """
    from lancelsm.backup import restore as restore_table

    with session.working(f"Restoring {uri}"):
        copied = restore_table(source, uri, registry=registry, storage_options=session.storage_options)
    _show_copied(session, "Restored", copied)


@command(commands, "drop", example="lancelsm drop orders --yes")
def drop(
    session: Session,
    uri: Uri,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Delete a table with all its rows, snapshots and cursors, for ever.

    It asks on a terminal, and elsewhere refuses without --yes. A table whose files a clone shares is refused. Run again
    after a crash, it goes on. As JSON: {"dropped": uri, "deleted": objects}.
    """
    from lancelsm.admin.drop import drop_table
    from lancelsm.cli.text import counted
    from lancelsm.region.handle import canonical

    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("give it to delete the table, for ever", param_hint="--yes")
        typer.confirm(f"Delete {uri} with all its rows, for ever?", abort=True, err=True)
    with session.working(f"Dropping {uri}"):
        deleted = drop_table(uri, storage_options=session.storage_options)
    place = canonical(uri)
    session.show(
        {"dropped": place, "deleted": deleted}, lambda: f"Dropped {place}: {counted(deleted, 'object')} deleted"
    )


def _show(session: Session, did: str, pin: Pin) -> None:
    from lancelsm.stack import documents

    document = documents.snapshot(pin)
    until = f"until {document['expires']}" if document["expires"] else "until it is dropped"
    session.show(document, lambda: f"{did} snapshot {pin.name}, kept {until}")


def _show_copied(session: Session, did: str, copied: Copied) -> None:
    from lancelsm.cli.text import counted

    document = {"table": copied.uri, "rows": copied.rows, "from": copied.source}
    session.show(document, lambda: f"{did} {counted(copied.rows, 'row')} of {copied.source} to {copied.uri}")
