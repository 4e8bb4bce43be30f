"""Gather what a report of a table shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lancelsm.dataset.versions import BaseVersion, base_versions
from lancelsm.gc.collect import Collected, collect
from lancelsm.history.cursor import list_cursors
from lancelsm.history.pin_records import Pin
from lancelsm.history.snapshot import list_snapshots
from lancelsm.read.status import TableStatus, full_status
from lancelsm.region.catalog import regions, with_heads
from lancelsm.region.handle import TableHandle

VERSIONS = 100
PARTS = ("base: rows", "base: indexes", "base: versions", "generations", "log", "manifests", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFacts:
    """What a report says about a region beside its status."""

    dirty_since: float | None  # Unix seconds: the base has lagged since then
    first_position: int  # of the log; entries below it are collected
    rounds: int  # collections of this region


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFacts:
    """All facts of a report."""

    time: float
    key: tuple[str, ...]
    spec: str
    status: TableStatus
    regions: dict[str, RegionFacts]
    versions: tuple[BaseVersion, ...]  # the newest ones, oldest first
    bytes: dict[str, int]  # by part of the table, see `PARTS`
    garbage: Collected  # of a dry run
    pins: tuple[Pin, ...]


def gather(handle: TableHandle) -> ReportFacts:
    """Read all facts of a report. It lists every object of the table, and reads no rows."""
    context, config = handle.context, handle.config
    heads = with_heads(context, regions(context))
    return ReportFacts(
        time=context.clock.now(),
        key=config.schema.primary_key,
        spec="none" if config.regions is None else config.regions.describe(),
        status=full_status(handle),
        regions={
            region.id: RegionFacts(
                dirty_since=float(head.dirty) if head.dirty else None,
                first_position=head.first_position,
                rounds=head.collector_round,
            )
            for region, head in heads
        },
        versions=tuple(base_versions(uri=context.uri, newest=VERSIONS, storage_options=handle.storage_options)),
        bytes=_sizes((found.key, found.size) for found in context.objects.list("")),
        garbage=collect(handle, yes=False),
        pins=(*list_snapshots(context), *list_cursors(context)),
    )


def _sizes(objects: Iterable[tuple[str, int]]) -> dict[str, int]:
    sizes = dict.fromkeys(PARTS, 0)
    for key, size in objects:
        sizes[part_of(key)] += size
    return sizes


def part_of(key: str) -> str:
    """Return which part of a table an object belongs to."""
    top, _, rest = key.partition("/")
    if top == "_mem_wal":
        _, _, inside = rest.partition("/")
        kind = inside.partition("/")[0]
        return {"wal": "log", "manifest": "manifests"}.get(kind, "generations" if "_gen_" in kind else "other")
    parts = {
        "data": "base: rows",
        "_deletions": "base: rows",
        "_indices": "base: indexes",
        "_versions": "base: versions",
        "_transactions": "base: versions",
    }
    return parts.get(top, "other")
