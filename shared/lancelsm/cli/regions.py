"""Regions by hand: `region list|claim|seal|adopt`, and `registry rebuild`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from lancelsm.cli.arguments import Region, Uri
from lancelsm.cli.inspection import chosen
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
    """Show who holds each region.

    As JSON: {"regions": [{"region", "epoch", "owner", "status", "values"}]}.
    """
    handle = session.handle(uri)
    show_held(session, handle, ((one, one.head()) for one in chosen(handle, region)))


@command(group, "claim", example="lancelsm region claim orders --region 1f0a")
def claim(
    session: Session,
    uri: Uri,
    region: Region = None,
    owner: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who shall hold it; default the table's ordinary writers.")
    ] = None,
) -> None:
    """Take regions in a fresh epoch: whoever holds them is fenced.

    After the crash of an exclusive writer this gives its regions back to everybody. As JSON: as `region list`.
    """
    from lancelsm.wal.claim import claim as claim_region

    handle = session.handle(uri)
    name = owner or handle.config.owner
    show_held(session, handle, [(one, claim_region(one, owner=name)) for one in chosen(handle, region)])


@command(group, "seal", example="lancelsm region seal orders --region 1f0a")
def seal(
    session: Session,
    uri: Uri,
    region: Region = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask before all regions are sealed.")] = False,
) -> None:
    """End regions for writes, for ever. Their rows stay, and flush and merge go on.

    If all are meant it asks first on a terminal, and elsewhere refuses without --yes. As JSON: as `region list`.
    """
    from lancelsm.wal.claim import seal as seal_region

    handle = session.handle(uri)
    if region is None and not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("this seals every region, for ever: name one, or say so", param_hint="--yes")
        typer.confirm(f"Seal every region of {handle.context.uri}, for ever?", abort=True, err=True)
    show_held(session, handle, [(one, seal_region(one)) for one in chosen(handle, region)])


@command(group, "adopt", example="lancelsm region adopt vectors.lance")
def adopt(
    session: Session,
    uri: Uri,
    registry_kind: Annotated[
        str | None, typer.Option("--registry", metavar="KIND", help="sqlite, object or dynamodb:NAME, as for init.")
    ] = None,
    owner: Annotated[
        str, typer.Option(metavar="NAME", help="The name that the table's ordinary writers share.")
    ] = "default",
    regions: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="For a table adopted before whose keys Lance did not map to regions: seal, flush and merge the old "
            "ones, then take rows by this spec.",
        ),
    ] = None,
) -> None:
    """Make a table that Lance's own MemWAL writer wrote a table of lancelsm, with all its regions.

    Lance's writers are fenced first. As JSON: as `region list`.
    """
    from lancelsm.admin.adopt import adopt as adopt_table
    from lancelsm.admin.adopt import set_regions
    from lancelsm.objects.open import open_store
    from lancelsm.region.config import read

    known = regions is not None and read(open_store(uri, session.storage_options), uri=uri) is not None
    if known:
        handle = session.handle(uri)
    else:
        handle = adopt_table(uri, registry=registry_kind, owner=owner, storage_options=session.storage_options)
    if regions is not None and (known or handle.config.regions is None):
        handle = set_regions(handle, regions)
    show_held(session, handle, ((one, one.head()) for one in chosen(handle, None)))


@command(registry, "rebuild", example="lancelsm registry rebuild orders")
def rebuild(session: Session, uri: Uri) -> None:
    """Derive every region's head from what lies in storage, after the registry was lost or restored from a backup.

    All writers must be stopped. Objects above the end of a log were acknowledged only if the entry there was lost:
    they are named, and fenced off.

    As JSON: as `region list`, and "left": [{"region", "position"}].
    """
    from lancelsm.admin.rebuild import rebuild as rebuild_heads

    handle = session.handle(uri)
    rebuilt = rebuild_heads(handle)
    left = [{"region": one.region.id, "position": position} for one in rebuilt for position in one.left]
    named = ", ".join(f"{one['region']} {one['position']}" for one in left)
    title = f"Fenced off, above the end of their logs: {named}" if left else ""
    show_held(session, handle, [(one.region, one.head) for one in rebuilt], title=title, left=left)


def show_held(
    session: Session,
    handle: TableHandle,
    held: Iterable[tuple[RegionOfTable, Head]],
    *,
    title: str = "",
    **more: object,
) -> None:
    """Show who holds these regions: for people below a title, in JSON beside something more."""
    from rich.console import Group

    from lancelsm.cli.text import listing
    from lancelsm.stack import documents

    document = documents.held(held, handle.config.regions)
    found = document["regions"]
    columns = ("region", "epoch", "owner", "status", "values")

    def text() -> Group:
        shown = listing(found, columns=columns) if found else "There are no regions yet"
        return Group(title, shown) if title else Group(shown)

    session.show({**document, **more}, text)
