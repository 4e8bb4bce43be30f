"""The background runner of an embedded table: flush, merge and optimize, either once or whenever a step is due.

The runner has no state that must survive. What is due follows from heads, manifests and the base, so another runner
can continue where a killed one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar

from lancelsm.common.layout import RegionId
from lancelsm.common.settings import Settings
from lancelsm.compaction.compact import CompactedGeneration, compact_table
from lancelsm.compaction.maintenance import Flushed, finish_indexes, flush_region, merge_table, optimize_table
from lancelsm.compaction.merge import Merged
from lancelsm.compaction.optimize import Optimized
from lancelsm.compaction.runner import Engine
from lancelsm.errors import Ambiguous, Contended, Unavailable
from lancelsm.read.index_status import IndexStatus
from lancelsm.read.status import RegionStatus, TableStatus, read_status
from lancelsm.region.catalog import regions
from lancelsm.region.handle import TableHandle
from lancelsm.region.lease import BASE_LEASE, is_held

TICK_SECONDS = 1.0
"""The time between two rounds that find nothing to do."""

StepName = Literal["flush", "compact", "merge", "optimize"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a background runner did.

    Args:
        generations: how many generations flushes wrote.
        merged_generations: how many generations merges brought into the base.
        merges: how many merges there were.
        compactions: how often fragments of the base were rewritten.
        compacted_generations: how many generations were replaced by larger ones.
    """

    generations: int = 0
    merged_generations: int = 0
    merges: int = 0
    compactions: int = 0
    compacted_generations: int = 0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step that a background runner finished, and what it did."""

    table: str
    name: StepName
    seconds: float
    facts: Mapping[str, int | str]


class BackgroundRunner:
    """Does what is due on one table, round by round.

    Args:
        engine: see `compaction.maintenance.merge_table`.
        on_step: is called after each step.
        on_status: is called with each status that a round reads.
    """

    def __init__(
        self,
        handle: TableHandle,
        *,
        engine: Engine = "auto",
        on_step: Callable[[Step], object] = lambda _: None,
        on_status: Callable[[TableStatus], object] = lambda _: None,
    ) -> None:
        self.done = Ran()
        self._handle = handle
        self._engine: Engine = engine
        self._on_step = on_step
        self._on_status = on_status
        self._ages = _Ages()

    def round(self, *, everything: bool) -> bool:
        """Do one round. Return whether a level changed.

        Args:
            everything: do everything that can be done, due or not.

        Raises:
            Corrupt: a region or the base is damaged.
            Ambiguous, Contended, Unavailable: the next round tries again, and detects what this one committed.
        """
        before = self.done
        handle, ages = self._handle, self._ages
        now = handle.context.clock.monotonic()
        located = {region.id: region for region in regions(handle.context)}
        for status in read_status(handle).regions:
            if status.wal_rows and (everything or _flush_is_due(status, handle.settings, ages, now)):
                made = self._timed("flush", partial(flush_region, handle, located[status.region]), _flush_facts)
                self._count(generations=len(made))
        after = read_status(handle)
        self._on_status(after)
        pending = [status for status in after.regions if status.generations]
        if any(everything or _merge_is_due(status, handle.settings, ages, now) for status in pending):
            try:
                merged = self._timed("merge", partial(merge_table, handle, engine=self._engine), _merge_facts)
            except Contended:  # another process merges, perhaps for long
                self._compact(after)
                raise
            self._count(merges=1, merged_generations=merged.generations)
            optimized = self._timed("optimize", partial(optimize_table, handle), _optimize_facts)
            self._count(compactions=int(bool(optimized.fragments_removed)))
        elif compacted := self._compact(after):
            self._count(compacted_generations=sum(one.parts for one in compacted))
        elif ages.indexes != after.indexes:
            ages.indexes = after.indexes
            finish_indexes(handle)
        return self.done != before

    def _compact(self, status: TableStatus) -> list[CompactedGeneration]:
        """Compact the generations of the table if a region has too many of them."""
        most = self._handle.settings.max_generations
        crowd = max((region.generations for region in status.regions), default=0)
        # A merge reads all of them anyway.
        if crowd <= most or (crowd <= 2 * most and is_held(self._handle.context, BASE_LEASE)):
            return []
        return self._timed("compact", partial(compact_table, self._handle), _compact_facts)

    def _timed(self, name: StepName, call: Callable[[], T], facts: Callable[[T], dict[str, int | str]]) -> T:
        clock = self._handle.context.clock
        began = clock.monotonic()
        result = call()
        seconds = clock.monotonic() - began
        self._on_step(Step(table=self._handle.context.uri, name=name, seconds=seconds, facts=facts(result)))
        return result

    def _count(self, **more: int) -> None:
        self.done = replace(self.done, **{name: getattr(self.done, name) + number for name, number in more.items()})


def run(handle: TableHandle, *, until_idle: bool = True, engine: Engine = "auto") -> Ran:
    """Flush, merge and optimize a table. Finish indexes whose creation or drop was interrupted.

    Regions with more than `max_generations` generations are compacted when no merge is due, or while another process
    merges.

    Args:
        until_idle: True: do everything that can be done, due or not, then return. Rows that are written meanwhile may
            wait for the next call. False: do what is due by the table's settings, and never return.
        engine: see `compaction.maintenance.merge_table`.

    Raises:
        Corrupt: a region or the base is damaged. The runner stops.
        Ambiguous, Contended, Unavailable: only with `until_idle`; otherwise the next round tries again.
    """
    runner = BackgroundRunner(handle, engine=engine)
    if until_idle:
        # One round takes all that was there when it began. While apps write, a second one would always find more.
        if runner.round(everything=True):
            finish_indexes(handle)
        return runner.done
    while True:
        is_busy = False
        with suppress(Ambiguous, Contended, Unavailable):
            is_busy = runner.round(everything=False)
        if not is_busy:
            handle.context.clock.sleep(TICK_SECONDS)


def _flush_facts(made: Sequence[Flushed]) -> dict[str, int | str]:
    region = {"region": made[0].region} if made else {}
    return {**region, "generations": len(made), "rows": sum(one.rows for one in made)}


def _merge_facts(merged: Merged) -> dict[str, int | str]:
    return {
        "generations": merged.generations,
        "rows_upserted": merged.rows_upserted,
        "rows_deleted": merged.rows_deleted,
        "base_version": merged.base_version,
    }


def _optimize_facts(done: Optimized) -> dict[str, int | str]:
    return {"fragments_removed": done.fragments_removed, "fragments_added": done.fragments_added}


def _compact_facts(made: Sequence[CompactedGeneration]) -> dict[str, int | str]:
    return {"generations": len(made), "parts": sum(one.parts for one in made), "rows": sum(one.rows for one in made)}


def _flush_is_due(status: RegionStatus, settings: Settings, ages: _Ages, now: float) -> bool:
    age = ages.seconds("tail", status.region, status.newest_generation, now)
    large = status.wal_rows >= settings.flush_rows or status.wal_bytes >= settings.flush_bytes
    return large or age >= settings.flush_age_seconds


def _merge_is_due(status: RegionStatus, settings: Settings, ages: _Ages, now: float) -> bool:
    age = ages.seconds("pending", status.region, status.merged_generation, now)
    flushed = status.newest_generation - status.merged_generation
    return flushed >= settings.merge_generations or age >= settings.merge_age_seconds
