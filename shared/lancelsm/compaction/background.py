"""The background runner of an embedded table: flush, merge and optimize, either once or whenever a step is due.

The runner has no state that must survive. What is due follows from heads, manifests and the base, so another runner
can continue where a killed one stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lancelsm.common.layout import RegionId
from lancelsm.common.settings import Settings
from lancelsm.compaction.compact import CompactedGeneration, compact_table
from lancelsm.compaction.maintenance import BASE, finish_indexes, flush_region, merge_table, optimize_table
from lancelsm.compaction.runner import Engine
from lancelsm.errors import Ambiguous, Contended, Unavailable
from lancelsm.read.index_status import IndexStatus
from lancelsm.read.status import RegionStatus, TableStatus, read_status
from lancelsm.region.catalog import regions
from lancelsm.region.handle import TableHandle
from lancelsm.region.lease import is_held

_TICK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a background runner did."""

    generations: int = 0  # written by flushes
    merged_generations: int = 0
    merges: int = 0
    compactions: int = 0  # of the base
    compacted_generations: int = 0  # replaced by larger ones


class _Ages:
    """How long this runner has seen each value unchanged, and for which indexes it looked for unfinished work."""

    def __init__(self) -> None:
        self.indexes: tuple[IndexStatus, ...] | None = None
        self._seen: dict[tuple[str, RegionId], tuple[int, float]] = {}

    def seconds(self, name: str, region: RegionId, value: int, now: float) -> float:
        known, since = self._seen.get((name, region), (value, now))
        if known != value:
            since = now
        self._seen[name, region] = (value, since)
        return now - since


def run(handle: TableHandle, *, until_idle: bool = True, engine: Engine = "auto") -> Ran:
    """Flush, merge and optimize a table. Finish indexes whose creation or drop was interrupted.

    Regions with more than `max_generations` generations are compacted when no merge is due, or while another process
    merges.

    Args:
        until_idle: True: do everything that can be done, due or not, then return. False: do what is due by the table's
            settings, and never return.
        engine: see `compaction.maintenance.merge_table`.

    Raises:
        Corrupt: a region or the base is damaged. The runner stops.
        Ambiguous, Contended, Unavailable: only with `until_idle`; otherwise the next round tries again.
    """
    ages, done = _Ages(), Ran()
    while True:
        before = done
        try:
            done = _round(handle, ages, done, everything=until_idle, engine=engine)
        except (Ambiguous, Contended, Unavailable):  # the next round detects what this one committed
            if until_idle:
                raise
        if done == before:
            if until_idle:
                return done
            handle.context.clock.sleep(_TICK_SECONDS)


def _round(handle: TableHandle, ages: _Ages, done: Ran, *, everything: bool, engine: Engine) -> Ran:
    now = handle.context.clock.monotonic()
    located = {region.id: region for region in regions(handle.context)}
    for status in read_status(handle).regions:
        if status.wal_rows and (everything or _flush_is_due(status, handle.settings, ages, now)):
            made = flush_region(handle, located[status.region])
            done = replace(done, generations=done.generations + len(made))
    after = read_status(handle)
    pending = [status for status in after.regions if status.generations]
    if any(everything or _merge_is_due(status, handle.settings, ages, now) for status in pending):
        try:
            merged = merge_table(handle, engine=engine)
        except Contended:  # another process merges, perhaps for long
            _compact(handle, after)
            raise
        optimized = optimize_table(handle)
        done = replace(
            done,
            merges=done.merges + 1,
            merged_generations=done.merged_generations + merged.generations,
            compactions=done.compactions + bool(optimized.fragments_removed),
        )
    elif compacted := _compact(handle, after):
        replaced = sum(one.parts for one in compacted)
        done = replace(done, compacted_generations=done.compacted_generations + replaced)
    elif ages.indexes != after.indexes:
        ages.indexes = after.indexes
        finish_indexes(handle)
    return done


def _compact(handle: TableHandle, status: TableStatus) -> list[CompactedGeneration]:
    """Compact the generations of a table if a region has too many of them."""
    most = handle.settings.max_generations
    crowd = max((region.generations for region in status.regions), default=0)
    if crowd <= most or (crowd <= 2 * most and is_held(handle.context, BASE)):  # a merge reads all of them anyway
        return []
    return compact_table(handle)


def _flush_is_due(status: RegionStatus, settings: Settings, ages: _Ages, now: float) -> bool:
    age = ages.seconds("tail", status.region, status.newest_generation, now)
    large = status.wal_rows >= settings.flush_rows or status.wal_bytes >= settings.flush_bytes
    return large or age >= settings.flush_age_seconds


def _merge_is_due(status: RegionStatus, settings: Settings, ages: _Ages, now: float) -> bool:
    age = ages.seconds("pending", status.region, status.merged_generation, now)
    flushed = status.newest_generation - status.merged_generation
    return flushed >= settings.merge_generations or age >= settings.merge_age_seconds
