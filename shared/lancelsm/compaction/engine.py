"""Choose where a merge or an optimize runs, in this process or on Spark: by the sizes of what it reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from lancelsm.common.layout import Generation, RegionId
from lancelsm.common.settings import Settings
from lancelsm.compaction.inprocess import InProcess
from lancelsm.compaction.optimize import bytes_due
from lancelsm.compaction.runner import Engine, TaskRunner
from lancelsm.errors import Invalid
from lancelsm.region.catalog import Region, regions, with_heads
from lancelsm.region.compare_and_swap import CommittedManifest, read_committed
from lancelsm.region.handle import TableHandle
from lancelsm.region.head import Head


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingMerge:
    """What a merge would do now. `spans`: (newest merged, newest flushed) generation of each region to be merged."""

    spans: Mapping[RegionId, tuple[Generation, Generation]]
    delta_rows: int  # as stored, tombstones included
    delta_bytes: int  # in memory
    base_rows: int


def pending_merge(handle: TableHandle) -> PendingMerge:
    """Read what a merge would merge now: all heads first, then the base.

    Raises:
        Corrupt, Unavailable: heads, manifests or the base could not be read.
    """
    read = committed_manifests(handle, with_heads(handle.context, regions(handle.context)))
    manifests = [(region, found.manifest) for region, found in read]
    base = handle.read_base()
    counters = {region.id: base.counters.get(region.id, Generation(0)) for region, _ in manifests}
    delta = [
        generation
        for region, manifest in manifests
        for generation in manifest.generations
        if generation.generation > counters[region.id]
    ]
    return PendingMerge(
        spans={
            region.id: (counters[region.id], manifest.newest)
            for region, manifest in manifests
            if manifest.newest > counters[region.id]
        },
        delta_rows=sum(generation.rows or 0 for generation in delta),
        delta_bytes=sum(generation.bytes or 0 for generation in delta),
        base_rows=base.rows,
    )


def choose_engine(
    engine: Engine, settings: Settings, pending: Callable[[], PendingMerge]
) -> Literal["inprocess", "spark"]:
    """Decide where a merge runs. Calls `pending` only if the size matters. Raises `Invalid` for an unknown engine."""
    if engine not in get_args(Engine):
        raise Invalid(f"unknown engine {engine!r}", remedy=f"Use one of {', '.join(get_args(Engine))}")
    if engine != "auto":
        return engine
    found = pending()
    small = (
        found.delta_rows < settings.merge_inprocess_delta_rows
        and found.delta_bytes < settings.merge_inprocess_delta_bytes
        and found.base_rows < settings.merge_inprocess_base_rows
    )
    return "inprocess" if small else "spark"


def runner_of(handle: TableHandle, engine: Engine) -> TaskRunner:
    """Return what runs the tasks of a merge. Raises: the same errors as `pending_merge` and `choose_engine`."""
    if choose_engine(engine, handle.settings, lambda: pending_merge(handle)) == "inprocess":
        return InProcess()
    from lancelsm.compaction.spark import Spark  # noqa: PLC0415 - Spark is an extra

    return Spark.local()


def choose_optimize_engine(handle: TableHandle, engine: Engine) -> Literal["inprocess", "spark"]:
    """Decide where an optimize runs: `auto` decides by the bytes that it rewrites.

    Raises:
        Unavailable: the store did not answer.
    """
    if engine != "auto":
        return engine
    due = bytes_due(
        uri=handle.context.uri,
        small_fragments=handle.settings.optimize_small_fragments,
        deleted_share=handle.settings.optimize_deleted_percent / 100,
        storage_options=handle.storage_options,
    )
    return "inprocess" if due <= handle.settings.optimize_inprocess_bytes else "spark"


def committed_manifests(
    handle: TableHandle, found: Sequence[tuple[Region, Head]]
) -> list[tuple[Region, CommittedManifest]]:
    """Return the regions with the manifests that their heads name now."""
    named = handle.context.each(lambda pair: read_committed(*pair), found)
    return [(region, one) for (region, _), one in zip(found, named, strict=True)]
