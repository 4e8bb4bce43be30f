"""Restore the rows that a table had, in place: append the difference between that state and the present one.

The present state is compared as a snapshot, which also keeps the log from its end on. A row that another writer wrote
after that end is newer than the comparison and stays: each chunk of the difference is appended right after a head, and
leaves out every key that an entry between the end of the snapshot and this head has. So a chunk that is appended again
finds its own keys in the log, and appends nothing. The same call after a crash finds the snapshot, and with it the same
difference. If the log after the snapshot is gone, nothing more is appended. Model: tests/model/restore_in_place.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.bounded_cache import BoundedCache
from lancelsm.common.layout import RegionId
from lancelsm.common.renewal import Renewal
from lancelsm.dataset.deleted_keys import find_deletes
from lancelsm.errors import Contended, Corrupt, Invalid, LsmError, error_context
from lancelsm.history import pins
from lancelsm.history.at import At, AtSnapshot, find_version, parse_at
from lancelsm.history.pin_records import Pin
from lancelsm.history.snapshot import (
    RESERVED,
    check_readable,
    create_snapshot,
    find_snapshot,
    forget_snapshot,
    renewal_step,
    snapshot_errors,
    snapshot_view,
    undo_snapshot,
)
from lancelsm.history.version_hold import pin_version
from lancelsm.read import reader
from lancelsm.read.difference import Difference
from lancelsm.read.transact.read_token import LogPoint, point_of
from lancelsm.read.transact.rows_at_head import new_rows
from lancelsm.read.transact.transactions import Append
from lancelsm.read.view import View
from lancelsm.record.casts import as_schema
from lancelsm.record.key import has_key_of, key_column
from lancelsm.record.normalize import deletes, upserts
from lancelsm.record.schema import TableSchema
from lancelsm.region.catalog import Region, regions
from lancelsm.region.config import newest_sequence
from lancelsm.region.handle import TableHandle
from lancelsm.region.head import Head, RegionState
from lancelsm.wal.entry import Draft, draft
from lancelsm.wal.replay import LogCollected

KEEP_SECONDS = 86_400.0  # how long a restore that crashed can be continued
PREFIX = f"{RESERVED}restore-"  # of the names of its snapshots
_HOUR = 3600.0  # the least time to live of the snapshot that is restored
_RENEWAL_SECONDS = 600.0
_CACHE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a call of `Table.restore` did.

    `written` and `deleted` count rows and keys of its entries. `kept` counts rows and keys of the difference that were
    left as they are, since they were written after the comparison: by other writers, or by an earlier call that this
    one continued.
    """

    written: int = 0
    deleted: int = 0
    kept: int = 0


class _Overtaken(Contended):
    """What was written since the comparison is not known, so the comparison is of no use any more."""

    def __init__(self, what: str, region: Region) -> None:
        super().__init__(
            f"{what} since the rows were compared, so it is not known which rows are newer",
            remedy="Restore again: the call compares again with the rows that are there then",
            **region.where,
        )


def restore_in_place(handle: TableHandle, at: At, append: Append) -> Restored:
    """Restore the rows of a snapshot, a version or a time. See `Table.restore`. Raises: the same errors.

    Args:
        append: appends to the regions of rows.
    """
    wanted, handle = parse_at(at), handle.with_columns_of(handle.read_base())
    if isinstance(wanted, AtSnapshot):
        target = find_snapshot(handle.context, wanted.name)
        check_readable(handle.context, target)
        with _renewed(handle, target, seconds=_HOUR):
            return _restore_to(handle, target, f"{PREFIX}{target.nonce[:16]}", append)
    version = find_version(handle, wanted)
    name = f"{PREFIX}version-{version}"
    pinned = f"{name}-to"
    target = _found(handle, pinned) or pin_version(handle, version, name=pinned, ttl_seconds=KEEP_SECONDS)
    with _renewed(handle, target, seconds=KEEP_SECONDS), _forgotten_unless_continued(handle, target):
        return _restore_to(handle, target, name, append)


def _restore_to(handle: TableHandle, target: Pin, name: str, append: Append) -> Restored:
    context = handle.context
    with snapshot_errors(context, target):
        wanted = snapshot_view(handle, target)
    _check_columns(wanted, handle)
    compared = _found(handle, name)
    if compared is None:
        compared = create_snapshot(handle, name, ttl_seconds=KEEP_SECONDS, keep_log=True)
    with _renewed(handle, compared, seconds=KEEP_SECONDS), _forgotten_unless_continued(handle, compared):
        try:
            return _Restore(handle, wanted, compared, append).run(target)
        except (Corrupt, Invalid) as error:
            if pins.held(context, compared):
                raise
            raise Contended(
                "another call has finished or given up this restore",
                remedy="Look at the rows, and restore again if it is needed",
                table=context.uri,
            ) from error


def _found(handle: TableHandle, name: str) -> Pin | None:
    """Return the pin of an earlier call for the same state; remove one that can't be used."""
    found = pins.named(handle.context, "snapshot", name)
    if found is None:
        return None
    if not found.confirmed:
        undo_snapshot(handle, found)
        return None
    try:
        pin = find_snapshot(handle.context, name)
        check_readable(handle.context, pin)
    except Invalid:  # it has expired
        forget_snapshot(handle, found)
        return None
    return pin


@contextmanager
def _forgotten_unless_continued(handle: TableHandle, pin: Pin) -> Iterator[None]:
    """Remove a pin at the end of the block, unless the block failed with an error after which a call can go on."""
    try:
        yield
    except (_Overtaken, Invalid):
        forget_snapshot(handle, pin)
        raise
    forget_snapshot(handle, pin)


@contextmanager
def _renewed(handle: TableHandle, pin: Pin, *, seconds: float) -> Iterator[None]:
    """Let a pin not expire in the block: it gets a new time to live when less than half of it is left."""
    step = renewal_step(handle, pin, ttl_seconds=seconds)  # if the pin is lost, the next read says so

    def renew() -> bool:
        with suppress(LsmError):
            expires = find_snapshot(handle.context, pin.name).expires
            if expires is None or expires >= handle.context.clock.now() + seconds / 2:
                return True
        return step()

    renew()
    renewal = Renewal(renew, seconds=_RENEWAL_SECONDS)
    try:
        renewal.start()
        yield
    finally:
        renewal.end()


def _check_columns(wanted: View, handle: TableHandle) -> None:
    if not handle.config.schema.history.extends(wanted.base.schema.history):
        raise Invalid(
            "the columns of then did not become those of now by changes that are known",
            remedy="Copy that state to a new table with lancelsm.copy(table, to, at=...), or read it with "
            "table.at(...) and write its rows with upsert",
            table=handle.context.uri,
            field="at",
        )


class _Restore:
    """One call: the views, the chunks, and what each region has got since the comparison."""

    def __init__(self, handle: TableHandle, wanted: View, compared: Pin, append: Append) -> None:
        self._handle = handle
        self._schema = handle.config.schema
        self._wanted = wanted
        self._compared = compared
        self._append = append
        self._sequence = newest_sequence(handle.context.objects, handle.config, uri=handle.context.uri)
        self._kept = BoundedCache(_CACHE_BYTES)
        self._lock = threading.Lock()
        self._since: dict[RegionId, _WrittenSince] = {}

    def run(self, target: Pin) -> Restored:
        context = self._handle.context
        offered = written = deleted = 0
        with snapshot_errors(context, self._compared), snapshot_errors(context, target):
            present = snapshot_view(self._handle, self._compared)
            if present.base.ttl == self._wanted.base.ttl:
                self._wanted = replace(self._wanted, now=present.now)  # rows that have expired since then stay away
            difference = Difference(self._wanted, present, schema=self._schema, uri=context.uri)
            for rows in difference.to_write():
                written += self._put(upserts(rows, schema=self._schema))
                offered += rows.num_rows
            for keys in difference.to_delete():
                deleted += self._put(self._tombstones(keys))
                offered += keys.num_rows
        return Restored(written=written, deleted=deleted, kept=offered - written - deleted)

    def _put(self, rows: pa.Table) -> int:
        """Append those rows whose keys were not written since the comparison. Return how many they were."""
        return self._append(rows, next_draft=self._next_draft).rows

    def _next_draft(self, region: Region, part: pa.Table) -> Callable[[Head], Draft | Head | None]:
        since = self._written_since(region)
        keys = key_column(part, self._schema.primary_key)

        def next_draft(head: Head) -> Draft | Head | None:
            written = since.at(head)
            if written is None:
                return region.head()
            left = part.filter(pc.invert(pc.is_in(keys, value_set=written)))  # guard: newer row is not restored
            if not left.num_rows:
                return None
            return draft(left, at=region.context.clock.now(), ordered=bool(self._sequence))

        return next_draft

    def _written_since(self, region: Region) -> _WrittenSince:
        with self._lock:
            if region.id not in self._since:
                end = self._compared.of(region.id)
                before = self._keys_of_sealed() if end is None else []
                self._since[region.id] = _WrittenSince(region, self._schema, since=point_of(end), before=before)
            return self._since[region.id]

    def _keys_of_sealed(self) -> list[pa.Array]:
        """Return the keys that regions got since the comparison before a reshard sealed them: new regions have these.

        The snapshot has all regions that existed then, so every entry of another one is newer.
        """
        found = []
        for region in regions(self._handle.context):
            end, head = self._compared.of(region.id), region.find_head()
            if head is not None and head.status is RegionState.SEALED:
                keys = _WrittenSince(region, self._schema, since=point_of(end)).at(head)
                found.append(keys)  # guard: newer row of a sealed region is not restored
        return [keys for keys in found if keys is not None]

    def _tombstones(self, keys: pa.Table) -> pa.Table:
        """Return tombstones for keys, with the sequences that their deletes had in the restored state."""
        made = deletes(keys, schema=self._schema)
        if not self._sequence:
            return made
        context, schema = self._handle.context, self._schema
        names = list(dict.fromkeys([*schema.primary_key, *self._sequence]))  # no change of columns concerns these
        found = reader.get(self._wanted, keys, uri=context.uri, columns=names, deleted=True)
        columns = [
            found[one.name] if one.name in found.column_names else pa.nulls(found.num_rows, one.type)
            for one in schema.stored
        ]
        known = as_schema(pa.Table.from_arrays(columns, names=schema.stored.names), schema.stored)
        absent = made.filter(pc.invert(has_key_of(made, known, schema.primary_key)))
        merged = find_deletes(
            self._wanted.base.metadata, context.objects, absent, schema, self._sequence, kept=self._kept
        )
        left = absent.filter(pc.invert(has_key_of(absent, merged, schema.primary_key)))
        return pa.concat_tables([known, merged, left])


class _WrittenSince:
    """The keys that a region got after a point in its log, as of the last head. Reads each entry once.

    Args:
        before: keys that count too.
    """

    def __init__(
        self, region: Region, schema: TableSchema, *, since: LogPoint, before: Sequence[pa.Array] = ()
    ) -> None:
        self._region = region
        self._schema = schema
        self._point = since
        self._keys = pa.concat_arrays([key_column(schema.stored.empty_table(), schema.primary_key), *before])

    def at(self, head: Head) -> pa.Array | None:
        """Return the keys that the entries from the point up to this head have; None if the head is older.

        Raises:
            _Overtaken: entries from the point on were collected.
            Corrupt, Unavailable: see `read.transact.rows_at_head.new_rows`.
        """
        if head.next_position < self._point[0]:
            return None
        keys = self._keys
        try:
            with error_context(**self._region.where):
                for rows in new_rows(self._region, self._schema, since=self._point, end=head):
                    own = key_column(rows, self._schema.primary_key)
                    keys = pa.concat_arrays([keys, own])  # a copy, which does not keep the other columns
        except LogCollected:
            raise _Overtaken(  # guard: restore stops if the log after the comparison is gone
                "the log was collected", self._region
            ) from None
        self._keys, self._point = keys, point_of(head)
        return self._keys
