"""Read the change stream as a source of Spark's micro-batches. Needs no Spark.

An offset has the next position of each region. A region that an offset lacks was created later, and is read from its
first entry. A cursor keeps the log from the last offset that Spark has committed on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from lancelsm.common.layout import Nonce, Position, RegionId
from lancelsm.errors import Invalid, Unavailable
from lancelsm.history.changes import OPERATION, Changes
from lancelsm.history.cursor import create_cursor, find_cursor, save_cursor
from lancelsm.history.pin_records import Pin
from lancelsm.history.stream_start import check_start, first_position
from lancelsm.record.schema import unknown_column
from lancelsm.region.catalog import Region, regions, with_heads
from lancelsm.region.handle import TableHandle, open_configured
from lancelsm.region.head import Head
from lancelsm.spark.arrow_types import spark_batch, spark_schema

REGION, POSITION = "_region", "_position"
_OWN = (pa.field(OPERATION, pa.string()), pa.field(REGION, pa.string()), pa.field(POSITION, pa.int64()))

Offset = Mapping[str, int]
"""The next position of each region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """What to read.

    Args:
        cursor: the name of the cursor that keeps what is not processed.
        columns: names of columns of the table; all by default.
        start: where a new cursor begins: `earliest` or `latest`.
        entries_per_trigger: how many entries of each region a batch has at most.
    """

    uri: str
    cursor: str
    columns: tuple[str, ...] | None = None
    start: str = "earliest"
    entries_per_trigger: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrySpan:
    """The entries of one region that a task reads: from `start` to before `end`."""

    region: str
    start: int
    end: int


def stream_schema(uri: str, columns: tuple[str, ...] | None) -> pa.Schema:
    """Return the schema of the changes in Spark: columns of the table, which a delete leaves null, then our own.

    Raises:
        Invalid: there is no such table or column, Spark has no type for a column, or a column has the name of our own.
    """
    handle = open_configured(uri)
    known = handle.config.schema.columns
    names = known.names if columns is None else list(columns)
    if unknown := [name for name in names if name not in known.names]:
        raise unknown_column(unknown[0], known.names, table=handle.context.uri)
    if taken := [one.name for one in _OWN if one.name in names]:
        raise Invalid(
            f"column {taken[0]!r} has the name of a column of the stream",
            remedy="Leave it out with the option columns",
            table=handle.context.uri,
            field=taken[0],
        )
    return spark_schema(pa.schema([*(known.field(name).with_nullable(True) for name in names), *_OWN]))


class ChangeSource:
    """Plans batches. It lives in the driver as long as the query runs."""

    def __init__(self, request: StreamRequest) -> None:
        self._request = request
        self._handle = open_configured(request.uri)
        self._consumer: Nonce = self._handle.context.ids.nonce()
        self._planned: Offset | None = None  # the end of the last batch; None: Spark has not said it yet
        self._saved: Pin | None = None

    def initial_offset(self) -> dict[str, int]:
        """Return where a query without a checkpoint starts: at the cursor, which is created if there is none.

        Raises:
            Invalid: the name of the cursor is not valid.
            Contended, Corrupt, Unavailable: see `Table.set_cursor`.
        """
        context, start = self._handle.context, self._request.start
        pin = find_cursor(context, self._request.cursor) or create_cursor(
            context, self._request.cursor, start=lambda region, head: first_position(region, head, start)
        )
        self._saved = pin
        self._planned = {region: int(needs.first_position) for region, needs in pin.regions.items()}
        return dict(self._planned)

    def latest_offset(self) -> dict[str, int]:
        """Return the end of the next batch: of all logs, or earlier by the limit.

        Regions of a later region spec come after those of earlier ones were read to their end.

        Spark 4.0 does not say where a query stands that starts again with a checkpoint. Its first batch has no limit.
        """
        context = self._handle.context
        most, begin = self._request.entries_per_trigger, self._planned
        found = with_heads(context, regions(context))
        ends = {str(region.id): int(head.next_position) for region, head in found}
        if any(region.number > 1 for region, _ in found):
            ends |= _held_back(found, self._saved_offset() if begin is None else begin)
        if most is None or begin is None:
            return ends
        return {region: min(end, begin.get(region, 1) + most) for region, end in ends.items()}

    def _saved_offset(self) -> Offset:
        """Return where the cursor is: at most one batch before the query."""
        pin = _cursor(self._handle, self._request.cursor)
        return {region: int(needs.first_position) for region, needs in pin.regions.items()}

    def spans(self, start: Offset, end: Offset) -> list[EntrySpan]:
        """Return what each task of a batch reads."""
        self._planned = end
        begins = {region: start.get(region, 1) for region in end}
        return [
            EntrySpan(region=region, start=begins[region], end=stop)
            for region, stop in sorted(end.items())
            if begins[region] < stop
        ]

    def commit(self, end: Offset) -> None:
        """Move the cursor past a batch that Spark has committed. If the registry does not answer, the next call does.

        Raises:
            Invalid: the cursor was dropped.
            Contended: another consumer has moved the cursor.
        """
        context = self._handle.context
        pin = self._saved or _cursor(self._handle, self._request.cursor)
        positions = {}
        for name, position in end.items():
            needs = pin.of(RegionId(name))
            if needs is None or position > needs.first_position:  # guard: cursor of a stream moves forward alone
                positions[RegionId(name)] = Position(position)
        with suppress(Unavailable):
            self._saved = save_cursor(context, pin, positions, consumer=self._consumer)


def _held_back(found: Sequence[tuple[Region, Head]], begin: Offset) -> dict[str, int]:
    """Return the positions of the regions that wait until those of earlier region specs are read to their end.

    The heads were read after the catalog that lists a later region, so these ends are final.
    """
    unread = [region.number for region, head in found if begin.get(region.id, 1) < head.next_position]
    first = min(unread, default=0)
    waiting = [region for region, _ in found if region.number > first > 0]  # guard: stream reads old regions first
    return {region.id: begin.get(region.id, 1) for region in waiting}


def read_span(request: StreamRequest, span: EntrySpan, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read the changes of a task under the declared schema.

    Raises:
        Invalid: the cursor was dropped, and the log may be collected; or a value does not fit Spark's type.
        Corrupt: an entry is missing or damaged.
        Unavailable: a store or the registry did not answer.
    """
    handle = open_configured(request.uri)
    _cursor(handle, request.cursor)
    region = RegionId(span.region)
    start = {region: Position(span.start)}
    check_start(handle.context, start)
    stream = Changes(handle.context, handle.config.schema, start=start, cursor=request.cursor, only=[region])
    for change in stream:
        if change.position >= span.end:
            return
        for batch in change.rows.to_batches():
            own = {REGION: pa.repeat(pa.scalar(span.region), batch.num_rows)}
            own[POSITION] = pa.repeat(pa.scalar(int(change.position), pa.int64()), batch.num_rows)
            given = {name: batch.column(name) for name in schema.names if name not in own}
            yield spark_batch(pa.RecordBatch.from_pydict({**given, **own}), schema)
        if change.position == span.end - 1:
            return


def _cursor(handle: TableHandle, name: str) -> Pin:
    pin = find_cursor(handle.context, name)
    if pin is None:
        raise Invalid(
            "the cursor of the stream was dropped, so changes that it has not processed may be collected",
            remedy="Start a query with a new checkpoint and another cursor, after a read of the table",
            table=handle.context.uri,
            cursor=name,
        )
    return pin
