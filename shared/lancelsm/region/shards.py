"""Shards of other tools: directories below `_mem_wal/` with a log that is no region of the table.

LanceDB and Lance's own writer append to shards of their own. A shard is a region if the catalog lists it. Without a
registry, our manifests tell: every region has one, since we create its first manifest or fence its previous writer. We
also fence a shard whose rows we take over, but that manifest says `foreign`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from lancelsm.common.layout import (
    MEM_WAL,
    Position,
    RegionId,
    Version,
    is_id,
    published_manifest,
    published_version,
    wal_position,
)
from lancelsm.objects.location import local_path
from lancelsm.region import manifest_codec
from lancelsm.region.catalog import Region, TableContext, regions
from lancelsm.region.compare_and_swap import Staged, load
from lancelsm.region.manifest import Manifest

_MANIFESTS, _ENTRIES = "manifest", "wal"  # directories of a shard


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardListing:
    """What a listing shows of one directory below `_mem_wal/`: published manifests and positions of the log."""

    versions: tuple[Version, ...]
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignShard:
    """A shard of another tool, with its newest manifest. `after`: the last position whose rows are in regions."""

    region: Region
    newest: Staged
    after: Position


def list_shards(context: TableContext) -> dict[RegionId, ShardListing]:
    """List the manifests and entries below `_mem_wal/`, by directory. Call it before the catalog is read.

    In a bucket this is one listing. On a disk, only the names in the directories of manifests and entries are read.
    """
    versions: dict[str, list[Version]] = {}
    positions: dict[str, list[Position]] = {}
    for shard, part, name in _files(context):
        if part == _MANIFESTS and (version := published_version(name)) is not None:
            versions.setdefault(shard, []).append(version)
        elif part == _ENTRIES and (position := wal_position(name)) is not None:
            positions.setdefault(shard, []).append(position)
    return {
        RegionId(shard): ShardListing(
            versions=tuple(sorted(versions.get(shard, ()))), positions=tuple(sorted(positions.get(shard, ())))
        )
        for shard in sorted({*versions, *positions})
        if is_id(shard)
    }


def _files(context: TableContext) -> Iterator[tuple[str, str, str]]:
    """Yield the files of all shards: shard, directory in it, and name."""
    path = local_path(context.uri)
    if path is not None and (path / MEM_WAL).is_dir():
        from lancelsm.objects.filesystem import names_below  # noqa: PLC0415 - only a table on a disk needs it

        yield from names_below(path, MEM_WAL, (_MANIFESTS, _ENTRIES))
        return
    for item in context.objects.list(f"{MEM_WAL}/"):
        shard, _, rest = item.key.removeprefix(f"{MEM_WAL}/").partition("/")
        part, _, name = rest.partition("/")
        if "/" not in name:
            yield shard, part, name


def foreign_shards_of(context: TableContext) -> list[ForeignShard]:
    """List the storage, then the catalog, and call `foreign_shards`."""
    listed = list_shards(context)
    return foreign_shards(context, listed, {region.id for region in regions(context)})


def foreign_shards(
    context: TableContext, listed: dict[RegionId, ShardListing], known: Collection[RegionId]
) -> list[ForeignShard]:
    """Find the shards of other tools that have rows, or a writer, that the table does not know of.

    Args:
        listed: `list_shards`, from before the catalog was read.
        known: the regions in the catalog.

    Raises:
        Corrupt: a manifest can't be decoded.
        Unavailable: the store did not answer.
    """
    found = [_foreign_shard(context, shard, at) for shard, at in listed.items() if shard not in known and at.versions]
    return [one for one in found if one is not None]


def _foreign_shard(context: TableContext, shard: RegionId, listed: ShardListing) -> ForeignShard | None:
    region = Region(context=context, id=shard, spec_id=0, values=())
    newest = load(region, published_manifest(shard, listed.versions[-1]))
    if newest is None:
        return None
    own = newest_own_manifest(region, newest)
    if own is not None and not own.foreign:
        return None  # of an earlier table at this location; or a region whose catalog record is lost
    after = Position(own.first_position - 1) if own else Position(0)
    replaced = manifest_codec.written_by_lance(newest.body)
    pending = newest.manifest.generations or any(position > after for position in listed.positions)
    return ForeignShard(region=region, newest=newest, after=after) if replaced or pending else None


def is_foreign(region: Region, newest: Staged) -> bool:
    """Return whether a shard, which the catalog may lack, is one of another tool."""
    own = newest_own_manifest(region, newest)
    return own is None or own.foreign


def newest_own_manifest(region: Region, newest: Staged) -> Manifest | None:
    """Return the newest published manifest that lancelsm wrote; None if Lance's writer wrote all that are there."""
    found: Staged | None = newest
    while found is not None and manifest_codec.written_by_lance(found.body):
        version = Version(found.manifest.version - 1)
        found = load(region, published_manifest(region.id, version)) if version else None
    return found.manifest if found else None


def written_past(head_version: Version, listed: Iterable[Version]) -> list[Version]:
    """Return the versions of published manifests that the head, which was read after the listing, does not know."""
    return [version for version in listed if version > head_version]
