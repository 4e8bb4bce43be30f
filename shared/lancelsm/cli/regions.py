"""The commands `region list|claim|seal|forget|adopt`, `reshard` and `registry rebuild`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lancelsm.cli.arguments import Region, Uri
from lancelsm.cli.inspection import resolve_regions
from lancelsm.cli.session import Session, command

if TYPE_CHECKING:
    from lancelsm.region.catalog import Region as RegionOfTable
    from lancelsm.region.handle import TableHandle
    from lancelsm.region.head import Head

commands = typer.Typer()
group = typer.Typer()
registry = typer.Typer()


@command(group, "list", example="lancelsm region list orders")
def list_regions(session: Session, uri: Uri, region: Region = None) -> None:
    """Show epoch, owner and status of each region.

    As JSON: {"regions": [{"region", "epoch", "owner", "status", "values"}]}.
    """
    handle = session.handle(uri)
    show_regions(session, handle, ((one, one.head()) for one in resolve_regions(handle, region)))


@command(group, "claim", example="lancelsm region claim orders --region 1f0a")
def claim(
    session: Session,
    uri: Uri,
    region: Region = None,
    owner: Annotated[
        str | None, typer.Option(metavar="NAME", help="The new owner; default the table's ordinary writers.")
    ] = None,
) -> None:
    """Claim regions in a new epoch. Their previous owners are fenced.

    After an exclusive writer crashed, this gives its regions back to the ordinary writers. As JSON: like `region list`.
    """
    from lancelsm.wal.claim import claim as claim_region

    handle = session.handle(uri)
    name = owner or handle.config.owner
    with session.working("Claiming"):
        done = [(one, claim_region(one, owner=name)) for one in resolve_regions(handle, region)]
    show_regions(session, handle, done)


@command(group, "seal", example="lancelsm region seal orders --region 1f0a")
def seal(
    session: Session,
    uri: Uri,
    region: Region = None,
    yes: Annotated[bool, typer.Option("--yes", help="Seal all regions without asking.")] = False,
) -> None:
    """End regions for writes, permanently. Their rows stay; flush and merge continue to work.

    Without --region, the command asks on a terminal; elsewhere it needs --yes. As JSON: like `region list`.
    """
    from lancelsm.wal.claim import seal as seal_region

    handle = session.handle(uri)
    if region is None and not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("needed to seal all regions permanently; or give --region", param_hint="--yes")
        typer.confirm(f"Seal all regions of {handle.context.uri} permanently?", abort=True, err=True)
    with session.working("Sealing"):
        done = [(one, seal_region(one)) for one in resolve_regions(handle, region)]
    show_regions(session, handle, done)


@command(group, "forget", example="lancelsm region forget orders source:shop.orders-0")
def forget(
    session: Session,
    uri: Uri,
    producer: Annotated[
        str,
        typer.Argument(
            metavar="PRODUCER",
            help="A name, source:NAME of change events, spark:NAME of a job, or the id in `inspect manifest`.",
        ),
    ],
    region: Region = None,
) -> None:
    """Make regions forget a producer that appends no more, so that there is room for another one.

    A region remembers 16 producers: queues, jobs and sources whose rows it takes exactly once. It forgets one by itself
    30 days after its last append. If the producer repeats an append after this command, its rows are written twice.
    As JSON: like `region list`, with the regions that remembered it.
    """
    from lancelsm.wal.forget import forget_producer

    handle = session.handle(uri)
    with session.working("Forgetting"):
        done = list(forget_producer(resolve_regions(handle, region), producer, handle.target()))
    show_regions(session, handle, done)


@command(group, "adopt", example="lancelsm region adopt vectors.lance")
def adopt(
    session: Session,
    uri: Uri,
    registry_kind: Annotated[
        str | None, typer.Option("--registry", metavar="KIND", help="sqlite, object or dynamodb:NAME, as for init.")
    ] = None,
    owner: Annotated[str, typer.Option(metavar="NAME", help="The owner name that ordinary writers share.")] = "default",
    regions: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="A region spec for an adopted table without one: the old regions are sealed, flushed and merged; then "
            "the table takes rows.",
        ),
    ] = None,
    theirs: Annotated[
        bool, typer.Option("--theirs", help="Keys that both wrote: the rows of the other tool are newer.")
    ] = False,
    ours: Annotated[
        bool, typer.Option("--ours", help="Keys that both wrote: leave the rows of the other tool out.")
    ] = False,
) -> None:
    """Take over what Lance's own writer, or LanceDB, wrote: a whole table, or shards of a lancelsm table.

    The writers of the other tool are fenced first. Rows of a shard go to the regions that they belong to. If both wrote
    a key, in an order that can't be known, the command lists the first 20 such keys and ends with exit code 1: decide
    with --theirs or --ours. As JSON: like `region list`.
    """
    from lancelsm.admin.adopt import adopt as adopt_table
    from lancelsm.admin.adopt import set_regions
    from lancelsm.objects.open import open_store
    from lancelsm.region.config import read

    if theirs and ours:
        raise typer.BadParameter("give one of --theirs and --ours", param_hint="--theirs")
    known = regions is not None and read(open_store(uri, session.storage_options), uri=uri) is not None
    with session.working(f"Adopting {uri}"):
        if known:
            handle = session.handle(uri)
        else:
            handle = adopt_table(
                uri,
                registry=registry_kind,
                owner=owner,
                on_conflict="theirs" if theirs else "ours" if ours else "refuse",
                storage_options=session.storage_options,
                ports=session.ports,
            )
        if regions is not None and (known or handle.config.regions is None):
            handle = set_regions(handle, regions)
    show_regions(session, handle, ((one, one.head()) for one in resolve_regions(handle, None)))


@command(commands, "reshard", example='lancelsm reshard orders "bucket(id, 64)"')
def reshard(
    session: Session,
    uri: Uri,
    spec: Annotated[
        str | None,
        typer.Argument(metavar="SPEC", help="The new region spec; without one, finish a reshard that was interrupted."),
    ] = None,
) -> None:
    """Give the table another region spec while writers go on.

    First flushes and merges until little is left. Then all regions are sealed, and the rest is merged: writes wait for
    this. The old regions stay, without rows, until nothing needs their logs. A command that was killed is finished by
    the next one, or by a writer that waits for it. As JSON: {"regions", "sealed", "opened"}.
    """
    from dataclasses import asdict

    from lancelsm.admin.reshard import reshard as reshard_table
    from lancelsm.common.error_text import counted

    handle = session.handle(uri)
    with session.working("Resharding"):
        _, done = reshard_table(handle, spec)
    text = f"The table has the regions {done.regions}; sealed {counted(done.sealed, 'region')}, opened {done.opened:,}"
    session.show(asdict(done), lambda: text)


@command(registry, "rebuild", example="lancelsm registry rebuild orders")
def rebuild(session: Session, uri: Uri) -> None:
    """Derive the head of every region from storage, after the registry was lost or restored from a backup.

    All writers must be stopped. Objects above the end of a log are listed as orphans and fenced off. They were
    acknowledged only if an entry before them was lost.

    As JSON: like `region list`, and "orphans": [{"region", "position"}].
    """
    from lancelsm.admin.rebuild import rebuild as rebuild_heads

    handle = session.handle(uri)
    with session.working("Rebuilding"):
        rebuilt = rebuild_heads(handle)
    orphans = [{"region": one.region.id, "position": position} for one in rebuilt for position in one.orphans]
    named = ", ".join(f"{one['region']} {one['position']}" for one in orphans)
    title = f"Fenced off, above the end of their logs: {named}" if orphans else ""
    show_regions(session, handle, [(one.region, one.head) for one in rebuilt], title=title, orphans=orphans)


def show_regions(
    session: Session,
    handle: TableHandle,
    owned: Iterable[tuple[RegionOfTable, Head]],
    *,
    title: str = "",
    **more: object,
) -> None:
    """Show regions with their heads: as text below a title, or as JSON with more keys."""
    from rich.console import Group

    from lancelsm.cli.text import listing
    from lancelsm.stack import documents

    document = documents.region_owners(owned, handle.config)
    found = document["regions"]
    columns = ("region", "epoch", "owner", "status", "values")

    def text() -> Group:
        shown = listing(found, columns=columns) if found else "No regions yet"
        return Group(title, shown) if title else Group(shown)

    session.show({**document, **more}, text)


def region_document(handle: TableHandle, owned: Iterable[tuple[RegionOfTable, Head]]) -> dict[str, Any]:
    """Return the document of `region list`."""
    from lancelsm.stack import documents

    return documents.region_owners(owned, handle.config)
