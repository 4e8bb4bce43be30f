"""Decode what is in storage for people to inspect. No decision depends on this module.

It distinguishes three states: what the head names (staged), what Lance's readers find (published), and objects that
nothing names (entries above the head, generations that no manifest lists).
"""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.common.layout import (
    Generation,
    Position,
    RegionId,
    Version,
    generation_number,
    manifest_prefix,
    published_manifest,
    region_prefix,
    wal_entry,
    wal_position,
    wal_prefix,
)
from lancelsm.errors import Corrupt
from lancelsm.region.catalog import Region
from lancelsm.region.compare_and_swap import load, newest
from lancelsm.region.head import Head
from lancelsm.region.manifest import FlushedGeneration, Manifest
from lancelsm.wal.entry import decode


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFound:
    """The manifest that a region's head names.

    `published`: whether Lance's readers find the same bytes. `staged`: the number of staged files, committed or not.
    """

    head: Head
    manifest: Manifest
    published: bool
    staged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFound:
    """One object of a log.

    `state` is `flushed` (in a generation), `tail` (committed, not flushed), `uncommitted` (above the head, so not
    acknowledged) or `unreadable`; then most fields are None. `writer` is `lancelsm` or `lance`.
    """

    region: RegionId
    position: Position
    state: str
    key: str
    epoch: int | None = None
    rows: int | None = None
    bytes: int | None = None
    fence: bool | None = None
    sound: bool | None = None  # whether the bytes have the sum that the entry declares; None if it declares none
    writer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFound:
    """One generation.

    `state` is `pending`, `merged` (but not deleted yet) or `orphan` (a directory that the manifest does not list).
    `bytes` is the size in storage; `rows` includes tombstones. A compacted generation replaces the numbers
    `first_generation` to `generation`.
    """

    region: RegionId
    first_generation: int
    generation: Generation
    state: str
    path: str
    rows: int | None
    first_position: int | None
    last_position: int | None
    objects: int
    bytes: int


def find_manifest(region: Region) -> ManifestFound:
    """Read the manifest of a region.

    Raises:
        Corrupt: the head or the manifest is missing or unreadable.
        Unavailable: the store or the registry did not answer.
    """
    head, manifest = newest(region, region.head())
    staged = load(region, head.manifest_key)
    found = region.context.objects.get(published_manifest(region.id, Version(manifest.version)))
    names = region.context.objects.list(f"{manifest_prefix(region.id)}staged/")
    return ManifestFound(
        head=head,
        manifest=manifest,
        published=staged is not None and found is not None and found.body == staged.body,
        staged=sum(1 for _ in names),
    )


def find_entries(region: Region) -> list[EntryFound]:
    """Read all objects in the log of a region, by position. Raises: the same errors as `find_manifest`."""
    head, manifest = newest(region, region.head())
    listed = region.context.objects.list(wal_prefix(region.id))
    positions = sorted(position for item in listed if (position := wal_position(item.key)) is not None)
    found = region.context.each(lambda position: _entry(region, position, head, manifest), positions)
    return [entry for entry in found if entry is not None]


def find_generations(region: Region, *, merged: Generation) -> list[GenerationFound]:
    """List all generations in the manifest of a region, and all directories that have the name of one.

    Args:
        merged: the counter of the region in the base.

    Raises: the same errors as `find_manifest`.
    """
    _, manifest = newest(region, region.head())
    prefix = f"{region_prefix(region.id)}/"
    sizes: dict[str, list[int]] = {}
    for item in region.context.objects.list(prefix):
        name = item.key.removeprefix(prefix).partition("/")[0]
        if generation_number(name) is not None:
            sizes.setdefault(name, []).append(item.size)
    known = {g.path: g for g in manifest.generations}
    found = [_generation(region, name, known.get(name), sizes.get(name, []), merged) for name in {**known, **sizes}]
    return sorted(found, key=lambda one: (one.generation, one.path))


def _entry(region: Region, position: Position, head: Head, manifest: Manifest) -> EntryFound | None:
    key = wal_entry(region.id, position)
    found = region.context.objects.get(key)
    if found is None:
        return None
    try:
        entry = decode(found.body, position=position, key=key)
    except Corrupt:
        return EntryFound(region=region.id, position=position, state="unreadable", key=key, bytes=len(found.body))
    state = "uncommitted" if position >= head.next_position else "tail"
    return EntryFound(
        region=region.id,
        position=position,
        state="flushed" if position <= manifest.replay_after else state,
        key=key,
        epoch=entry.summary.epoch,
        rows=entry.summary.rows,
        bytes=entry.summary.bytes,
        fence=entry.fence,
        sound=None if entry.nonce is None else entry.sound,
        writer="lance" if entry.nonce is None else "lancelsm",
    )


def _generation(
    region: Region, name: str, named: FlushedGeneration | None, sizes: list[int], merged: Generation
) -> GenerationFound:
    number = named.generation if named else generation_number(name)
    assert number is not None
    folded = named.folded if named else None
    state = "merged" if number <= merged else "pending"
    return GenerationFound(
        region=region.id,
        first_generation=named.numbers.start if named else number,
        generation=number,
        state=state if named else "orphan",
        path=f"{region_prefix(region.id)}/{name}",
        rows=named.rows if named else None,
        first_position=folded.first if folded else None,
        last_position=folded.last if folded else None,
        objects=len(sizes),
        bytes=sum(sizes),
    )
