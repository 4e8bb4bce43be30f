"""The state of an open table: its handle, what reads keep, its writers, and the reads and appends of all methods."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pyarrow as pa

from lancelsm.common.argument_checks import checked
from lancelsm.common.bounded_cache import BoundedCache
from lancelsm.common.other_names import TABLE, other_name
from lancelsm.common.read_trace import NO_TRACE, Trace
from lancelsm.common.settings import Settings
from lancelsm.common.write_result import Committed
from lancelsm.dataset.base_table import BaseTable
from lancelsm.errors import Contended, Corrupt, Invalid, Unavailable, error_context
from lancelsm.history.at import At, AtSnapshot, find_version, parse_at
from lancelsm.history.pin_records import Pin
from lancelsm.history.snapshot import check_readable, find_snapshot, snapshot_errors, snapshot_view
from lancelsm.history.version_hold import VersionHold, hold_version
from lancelsm.read.counted_ports import counted
from lancelsm.read.explain import ReadTrace
from lancelsm.read.freshness import Consistency, read_staleness
from lancelsm.read.transact.transactions import Transactions
from lancelsm.read.view import View
from lancelsm.read.view_cache import ListRegions, Select, ViewCache
from lancelsm.record.normalize import readable_again
from lancelsm.record.schema import NewerSchema, TableSchema
from lancelsm.region.catalog import Region, SealedRegion, TableContext, regions, resolve_region
from lancelsm.region.config import Config
from lancelsm.region.handle import TableHandle, WriteTarget
from lancelsm.region.unfinished_change import finish_if_begun
from lancelsm.routing.spec import RegionSpec
from lancelsm.wal.region_writer import NextDraft, RegionWriters

T = TypeVar("T")

_TRIES = 3


class OpenTable:
    """A table that is open in this process. The classes of this package add the methods for each kind of work."""

    def __init__(
        self,
        handle: TableHandle,
        *,
        owner: str | None = None,
        at: Pin | None = None,
        views: ViewCache | None = None,
        trace: Trace = NO_TRACE,
    ) -> None:
        self._handle = handle
        self._owner = owner or handle.config.owner
        self._at = at
        self._hold: VersionHold | None = None
        self._lock = threading.RLock()
        self._in_function = threading.local()  # the function of a transaction runs in this thread
        self._sequence: tuple[str, ...] = ()
        self._region_writers: RegionWriters | None = None
        self._unfinished: tuple[TableHandle, BaseTable] | None = None  # columns that were seen in the base first
        self._trace = trace
        self._views = views or ViewCache(
            handle.context,
            handle.read_keyed_base,
            kept=BoundedCache(handle.settings.view_cache_bytes),
            keep_seconds=handle.settings.collect_interval_seconds / 2,
            skew_seconds=handle.settings.skew_allowance_seconds,
        )

    if not TYPE_CHECKING:  # type checkers report a name that is missing

        def __getattr__(self, name: str) -> object:
            if error := other_name("a table", name, TABLE):
                raise error
            return object.__getattribute__(self, name)  # raises the error that Python has for it

    @property
    def uri(self) -> str:
        """The location of the table."""
        return self._context.uri

    @property
    def at_snapshot(self) -> str | None:
        """The name of the snapshot that the table is open at; None if the table is open at its current state."""
        return None if self._at is None else self._at.name

    @property
    def at_version(self) -> int | None:
        """The version of the base that the table is open at; None if it is open at a snapshot or its current state."""
        return None if self._hold is None else self._hold.pin.base_version

    @property
    def config(self) -> Config:
        """The facts of the table: schema, primary key, region spec, registry, owner."""
        return self._handle.config

    @property
    def settings(self) -> Settings:
        """The settings in use."""
        return self._handle.settings

    @property
    def schema(self) -> pa.Schema:
        """The columns, each with Lance's field id in its metadata."""
        return self._schema.columns if self._at is None else self._pinned.base.schema.columns

    @checked
    def list_regions(self) -> list[Region]:
        """List every region that has or had rows.

        Raises:
            Corrupt: a record of the registry is damaged.
            Unavailable: the registry did not answer.
        """
        return regions(self._context)

    @checked
    def region(self, identity: str) -> Region:
        """Find the region by its id or the start of it. Raise `Invalid` if no region or several regions match."""
        return resolve_region(regions(self._context), identity, table=self.uri)

    @checked
    def at(self, at: At) -> Self:
        """Return the table at a snapshot, at a version of the base, or at a time. It is read-only.

        A version has the rows of the base alone: rows that were not merged yet at its commit are absent. A snapshot
        keeps it from being collected until `close`, until the returned object is freed, or until its process ends.

        Args:
            at: an integer is a version of the base, as `history` lists them. A datetime with a zone, or text with
                `T` and a zone, such as `2026-11-01T00:00:00Z`, is a time: it means the newest version that was
                committed until then. Other text is a snapshot's name.

        Raises:
            Invalid: the snapshot is not found or has expired; the version was collected or does not exist yet, or is
                not of this table; or the version of that time is not known.
            Contended: collections kept overtaking the call. Retry.
            Corrupt: the base or a record of the registry is damaged.
            Unavailable: a store or the registry did not answer.
        """
        with error_context(table=self.uri):
            wanted = parse_at(at)
            if isinstance(wanted, AtSnapshot):
                pin = find_snapshot(self._context, wanted.name)
                check_readable(self._context, pin)
                return type(self)(self._handle, owner=self._owner, at=pin)
            hold = hold_version(self._handle, find_version(self._handle, wanted))
            table = type(self)(self._handle, owner=self._owner, at=hold.pin)
            table._hold = hold
            weakref.finalize(table, hold.release_soon).atexit = False  # at the end of the process it is closed
            return table

    @checked
    def close(self) -> None:
        """Release the version that the table is open at; later reads raise `Invalid`. Else do nothing. Idempotent."""
        if self._hold is not None:
            self._hold.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Private

    def _learn_columns(self, *, from_base: bool = False) -> bool:
        """Read the columns again. Return whether they have changed; later calls of every thread then use them.

        Args:
            from_base: read them in the base, where they are first.
        """
        return (
            self._take_columns_of(self._handle.read_base())
            if from_base
            else self._take_columns(self._handle.with_newest_columns())
        )

    def _knew_less(self) -> bool:
        """Whether the columns were not those of now, which an error may be due to; False if that can't be found out."""
        try:
            return self._learn_columns()
        except Unavailable:
            return False

    def _learn_columns_from_heads(self) -> None:
        """Read the columns again if a head of the last appends names a newer version."""
        if self._region_writers is not None and self._region_writers.schema_version > self._schema.version:
            self._learn_columns()

    def _take_columns(self, handle: TableHandle) -> bool:
        """Take up the columns of a handle, if they are newer. Return whether they are."""
        with self._lock:
            if handle.config.schema.version <= self._schema.version:
                return False
            self._handle = replace(self._handle, config=replace(self._handle.config, schema=handle.config.schema))
            self.__dict__.pop("_transactions", None)
        return True

    def _with_columns(
        self,
        work: Callable[[], T],
        *,
        partly_done: str | None = "Write again what the regions in regions_done don't have",
    ) -> T:
        """Run a part of a call. If it met newer columns before it wrote, run it again with these.

        Args:
            partly_done: the remedy if it met them after some regions had their part. None: `work` then continues where
                it ended, so it is run again.

        Raises: what `work` raises.
        """
        self._learn_columns_from_heads()
        for _ in range(_TRIES):
            try:
                return work()
            except NewerSchema as error:
                if partly_done and "regions_done" in error.where:  # guard: what a region has is not written again
                    error.remedy = partly_done
                    raise
                self._learn_columns(from_base=True)
            except Invalid as error:  # it may name a column that this object does not know yet
                if "regions_done" in error.where or not self._knew_less():
                    raise
        return work()

    def _converted(self, data: Any, convert: Callable[[Any, TableSchema], T]) -> tuple[T, TableSchema]:
        """Convert rows of the caller. If they don't fit, the table may have other columns by now: try these once."""
        self._learn_columns_from_heads()
        schema, data = self._schema, readable_again(data)
        try:
            return convert(data, schema), schema
        except Invalid:
            if not self._knew_less():
                raise
            schema = self._schema
            return convert(data, schema), schema

    @property
    def _context(self) -> TableContext:
        return self._handle.context

    @property
    def _schema(self) -> TableSchema:
        return self._handle.config.schema

    @property
    def _target(self) -> WriteTarget:
        return self._writers.target

    @property
    def _writers(self) -> RegionWriters:
        with self._lock:
            if self._region_writers is None:
                target = self._handle.target()
                self._region_writers = RegionWriters(target, owner=self._owner, finish=self._finish_reshard)
            return self._region_writers

    @cached_property
    def _transactions(self) -> Transactions:
        return Transactions(
            lambda: self._target,
            schema=self._schema,
            read=self._read_with_retry,
            append=self._append,
            kept=self._views.kept,
        )

    def _transactions_of(self, schema: TableSchema) -> Transactions:
        """Return the transactions of these columns; raise `NewerSchema` if another thread took up newer ones."""
        found = self._transactions
        if found.schema is not schema:
            raise NewerSchema("the columns of the table have changed", remedy="Retry")
        return found

    @cached_property
    def _pinned(self) -> View:
        assert self._at is not None, "only a snapshot has one view"
        return snapshot_view(self._handle, self._at)

    def _check_writable(self) -> None:
        if self._at is not None:
            version = self.at_version
            raise Invalid(
                "the table is open at " + ("a snapshot" if version is None else f"version {version} of its base"),
                remedy="Open the table without `at` for this call",
                table=self.uri,
                snapshot=self._at.name,
            )

    def _traced(self, trace: ReadTrace) -> Self:
        """Return a table that shares what this one has read. The trace collects its requests."""
        context = counted(self._context, trace)
        handle = replace(self._handle, context=context)
        views = self._views.traced(context, handle.read_keyed_base, trace)
        table = type(self)(handle, owner=self._owner, at=self._at, views=views, trace=trace)
        if self.config.regions is not None:
            target = replace(self._target, context=context, directory=self._target.directory.within(context))
            table._region_writers = RegionWriters(target, owner=self._owner)
        return table

    def _append(self, rows: pa.Table, *, next_draft: NextDraft | None = None, again: bool = True) -> Committed:
        if getattr(self._in_function, "active", False):
            raise Invalid(
                "the function of a transaction can't write to the table",
                remedy="Return the rows instead of writing them",
            )
        self._finish_change()
        writers = self._writers
        try:
            return writers.append_all(rows, next_draft=next_draft, again=again)
        finally:
            self._take_regions(writers.target.regions)

    def _append_whole(self, write: Callable[[], Committed]) -> Committed:
        """Write what depends on a read of many rows. Repeat it as a whole if a reshard came before any region had it.

        Raises: the same errors as `region.resharding.newer_target`; `Contended` if some regions have their part.
        """
        while True:
            target = self._target
            try:
                return write()
            except SealedRegion as sealed:
                now = self._writers.after_reshard(target, sealed)
                self._take_regions(now.regions)
                if (done := sealed.where.get("regions_done")) is not None:
                    raise Contended(
                        "the table was resharded meanwhile",
                        remedy="Read which rows are changed, then change the others",
                        regions_done=done,
                    ) from sealed

    def _take_regions(self, spec: RegionSpec) -> None:
        """Take up a later region spec that a reshard gave the table."""
        with self._lock:
            config = self._handle.config.resharded(spec)
            if config is not self._handle.config:
                self._handle = replace(self._handle, config=config)
                self._writers.follow(self._handle.target())

    def _finish_reshard(self) -> None:
        from lancelsm.admin.reshard import finish_reshard  # noqa: PLC0415 - a writer loads Lance only for this

        finish_reshard(self._handle)

    def _take_columns_of(self, base: BaseTable) -> bool:
        """Take up the columns of a base, if they are newer. Return whether they are."""
        before = self._handle
        if base.schema.version <= self._schema.version or not self._take_columns(before.with_columns_of(base)):
            return False
        self._unfinished = (before, base)
        return True

    def _finish_change(self) -> None:
        """Write the configuration before rows in columns that only the base had: other writers look for them there."""
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            finish_if_begun(*unfinished)  # guard: configuration has the columns of rows

    def _staleness(self, consistency: Consistency, max_staleness: float | None) -> float | None:
        with error_context(table=self.uri):
            staleness = read_staleness(consistency, max_staleness, interval=self.settings.collect_interval_seconds)
        if staleness is not None and self._at is not None:
            raise Invalid(
                "a snapshot always has the same rows, so its reads take no consistency",
                remedy="Leave out consistency and max_staleness",
                table=self.uri,
                snapshot=self._at.name,
                field="consistency",
            )
        return staleness

    def _read_with_retry(
        self,
        read: Callable[[View], T],
        list_regions: ListRegions,
        *,
        spec: RegionSpec | None,
        select: Select | None = None,
        max_staleness: float | None = None,
    ) -> T:
        """Read from a view. If an object of it was collected before the first row, read once more from a new view.

        Model of a reshard meanwhile: tests/model/resharded_read.py.

        Args:
            spec: the region spec by which the regions were chosen; None: they follow from none. If the table has a
                later one, all regions are read. The spec of this object may be later: other threads change it.
        """

        def take_view(staleness: float | None = None) -> View:
            nonlocal list_regions, select, spec
            view = None
            if staleness is not None:
                view = self._views.recent(list_regions, select=select, max_staleness=staleness)
            view = view or self._views.take(list_regions, select=select)
            newest = self._handle.following(view.base).config.regions
            if spec is not None and newest is not None and newest != spec:  # guard: read follows a reshard
                self._take_regions(newest)
                list_regions, select, spec = partial(regions, self._context), list, None
                view = self._views.take(list_regions, select=select)
            self._trace.viewed(view)
            self._take_columns_of(view.base)
            return view

        if self._at is not None:
            check_readable(self._context, self._at)
            with error_context(table=self.uri, snapshot=self._at.name), snapshot_errors(self._context, self._at):
                self._trace.viewed(self._pinned)
                return read(self._pinned)  # guard: read of a snapshot takes no newer view
        with error_context(table=self.uri):
            with self._trace.step("view"):
                view = take_view(max_staleness)
            try:
                return read(view)
            except Corrupt:  # guard: reader takes a new view after a collection
                self._views.forget()
                return read(take_view())
