"""Start what is due in the tables of a deployment, and nothing else: so nothing runs where nothing is written.

The registry's index says which regions the base may lag behind; what is due is decided from their heads, read strongly.
Nobody's safety rests on it: a flush or a merge that is started twice finds nothing to do.

A flush is due by the settings of the table: rows, bytes, or for how long the base has lagged. A merge is due by pending
generations or by that time; a generation counts as pending until the merger has told the head. A region that is marked
but holds nothing any more is left alone: the merger takes the mark away.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import Any, Protocol

from lancelsm.common import aws
from lancelsm.common.layout import Generation, Key, RegionId, TableId, table_key
from lancelsm.common.settings import Settings
from lancelsm.errors import Invalid, error_context
from lancelsm.region.catalog import Region, regions, with_heads
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.handle import TableHandle
from lancelsm.region.head import Head
from lancelsm.registry import Record

_NAME_DIGITS = 16


class DirtyRegistry(Protocol):
    """The registry of a deployment, as a schedule sees it."""

    def read(self, key: Key) -> Record | None: ...

    def dirty(self) -> list[tuple[TableId, RegionId, str]]:
        """Regions that the base may lag behind; late, and for schedules alone."""
        ...


class Work(Protocol):
    """Starts work elsewhere, and does not wait for it."""

    def flush(self, table: str) -> None:
        """Start a flush of a table."""
        ...

    def merging(self) -> Sequence[str]:
        """The names of the merges that run now; may be late by seconds."""
        ...

    def merge(self, table: str, *, name: str) -> str:
        """Start a merge of a table, unless one of that name was ever started; returns what identifies it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far the base is behind one region."""

    region: RegionId
    rows: int  # not in a generation yet
    bytes: int
    newest: Generation
    merged: Generation  # as the merger told the head
    since: float  # in Unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What a table needs now. `merge` names the merge: nobody starts two of one name."""

    flush: bool
    merge: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """What was started, and which tables could not be looked at or served, and why."""

    flushed: tuple[str, ...]
    merges: tuple[str, ...]
    failed: Mapping[str, Exception]


def due(table: TableId, lags: Iterable[Lag], *, settings: Settings, now: float) -> Due:
    """What a table needs, from what its regions hold.

    A merge's name is made of the table, what is pending, and how many times the age at which a merge is due has passed
    since the base began to lag. So two schedules at once start one, new generations get a merge of their own, and one
    that failed is started again after that age.
    """
    flush, waiting, merge_is_due = False, [], False
    for lag in lags:
        age, pending = now - lag.since, lag.newest - lag.merged
        large = lag.rows >= settings.flush_rows or lag.bytes >= settings.flush_bytes
        flush |= lag.rows > 0 and (large or age >= settings.flush_age_seconds)
        if pending > 0:
            waiting.append(lag)
            merge_is_due |= pending >= settings.merge_generations or age >= settings.merge_age_seconds
    if not merge_is_due:
        return Due(flush=flush, merge=None)
    oldest = min(lag.since for lag in waiting)
    parts = [
        sorted((lag.region, lag.newest, lag.merged) for lag in waiting),
        int((now - oldest) // settings.merge_age_seconds),
    ]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return Due(flush=flush, merge=f"{table}-{digest[:_NAME_DIGITS]}")


def next_collection(table: TableId, *, settings: Settings, now: float) -> tuple[str, str]:
    """The collection that takes what a merge has left now: its name, and when it begins, in ISO 8601.

    Time is cut into spans of twice `collect_interval_seconds`, and one collection begins at the end of a span for all
    merges in it. So nothing is left behind by the last merge, and a round is swept, an interval after its commit,
    before the next one can supersede it.
    """
    span = max(1, ceil(2 * settings.collect_interval_seconds))
    end = datetime.fromtimestamp((now // span + 1) * span, tz=UTC)
    return f"{table}-{end:%Y%m%dT%H%M%S}", f"{end:%Y-%m-%dT%H:%M:%SZ}"


def dispatch(
    registry: DirtyRegistry, *, open_table: Callable[[str], TableHandle], work: Work, only: str | None = None
) -> Dispatched:
    """Start what is due in every table that has something.

    One table that can't be read does not keep the others from being served.

    Args:
        open_table: from a table's URI, without Lance.
        only: the URI of one table, instead of all.

    Raises:
        Unavailable: the registry did not answer; nothing was started.
    """
    marked: dict[TableId, set[RegionId]] = {}
    for table, region, _ in registry.dirty():
        marked.setdefault(table, set()).add(region)
    flushed: list[str] = []
    merges: list[str] = []
    failed: dict[str, Exception] = {}
    for table, wanted in sorted(marked.items()):
        place = str(table)
        try:
            place = _place(registry, table)
            if only not in (None, place):
                continue
            handle = _opened(place, table, open_table)
            needs = due(table, _lags(handle, wanted), settings=handle.settings, now=handle.context.clock.now())
            if needs.flush:
                work.flush(place)
                flushed.append(place)
            if needs.merge is not None and not any(name.startswith(table) for name in work.merging()):
                merges.append(work.merge(place, name=needs.merge))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one table, the others are served
            failed[place] = error
    return Dispatched(flushed=tuple(flushed), merges=tuple(merges), failed=failed)


class Elsewhere:
    """Work in this account: a function is invoked and not waited for, a state machine is started.

    Args:
        compaction: the name of the function that flushes.
        machine: the ARN of the state machine that merges.
        service: AWS clients by service.

    Raises:
        Invalid: at a call: there is no such function or machine, or the role lacks the grant.
        Unavailable: at a call: it may or may not have been started. Once more does no harm.
    """

    def __init__(self, *, compaction: str, machine: str, service: Callable[[str], Any] = aws.client) -> None:
        self._compaction = compaction
        self._machine = machine
        self._service = service
        self._merging: list[str] | None = None

    def flush(self, table: str) -> None:
        with _aws_errors("the flush can't be started", table=table):
            body = json.dumps({"table": table}).encode()
            self._service("lambda").invoke(FunctionName=self._compaction, InvocationType="Event", Payload=body)

    def merging(self) -> Sequence[str]:
        if self._merging is None:
            with _aws_errors("running merges can't be listed", machine=self._machine):
                pages = self._service("stepfunctions").get_paginator("list_executions")
                listed = pages.paginate(stateMachineArn=self._machine, statusFilter="RUNNING")
                self._merging = [one["name"] for page in listed for one in page["executions"]]
        return self._merging

    def merge(self, table: str, *, name: str) -> str:
        states = self._service("stepfunctions")
        with _aws_errors("the merge can't be started", table=table), suppress(states.exceptions.ExecutionAlreadyExists):
            states.start_execution(stateMachineArn=self._machine, name=name, input=json.dumps({"table": table}))
        return f"{self._machine.replace(':stateMachine:', ':execution:')}:{name}"


@contextmanager
def _aws_errors(doing: str, **where: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise aws.translated(error, doing=doing, **where) from error


def _place(registry: DirtyRegistry, table: TableId) -> str:
    record = registry.read(table_key(table))
    if record is None:
        raise Invalid("the registry has regions of a table that it does not know", remedy="Rebuild it", table=table)
    return str(record["uri"])


def _opened(place: str, table: TableId, open_table: Callable[[str], TableHandle]) -> TableHandle:
    handle = open_table(place)
    if handle.config.table != table:
        raise Invalid(
            f"another table, {handle.config.table}, is at the place of {table}",
            remedy="Remove the records of the old one from the registry",
            table=place,
        )
    return handle


def _lags(handle: TableHandle, wanted: set[RegionId]) -> list[Lag]:
    """Of the marked regions, as their heads say now."""

    def lag(found: tuple[Region, Head]) -> Lag:
        with error_context(**found[0].where):
            head, manifest = newest(*found)
            return Lag(
                region=found[0].id,
                rows=head.wal_rows - manifest.wal_rows,
                bytes=head.wal_bytes - manifest.wal_bytes,
                newest=manifest.newest,
                merged=head.merged,
                since=float(head.dirty),
            )

    heads = with_heads(handle.context, [one for one in regions(handle.context) if one.id in wanted])
    return handle.context.each(lag, [(region, head) for region, head in heads if head.dirty])
