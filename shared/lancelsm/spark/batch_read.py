"""Split a read into parts for tasks that all see one view of the table, and read a part. Needs no Spark.

The view is that of a snapshot with a time to live. There is no hook after a query that could drop the snapshot, so
tasks renew it and it expires by itself. Its name is one of a pool: on an object store, the record of a name stays after
the snapshot is dropped. If no name is free or the process must not write, tasks read the same state without a
snapshot: a collection deletes nothing of it before `collect_interval_seconds`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from lancelsm.common.bounded_cache import BoundedCache
from lancelsm.common.layout import RegionId
from lancelsm.common.renewal import Renewal
from lancelsm.dataset.base_manifest import Fragment
from lancelsm.dataset.base_table import BaseTable, open_base
from lancelsm.dataset.conditions import read_condition
from lancelsm.errors import Corrupt, Invalid, LsmError
from lancelsm.history.pin_records import Pin, RegionPin
from lancelsm.history.snapshot import (
    RENEWALS,
    check_readable,
    create_snapshot,
    drop_snapshot,
    find_snapshot,
    list_snapshots,
    renewal_step,
    snapshot_errors,
    state,
    view_at,
)
from lancelsm.read import reader
from lancelsm.read.live_rows import PartOfView
from lancelsm.read.pruning.region_pruning import pruned_view
from lancelsm.read.view import View
from lancelsm.record.schema import unknown_column
from lancelsm.region.handle import TableHandle, open_table
from lancelsm.spark.arrow_types import spark_batch, spark_schema
from lancelsm.spark.filters import taken_filters

SNAPSHOT_NAMES = 64
_PREFIX = "spark-"
_TRIES = 3
_ROWS_PER_PART = 500_000  # of the base: a task takes about a second
_ENTRIES_PER_PART = 16  # of regions
_ENTRIES_PER_GENERATION = 4
_KEPT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What to read.

    Args:
        columns: their names, in order; all by default.
        where: a condition, see `Table.scan`.
        at: the name of a snapshot.
        ttl_seconds: the time to live of the snapshot that is made for the query.

    Raises:
        Invalid: the time to live is 0.
    """

    uri: str
    columns: tuple[str, ...] | None = None
    where: str | None = None
    at: str | None = None
    ttl_seconds: float = 900.0

    def __post_init__(self) -> None:
        if self.ttl_seconds <= 0:
            raise Invalid("the time to live is 0", remedy="Give seconds, or text such as 15m or 1h", field="ttl")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPoint:
    """The state of a table that all tasks of a query read.

    Args:
        snapshot: keeps this state. None: it can be read for `collect_interval_seconds` after `taken`.
        now: rows that have expired at this time, in Unix seconds, are left out.
        renewed: the snapshot was made for the query, so that tasks renew it.
    """

    version: int
    regions: Mapping[RegionId, RegionPin]
    snapshot: Pin | None
    renewed: bool
    taken: float
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPart:
    """The rows of one task: fragments of the base, or the generations and the logs of regions.

    Args:
        span: of the rows of the fragments, the first that the task reads, and how many.
    """

    point: ReadPoint
    fragments: tuple[int, ...] | None = None
    span: tuple[int, int] | None = None
    regions: tuple[RegionId, ...] = ()


def declared_schema(request: ReadRequest) -> pa.Schema:
    """Return the schema of the rows in Spark.

    Raises:
        Invalid: there is no such table, snapshot or column, or Spark has no type for a column.
    """
    handle = open_table(request.uri)
    columns = _stored_columns(handle, request)
    names = columns.names if request.columns is None else list(request.columns)
    if unknown := [name for name in names if name not in columns.names]:
        raise unknown_column(unknown[0], columns.names, table=handle.context.uri)
    return spark_schema(pa.schema([columns.field(name) for name in names]))


def filtered_request(request: ReadRequest, filters: Iterable[Any]) -> tuple[ReadRequest, list[Any]]:
    """Return a request for rows that also pass the filters of Spark, and the filters that Spark must still apply.

    Raises:
        Invalid: the condition of the request is not valid.
    """
    handle = open_table(request.uri)
    columns = _stored_columns(handle, request)
    conditions, left = taken_filters(filters, columns)
    if request.where is not None:
        read_condition(request.where, columns=columns, table=handle.context.uri)  # alone, since it gets parentheses
        conditions.insert(0, f"{request.where}\n")  # it may end with a comment
    where = " AND ".join(f"({one})" for one in conditions) if conditions else None
    return replace(request, where=where), left


def _stored_columns(handle: TableHandle, request: ReadRequest) -> pa.Schema:
    if request.at is None:
        return handle.config.schema.columns
    pin = _named(handle, request.at)
    base = open_base(uri=handle.context.uri, version=pin.pinned_version, storage_options=handle.storage_options)
    return base.schema.columns


def parts(request: ReadRequest) -> list[TaskPart]:
    """Take one view of the table and split it. Reads no rows.

    Raises:
        Invalid: there is no such table or snapshot.
        Corrupt, Unavailable: see `Table.snapshot`.
    """
    handle = open_table(request.uri)
    point = _read_point(handle, request)
    base = open_base(uri=handle.context.uri, version=point.version, storage_options=handle.storage_options)
    above = {one: _levels(needs, base, one) for one, needs in sorted(point.regions.items())}
    filtered = request.where is not None or base.expiry(point.now) is not None
    return [
        *(
            TaskPart(point=point, fragments=group, span=span)
            for group, span in grouped(base.fragments, cut=not filtered)
        ),
        *(TaskPart(point=point, regions=regions) for regions in grouped_regions(above)),
    ]


def grouped_regions(levels: Mapping[RegionId, tuple[int, int]]) -> list[tuple[RegionId, ...]]:
    """Group regions for tasks by their numbers of entries and generations. A region without both is in no group.

    A task of Spark costs more than to read a few entries.
    """
    groups: list[tuple[RegionId, ...]] = []
    group: list[RegionId] = []
    size = 0
    for region, (entries, generations) in levels.items():
        weight = entries + _ENTRIES_PER_GENERATION * generations
        if group and size + weight > _ENTRIES_PER_PART:
            groups.append(tuple(group))
            group, size = [], 0
        if weight:
            group.append(region)
            size += weight
    return [*groups, tuple(group)] if group else groups


def grouped(
    fragments: Sequence[Fragment], *, rows: int = _ROWS_PER_PART, cut: bool = True
) -> list[tuple[tuple[int, ...], tuple[int, int] | None]]:
    """Group fragments in order, each group with at least this many rows, except the last.

    Args:
        cut: cut a fragment with more rows into spans of about so many. The number of rows that match a filter is not
            known, so they can't be cut.
    """
    groups: list[tuple[tuple[int, ...], tuple[int, int] | None]] = []
    group: list[int] = []
    size = 0
    for one in fragments:
        count = max(1, round(one.rows / rows)) if cut else 1
        if count > 1:
            ends = [one.rows * number // count for number in range(count + 1)]
            groups += [((one.id,), (start, end - start)) for start, end in pairwise(ends)]
            continue
        group.append(one.id)
        size += one.rows
        if size >= rows:
            groups.append((tuple(group), None))
            group, size = [], 0
    return [*groups, (tuple(group), None)] if group else groups


def read_part(request: ReadRequest, part: TaskPart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read the rows of a part under the declared schema. Renews the snapshot of the query meanwhile.

    Raises:
        Invalid: the snapshot was dropped or has expired, or a value does not fit Spark's type.
        Corrupt, Unavailable: see `Table.scan`.
    """
    handle = open_table(request.uri)
    pin = part.point.snapshot
    if pin is None:
        yield from _unkept(handle, request, part, schema)
        return
    with snapshot_errors(handle.context, pin):
        check_readable(handle.context, pin)
        if not part.point.renewed:
            yield from _batches(handle, request, part, schema)
            return

        renew = renewal_step(handle, pin, ttl_seconds=request.ttl_seconds)  # if it is lost, the read says so
        renew()
        renewal = Renewal(renew, seconds=request.ttl_seconds / RENEWALS)
        try:
            renewal.start()
            yield from _batches(handle, request, part, schema)
        finally:
            renewal.end()


def _unkept(handle: TableHandle, request: ReadRequest, part: TaskPart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    def check() -> None:
        age = handle.context.clock.now() - part.point.taken
        interval = handle.settings.collect_interval_seconds
        if age > interval - handle.settings.skew_allowance_seconds:
            raise Invalid(
                f"the query has read the table for {age:.0f} s without a snapshot, and a collection may delete "
                f"objects that it needs after {interval:.0f} s",
                remedy="Create a snapshot with Table.snapshot(name), and read with the option at",
                table=handle.context.uri,
            )

    check()
    try:
        for batch in _batches(handle, request, part, schema):
            check()
            yield batch
    except Corrupt:
        check()
        raise


def _batches(handle: TableHandle, request: ReadRequest, part: TaskPart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    view = _views.of(handle, part)
    needed = pruned_view(view, request.where, handle.config.regions)
    if part.regions:
        needed = replace(needed, regions=tuple(one for one in needed.regions if one.region in part.regions))
    rows = reader.scan(
        needed,
        uri=handle.context.uri,
        columns=schema.names,
        where=request.where,
        kept=_views.kept,
        parallel=handle.context.parallel,
        part=PartOfView(fragments=part.fragments, span=part.span, above=bool(part.regions)),
    )
    for batch in rows:
        yield spark_batch(batch, schema)


class _Views:
    """The last view that this worker read: tasks of one query in one worker read logs and manifests once."""

    def __init__(self) -> None:
        self.kept = BoundedCache(_KEPT_BYTES)
        self._lock = threading.Lock()
        self._last: tuple[object, View] | None = None

    def of(self, handle: TableHandle, part: TaskPart) -> View:
        point = part.point
        # A task of some regions reads the logs of these alone.
        regions = {one: point.regions[one] for one in part.regions} if part.regions else point.regions
        ends = tuple((one, needs.manifest_key, needs.next_position) for one, needs in sorted(regions.items()))
        identity = (handle.context.uri, handle.config.table, point.version, point.now, ends)
        with self._lock:
            if self._last is None or self._last[0] != identity:
                self._last = None
                self._last = (identity, view_at(handle, point.version, regions, now=point.now))
            return self._last[1]


_views = _Views()


def _levels(needs: RegionPin, base: BaseTable, region: RegionId) -> tuple[int, int]:
    """Return how many entries of the log and how many generations a region has that the base lacks."""
    entries, generations = needs.next_position - needs.first_position, needs.through - base.counters.get(region, 0)
    return max(0, entries), max(0, generations)


def _named(handle: TableHandle, name: str) -> Pin:
    pin = find_snapshot(handle.context, name)
    check_readable(handle.context, pin)
    return pin


def _read_point(handle: TableHandle, request: ReadRequest) -> ReadPoint:
    now = handle.context.clock.now()
    pin = _named(handle, request.at) if request.at is not None else _pooled(handle, request.ttl_seconds)
    if pin is not None:
        return ReadPoint(
            version=pin.pinned_version,
            regions=pin.regions,
            snapshot=pin,
            renewed=request.at is None,
            taken=now,
            now=pin.created,
        )
    base, needs = state(handle)
    return ReadPoint(version=base.version, regions=needs, snapshot=None, renewed=False, taken=now, now=now)


def _pooled(handle: TableHandle, ttl_seconds: float) -> Pin | None:
    """Create a snapshot under a free name of the pool; None if there is none or this process may not write."""
    now = handle.context.clock.now()
    listed = {pin.name: pin for pin in list_snapshots(handle.context)}
    live = {name for name, pin in listed.items() if pin.expires is None or pin.expires > now}
    names = [name for number in range(SNAPSHOT_NAMES) if (name := f"{_PREFIX}{number}") not in live]
    # Names without a snapshot first: the role of a job may create one, but not drop one that has expired.
    for name in sorted(names, key=lambda name: name in listed)[:_TRIES]:
        try:
            if name in listed:
                drop_snapshot(handle, name)  # it has expired, and no collection has removed it yet
            return create_snapshot(handle, name, ttl_seconds=ttl_seconds)
        except Corrupt:
            raise
        except LsmError:  # another query took the name, or the store or the registry takes no writes
            continue
    return None
