"""The commands `snapshot create|refresh|list|drop|clone`, `backup`, `restore`, `copy`, `restore-point` and `drop`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lancelsm.cli.arguments import At, Name, Uri
from lancelsm.cli.session import Session, command, names

if TYPE_CHECKING:
    from lancelsm.admin.clone import Copied
    from lancelsm.history.pin_records import Pin

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

    All rows acknowledged before are in the snapshot. While it exists, the log written after it and the generations made
    of that log stay in storage too. So with --ttl never, storage grows without bound.

    As JSON: {"name", "created", "expires", "base_version", "clone"}; `expires` is null if the snapshot never expires,
    `clone` is the table whose files it keeps.
    """
    table = session.open(uri)
    with session.working(f"Creating {name}"):
        made = table.snapshot(name, ttl)
    _show(session, "Created", made)


@command(group, "refresh", example="lancelsm snapshot refresh orders --name monday --ttl 1h")
def refresh(session: Session, uri: Uri, name: Name, ttl: _Ttl = None) -> None:
    """Let a snapshot expire this time from now. A snapshot that has expired and was removed can't be refreshed.

    As JSON: like `snapshot create`.
    """
    _show(session, "Refreshed", session.open(uri).refresh_snapshot(name, ttl))


@command(group, "list", example="lancelsm snapshot list orders")
def list_(session: Session, uri: Uri) -> None:
    """Show every snapshot, including those that keep the files of clones and expired ones that no collection has
    removed yet.

    As JSON: {"snapshots": [like `snapshot create`]}, each with "expired": true if the snapshot can't be read any more.
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

    session.show({"snapshots": found}, text if found else lambda: "No snapshots")


def _expires(snapshot: dict[str, Any]) -> str:
    """Return the expiry of a snapshot as text."""
    if snapshot["expires"] is None:
        return "never"
    return f"{snapshot['expires']}{', has expired' if snapshot['expired'] else ''}"


@command(group, "drop", example="lancelsm snapshot drop orders --name monday")
def drop_snapshot(session: Session, uri: Uri, name: Name) -> None:
    """Drop a snapshot. The next collection may delete what only the snapshot kept.

    A snapshot that keeps the files of a clone is dropped by `drop` of the clone, or by this command after the clone was
    removed by hand. As JSON: {"dropped": name}.
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
    """Create a new table from a snapshot without copying its base: it shares the source's files until they are
    rewritten.

    The source keeps these files with a snapshot that does not expire, shown by `snapshot list`, until the clone is
    dropped. After a crash, the same command finishes the clone. As JSON: {"table", "rows", "from"}.
    """
    import lancelsm

    with session.working(f"Cloning {uri}"):
        copied = lancelsm.clone.on(session.ports)(uri, name, to, storage_options=session.storage_options)
    _show_copied(session, "Cloned", copied)


@command(commands, "backup", example="lancelsm backup orders s3://backups/orders-monday")
def backup(
    session: Session,
    uri: Uri,
    to: Annotated[str, typer.Argument(metavar="TO", help="An empty location: a path or a URL.")],
    at: At = None,
) -> None:
    """Copy every row to another location, read the copy back and compare. The backup does not depend on the table.

    A backup has schema, key, regions, settings and rows. It has no indexes, older versions, snapshots or cursors, and
    none of the table's objects: `restore` creates a new table from it and can't repair the old one. As JSON: {"table":
    the location of the backup, "rows", "from": the table}.
    """
    import lancelsm

    table = session.open(uri, at=at)
    with session.working(f"Backing up {uri}"):
        copied = lancelsm.backup.on(session.ports)(table, to, storage_options=session.storage_options)
    _show_copied(session, "Backed up", copied)


@command(commands, "restore", example="lancelsm restore orders --at 2026-11-01T00:00:00Z")
def restore(
    session: Session,
    source: Annotated[str, typer.Argument(metavar="FROM", help="A backup, or with --at the table: a path or a URL.")],
    uri: Annotated[str | None, typer.Argument(metavar="TO", help="The new table, made from the backup.")] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="NAME|VERSION|TIME", help="The state that the table gets again, in place."),
    ] = None,
    registry: Annotated[
        str | None, typer.Option(metavar="KIND", help="sqlite, object or dynamodb:NAME, as for init.")
    ] = None,
) -> None:
    """Create a new table from a backup, or give a table again the rows of a snapshot, a version or a time.

    From a backup (FROM TO): the new table has new regions, and its rows are compared with those of the backup. After a
    crash, the same command finishes the table. As JSON: {"table", "rows", "from"}.

    In place (FROM --at): the difference is written as upserts and deletes. What other writers write meanwhile stays.
    After a crash, the same command continues. As JSON: {"table", "written", "deleted", "kept": rows of the difference
    that were written since the rows were compared}.
    """
    if (uri is None) == (at is None):
        raise typer.BadParameter("give a new table for a backup, or --at for a table", param_hint="TO")
    if at is not None:
        _restore_in_place(session, source, at)
        return
    assert uri is not None
    import lancelsm

    with session.working(f"Restoring {uri}"):
        copied = lancelsm.restore.on(session.ports)(
            source, uri, registry=registry, storage_options=session.storage_options
        )
    _show_copied(session, "Restored", copied)


@command(
    commands, "copy", example='lancelsm copy orders orders-by-email --primary-key email --regions "bucket(email, 4)"'
)
def copy(
    session: Session,
    source: Annotated[str, typer.Argument(metavar="FROM", help="The table: a path, or a URL of an object store.")],
    to: Annotated[str, typer.Argument(metavar="TO", help="An empty location: a path or a URL.")],
    primary_key: Annotated[
        str | None, typer.Option(metavar="A[,B]", help="The key columns of the new table; by default the same.")
    ] = None,
    regions: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="Its region spec, as for init; default the same, or one if the key changes."),
    ] = None,
    sequence_by: Annotated[
        str | None, typer.Option(metavar="A[,B]", help="What orders its change events; by default the same.")
    ] = None,
    at: At = None,
    registry: Annotated[
        str | None, typer.Option(metavar="KIND", help="sqlite, object or dynamodb:NAME, as for init.")
    ] = None,
) -> None:
    """Copy the rows of a table to a new table, which may have another key.

    Rows that have the same new key are refused, with examples. Settings are copied; indexes, snapshots and cursors are
    not. After a crash, the same command continues if the rows of FROM are still the same. As JSON: {"table", "rows",
    "from"}.
    """
    import lancelsm
    from lancelsm.history.at import at_of_text

    with session.working(f"Copying {source}"):
        copied = lancelsm.copy.on(session.ports)(
            source,
            to,
            primary_key=names(primary_key),
            regions=regions,
            sequence_by=names(sequence_by),
            at=None if at is None else at_of_text(at),
            registry=registry,
            storage_options=session.storage_options,
        )
    _show_copied(session, "Copied", copied)


@command(
    commands,
    "restore-point",
    example="lancelsm restore-point s3://lake/orders --at 2026-11-28T10:00:00Z --to s3://lake/orders-then",
)
def restore_point(
    session: Session,
    uri: Annotated[str, typer.Argument(metavar="TABLE", help="The URL of the table in S3. It may be dropped.")],
    at: Annotated[str, typer.Option("--at", metavar="TIME", help="A time with its zone, by the clock of S3.")],
    to: Annotated[str, typer.Option("--to", metavar="URL", help="A URL in S3 where nothing is.")],
    registry: Annotated[
        str | None, typer.Option(metavar="KIND", help="object or dynamodb:NAME; by default that of the table.")
    ] = None,
) -> None:
    """Create the table that was in S3 at a time, from the versions of objects that its bucket keeps.

    Stop all writers first. Every row that was acknowledged a minute before the time is there. Snapshots and cursors are
    lost. After a crash, the same command continues. As JSON: {"table", "rows", "from", "objects": copied, "lost": names
    of snapshots and cursors that the table has now, or null if it can't be opened}.
    """
    from lancelsm.admin.restore_point import restore_point as restore_as_of

    with session.working(f"Restoring {uri} as of {at}"):
        found = restore_as_of(
            uri, to, at=at, registry=registry, storage_options=session.storage_options, ports=session.ports
        )
    session.show(
        {
            "table": found.uri,
            "rows": found.rows,
            "from": found.source,
            "objects": found.objects,
            "lost": None if found.lost is None else list(found.lost),
        },
        lambda: (
            f"Restored {found.source} as of {at} to {found.uri}: {found.rows} rows"
            + (f". It has no snapshots and cursors; {found.source} has {', '.join(found.lost)}" if found.lost else "")
        ),
    )


@command(commands, "drop", example="lancelsm drop orders --yes")
def drop(
    session: Session,
    uri: Uri,
    yes: Annotated[bool, typer.Option("--yes", help="Drop without asking.")] = False,
) -> None:
    """Delete a table with all its rows, snapshots and cursors, permanently.

    The command asks on a terminal; elsewhere it needs --yes. A table whose files a clone shares can't be dropped. After
    a crash, the same command continues. As JSON: {"dropped": uri, "deleted": number of objects}.
    """
    import lancelsm
    from lancelsm.common.error_text import counted
    from lancelsm.region.handle import canonical

    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("needed to delete the table permanently", param_hint="--yes")
        typer.confirm(f"Delete {uri} with all its rows permanently?", abort=True, err=True)
    with session.working(f"Dropping {uri}"):
        deleted = lancelsm.drop.on(session.ports)(uri, storage_options=session.storage_options)
    location = canonical(uri)
    session.show(
        {"dropped": location, "deleted": deleted}, lambda: f"Dropped {location}: {counted(deleted, 'object')} deleted"
    )


def _restore_in_place(session: Session, uri: str, at: str) -> None:
    from dataclasses import asdict

    from lancelsm.common.error_text import counted
    from lancelsm.history.at import at_of_text

    table = session.open(uri)
    with session.working(f"Restoring {uri} as of {at}"):
        done = table.restore(at_of_text(at))
    text = f"{counted(done.written, 'row')} written, {done.deleted} deleted, {done.kept} newer kept"
    session.show({"table": table.uri, **asdict(done)}, lambda: f"Restored {table.uri} as of {at}: {text}")


def _show(session: Session, verb: str, pin: Pin) -> None:
    from lancelsm.stack import documents

    document = documents.snapshot(pin)
    until = f"until {document['expires']}" if document["expires"] else "until it is dropped"
    session.show(document, lambda: f"{verb} snapshot {pin.name}, kept {until}")


def _show_copied(session: Session, verb: str, copied: Copied) -> None:
    from lancelsm.common.error_text import counted

    document = {"table": copied.uri, "rows": copied.rows, "from": copied.source}
    session.show(document, lambda: f"{verb} {counted(copied.rows, 'row')} of {copied.source} to {copied.uri}")
