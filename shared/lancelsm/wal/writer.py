"""A writer for many callers: rows that are submitted close together travel in one entry of each region's log."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from lancelsm.common.clock import Clock
from lancelsm.common.committed import Committed, CommittedEntry
from lancelsm.common.layout import RegionValues
from lancelsm.common.settings import Settings
from lancelsm.errors import Invalid, Unavailable, error_context
from lancelsm.record.normalize import deletes, upserts
from lancelsm.region.handle import WriteTarget
from lancelsm.routing.route import route
from lancelsm.wal.region_writer import RegionWriters, committed


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
        self, target: WriteTarget, *, owner: str | None = None, pipeline_depth: int = 1, exclusive: bool = False
    ) -> None:
        if pipeline_depth < 1:
            raise Invalid(f"a pipeline of depth {pipeline_depth}", remedy="Use 1 or more", field="pipeline_depth")
        shared = owner or target.owner
        self._alone = exclusive or pipeline_depth > 1
        name = f"{shared}-{target.context.ids.nonce()[:12]}" if self._alone else shared
        self._target = target
        self._regions = RegionWriters(target, owner=name, previous_owner=shared, depth=pipeline_depth)
        self._pool = ThreadPoolExecutor(target.context.parallel, thread_name_prefix="lancelsm-writer")
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
        with error_context(table=self._target.context.uri):
            rows = deletes(keys, schema=self._target.schema)
        return self._submit(rows).result()

    def submit(self, data: Any) -> Future[Committed]:
        """Queue whole rows; the future is done once they are durable and visible.

        It can't be cancelled, since its rows travel with those of others. Its callbacks must not wait for this writer.

        Raises:
            Invalid: a row doesn't fit, or the writer is closed. Nothing was queued.
            Unavailable: the buffer is full. Nothing was queued: wait for earlier futures, then submit again.
        """
        with error_context(table=self._target.context.uri):
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
            self._regions.release()

    def _submit(self, rows: pa.Table) -> Future[Committed]:
        parts = route(rows, self._target.regions)
        with self._lock:
            if self._closed:
                raise Invalid("the writer is closed", remedy="Open another one", table=self._target.context.uri)
            if self._buffered and self._buffered + rows.nbytes > self._target.settings.buffer_bytes:
                raise Unavailable(
                    f"the writer holds {self._buffered} bytes that are not acknowledged yet",
                    remedy="Wait for earlier writes, then submit again",
                    table=self._target.context.uri,
                )
            self._buffered += rows.nbytes
            batch = _Batch(parts=len(parts), size=rows.nbytes, release=self._release)
            for part in parts:
                lane = self._lanes.setdefault(part.values, _Lane(self._target.settings, self._target.context.clock))
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
