"""The commands `inspect manifest|entries|generations`: show decoded objects of the storage."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from lancelsm.cli.arguments import Region, Uri
from lancelsm.cli.session import Session, command

if TYPE_CHECKING:
    from lancelsm.region.catalog import Region as RegionOfTable
    from lancelsm.region.handle import TableHandle

commands = typer.Typer()
group = typer.Typer()


@command(group, "manifest", example="lancelsm inspect manifest orders --region 1f0a")
def manifest(session: Session, uri: Uri, region: Region = None) -> None:
    """Show the manifest that the head of each region names.

    As JSON: {"table", "manifests": [{"region", "version", "epoch", "replay_after", "current_generation", "sealed", ...,
    "generations": [...], "head": {...}, "staged", "published"}]}. `published` is true if Lance's readers find the
    manifest.
    """
    from lancelsm.cli.text import facts

    handle = session.handle(uri)
    found = [_manifest(one, handle) for one in resolve_regions(handle, region)]

    def text() -> Any:
        from rich.console import Group

        parts: list[Any] = []
        for document in found:
            head = {f"head.{name}": value for name, value in document["head"].items()}
            named = ", ".join(generation["path"] for generation in document["generations"])
            parts += [facts({**{k: v for k, v in document.items() if k != "head"}, "generations": named, **head}), ""]
        return Group(*parts[:-1])

    session.show({"table": handle.context.uri, "manifests": found}, text)


@command(group, "entries", example="lancelsm inspect entries orders --output json | jq '.entries[] | select(.fence)'")
def entries(session: Session, uri: Uri, region: Region = None) -> None:
    """Show every object in the log, including fences and objects that were never committed.

    As JSON: {"table", "entries": [{"region", "position", "state", "epoch", "rows", "bytes", "fence", "sound", "writer",
    "key"}]}. `state` is flushed, tail (committed, in no generation yet), uncommitted (above the head) or unreadable.
    """
    from lancelsm.scrubbing.inspection import find_entries

    handle = session.handle(uri)
    with session.working("Reading"):
        found = [asdict(entry) for one in resolve_regions(handle, region) for entry in find_entries(one)]
    columns = ("region", "position", "state", "epoch", "rows", "bytes", "fence", "sound", "writer")
    _show(session, handle, "entries", found, columns)


@command(group, "generations", example="lancelsm inspect generations orders")
def generations(session: Session, uri: Uri, region: Region = None) -> None:
    """Show every generation, including directories of generations that no manifest names.

    As JSON: {"table", "generations": [{"region", "first_generation", "generation", "state", "path", "rows",
    "first_position", "last_position", "objects", "bytes"}]}. `state` is pending, merged or orphan; `rows` includes
    tombstones. `first_generation` is lower than `generation` if a compaction made it of several generations.
    """
    from lancelsm.common.layout import Generation
    from lancelsm.scrubbing.inspection import find_generations

    handle = session.handle(uri)
    with session.working("Reading"):
        regions = resolve_regions(handle, region)
        counters = handle.read_base().counters
        found = [
            asdict(generation)
            for one in regions
            for generation in find_generations(one, merged=counters.get(one.id, Generation(0)))
        ]
    columns = ("region", "generation", "state", "rows", "first_position", "last_position", "objects", "bytes", "path")
    _show(session, handle, "generations", found, columns)


def resolve_regions(handle: TableHandle, region: str | None) -> list[RegionOfTable]:
    """Return all regions with a head, or the region whose id is or starts with `region`."""
    from lancelsm.region.catalog import select_regions as chosen_regions

    return chosen_regions(handle.context, region)


def _show(
    session: Session, handle: TableHandle, what: str, found: list[dict[str, Any]], columns: Iterable[str]
) -> None:
    from lancelsm.cli.text import listing

    text: Callable[[], Any] = lambda: listing(found, columns=list(columns)) if found else f"No {what}"  # noqa: E731
    session.show({"table": handle.context.uri, what: found}, text)


def _manifest(region: RegionOfTable, handle: TableHandle) -> dict[str, Any]:
    from lancelsm.scrubbing.inspection import find_manifest

    found = find_manifest(region)
    return {
        **_plain(asdict(found.manifest)),
        "values": handle.config.region_values(region.values, number=region.number),
        "staged": found.head.manifest_key,
        "staged_files": found.staged,
        "published": found.published,
        "head": _plain(asdict(found.head)),
    }


def _plain(value: Any) -> Any:
    """Convert setsums and bytes to hex."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.hex() if hasattr(value, "hex") and not isinstance(value, float) else value
