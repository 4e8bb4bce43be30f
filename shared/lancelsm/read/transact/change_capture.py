"""Apply change events to a table: one entry per region with the upserts and deletes of a call, each event once.

What wins is decided at the head that the entry follows (`change_decision`), and the offset of the source moves in the
same swap (`source_offsets`). So a repeated call, also after a crash at any line, changes nothing that is applied.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.bounded_cache import BoundedCache
from lancelsm.common.layout import RegionId, dead_letters
from lancelsm.dataset.deleted_keys import find_deletes, late_floor
from lancelsm.errors import Invalid, Unavailable
from lancelsm.objects import put_once
from lancelsm.read import reader
from lancelsm.read.transact import source_offsets as of_sources
from lancelsm.read.transact.change_decision import check_sequence, decide
from lancelsm.read.transact.change_event import RowChange, Selection, select
from lancelsm.read.transact.change_formats import PARSE, BadLine, Format, Refused, listed_events
from lancelsm.read.transact.earlier_offsets import applied_earlier
from lancelsm.read.transact.newest_at_head import NewestAtHead
from lancelsm.read.transact.rows_at_head import ViewedRows
from lancelsm.read.transact.stored_changes import as_deletes, numbered, numbers, stored, without_numbers
from lancelsm.read.transact.transactions import Append, ReadView
from lancelsm.read.view import View
from lancelsm.record.casts import as_schema
from lancelsm.record.files import has_decimal
from lancelsm.record.key import key_column
from lancelsm.record.schema import TOMBSTONE, TableSchema, check_known
from lancelsm.region.catalog import Region, TableContext
from lancelsm.region.handle import WriteTarget
from lancelsm.region.head import Head
from lancelsm.wal.entry import Draft, draft

OnBadRow = Literal["fail", "skip", "dead_letter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What a call of `Table.apply_changes` did.

    `written` and `deleted` count the rows and the tombstones that were appended, one per key at most. `late` counts
    events that lost against a higher sequence, also if only one of their two keys did; `skipped` those without a row
    (the tombstone behind a delete, messages) and those that were applied by an earlier call; `rejected` bad rows.
    """

    written: int = 0
    deleted: int = 0
    late: int = 0
    skipped: int = 0
    rejected: int = 0

    def __add__(self, other: Applied) -> Applied:
        return Applied(
            written=self.written + other.written,
            deleted=self.deleted + other.deleted,
            late=self.late + other.late,
            skipped=self.skipped + other.skipped,
            rejected=self.rejected + other.rejected,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest:
    """The arguments of one call. `condition` says which events are deletes."""

    format: Format
    selection: Selection
    condition: str | None
    source: str | None
    offset: object
    on_bad_row: OnBadRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to read and write the table. `order` records what orders its events. `kept` keeps pages of key filters.

    `find_target` returns the table with its newest region spec that this process has met.
    """

    read: ReadView
    append: Append
    order: Callable[[], None]
    kept: BoundedCache
    find_target: Callable[[], WriteTarget]


class _Rejected:
    """Counts bad rows and keeps them, or raises the first one. Thread-safe."""

    def __init__(self, policy: OnBadRow, events: Sequence[Any], context: TableContext) -> None:
        self._policy = policy
        self._given = events
        self._context = context
        self._lock = threading.Lock()
        self._reasons: dict[int, str] = {}  # by event, of those that are not kept yet
        self._kept: set[int] = set()
        self.events: set[int] = set()

    def __call__(self, event: int, error: Invalid) -> None:
        if self._policy == "fail" or isinstance(error, Refused):
            remedy = error.remedy + ("" if isinstance(error, Refused) else "; on_bad_row='skip' skips the event")
            raise type(error)(
                error.message, remedy=remedy, redacted=error.redacted, row=event, field=error.where.get("field")
            ) from None
        with self._lock:
            if event not in self._kept:
                self._reasons.setdefault(event, error.message)
            self.events.add(event)

    def take_back(self, events: Iterable[int]) -> None:
        """Take back what a region decided at an older head. Events that are kept stay in their object."""
        with self._lock:
            self.events.difference_update(events)
            for event in events:
                self._reasons.pop(event, None)

    def keep(self) -> None:
        """Write the bad rows to an object, before anything else of their call is written.

        Raises:
            Unavailable: the store did not answer.
        """
        with self._lock:
            reasons, self._reasons = self._reasons, {}
            self._kept.update(reasons)
        if self._policy != "dead_letter" or not reasons:
            return
        context = self._context
        lines = (
            json.dumps({"row": at, "error": error, "event": _shown(self._given[at])})
            for at, error in sorted(reasons.items())
        )
        key, body = dead_letters(context.ids.nonce()), "\n".join(lines).encode()
        if put_once(context.objects, key, body, attempts=context.budget().attempts()) is None:
            raise Unavailable("the bad rows could not be kept", remedy="Call it again with the same events")


def _shown(event: Any) -> Any:
    """Return an event as JSON has it; its text if it can't be JSON."""
    if isinstance(event, BadLine):
        return event.line
    try:
        return json.loads(json.dumps(event, default=str))
    except (TypeError, ValueError, RecursionError):
        return str(event)


def apply_changes(events: Any, request: CaptureRequest, access: Access, context: TableContext) -> Applied:
    """Apply events; see `Table.apply_changes`. Raises: the same errors."""
    listed, is_json = listed_events(events, exact=has_decimal(request.selection.schema.columns))
    bad = _Rejected(request.on_bad_row, listed, context)
    source = _Source.read(context, request, len(listed))
    changes: list[RowChange] = []
    skipped = source.done
    for number, event in enumerate(listed[source.done :], source.done):
        try:
            found = PARSE[request.format](number, event, request.selection)
        except Invalid as error:
            bad(number, error)
            continue
        skipped += not found
        changes += found
    is_json = is_json or request.format != "rows"
    if request.condition is not None:
        changes = as_deletes(
            changes,
            request.condition,
            selection=request.selection,
            records=listed,
            is_json=is_json,
            bad=bad,
            table=context.uri,
        )
    whole = [change for change in changes if change.event not in bad.events]
    rows, fitting = stored(whole, request.selection, is_json=is_json, bad=bad)
    kept = [at for at, change in enumerate(fitting) if change.event not in bad.events]
    bad.keep()  # guard: bad rows are kept before the others are appended
    access.order()  # here, since a call that is refused does not decide what orders the events
    call = _Call(request, [fitting[at] for at in kept], source.offsets, access, bad)
    done = call.append(numbered(rows.take(pa.array(kept, pa.int64()))))
    source.move(context)  # guard: offset moves after all regions
    return done + Applied(skipped=skipped, rejected=len(bad.events))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The source of a call. `done` counts its first events, which were applied or rejected by an earlier call."""

    name: str | None
    offsets: Sequence[int] = ()
    applied: int | None = None
    done: int = 0

    @classmethod
    def read(cls, context: TableContext, request: CaptureRequest, events: int) -> _Source:
        if request.source is None:
            return cls(name=None)
        offsets = of_sources.offsets_of(request.offset, events)
        applied = of_sources.usable_offset(context, request.source)
        return cls(name=request.source, offsets=offsets, applied=applied, done=bisect_right(offsets, applied or 0))

    def move(self, context: TableContext) -> None:
        if self.name is not None and self.offsets:
            of_sources.move_offset(context, self.name, self.offsets[-1], applied=self.applied)


class _Call:
    """The changes of one call, and how each region takes its part."""

    def __init__(
        self,
        request: CaptureRequest,
        changes: Sequence[RowChange],
        offsets: Sequence[int],
        access: Access,
        bad: _Rejected,
    ) -> None:
        self._request = request
        self._changes = changes
        self._offsets = offsets
        self._access = access
        self._bad = bad
        self._sequence = tuple(request.selection.sequence)
        self._reads = bool(self._sequence) or any(change.unchanged for change in changes)
        self._regions: dict[RegionId, Applied] = {}  # of the last head that was tried
        self._repeated: dict[RegionId, frozenset[int]] = {}
        self._late: dict[RegionId, frozenset[int]] = {}
        self._unfilled: dict[RegionId, frozenset[int]] = {}

    def append(self, rows: pa.Table) -> Applied:
        done = self._access.append(rows, next_draft=self._next_draft)
        repeated = frozenset().union(*self._repeated.values())  # an event may be in two regions
        late = frozenset().union(*self._late.values())
        written = [self._regions[entry.region] for entry in done.entries]  # a region that a reshard sealed has no entry
        return sum(written, start=Applied(skipped=len(repeated), late=len(late)))

    def _next_draft(self, region: Region, part: pa.Table) -> Callable[[Head], Draft | Head | None]:
        given, changes = without_numbers(part), [self._changes[number] for number in numbers(part)]
        floors: dict[RegionId, pa.Table] = {}
        current = self._newest(region, given, floors) if self._reads else None
        earlier = self._earlier(given)

        def next_draft(head: Head) -> Draft | Head | None:
            newest = None if current is None else current.at(head)
            if current is not None and newest is None:
                return region.head()
            return self._decided(region, head, given, changes, newest, floors.get(region.id), earlier)

        return next_draft

    def _decided(
        self,
        region: Region,
        head: Head,
        given: pa.Table,
        changes: Sequence[RowChange],
        newest: pa.Table | None,
        floor: pa.Table | None,
        earlier: Sequence[int],
    ) -> Draft | None:
        request, source = self._request, self._request.source
        left = list(range(len(changes)))
        if source is not None:
            done = head.applied(of_sources.producer(source))
            left = [at for at in left if self._offsets[changes[at].event] > done]  # guard: event is applied once
            left = [
                at
                for at in left
                if self._offsets[changes[at].event] > earlier[at]  # guard: event of an earlier region is applied once
            ]
        decided = decide(
            given.take(pa.array(left, pa.int64())),
            newest,
            request.selection.schema,
            sequence=self._sequence,
            unchanged=[changes[at].unchanged for at in left],
            required=[changes[at].needed for at in left],
            floor=floor,
        )
        self._bad.take_back(self._unfilled.get(region.id, ()))
        self._unfilled[region.id] = frozenset(changes[left[at]].event for at in decided.unfilled)
        for event in sorted(self._unfilled[region.id]):
            self._bad(
                event,
                Invalid(
                    "the event leaves out a value that no stored row has",
                    remedy="Load a snapshot of the source first, or set REPLICA IDENTITY FULL if keys change",
                ),
            )
        self._bad.keep()  # guard: bad rows of a region are kept before its entry
        deleted = pc.sum(decided.rows.column(TOMBSTONE)).as_py() or 0
        self._regions[region.id] = Applied(
            written=decided.rows.num_rows - deleted,
            deleted=deleted,
        )
        self._late[region.id] = frozenset(changes[left[at]].event for at in decided.late)
        self._repeated[region.id] = frozenset(changes[at].event for at in set(range(len(changes))) - set(left))
        if not decided.rows.num_rows:
            return None
        applied = {} if source is None else {of_sources.producer(source): str(self._offsets[-1])}
        is_ordered = bool(self._sequence)
        return draft(decided.rows, applied_sequences=applied, at=region.context.clock.now(), ordered=is_ordered)

    def _earlier(self, given: pa.Table) -> Sequence[int]:
        """Return, for each given row, the offset that the regions of its key before reshards have of the source."""
        source, target = self._request.source, self._access.find_target()
        if source is None or not target.earlier_regions:
            return [0] * given.num_rows
        return applied_earlier(given, target, of_sources.producer(source), kept=self._access.kept)

    def _newest(self, region: Region, given: pa.Table, floors: dict[RegionId, pa.Table]) -> NewestAtHead:
        """Return the newest rows of the given keys. `floors` gets the late floor of the view with these rows."""
        access, schema = self._access, self._request.selection.schema
        keys = given.select(list(schema.primary_key))
        own = key_column(keys, schema.primary_key)
        distinct = keys.take(pc.index_in(pc.unique(own), value_set=own))

        def found(view: View) -> ViewedRows:
            check_known(schema, view.base.schema.version)
            rows = reader.get(
                view,
                distinct,
                uri=region.context.uri,
                columns=schema.names,
                kept=access.kept,
                parallel=region.context.parallel,
                deleted=True,
            )
            if self._sequence and rows.num_rows < distinct.num_rows:
                rows = self._with_deletes(rows, distinct, view, region)
                floors[region.id] = late_floor(view.base.metadata, region.id, schema, self._sequence)
            return ViewedRows.of(rows, view, region)

        return NewestAtHead(
            region,
            schema,
            read_view=lambda: access.read(found, lambda: [region], spec=None),
            select=lambda rows: rows.filter(pc.is_in(key_column(rows, schema.primary_key), value_set=own)),
        )

    def _with_deletes(self, rows: pa.Table, keys: pa.Table, view: View, region: Region) -> pa.Table:
        """Add tombstones for the keys without a row or tombstone whose deletes were merged."""
        schema = self._request.selection.schema
        stored = as_schema(rows, schema.stored)
        has_row = pc.is_in(key_column(keys, schema.primary_key), value_set=key_column(stored, schema.primary_key))
        absent = keys.filter(pc.invert(has_row))
        deletes = find_deletes(  # guard: event is compared with merged deletes
            view.base.metadata,
            region.context.objects,
            absent,
            schema,
            self._sequence,
            kept=self._access.kept,
        )
        return pa.concat_tables([stored, deletes])


def request_of(
    schema: TableSchema,
    *,
    known: Sequence[str],
    format: str,  # noqa: A002 - as in the call
    keys: Sequence[str] | str | None,
    sequence_by: str | Sequence[str] | Mapping[str, str] | None,
    apply_as_deletes: str | None,
    column_list: Sequence[str] | None,
    except_column_list: Sequence[str] | None,
    ignore_null_updates: bool,
    source: str | None,
    offset: object,
    on_bad_row: str,
) -> CaptureRequest:
    """Check the arguments of a call. Raises `Invalid`.

    Args:
        known: the columns that order the events of the table so far.
    """
    if format not in PARSE:
        raise Invalid(f"format is {format!r}", remedy=f"Give one of {', '.join(PARSE)}", field="format")
    if on_bad_row not in ("fail", "skip", "dead_letter"):
        raise Invalid(f"on_bad_row is {on_bad_row!r}", remedy="Give fail, skip or dead_letter", field="on_bad_row")
    wanted = (keys,) if isinstance(keys, str) else schema.primary_key if keys is None else tuple(keys)
    if set(wanted) != set(schema.primary_key):
        raise Invalid(
            f"keys are {', '.join(wanted)}, but the primary key of the table is {', '.join(schema.primary_key)}",
            remedy="Leave keys out, or create a table with this primary key",
            field="keys",
        )
    if (source is None) != (offset is None):
        raise Invalid("source and offset go together", remedy="Give both or none", field="offset")
    if source is not None:
        of_sources.check_source(source)
    if isinstance(sequence_by, Mapping):
        sequence = dict(sequence_by)
    else:
        names = known if sequence_by is None else sequence_by
        sequence = dict.fromkeys((names,) if isinstance(names, str) else names, "")
    check_sequence(schema, tuple(sequence))
    selection = select(
        schema,
        sequence=sequence,
        column_list=column_list,
        except_column_list=except_column_list,
        ignore_null_updates=ignore_null_updates,
    )
    return CaptureRequest(
        format=cast("Format", format),
        selection=selection,
        condition=apply_as_deletes,
        source=source,
        offset=offset,
        on_bad_row=cast("OnBadRow", on_bad_row),
    )
