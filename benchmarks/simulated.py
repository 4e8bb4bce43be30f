"""Simulate a deployed table at a rate of rows: appends, flushes, compactions and merges as discrete events.

The decisions are those of the real code (`stack.dispatch.due`, `compaction.tiers.choose_run`), and so are the numbers
of requests (`stack.cost.requests`). Times are given: CPU on one core, and one time for every request. A function of
3,008 MB has 1.7 cores, `writer_flush` has one, and a Spark job those of its executors.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import ceil

from lancelsm.common.layout import Generation, RegionId, TableId
from lancelsm.common.settings import Settings
from lancelsm.compaction.tiers import FUNCTION_BYTES, choose_run
from lancelsm.stack.cost import requests
from lancelsm.stack.cost.requests import Requests
from lancelsm.stack.dispatch import Lag, due

TABLE = TableId("00000000-0000-4000-8000-000000000001")
FUNCTION_CORES = 3008 / 1769
FUNCTION_SECONDS = 900.0
JOB_CORES, JOB_START_SECONDS = 12, 150.0  # three executors of 4 vCPU
MESSAGES, MESSAGE_BYTES, EVENT_BYTES = 10, 1 << 20, 6 << 20  # of one delivery
COMPRESSED = 0.5 * 4 / 3  # the size of a message relative to its rows
PARALLEL = 16  # reads of one region at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of one core for each row, and for each request.

    Args:
        merge: for each merged row; `merge_base` for each row of the base.
    """

    append: float
    flush: float
    compact: float
    merge: float
    merge_base: float
    request: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A steady stream of rows into one table, spread evenly over its regions.

    Args:
        queued: whether rows come through the queue. If not, writers append them to the logs at their rate.
        base_rows: the rows of the base, which stays as large: new rows replace old ones.
    """

    rows_per_second: float
    regions: int
    row_bytes: int = 1000
    queued: bool = True
    base_rows: float = 100e6
    schedule_seconds: float = 300.0
    settings: Settings = field(default_factory=Settings)


@dataclass(slots=True)
class _Region:
    """One region: rows in the queue, in the log, and in generations, oldest first, as pairs of number and rows."""

    id: RegionId
    queue: float = 0.0
    log: float = 0.0
    entries: float = 0.0
    since: float = 0.0
    newest: int = 0
    merged: int = 0
    live: list[tuple[int, float]] = field(default_factory=list)
    flushing: bool = False
    compacting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Rows that wait at a moment, and the most generations of a region."""

    queue: float
    log: float
    unmerged: float
    generations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The levels before each run of `dispatch`, the numbers of calls, and the rows that are in the base at the end."""

    levels: Sequence[Level]
    calls: Counter[str]
    in_base: float


class _Simulation:
    def __init__(self, load: Load, times: Times) -> None:
        self.load, self.times, self.settings = load, times, load.settings
        self.regions = [_Region(id=RegionId(f"{number:08x}")) for number in range(load.regions)]
        self.now = 0.0
        self.merging = False
        self.in_base = 0.0
        self._taken = 0  # the newest generation that a running merge reads, by its number; regions are alike
        self.levels: list[Level] = []
        self.calls: Counter[str] = Counter()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._arrived = [0.0] * load.regions
        self._merge_names: set[str] = set()

    def run(self, seconds: float) -> Outcome:
        for index in range(self.load.regions):  # not all at the same moment
            self._at(index / self.load.regions, partial(self._append, index))
        self._at(self.load.schedule_seconds, self._dispatch_and_again)
        while self._events and self._events[0][0] <= seconds:
            self.now, _, act = heapq.heappop(self._events)
            act()
        return Outcome(levels=self.levels, calls=self.calls, in_base=self.in_base)

    def _at(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._number), act))

    def _requests(self, made: Requests) -> float:
        """Return the time of requests that are made one after the other."""
        every = made.object_writes + made.object_reads + made.record_writes + made.record_reads
        return every * self.times.request

    # Appends: one delivery of a region at a time, since the queue is FIFO

    def _append(self, index: int) -> None:
        region = self.regions[index]
        rate = self.load.rows_per_second / self.load.regions
        region.queue += rate * (self.now - self._arrived[index])
        self._arrived[index] = self.now
        messages = min(MESSAGES, EVENT_BYTES // MESSAGE_BYTES - 1)
        most = messages * MESSAGE_BYTES / (self.load.row_bytes * COMPRESSED)
        rows = min(region.queue, most) if self.load.queued else region.queue
        took = self._requests(requests.WRITE) + rows * self.times.append
        pending, slow = len(region.live), self.settings.pending_generations_slow
        if pending >= self.settings.pending_generations_stop:
            self._at(1.0, partial(self._append, index))
            return
        if pending >= slow:
            took += (pending - slow + 1) / (self.settings.pending_generations_stop - slow)

        def done() -> None:
            if region.log == 0 and not region.live:
                region.since = self.now
            region.queue -= rows
            region.log += rows
            region.entries += 1
            self._append(index)

        self.calls["writer_flush"] += 1
        self._at(took if self.load.queued else max(took, 1.0), done)

    # The schedule

    def _dispatch_and_again(self) -> None:
        self.levels.append(
            Level(
                queue=sum(one.queue for one in self.regions),
                log=sum(one.log for one in self.regions),
                unmerged=sum(rows for one in self.regions for _, rows in one.live),
                generations=max(len(one.live) for one in self.regions),
            )
        )
        self._dispatch()
        self._at(self.load.schedule_seconds, self._dispatch_and_again)

    def _dispatch(self) -> None:
        self.calls["dispatch"] += 1
        by_id = {one.id: one for one in self.regions}
        lags = [self._lag(one) for one in self.regions if one.log or one.live]
        needs = due(TABLE, lags, settings=self.settings, now=self.now)
        for group in needs.flush:
            if free := [by_id[one] for one in group if not by_id[one].flushing]:
                self._flush(free)
        wanted = needs.crowded if self.merging else needs.compact
        if free := [by_id[one] for one in wanted if not by_id[one].compacting]:
            self._compact(free)
        if needs.merge is not None and not self.merging and needs.merge not in self._merge_names:
            self._merge_names.add(needs.merge)
            self._merge()

    def _lag(self, one: _Region) -> Lag:
        return Lag(
            region=one.id,
            rows=int(one.log),
            bytes=int(one.log * self.load.row_bytes),
            newest=Generation(one.newest),
            merged=Generation(one.merged),
            live=len(one.live),
            compactable=self._run_of(one) is not None,
            since=one.since,
        )

    # Flushes: each generation is written after the one before it, and commits by itself

    def _flush(self, group: list[_Region]) -> None:
        self.calls["compaction, flush"] += 1
        settings = self.settings
        most = min(settings.flush_rows, settings.flush_bytes / self.load.row_bytes)
        cores = FUNCTION_CORES / len(group)
        for region in group:
            region.flushing = True
            rows, entries, at = region.log, region.entries, 0.0
            whole = max(1, ceil(rows / most))
            each = rows / whole
            reads = ceil(entries / whole / PARALLEL) * self._requests(requests.FLUSH_ENTRY)
            took = self._requests(requests.FLUSH) + reads + each * self.times.flush / cores
            made = min(whole, max(1, int(FUNCTION_SECONDS / took) - 2))
            for _ in range(made):
                at += took
                self._at(at, partial(self._flushed, region, each=each, share=entries / whole))
            self._at(at, partial(self._flush_done, region, left=made < whole))

    def _flushed(self, region: _Region, *, each: float, share: float) -> None:
        region.log, region.entries = max(0.0, region.log - each), max(0.0, region.entries - share)
        region.newest += 1
        region.live.append((region.newest, each))
        self.calls["generations"] += 1

    def _flush_done(self, region: _Region, *, left: bool) -> None:
        region.flushing = False
        if left:  # a message lets `dispatch` go on
            self._at(1.0, self._dispatch)

    # Compactions among generations

    def _run_of(self, region: _Region) -> range | None:
        sizes = [int(rows * self.load.row_bytes) for number, rows in region.live if number > self._taken]
        return choose_run(sizes, most=self.settings.max_generations, size_max=FUNCTION_BYTES)

    def _compact(self, group: list[_Region]) -> None:
        self.calls["compaction, compact"] += 1
        cores, at = FUNCTION_CORES, 0.0  # large steps run one after the other
        for region in group:
            run = self._run_of(region)
            if run is None:
                continue
            later = [one for one in region.live if one[0] > self._taken][run.start : run.stop]
            rows = sum(one for _, one in later)
            at += rows * self.times.compact / cores + self._requests(requests.FLUSH)
            if at > FUNCTION_SECONDS:
                break
            region.compacting = True
            self._at(at, partial(self._compacted, region, later, rows))

    def _compacted(self, region: _Region, parts: list[tuple[int, float]], rows: float) -> None:
        region.compacting = False
        if all(one in region.live for one in parts):
            start = region.live.index(parts[0])
            region.live[start : start + len(parts)] = [(parts[-1][0], rows)]
            self.calls["generations compacted"] += len(parts)

    # Merges: one at a time

    def _merge(self) -> None:
        self.merging = True
        taken = [(region, region.newest) for region in self.regions]
        self._taken = max(newest for _, newest in taken)
        rows = sum(one for region in self.regions for _, one in region.live)
        generations = sum(len(region.live) for region in self.regions)
        cpu = rows * self.times.merge + self.load.base_rows * self.times.merge_base
        small = (
            rows < self.settings.merge_inprocess_delta_rows
            and rows * self.load.row_bytes < self.settings.merge_inprocess_delta_bytes
            and self.load.base_rows <= self.settings.merge_inprocess_base_rows
        )
        self.calls["merges in Lambda" if small else "merges on Spark"] += 1
        made = requests.MERGE + requests.OPTIMIZE + requests.MERGE_GENERATION * (generations / PARALLEL)
        took = self._requests(made) + (cpu / FUNCTION_CORES if small else JOB_START_SECONDS + cpu / JOB_CORES)
        if small and took > FUNCTION_SECONDS:  # then a job does it
            took = FUNCTION_SECONDS + self._requests(made) + JOB_START_SECONDS + cpu / JOB_CORES
        self._at(took, partial(self._merged, taken))

    def _merged(self, taken: Sequence[tuple[_Region, int]]) -> None:
        self.merging, self._taken = False, 0
        for region, newest in taken:
            self.in_base += sum(rows for number, rows in region.live if number <= newest)
            region.live = [one for one in region.live if one[0] > newest]
            region.merged = max(region.merged, newest)
            region.since = self.now


def simulate(load: Load, times: Times, *, seconds: float = 7200.0) -> Outcome:
    """Simulate a table from its first row on."""
    return _Simulation(load, times).run(seconds)


def growing(outcome: Outcome, load: Load) -> str | None:
    """Return the first queue that still grows at the end, in the order in which rows go through them.

    A queue grows if it has more in the last third than in the third before, on average and at the end, by more than
    what arrives in a tenth of a period.
    """
    third = len(outcome.levels) // 3
    before, after = outcome.levels[third : 2 * third], outcome.levels[2 * third :]
    allowed = load.rows_per_second * load.schedule_seconds / 10
    for name in ("queue", "log", "unmerged"):
        earlier, later = ([float(getattr(one, name)) for one in part] for part in (before, after))
        if sum(later) / len(later) > sum(earlier) / len(earlier) + allowed and later[-1] > max(earlier):
            return name
    return None


def highest_rate(load: Load, times: Times, *, precision: float = 1.02, seconds: float = 7200.0) -> tuple[float, str]:
    """Return the rate at which the first queue grows, and its name. Begins at the rate of `load`."""

    def found(rate: float) -> str | None:
        at = replace(load, rows_per_second=rate)
        return growing(simulate(at, times, seconds=seconds), at)

    low, high = 0.0, load.rows_per_second
    while (name := found(high)) is None:
        low, high = high, 2 * high
    while high > precision * max(low, 1.0):
        middle = (low + high) / 2
        grown = found(middle)
        low, high, name = (middle, high, name) if grown is None else (low, middle, grown)
    return high, name
