"""Start flushes and merges that are due in the tables of a deployment. Nothing runs for tables without writes.

The registry's index `dirty` lists regions whose base may lag behind (`stack.fan_out`). What is due is then decided from
their heads, read with consistency. No safety depends on this module: a flush or merge that is started twice finds
nothing to do.

A flush of a region is due by the table's settings for rows, bytes, or the time since the base began to lag. Regions
with small logs share an invocation. A region whose flush still runs is left out (`region.lease.flush_lease`). A merge
is due by the number of generations flushed since the last one, or by that time. A generation counts as pending until
the merger has recorded its merge in the head. A compaction of a region is due if it has more than `max_generations`
pending ones and can replace some of them: those that Lance's writer flushed stay, and those that are too large for a
function. While a merge is due or runs, it is due only if there are more than twice as many, since the merge reads them
all. A dirty region without data is skipped; the merger clears the field.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil
from typing import Any, Protocol

from lancelsm.common import aws
from lancelsm.common.layout import Generation, Key, RegionId, TableId, table_key
from lancelsm.common.settings import Settings
from lancelsm.compaction.pace import Pace
from lancelsm.compaction.tiers import FUNCTION_BYTES, due_parts
from lancelsm.errors import Corrupt, Invalid, error_context
from lancelsm.objects.location import is_absolute
from lancelsm.region.catalog import Region, regions, with_heads
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.handle import TableHandle
from lancelsm.region.head import Head
from lancelsm.region.lease import compaction_lease, flush_lease, is_held
from lancelsm.registry import Record
from lancelsm.stack.backlog import Backlog, Measure, backlog_of, measures
from lancelsm.stack.fan_out import DirtyRegions

_NAME_DIGITS = 16
_GROUP_REGIONS = 64  # an event of this many region ids has 2.5 KB


class TableRecords(Protocol):
    """What `dispatch` needs from the registry of a deployment."""

    def read(self, key: Key) -> Record | None: ...


class Work(Protocol):
    """Starts work without waiting for it."""

    def flush(self, table: str, *, regions: Sequence[RegionId]) -> None:
        """Start a flush of regions of a table."""
        ...

    def compact(self, table: str, *, regions: Sequence[RegionId]) -> None:
        """Start a compaction of the generations of regions of a table."""
        ...

    def running_merges(self) -> Sequence[str]:
        """Return the names of merges that run now; the list may be seconds late."""
        ...

    def merge(self, table: str, *, name: str) -> str:
        """Start a merge of a table unless one with this name was ever started. Return its identifier."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far the base lags behind one region."""

    region: RegionId
    rows: int  # rows that are not in a generation yet
    bytes: int
    newest: Generation
    merged: Generation  # recorded in the head by the merger
    live: int  # pending generations; a compacted one counts once
    compactable: bool  # whether a compaction would replace some of them
    since: float  # when the base began to lag, in Unix seconds
    waiting: Backlog = field(default_factory=Backlog)


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What is due in a table now.

    Args:
        flush: groups of regions; each group is flushed by one invocation.
        merge: the name of the merge; a name is started only once.
        compact: regions to compact unless a merge runs.
        crowded: those of them to compact even then.
    """

    flush: tuple[tuple[RegionId, ...], ...]
    merge: str | None
    compact: tuple[RegionId, ...] = ()
    crowded: tuple[RegionId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """What was started, the tables that failed, with their errors, and the tables for which there was no time.

    `waiting` has what waits in the tables that were read, as of before the work was started.
    """

    flushed: tuple[str, ...]
    merges: tuple[str, ...]
    compacted: tuple[str, ...]
    failed: Mapping[str, Exception]
    left: DirtyRegions
    waiting: Mapping[str, tuple[Measure, ...]] = field(default_factory=dict)


def due(table: TableId, lags: Iterable[Lag], *, settings: Settings, now: float) -> Due:
    """Decide what is due in a table from what its regions hold.

    The name of a merge depends on the table, on what is pending, and on how many times `merge_age_seconds` has passed
    since the base began to lag. So two concurrent schedules start one merge, new generations get a new merge, and a
    failed merge is started again after that time.
    """
    flush: list[Lag] = []
    waiting: list[Lag] = []
    merge_is_due = False
    lags = tuple(lags)
    for lag in lags:
        age, pending = now - lag.since, lag.newest - lag.merged
        large = lag.rows >= settings.flush_rows or lag.bytes >= settings.flush_bytes
        if lag.rows > 0 and (large or age >= settings.flush_age_seconds):
            flush.append(lag)
        if pending > 0:
            waiting.append(lag)
            merge_is_due |= pending >= settings.merge_generations or age >= settings.merge_age_seconds
    compact = tuple(lag.region for lag in lags if lag.compactable)
    crowded = tuple(lag.region for lag in lags if lag.compactable and lag.live > 2 * settings.max_generations)
    groups = tuple(_groups(flush, bytes_max=settings.flush_bytes))
    if not merge_is_due:
        return Due(flush=groups, merge=None, compact=compact, crowded=crowded)
    oldest = min(lag.since for lag in waiting)
    parts = [
        sorted((lag.region, lag.newest, lag.merged) for lag in waiting),
        int((now - oldest) // settings.merge_age_seconds),
    ]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return Due(flush=groups, merge=f"{table}-{digest[:_NAME_DIGITS]}", compact=crowded, crowded=crowded)


def _groups(lags: Iterable[Lag], *, bytes_max: int) -> Iterator[tuple[RegionId, ...]]:
    """Divide regions into groups, each with at most this many bytes of log; a larger region is a group of its own."""
    group: list[RegionId] = []
    size = 0
    for lag in sorted(lags, key=lambda one: (one.bytes, one.region)):
        if group and (size + lag.bytes > bytes_max or len(group) == _GROUP_REGIONS):
            yield tuple(group)
            group, size = [], 0
        group.append(lag.region)
        size += lag.bytes
    if group:
        yield tuple(group)


def next_collection(table: TableId, *, settings: Settings, now: float) -> tuple[str, str]:
    """Return name and start time (ISO 8601) of the collection that takes what a merge leaves now.

    Time is divided into spans of twice `collect_interval_seconds`. One collection starts at the end of a span, for all
    merges in it. So the last merge is collected too, and a round is swept, one interval after its commit, before the
    next round can supersede it.
    """
    span = max(1, ceil(2 * settings.collect_interval_seconds))
    end = datetime.fromtimestamp((now // span + 1) * span, tz=UTC)
    return f"{table}-{end:%Y%m%dT%H%M%S}", f"{end:%Y-%m-%dT%H:%M:%SZ}"


def dispatch(
    registry: TableRecords,
    dirty: DirtyRegions,
    *,
    open_table: Callable[[str], TableHandle],
    work: Work,
    only: str | None = None,
    pace: Pace | None = None,
) -> Dispatched:
    """Start what is due in these tables, in this order. An error in one table does not stop the others.

    Args:
        open_table: opens a table by its URI, without Lance.
        only: the URI of one table; by default all tables.
        pace: the time; by default there is no limit. The first table is always served.
    """
    flushed: list[str] = []
    merges: list[str] = []
    compacted: list[str] = []
    failed: dict[str, Exception] = {}
    waiting: dict[str, tuple[Measure, ...]] = {}
    left = dict(dirty)
    for table, wanted in dirty.items():
        if len(left) < len(dirty) and pace is not None and not pace.has_time(1, 1):
            break
        del left[table]
        uri = str(table)
        try:
            uri = _table_uri(registry, table)
            if only not in (None, uri):
                continue
            handle = _open_checked(uri, table, open_table)
            lags, now = _lags(handle, wanted), handle.context.clock.now()
            waiting[uri] = tuple(measures(((lag.region, lag.waiting) for lag in lags), now=now))
            needs = due(table, lags, settings=handle.settings, now=now)
            groups = [free for group in needs.flush if (free := _free(handle, group))]
            for group in groups:
                work.flush(uri, regions=group)
            flushed += [uri] if groups else []
            has_work = needs.merge is not None or bool(needs.compact)
            is_merging = has_work and any(name.startswith(table) for name in work.running_merges())
            if compact := _free(handle, needs.crowded if is_merging else needs.compact, lease=compaction_lease):
                for start in range(0, len(compact), _GROUP_REGIONS):
                    work.compact(uri, regions=compact[start : start + _GROUP_REGIONS])
                compacted.append(uri)
            if needs.merge is not None and not is_merging:
                merges.append(work.merge(uri, name=needs.merge))
        except Exception as error:  # noqa: BLE001 - an error in one table must not stop the others
            failed[uri] = error
    return Dispatched(
        flushed=tuple(flushed),
        merges=tuple(merges),
        compacted=tuple(compacted),
        failed=failed,
        left=left,
        waiting=waiting,
    )


class AwsWork:
    """Work in this AWS account: invokes a function without waiting, starts a state machine.

    Args:
        compaction: the name of the function that flushes and compacts generations.
        machine: the ARN of the state machine that merges.
        service: creates AWS clients.

    Raises:
        Invalid: at a call: function or machine not found, or the role lacks a grant.
        Unavailable: at a call: the work may or may not have been started. Starting it again does no harm.
    """

    def __init__(self, *, compaction: str, machine: str, service: Callable[[str], Any] = aws.client) -> None:
        self._compaction = compaction
        self._machine = machine
        self._service = service
        self._running: list[str] | None = None
        self._starts: list[float] = []

    def flush(self, table: str, *, regions: Sequence[RegionId]) -> None:
        with _aws_errors("the flush can't be started", table=table):
            self._invoke({"table": table, "regions": list(regions)})

    def compact(self, table: str, *, regions: Sequence[RegionId]) -> None:
        with _aws_errors("the compaction can't be started", table=table):
            self._invoke({"table": table, "compact": list(regions)})

    def _invoke(self, event: Mapping[str, object]) -> None:
        body = json.dumps(event).encode()
        self._service("lambda").invoke(FunctionName=self._compaction, InvocationType="Event", Payload=body)

    def running_merges(self) -> Sequence[str]:
        if self._running is None:
            with _aws_errors("running merges can't be listed", machine=self._machine):
                pages = self._service("stepfunctions").get_paginator("list_executions")
                listed = pages.paginate(stateMachineArn=self._machine, statusFilter="RUNNING")
                executions = [one for page in listed for one in page["executions"]]
            self._running = [one["name"] for one in executions]
            self._starts = [one["startDate"].timestamp() for one in executions]
        return self._running

    def longest_merge(self, *, now: float) -> float:
        """Return for how many seconds the oldest merge has run, of those that were listed; 0 if none was.

        A merge whose job waits for capacity runs. EMR Serverless has no metric of jobs in its queue.
        """
        return max((now - start for start in self._starts), default=0.0)

    def merge(self, table: str, *, name: str) -> str:
        states = self._service("stepfunctions")
        with _aws_errors("the merge can't be started", table=table), suppress(states.exceptions.ExecutionAlreadyExists):
            states.start_execution(stateMachineArn=self._machine, name=name, input=json.dumps({"table": table}))
        return f"{self._machine.replace(':stateMachine:', ':execution:')}:{name}"


@contextmanager
def _aws_errors(doing: str, **where: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - optional dependency

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise aws.translated(error, doing=doing, **where) from error


def _table_uri(registry: TableRecords, table: TableId) -> str:
    record = registry.read(table_key(table))
    if record is None:
        raise Invalid(
            "the registry has regions of an unknown table", remedy="Rebuild the table's registry", table=table
        )
    uri = str(record["uri"])
    if not is_absolute(uri):
        what = f"the registry names a location that is neither an absolute path nor a URL: {uri!r}"
        raise Corrupt(what, remedy="Correct this field of the record of the table", table=table, field="uri")
    return uri


def _open_checked(uri: str, table: TableId, open_table: Callable[[str], TableHandle]) -> TableHandle:
    handle = open_table(uri)
    if handle.config.table != table:
        raise Invalid(
            f"another table, {handle.config.table}, is at the location of {table}",
            remedy=f"Remove the records of the old table from the registry: those with {table} in their keys",
            table=uri,
        )
    return handle


def _free(
    handle: TableHandle, group: Sequence[RegionId], *, lease: Callable[[RegionId], str] = flush_lease
) -> list[RegionId]:
    """Return the regions of a group whose lease is free: no invocation flushes (or compacts) them now."""
    return [region for region in group if not is_held(handle.context, lease(region))]


def _lags(handle: TableHandle, wanted: Sequence[RegionId] | None) -> list[Lag]:
    """Read the current heads of these regions; None: of all regions."""
    only = None if wanted is None else set(wanted)
    most = handle.settings.max_generations

    def lag(found: tuple[Region, Head]) -> Lag:
        with error_context(**found[0].where):
            head, manifest = newest(*found)
            return Lag(
                region=found[0].id,
                rows=head.wal_rows - manifest.wal_rows,
                bytes=head.wal_bytes - manifest.wal_bytes,
                newest=manifest.newest,
                merged=head.merged,
                compactable=bool(due_parts(manifest, head.merged, most=most, bytes_max=FUNCTION_BYTES)),
                live=sum(one.generation > head.merged for one in manifest.generations),
                since=float(head.dirty),
                waiting=backlog_of(head, manifest),
            )

    heads = with_heads(handle.context, [one for one in regions(handle.context) if only is None or one.id in only])
    return handle.context.each(lag, [(region, head) for region, head in heads if head.dirty])
