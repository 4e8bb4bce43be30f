"""Writers of a table: rows to regions, entries to logs, acknowledgements back in order.

Each region has one writer a process, which holds the head between appends and pushes back when the base lags behind.
Rows that are submitted close together travel in one entry.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from lancelsm.claim import claim, create_region
from lancelsm.clock import Clock
from lancelsm.errors import Fenced, Invalid, LsmError, Unavailable, placed
from lancelsm.head import Head, Summary
from lancelsm.layout import Position, RegionId, RegionValues
from lancelsm.record.rows import deletes, upserts
from lancelsm.record.schema import TableSchema
from lancelsm.region import Directory, Region, Storage
from lancelsm.routing.route import Routed, route
from lancelsm.routing.spec import RegionSpec
from lancelsm.settings import Settings
from lancelsm.wal.append import append
from lancelsm.wal.entry import draft
from lancelsm.wal.pipeline import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedEntry:
    """One entry of a log that holds acknowledged rows."""

    region: RegionId
    position: Position
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Rows that are durable and visible to every read that starts now, and the entries that hold them."""

    rows: int
    entries: tuple[CommittedEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a writer needs to know of its table."""

    storage: Storage
    schema: TableSchema
    regions: RegionSpec
    settings: Settings
    owner: str  # under which regions are created, and which ordinary writers share
    directory: Directory


class RegionWriter:
    """Appends to one region: one entry at a time, or, by its sole owner, several in flight. Thread-safe.

    Args:
        lenders: whom the region is taken from at the first append, and from nobody else; the last one gets it back.
            Without any, nothing is claimed.
    """

    def __init__(self, region: Region, target: Target, *, owner: str, lenders: tuple[str, ...], depth: int) -> None:
        self._region = region
        self._settings = target.settings
        self._owner = owner
        self._lenders = lenders
        self._pipeline = Pipeline(region, owner=owner, lenders=lenders, depth=depth) if depth > 1 else None
        self._held: Head | None = None
        self._unclaimed = bool(lenders)
        self._lock = threading.Lock()

    def start(self, rows: pa.Table, then: Callable[[CommittedEntry | BaseException], None]) -> None:
        """As `append`, but returns as soon as the next entry may be started; `then` hears what became of this one.

        Raises: as `append`; then `then` is not called.
        """
        if self._pipeline is None:
            then(self.append(rows))
            return
        encoded = draft(rows)
        self._wait_for_base(self._pipeline.head)
        flight = self._pipeline.submit(encoded)
        flight.add_done_callback(lambda done: then(done.exception() or self._entry(done.result())))

    def _entry(self, summary: Summary) -> CommittedEntry:
        return CommittedEntry(region=self._region.id, position=summary.position, rows=summary.rows)

    def append(self, rows: pa.Table) -> CommittedEntry:
        """As `wal.append.append`, after waiting for the base if it lags.

        Raises:
            Unavailable: too many generations wait to be merged.
        """
        encoded = draft(rows)
        with self._lock:
            if self._unclaimed:
                self._held = claim(self._region, owner=self._owner, held_by=(*self._lenders, self._owner))
                self._unclaimed = False
            self._held = self._wait_for_base(self._held)
            try:
                appended = append(self._region, encoded, owner=self._owner, held=self._held)
            except BaseException:
                self._held = None
                raise
            self._held = appended.head
        return self._entry(appended.summary)

    def give_back(self) -> None:
        """Let the last of the lenders have the region again, if it is still ours. Raises as `claim.claim`."""
        if self._pipeline is not None:
            self._pipeline.close()
        with self._lock, suppress(Fenced, Invalid):  # taken over or sealed meanwhile
            self._held = None
            claim(self._region, owner=self._lenders[-1], held_by=(self._owner,))

    def _wait_for_base(self, held: Head | None) -> Head:
        """Push back while the base lags; returns a head for the next append."""
        slow, stop = self._settings.pending_generations_slow, self._settings.pending_generations_stop
        if held is None or held.pending_generations >= slow:
            held = self._region.head()
        pending = held.pending_generations
        if pending >= stop:
            raise Unavailable(
                f"{pending} generations wait to be merged",
                remedy=f"Merge them: lancelsm merge {self._region.storage.uri}",
                **self._region.where,
            )
        if pending >= slow:
            self._region.storage.clock.sleep((pending - slow + 1) / (stop - slow))
        return held


class RegionWriters:
    """The region writers of one table in this process, made when their regions are first met. Thread-safe.

    Args:
        owner: the name to write under; regions are taken from the table's owner if it is another.
        lender: who has lent its regions besides, and gets them back.
    """

    def __init__(self, target: Target, *, owner: str, lender: str | None = None, depth: int = 1) -> None:
        self._target = target
        self._owner = owner
        self._lenders = tuple(name for name in dict.fromkeys((target.owner, lender or target.owner)) if name != owner)
        self._depth = depth
        self._writers: dict[RegionValues, RegionWriter] = {}
        self._lock = threading.Lock()

    def of(self, values: RegionValues) -> RegionWriter:
        """The writer of the region with these values; the region is created if there is none."""
        with self._lock:
            writer = self._writers.get(values)
            if writer is None:
                target = self._target
                region = target.directory.find(values)
                if region is None or region.find_head() is None:  # or its creator crashed half-way
                    region = create_region(
                        target.storage, spec_id=target.regions.spec_id, values=values, owner=target.owner
                    )
                writer = RegionWriter(region, target, owner=self._owner, lenders=self._lenders, depth=self._depth)
                self._writers[values] = writer
            return writer

    def give_back(self) -> None:
        """End exclusive ownership.

        Raises: as `RegionWriter.give_back`, after all were tried. Another call tries those that are left.
        """
        failure: LsmError | None = None
        with self._lock:
            for values, writer in list(self._writers.items()):
                try:
                    writer.give_back()
                    del self._writers[values]
                except LsmError as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def append_all(self, parts: Iterable[Routed]) -> Committed:
        """Append each region's rows, regions in parallel. Waits for all, then raises the first failure."""
        routed = list(parts)
        if len(routed) <= 1:
            return committed([self._append(part) for part in routed])
        with ThreadPoolExecutor(min(self._target.storage.parallel, len(routed))) as pool:
            started = [pool.submit(self._append, part) for part in routed]
        return committed([future.result() for future in started])

    def _append(self, part: Routed) -> CommittedEntry:
        return self.of(part.values).append(part.rows)


def committed(entries: Iterable[CommittedEntry]) -> Committed:
    found = tuple(entries)
    return Committed(rows=sum(entry.rows for entry in found), entries=found)


class Writer:
    """A context in which many callers write together: what arrives close together is committed together.

    `submit` is thread-safe and returns at once; `upsert` and `delete` wait for the acknowledgement. Leaving the
    context waits for everything that was submitted and raises the first failure; it does not flush.

    Args:
        target: the table.
        owner: the name to write under; the table's by default. One's own takes each region at the first write to it,
            and keeps it.
        pipeline_depth: how many entries of a region may be on their way at once; more than one needs `exclusive`, which
            it implies.
        exclusive: take each region in a fresh epoch under a name of this writer alone, and give it back when leaving.
            Others are `Fenced` meanwhile, and after a crash until the region is claimed.
    """

    def __init__(
        self, target: Target, *, owner: str | None = None, pipeline_depth: int = 1, exclusive: bool = False
    ) -> None:
        if pipeline_depth < 1:
            raise Invalid(f"a pipeline of depth {pipeline_depth}", remedy="Use 1 or more", field="pipeline_depth")
        shared = owner or target.owner
        self._alone = exclusive or pipeline_depth > 1
        name = f"{shared}-{target.storage.ids.nonce()[:12]}" if self._alone else shared
        self._target = target
        self._regions = RegionWriters(target, owner=name, lender=shared, depth=pipeline_depth)
        self._pool = ThreadPoolExecutor(target.storage.parallel, thread_name_prefix="lancelsm-writer")
        self._lanes: dict[RegionValues, _Lane] = {}
        self._lock = threading.RLock()
        self._buffered = 0
        self._closed = False
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None and self._failure is not None:
            raise self._failure

    def upsert(self, data: Any) -> Committed:
        """As `Table.upsert`."""
        return self.submit(data).result()

    def delete(self, keys: Any) -> Committed:
        """As `Table.delete` of keys."""
        with placed(table=self._target.storage.uri):
            rows = deletes(keys, schema=self._target.schema)
        return self._submit(rows).result()

    def submit(self, data: Any) -> Future[Committed]:
        """Queue whole rows; the future is done once they are durable and visible.

        It can't be cancelled, since its rows travel with those of others. Its callbacks must not wait for this writer.

        Raises:
            Invalid: a row doesn't fit, or the writer is closed. Nothing was queued.
            Unavailable: the buffer is full. Nothing was queued: wait for earlier futures, then submit again.
        """
        with placed(table=self._target.storage.uri):
            rows = upserts(data, schema=self._target.schema)
        return self._submit(rows)

    async def submit_async(self, data: Any) -> Committed:
        """`submit` for asyncio: returns once the rows are durable and visible. Cancelling it cancels no write."""
        return await asyncio.wrap_future(self.submit(data))

    def close(self) -> None:
        """Wait for everything that was submitted, then give regions back. Closing twice is fine.

        Raises:
            Unavailable, Ambiguous, Contended, Corrupt: a region could not be given back. Close again, or claim it.
        """
        with self._lock:
            self._closed = True
        # Each step may be interrupted and done again: one Ctrl-C must not keep a second call from giving back.
        self._pool.shutdown(wait=True)
        if self._alone:
            self._regions.give_back()

    def _submit(self, rows: pa.Table) -> Future[Committed]:
        parts = route(rows, self._target.regions)
        with self._lock:
            if self._closed:
                raise Invalid("the writer is closed", remedy="Open another one", table=self._target.storage.uri)
            if self._buffered and self._buffered + rows.nbytes > self._target.settings.buffer_bytes:
                raise Unavailable(
                    f"the writer holds {self._buffered} bytes that are not acknowledged yet",
                    remedy="Wait for earlier writes, then submit again",
                    table=self._target.storage.uri,
                )
            self._buffered += rows.nbytes
            batch = _Batch(parts=len(parts), size=rows.nbytes, release=self._release)
            for part in parts:
                lane = self._lanes.setdefault(part.values, _Lane(self._target.settings, self._target.storage.clock))
                if lane.put(part.rows, batch):
                    self._pool.submit(lane.run, self._regions, part.values)
        return batch.future

    def _release(self, size: int, failure: BaseException | None) -> None:
        with self._lock:
            self._buffered -= size
            self._failure = self._failure or failure


class _Batch:
    """One submission on its way through several regions."""

    def __init__(self, *, parts: int, size: int, release: Callable[[int, BaseException | None], None]) -> None:
        self.future: Future[Committed] = Future()
        self.future.set_running_or_notify_cancel()  # from now on nobody can cancel it
        self._left = parts
        self._size = size
        self._release = release
        self._entries: list[CommittedEntry] = []
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        if not parts:
            self._finish()

    def settle(self, outcome: CommittedEntry | BaseException) -> None:
        """One part is committed or failed; the last one settles the future."""
        with self._lock:
            if isinstance(outcome, BaseException):
                self._failure = self._failure or outcome
            else:
                self._entries.append(outcome)
            self._left -= 1
            last = not self._left
        if last:
            self._finish()

    def _finish(self) -> None:
        self._release(self._size, self._failure)
        with suppress(BaseException):  # a caller's callback must not keep the news from other callers
            if self._failure is not None:
                self.future.set_exception(self._failure)
            else:
                self.future.set_result(committed(self._entries))


@dataclass(slots=True)
class _Lane:
    """What waits for one region. At most one thread runs it, so that entries keep the order of submission."""

    settings: Settings
    clock: Clock
    _since: float = 0.0  # when the first of those that wait came
    _waiting: deque[tuple[pa.Table, _Batch]] = field(default_factory=deque)
    _bytes: int = 0
    _running: bool = False
    _change: threading.Condition = field(default_factory=threading.Condition)

    def put(self, rows: pa.Table, batch: _Batch) -> bool:
        """Queue rows; True if the lane has to be run."""
        with self._change:
            if not self._waiting:
                self._since = self.clock.monotonic()
            self._waiting.append((rows, batch))
            self._bytes += rows.nbytes
            idle, self._running = not self._running, True
            self._change.notify()
            return idle

    def run(self, regions: RegionWriters, values: RegionValues) -> None:
        """Append what waits, group by group, until nothing does."""
        while group := self._take():
            try:
                regions.of(values).start(pa.concat_tables([rows for rows, _ in group]), partial(_settle, group))
            except BaseException as error:  # noqa: BLE001 - whoever waits for these rows has to hear of it
                _settle(group, error)

    def _take(self) -> list[tuple[pa.Table, _Batch]]:
        """The next group: what arrives within the interval, or fills an entry sooner."""
        limit = self.settings.group_commit_bytes
        with self._change:
            if self._waiting:
                waited = self.clock.monotonic() - self._since
                left = self.settings.group_commit_milliseconds / 1000 - waited
                self._change.wait_for(lambda: self._bytes >= limit, max(0.0, left))
            group: list[tuple[pa.Table, _Batch]] = []
            size = 0
            while self._waiting and (not group or size + self._waiting[0][0].nbytes <= limit):
                group.append(self._waiting.popleft())
                size += group[-1][0].nbytes
            self._bytes -= size
            self._running = bool(group)
            return group


def _settle(group: list[tuple[pa.Table, _Batch]], outcome: CommittedEntry | BaseException) -> None:
    """Tell everybody whose rows are in an entry what became of it."""
    for rows, batch in group:
        if isinstance(outcome, BaseException):
            batch.settle(outcome)
        else:
            batch.settle(replace(outcome, rows=rows.num_rows))
