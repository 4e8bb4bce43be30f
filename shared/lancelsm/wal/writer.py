"""Group commit: rows that many callers submit at about the same time share one log entry per region."""

from __future__ import annotations

import asyncio
import atexit
import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import groupby
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from lancelsm.common.layout import RegionValues
from lancelsm.common.row_types import ArrowLike, Keys
from lancelsm.common.task_pool import TaskPool
from lancelsm.common.write_result import Committed, CommittedEntry
from lancelsm.errors import Contended, Corrupt, Invalid, LsmError, Unavailable, error_context
from lancelsm.record.normalize import deletes, readable_again
from lancelsm.record.schema import TableSchema, conform
from lancelsm.record.schema_history import version_of
from lancelsm.record.single_rows import SingleRow, SingleRows
from lancelsm.region.catalog import SealedRegion, check_not_dropped
from lancelsm.region.handle import WriteTarget, newest_columns
from lancelsm.routing.route import only_region, route
from lancelsm.wal.group_commit import Buffer, GroupQueue, RegionPart, Share, Submission, Waiting
from lancelsm.wal.region_writer import RegionWriters, committed

_ROUTING_SECONDS: Final = 0.005  # the part of the interval in which rows wait before they are split by region
_SMALL: Final = 64 << 10  # bytes of a chunk
_SUBMISSION: Final = "."  # no column of a table has this name


class Writer:
    """A context manager for many concurrent callers: rows that arrive at about the same time are committed together.

    `submit` is thread-safe and returns at once; `upsert` and `delete` wait for the acknowledgement. Leaving the
    context waits for everything that was submitted and raises the first error. It does not flush. With `async with`,
    leaving it does not block the event loop; `submit_async` is `submit` for it.

    Args:
        target: the table.
        owner: the name to write under; the table's owner by default. Under another name the writer claims each region
            at the first write to it, and keeps it.
        pipeline_depth: the maximum number of entries of a region in flight. More than 1 implies `exclusive`.
        exclusive: claim each region in a new epoch under a name that only this writer uses, and give it back at the
            end. Other writers get `Fenced` meanwhile; after a crash of this writer they get it until the region is
            claimed.
        finish: finishes a reshard that was interrupted, for a writer that meets a sealed region.

    Raises:
        Invalid: `pipeline_depth` is less than 1.
    """

    def __init__(
        self,
        target: WriteTarget,
        *,
        owner: str | None = None,
        pipeline_depth: int = 1,
        exclusive: bool = False,
        finish: Callable[[], None] | None = None,
    ) -> None:
        if pipeline_depth < 1:
            raise Invalid(f"pipeline_depth is {pipeline_depth}", remedy="Use 1 or more", field="pipeline_depth")
        shared = owner or target.owner
        self._exclusive = exclusive or pipeline_depth > 1
        name = f"{shared}-{target.context.ids.nonce()[:12]}" if self._exclusive else shared
        self._target = target
        self._regions = RegionWriters(target, owner=name, previous_owner=shared, depth=pipeline_depth, finish=finish)
        self._pool, self._routing_pool = TaskPool(target.context.parallel), TaskPool(1)
        for pool in (self._routing_pool, self._pool):
            weakref.finalize(self, pool.stop).atexit = False
        _OPEN.add(self)
        self._rows = SingleRows(target.schema)
        self._named_version = target.schema.version  # the newest one that a head of an append has named
        self._queues: dict[RegionValues, GroupQueue] = {}
        self._only_region = only_region(target.regions)
        interval = target.settings.group_commit_milliseconds / 1000
        routing = 0.0 if self._only_region is not None else min(_ROUTING_SECONDS, interval)
        self._seconds = interval - routing
        self._unrouted = self._new_queue(self._route, routing)
        self._buffer = Buffer()
        self._closed = False
        self._is_forked = False  # in a child of the process that opened it

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None and self._buffer.failure is not None:
            raise self._buffer.failure

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def upsert(self, data: ArrowLike) -> Committed:
        """Upsert whole rows, and wait until they are durable and visible.

        Args:
            data: anything with `__arrow_c_stream__` (Arrow, polars, pandas), a mapping of columns, one row, or a list
                of rows: dicts, dataclasses, named tuples or pydantic models.

        Raises:
            Invalid: a row doesn't fit, the writer is closed, a region is sealed, or the table was dropped.
            Unavailable: the buffer is full, the base lags too far behind, or a store did not answer.
            Fenced: another owner holds a region. Nothing was written to that region.
            Contended: nothing was written to a region. Retry.
            Ambiguous: the rows of a region may or may not be written. Read, then decide.
            Corrupt: the log or the head of a region is damaged.
        """
        return self.submit(data).result()

    def delete(self, keys: Keys) -> Committed:
        """Delete rows by key, and wait until the tombstones are durable and visible.

        Args:
            keys: one key or several: values for a key of one column; tuples for a key of several, in order; dicts; or
                the key columns in any form that `upsert` takes. A tuple is one key of several columns.

        Raises:
            Invalid: a key doesn't fit, the writer is closed, a region is sealed, or the table was dropped.
            Unavailable: the buffer is full, the base lags too far behind, or a store did not answer.
            Fenced: another owner holds a region.
            Contended: nothing was written to a region. Retry.
            Ambiguous: the deletes of a region may or may not be written. Delete again.
            Corrupt: the log or the head of a region is damaged.
        """
        with error_context(table=self._target.context.uri):
            rows = deletes(keys, schema=self._known().schema)
        return self._queue(rows, rows.nbytes).result()

    def submit(self, data: ArrowLike) -> Future[Committed]:
        """Queue whole rows to upsert. The future is done when they are durable and visible.

        A single row is checked and copied, and converted later together with others: the fastest form is a dict of
        plain values. If a value of it does not fit its column (out of range, null where none may be, text that is not
        UTF-8), its future fails, and no other. Arrow data is not copied: don't change its buffers.

        The future can't be cancelled, since its rows share an entry with those of other callers. Its callbacks must
        not wait for this writer. It fails with the errors of `upsert`.

        Raises:
            Invalid: a column is unknown or missing, a value has a type that the column never accepts, one of several
                rows does not fit, or the writer is closed. Nothing was queued.
            Unavailable: the buffer is full. Nothing was queued: wait for earlier futures, then submit again.
        """
        try:
            rows = self._taken(data)
        except LsmError as error:
            error.where = {"table": self._target.context.uri, **error.where}
            raise
        return self._queue(rows, rows.size if isinstance(rows, SingleRow) else rows.nbytes)

    def _taken(self, data: Any) -> pa.Table | SingleRow:
        known = self._known()
        if type(data) is not dict:
            data = readable_again(data)
        try:
            return known.take(data)
        except Invalid:  # the table may have other columns by now
            newest = self._newer(known)
            if newest is None:
                raise
            return newest.take(data)

    def _newer(self, known: SingleRows) -> SingleRows | None:
        """Return what converts rows to the columns of now, if they are newer; None also if that can't be found out."""
        with suppress(Unavailable):
            newest = self._learn_columns(known)
            return None if newest is known else newest
        return None

    def _known(self) -> SingleRows:
        """Return what converts rows to the newest columns that a head of an append has named."""
        known = self._rows
        return self._learn_columns(known) if self._named_version > known.schema.version else known

    def _learn_columns(self, known: SingleRows) -> SingleRows:
        schema = newest_columns(self._target.context, known.schema)
        with self._buffer.lock:
            if schema.version > self._rows.schema.version:
                self._rows = SingleRows(schema)
            return self._rows

    async def submit_async(self, data: ArrowLike) -> Committed:
        """`submit` for asyncio: return when the rows are durable and visible. Cancelling does not cancel the write."""
        return await asyncio.wrap_future(self.submit(data))

    def close(self) -> None:
        """Wait for everything that was submitted, then give back exclusive regions. Idempotent.

        In a forked child it does nothing: the process that opened the writer has its threads, rows and regions.

        Raises:
            Unavailable, Ambiguous, Contended, Corrupt: a region could not be given back. Close again, or claim it.
        """
        if self._is_forked:
            return
        with self._buffer.lock:
            self._closed = True
        # Each step can be repeated: after a Ctrl-C, a second call must still give regions back.
        self._finish()
        if self._exclusive:
            self._regions.release()

    def _finish(self) -> None:
        """Wait for everything that was submitted."""
        self._routing_pool.finish()
        self._pool.finish()

    def _queue(self, rows: pa.Table | SingleRow, size: int) -> Future[Committed]:
        if self._is_forked:
            raise Invalid(
                "the writer was opened before this process was forked",
                remedy="Open a table and a writer in each process",
                table=self._target.context.uri,
            )
        waiting = Submission(rows, size)
        buffer = self._buffer
        with buffer.lock:
            if self._closed:
                raise Invalid("the writer is closed", remedy="Open a new writer", table=self._target.context.uri)
            if buffer.size and buffer.size + size > self._target.settings.buffer_bytes:
                raise Unavailable(
                    f"the writer buffers {buffer.size} bytes that are not acknowledged yet",
                    remedy="Wait for earlier writes, then submit again",
                    table=self._target.context.uri,
                )
            if rows.num_rows:
                buffer.size += size
                if self._only_region is not None:
                    self._put(self._only_region, waiting)
                elif self._unrouted.put(waiting):
                    self._routing_pool.submit(self._unrouted.run)
        if not rows.num_rows:
            waiting.set_result(committed(()))
        return waiting

    def _put(self, values: RegionValues, waiting: Waiting) -> None:
        """Queue rows for a region."""
        queue = self._queues.get(values)
        if queue is None:
            queue = self._queues[values] = self._new_queue(partial(self._append, values), self._seconds)
        if queue.put(waiting):
            self._pool.submit(queue.run)

    def _new_queue(self, handle: Callable[[list[Waiting]], None], seconds: float) -> GroupQueue:
        most_bytes = self._target.settings.group_commit_bytes
        return GroupQueue(handle, clock=self._target.context.clock, seconds=seconds, most_bytes=most_bytes)

    def _append(self, values: RegionValues, group: list[Waiting]) -> None:
        """Append a group to its region as one entry."""
        shares, tables = self._converted(group)
        if not tables:
            return
        rows = _together(tables, group, self._rows.schema)
        try:
            writer = self._regions.of(values, target=self._target)
            writer.start(rows, partial(self._settle, shares))
            self._named_version = max(self._named_version, writer.schema_version)
        except SealedRegion as sealed:
            self._append_again(rows, shares, sealed)
        except BaseException as error:  # noqa: BLE001 - the futures of these rows must fail
            self._settle(shares, error)

    def _settle(self, shares: list[Share], outcome: CommittedEntry | BaseException) -> None:
        if isinstance(outcome, SealedRegion):  # only if several entries are in flight
            outcome = Contended(
                "the table was resharded while the entry was written",
                remedy="It is not in the log: write its rows again",
                table=self._target.context.uri,
            )
        elif isinstance(outcome, Corrupt):
            outcome = self._drop() or outcome
        self._buffer.settle(shares, outcome)

    def _drop(self) -> LsmError | None:
        """Return the error for a table that was dropped; None if it was not: something else is missing."""
        try:
            check_not_dropped(self._target.context)
        except Exception as error:  # noqa: BLE001 - the futures must fail, whatever happens here
            return error if isinstance(error, Invalid) else None
        return None

    def _append_again(self, rows: pa.Table, shares: list[Share], sealed: SealedRegion) -> None:
        """Append rows of a region that a reshard has sealed to the regions where their keys are now.

        The queue of the old region calls this for one group after the other, so the rows of a key stay in order.
        """
        target = self._target
        while rows.num_rows:
            try:
                target = self._regions.after_reshard(target, sealed)
                parts = _routed(rows, shares, target)
            except BaseException as error:  # noqa: BLE001 - the futures of these rows must fail
                self._buffer.settle(shares, error)
                return
            self._buffer.split(shares, [part.shares for _, part in parts])
            left: list[RegionPart] = []
            for values, part in parts:
                try:
                    self._buffer.settle(part.shares, self._regions.of(values, target=target).append(part.rows))
                except SealedRegion as again:
                    sealed = again
                    left.append(part)
                except BaseException as error:  # noqa: BLE001 - the futures of these rows must fail
                    self._settle(part.shares, error)
            rows = pa.concat_tables([part.rows for part in left]) if left else rows.slice(0, 0)
            shares = [share for part in left for share in part.shares]

    def _route(self, group: list[Waiting]) -> None:
        """Split a group by region, and queue each part for its region."""
        shares, tables = self._converted(group)
        if not tables:
            return
        try:
            rows = _together(tables, group, self._rows.schema)
            routed = _routed(rows, shares, self._target)
        except BaseException as error:  # noqa: BLE001 - the futures of these rows must fail
            self._buffer.settle(shares, error)
            return
        with self._buffer.lock:
            self._buffer.split(shares, [waiting.shares for _, waiting in routed])
            for values, waiting in routed:
                self._put(values, waiting)

    def _converted(self, group: list[Waiting]) -> tuple[list[Share], list[pa.Table]]:
        """Convert the single rows of a group. Settle those that do not fit; return the others and all other rows."""
        shares: list[Share] = []
        tables: list[pa.Table] = []
        for converter, some in groupby(group, key=lambda waiting: getattr(waiting.rows, "converter", None)):
            members = list(some)
            if converter is None:
                shares += [share for waiting in members for share in waiting.shares]
                tables += [waiting.rows for waiting in members]
                continue
            found: list[Share] = [(waiting, 1) for waiting in members if isinstance(waiting, Submission)]
            try:
                done = 0
                for rows, first in converter.convert([waiting.rows for waiting in members]):
                    some_shares = found[done : done + len(rows)]
                    done += len(rows)
                    outcome = self._converted_again(rows[0], first) if isinstance(first, Invalid) else first
                    if isinstance(outcome, Invalid):
                        outcome.where = {"table": self._target.context.uri, **outcome.where}
                        self._buffer.settle(some_shares, outcome)
                    else:
                        shares += some_shares
                        tables.append(outcome)
            except BaseException as error:  # noqa: BLE001 - the futures of these rows must fail
                self._buffer.settle(found[done:], error)
        return shares, tables

    def _converted_again(self, row: SingleRow, error: Invalid) -> pa.Table | Invalid:
        """Convert a row that does not fit the columns that it was taken for to those of now, if they are newer."""
        try:
            newest = self._newer(row.converter)
            return error if newest is None else newest.upserts(row)
        except Invalid as now:
            return now


_OPEN: Final = weakref.WeakSet[Writer]()


def _disown_all() -> None:
    """Mark all writers in a forked child, which has none of their threads."""
    for writer in _OPEN:
        writer._is_forked = True
    _OPEN.clear()


os.register_at_fork(after_in_child=_disown_all)


@atexit.register
def _finish_open() -> None:
    """Wait, at the end of the process, for what was submitted to writers that nobody closed."""
    for writer in list(_OPEN):
        writer._finish()


def _routed(rows: pa.Table, shares: list[Share], target: WriteTarget) -> list[tuple[RegionValues, RegionPart]]:
    """Split the rows of several submissions by region, with the share that each submission has in a region."""
    owners = pa.array([number for number, (_, count) in enumerate(shares) for _ in range(count)], pa.int32())
    routed = []
    for part in route(rows.append_column(_SUBMISSION, owners), target.regions):
        counts = part.rows.column(_SUBMISSION).value_counts()
        numbers, times = counts.field("values").to_pylist(), counts.field("counts").to_pylist()
        members = [(shares[number][0], count) for number, count in zip(numbers, times, strict=True)]
        part_rows = part.rows.drop_columns([_SUBMISSION])
        routed.append((part.values, RegionPart(part_rows, part_rows.nbytes, members)))
    return routed


def _together(tables: list[pa.Table], group: list[Waiting], schema: TableSchema) -> pa.Table:
    """Concatenate the tables of a group, in the newest columns.

    Small chunks are combined: each would cost more than its rows.
    """
    rows = pa.concat_tables(
        [table if version_of(table.schema) == schema.version else conform(table, schema) for table in tables]
    )
    if len(tables) > 1 and sum(waiting.size for waiting in group) < _SMALL * len(tables):
        with suppress(pa.ArrowNotImplementedError):  # pyarrow can't combine dictionaries inside other types
            return rows.combine_chunks()
    return rows
