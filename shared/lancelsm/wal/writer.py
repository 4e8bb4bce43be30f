"""Group commit: rows that many callers submit at about the same time share one log entry per region."""

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
    """A context manager for many concurrent callers: rows that arrive at about the same time are committed together.

    `submit` is thread-safe and returns at once; `upsert` and `delete` wait for the acknowledgement. Leaving the
    context waits for everything that was submitted and raises the first error. It does not flush.

    Args:
        target: the table.
        owner: the name to write under; the table's owner by default. Under another name the writer claims each region
            at the first write to it, and keeps it.
        pipeline_depth: the maximum number of entries of a region in flight. More than 1 implies `exclusive`.
        exclusive: claim each region in a new epoch under a name that only this writer uses, and give it back at the
            end. Other writers get `Fenced` meanwhile; after a crash of this writer they get it until the region is
            claimed.

    Raises:
        Invalid: `pipeline_depth` is less than 1.
    """

    def __init__(
        self, target: WriteTarget, *, owner: str | None = None, pipeline_depth: int = 1, exclusive: bool = False
    ) -> None:
        if pipeline_depth < 1:
            raise Invalid(f"pipeline_depth is {pipeline_depth}", remedy="Use 1 or more", field="pipeline_depth")
        shared = owner or target.owner
        self._exclusive = exclusive or pipeline_depth > 1
        name = f"{shared}-{target.context.ids.nonce()[:12]}" if self._exclusive else shared
        self._target = target
        self._regions = RegionWriters(target, owner=name, previous_owner=shared, depth=pipeline_depth)
        self._pool = ThreadPoolExecutor(target.context.parallel, thread_name_prefix="lancelsm-writer")
        self._queues: dict[RegionValues, _RegionQueue] = {}
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
        """Upsert whole rows, and wait until they are durable and visible.

        Args:
            data: the same as in `Table.upsert`.

        Raises:
            Invalid: a row doesn't fit, the writer is closed, a region is sealed, or the table was dropped.
            Unavailable: the buffer is full, the base lags too far behind, or a store did not answer.
            Fenced, Contended, Ambiguous, Corrupt: see `lancelsm.errors`.
        """
        return self.submit(data).result()

    def delete(self, keys: Any) -> Committed:
        """Delete rows by key, and wait until the tombstones are durable and visible.

        Args:
            keys: the same as in `Table.delete`.

        Raises: the same errors as `upsert`.
        """
        with error_context(table=self._target.context.uri):
            rows = deletes(keys, schema=self._target.schema)
        return self._submit(rows).result()

    def submit(self, data: Any) -> Future[Committed]:
        """Queue whole rows to upsert. The future is done when they are durable and visible.

        The future can't be cancelled, since its rows share an entry with those of other callers. Its callbacks must
        not wait for this writer. It fails with the errors of `upsert`.

        Raises:
            Invalid: a row doesn't fit, or the writer is closed. Nothing was queued.
            Unavailable: the buffer is full. Nothing was queued: wait for earlier futures, then submit again.
        """
        with error_context(table=self._target.context.uri):
            rows = upserts(data, schema=self._target.schema)
        return self._submit(rows)

    async def submit_async(self, data: Any) -> Committed:
        """`submit` for asyncio: return when the rows are durable and visible. Cancelling does not cancel the write."""
        return await asyncio.wrap_future(self.submit(data))

    def close(self) -> None:
        """Wait for everything that was submitted, then give back exclusive regions. Idempotent.

        Raises:
            Unavailable, Ambiguous, Contended, Corrupt: a region could not be given back. Close again, or claim it.
        """
        with self._lock:
            self._closed = True
        # Each step can be repeated: after a Ctrl-C, a second call must still give regions back.
        self._pool.shutdown(wait=True)
        if self._exclusive:
            self._regions.release()

    def _submit(self, rows: pa.Table) -> Future[Committed]:
        parts = route(rows, self._target.regions)
        with self._lock:
            if self._closed:
                raise Invalid("the writer is closed", remedy="Open a new writer", table=self._target.context.uri)
            if self._buffered and self._buffered + rows.nbytes > self._target.settings.buffer_bytes:
                raise Unavailable(
                    f"the writer buffers {self._buffered} bytes that are not acknowledged yet",
                    remedy="Wait for earlier writes, then submit again",
                    table=self._target.context.uri,
                )
            self._buffered += rows.nbytes
            submission = _Submission(parts=len(parts), size=rows.nbytes, release=self._release)
            for part in parts:
                queue = self._queues.setdefault(
                    part.values, _RegionQueue(self._target.settings, self._target.context.clock)
                )
                if queue.put(part.rows, submission):
                    self._pool.submit(queue.run, self._regions, part.values)
        return submission.future

    def _release(self, size: int, failure: BaseException | None) -> None:
        with self._lock:
            self._buffered -= size
            self._failure = self._failure or failure


class _Submission:
    """The rows of one call, which may go to several regions."""

    def __init__(self, *, parts: int, size: int, release: Callable[[int, BaseException | None], None]) -> None:
        self.future: Future[Committed] = Future()
        self.future.set_running_or_notify_cancel()  # it can't be cancelled any more
        self._remaining = parts
        self._size = size
        self._release = release
        self._entries: list[CommittedEntry] = []
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        if not parts:
            self._finish()

    def settle(self, outcome: CommittedEntry | BaseException) -> None:
        """Record the outcome of one region; the last one completes the future."""
        with self._lock:
            if isinstance(outcome, BaseException):
                self._failure = self._failure or outcome
            else:
                self._entries.append(outcome)
            self._remaining -= 1
            last = not self._remaining
        if last:
            self._finish()

    def _finish(self) -> None:
        self._release(self._size, self._failure)
        with suppress(BaseException):  # an error in the callback of one caller must not affect others
            if self._failure is not None:
                self.future.set_exception(self._failure)
            else:
                self.future.set_result(committed(self._entries))


@dataclass(slots=True)
class _RegionQueue:
    """The rows that wait for one region. At most one thread runs it, so entries keep the order of submission."""

    settings: Settings
    clock: Clock
    _since: float = 0.0  # arrival time of the oldest waiting rows
    _waiting: deque[tuple[pa.Table, _Submission]] = field(default_factory=deque)
    _bytes: int = 0
    _running: bool = False
    _change: threading.Condition = field(default_factory=threading.Condition)

    def put(self, rows: pa.Table, submission: _Submission) -> bool:
        """Queue rows. Return True if the caller must start a thread that calls `run`."""
        with self._change:
            if not self._waiting:
                self._since = self.clock.monotonic()
            self._waiting.append((rows, submission))
            self._bytes += rows.nbytes
            idle, self._running = not self._running, True
            self._change.notify()
            return idle

    def run(self, regions: RegionWriters, values: RegionValues) -> None:
        """Append the waiting rows, group by group, until the queue is empty."""
        while group := self._take():
            try:
                regions.of(values).start(pa.concat_tables([rows for rows, _ in group]), partial(_settle, group))
            except BaseException as error:  # noqa: BLE001 - the futures of these rows must fail
                _settle(group, error)

    def _take(self) -> list[tuple[pa.Table, _Submission]]:
        """Take the next group: the rows that arrive within the interval, or until an entry is full."""
        limit = self.settings.group_commit_bytes
        with self._change:
            if self._waiting:
                waited = self.clock.monotonic() - self._since
                left = self.settings.group_commit_milliseconds / 1000 - waited
                self._change.wait_for(lambda: self._bytes >= limit, max(0.0, left))
            group: list[tuple[pa.Table, _Submission]] = []
            size = 0
            while self._waiting and (not group or size + self._waiting[0][0].nbytes <= limit):
                group.append(self._waiting.popleft())
                size += group[-1][0].nbytes
            self._bytes -= size
            self._running = bool(group)
            return group


def _settle(group: list[tuple[pa.Table, _Submission]], outcome: CommittedEntry | BaseException) -> None:
    """Report the outcome of an entry to all submissions that have rows in it."""
    for rows, submission in group:
        if isinstance(outcome, BaseException):
            submission.settle(outcome)
        else:
            submission.settle(replace(outcome, rows=rows.num_rows))
