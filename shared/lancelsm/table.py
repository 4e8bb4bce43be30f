"""A table: upserts and deletes by key, consistent reads, and the steps that fold what was written into the base."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa

from lancelsm.admin.create import make_table
from lancelsm.common.committed import Committed
from lancelsm.common.duration import time_to_live
from lancelsm.common.settings import Settings
from lancelsm.compaction.background import Ran, run
from lancelsm.compaction.maintenance import Engine, Flushed, flush_table, merge_table
from lancelsm.compaction.merge import Merged
from lancelsm.errors import Corrupt, Invalid, error_context
from lancelsm.gc.collect import Collected, collect
from lancelsm.history.changes import Changes, Start, check_start, first_position
from lancelsm.history.cursor import drop_cursor, list_cursors, set_cursor
from lancelsm.history.pins import Pin
from lancelsm.history.snapshot import (
    check_standing,
    drop_snapshot,
    find_snapshot,
    holding_snapshot,
    list_snapshots,
    make_snapshot,
    renew_snapshot,
    snapshot_view,
    standing,
)
from lancelsm.read import reader
from lancelsm.read.result import Rows, begun
from lancelsm.read.status import TableStatus, read_status
from lancelsm.read.view import View, take_view
from lancelsm.record.normalize import deletes, upserts
from lancelsm.record.schema import TableSchema
from lancelsm.region.catalog import Region, TableContext, check_there, regions, resolve_region
from lancelsm.region.config import Config
from lancelsm.region.handle import DEFAULT_OWNER, Ports, TableHandle, WriteTarget, open_table
from lancelsm.region.head import Head
from lancelsm.routing.route import route
from lancelsm.scrub.report import Report
from lancelsm.scrub.table import scrub
from lancelsm.wal.claim import claim, seal
from lancelsm.wal.region_writer import RegionWriters
from lancelsm.wal.writer import Writer

T = TypeVar("T")


class Table:
    """A table of rows with a primary key. Thread-safe.

    Made by `lancelsm.create` and `lancelsm.open`. One that is open at a snapshot reads what the snapshot keeps, always
    the same, and takes no writes.
    """

    def __init__(self, handle: TableHandle, *, owner: str | None = None, at: Pin | None = None) -> None:
        self._opened = handle
        self._owner = owner or handle.config.owner
        self._at = at
        self._lock = threading.Lock()
        self._writers: RegionWriters | None = None

    @property
    def uri(self) -> str:
        return self._context.uri

    @property
    def at_snapshot(self) -> str | None:
        """The name of the snapshot that the table is open at; None if it is open as it is now."""
        return None if self._at is None else self._at.name

    @property
    def config(self) -> Config:
        return self._opened.config

    @property
    def settings(self) -> Settings:
        return self._opened.settings

    @property
    def schema(self) -> pa.Schema:
        """The columns, each with Lance's field id in its metadata."""
        return self._schema.columns if self._at is None else self._pinned.base.schema.columns

    # Writing

    def upsert(self, data: Any, *, on_duplicate: Literal["last", "error"] = "last") -> Committed:
        """Write whole rows by primary key; return once they are durable and visible to every new reader.

        Args:
            data: anything with `__arrow_c_stream__` (Arrow, polars, pandas), a mapping of columns, or dicts; columns as
                the table's schema, key columns not null.
            on_duplicate: the last row of a key wins, or a second one is refused.

        Returns:
            Rows written and one entry per region.

        Raises:
            Invalid: a row does not fit; names column and row. Nothing was written. Or a region is sealed.
            Fenced: another owner holds a region. Nothing of that region was written; others may have taken their rows.
            Ambiguous: the rows of a region may or may not be there; read, then decide.
            Contended, Unavailable: nothing of that region was written; retry.

        A crash at any line leaves either no trace for readers or the whole batch of a region.
        """
        self._check_writable()
        with error_context(table=self.uri):
            return self._append(upserts(data, schema=self._schema, on_duplicate=on_duplicate))

    def delete(self, keys: Any = None, *, where: str | None = None) -> Committed:
        """Delete rows by key, or every row for which a condition is true now.

        Args:
            keys: the key columns, as the data of `upsert`; plain values for a key of one column.
            where: as for `scan`.

        Returns, raises: as `upsert`. Deleting a key that no row has is no error.
        """
        self._check_writable()
        if (keys is None) == (where is None):
            raise Invalid("delete takes either keys or where", table=self.uri)
        if where is not None:
            keys = self.scan(columns=self._schema.primary_key, where=where).to_arrow()
        with error_context(table=self.uri):
            return self._append(deletes(keys, schema=self._schema))

    def writer(self, *, pipeline_depth: int = 1, exclusive: bool = False) -> Writer:
        """A context for many small writes from many callers; see `Writer`."""
        self._check_writable()
        return Writer(self._target, owner=self._owner, pipeline_depth=pipeline_depth, exclusive=exclusive)

    # Reading

    def scan(self, *, columns: Sequence[str] | None = None, where: str | None = None, limit: int | None = None) -> Rows:
        """Every live row as of now: all that was acknowledged before the call is in it.

        Args:
            columns: which ones, in this order; all by default.
            where: SQL over the table's columns, in Lance's dialect: text in single quotes, and a column name that is no
                plain word in backticks.
            limit: at most so many rows.

        Raises:
            Invalid: an unknown column, or a condition that is no SQL.
            Corrupt: an object is missing, or can be told to be wrong; names it. A value in a data file that changed
                into another one can't: docs/design.md, "What scrub and readers can't tell".
            Unavailable: a store did not answer.

        At a snapshot also `Invalid`, perhaps after some rows: it was dropped or has expired.
        """

        def read(view: View) -> Rows:
            stream = reader.scan(view, uri=self.uri, columns=columns, where=where, limit=limit)
            return Rows(begun(stream if self._at is None else self._while_standing(stream, self._at)))

        return self._reading(read, lambda: regions(self._context))

    def get(self, keys: Any, *, columns: Sequence[str] | None = None) -> pa.Table:
        """The live rows of these keys as of now, in no order; a key without a row has none.

        Args, raises: keys as in `delete`; columns and errors as in `scan`.
        """
        with error_context(table=self.uri):
            wanted = deletes(keys, schema=self._schema).select(list(self._schema.primary_key))
        if wanted.num_rows == 0:
            return self.scan(columns=columns, limit=0).to_arrow()
        return self._reading(
            lambda view: reader.get(view, wanted, uri=self.uri, columns=columns), lambda: self._regions_of(wanted)
        )

    # Folding

    def flush(self) -> list[Flushed]:
        """Fold every region's WAL into generations; returns once nothing that was acknowledged before is left in it.

        Raises:
            Corrupt, Contended, Ambiguous, Unavailable: as `compaction.flush.flush`.
        """
        self._check_writable()
        return flush_table(self._opened)

    def merge(self, *, engine: Engine = "auto") -> Merged:
        """Fold all generations into the base.

        Args:
            engine: where; `auto` decides by the sizes of delta and base.

        Raises:
            Contended, Ambiguous, Unavailable, Corrupt: as `compaction.merge.merge_generations`.
        """
        self._check_writable()
        return merge_table(self._opened, engine=engine)

    def run(self, *, until_idle: bool = True, engine: Engine = "auto") -> Ran:
        """Flush, merge and optimize: everything that can be done, or for ever what is due; as
        `compaction.background.run`.
        """
        self._check_writable()
        return run(self._opened, until_idle=until_idle, engine=engine)

    def collect(self, *, yes: bool = False, interval_seconds: float | None = None) -> Collected:
        """Delete what nothing needs any more, or by default say what that is, and what stays and why.

        Raises: as `gc.collect.collect`, and means the same by its arguments.
        """
        self._check_writable()
        with error_context(table=self.uri):
            return collect(self._opened, yes=yes, interval_seconds=interval_seconds)

    def scrub(self, *, region: str | None = None, limit: int | None = None) -> Report:
        """Read everything that the table consists of, or the snapshot that it is open at, and name what is wrong.

        Raises: as `scrub.table.scrub`, and means the same by its arguments.
        """
        with error_context(table=self.uri):
            return scrub(self._opened, region=region, at=self.at_snapshot, limit=limit)

    # Snapshots

    def snapshot(self, name: str, ttl: str | float | None = None) -> Pin:
        """Keep the table as it is now under a name: all that was acknowledged before the call is in it.

        While it stands, the whole log that is written after it and every generation that is made of it stay too.

        Args:
            name: up to 100 letters, digits, `-` and `_`.
            ttl: for how long, unless it is refreshed: seconds, text like `15m`, `1h`, `7d`, or `never`; by default the
                setting `snapshot_ttl_seconds`.

        Raises:
            Invalid: the name is taken, or no name.
            Contended: a collection overtook it again and again; nothing is kept.
            Corrupt, Unavailable: as `scan`.
        """
        self._check_writable()
        return make_snapshot(self._opened, name, ttl_seconds=self._time_to_live(ttl))

    def snapshots(self) -> list[Pin]:
        """Every snapshot, by name; expired ones that no collection has removed yet are among them."""
        return list_snapshots(self._context)

    def refresh_snapshot(self, name: str, ttl: str | float | None = None) -> Pin:
        """Let a snapshot live for `ttl` from now on.

        Raises:
            Invalid: it has expired and is gone, or there was none of this name.
            Contended, Unavailable: it could not be refreshed; do it again before it expires.
        """
        self._check_writable()
        return renew_snapshot(self._opened, name, ttl_seconds=self._time_to_live(ttl))

    def drop_snapshot(self, name: str) -> None:
        """End a snapshot: the next collection may delete what it kept. Raises as `history.snapshot.drop_snapshot`."""
        self._check_writable()
        drop_snapshot(self._opened, name)

    @contextmanager
    def holding_snapshot(self, name: str, ttl: str | float | None = None) -> Iterator[Table]:
        """The table at a snapshot that is refreshed as long as the context lasts, and dropped at its end.

        Raises: as `snapshot`; at the end of the context also what kept it from being refreshed.
        """
        self._check_writable()
        seconds = self._time_to_live(ttl)
        if seconds is None:
            raise Invalid("a snapshot that is held has a time to live", remedy="Give seconds, or text like 15m or 1h")
        with holding_snapshot(self._opened, name, ttl_seconds=seconds) as pin:
            yield Table(self._opened, owner=self._owner, at=pin)

    def at(self, name: str) -> Table:
        """The table at a snapshot; raises `Invalid` if there is none of this name, or it has expired."""
        pin = find_snapshot(self._context, name)
        check_standing(self._context, pin)
        return Table(self._opened, owner=self._owner, at=pin)

    # Changes

    def changes(
        self,
        *,
        cursor: str | None = None,
        start: Start = "earliest",
        regions: Iterable[str] | None = None,
        follow: bool = False,
        limit: int | None = None,
    ) -> Changes:
        """Every committed upsert and delete, in the order of their commits within each region.

        Rows that the table was created with are in the base alone, and no changes.

        Args:
            cursor: go on where the cursor of this name was saved last; only if there is none it is made, at `start`.
                What it has not passed is not collected. Save it by `Changes.save`.
            start: `earliest` that is kept, `latest`, a position, Unix seconds as a float, or the next position of each
                region of this table (`Changes.positions`), which alone comes before what a cursor says.
            regions: ids; all by default.
            follow: wait for more at the end, for ever. By default the stream ends once it has what there was.
            limit: end after the entry that reaches so many rows.

        Raises:
            Invalid: a region or a start that there is not, positions of another table's regions among them, or a limit
                below 1; and when the stream is read, a start that was collected or lies past the end.
            Corrupt, Unavailable: as `scan`, when it is read.
        """
        self._check_writable()
        only = None if regions is None else [self.region(one).id for one in regions]
        return Changes(self._context, self._schema, start=start, cursor=cursor, only=only, follow=follow, limit=limit)

    def cursors(self) -> list[Pin]:
        """Every cursor, by name."""
        return list_cursors(self._context)

    def set_cursor(self, name: str, *, start: Start = "earliest", region: str | None = None) -> Pin:
        """Make a cursor, or put it somewhere else, in all regions or in one; raises as `history.cursor.set_cursor`.

        Args:
            start: as for `changes`.
            region: its id; the cursor has to be there then, and stays where it is in the others.
        """
        self._check_writable()
        check_start(self._context, start)
        only = None if region is None else self.region(region).id
        return set_cursor(self._context, name, start=lambda one, head: first_position(one, head, start), only=only)

    def drop_cursor(self, name: str) -> None:
        """End a cursor: what only it kept may be collected. Raises as `history.cursor.drop_cursor`."""
        self._check_writable()
        drop_cursor(self._context, name)

    # Regions

    def status(self) -> TableStatus:
        """Heads, lag and counters of every region as of now. Raises as `scan`."""
        return read_status(self._opened)

    def regions(self) -> list[Region]:
        """Every region in the catalog."""
        return regions(self._context)

    def region(self, identity: str) -> Region:
        """The region whose id is or starts with this; raises `Invalid` if none does, or several do."""
        return resolve_region(regions(self._context), identity, table=self.uri)

    def claim(self, region: Region, *, owner: str | None = None) -> Head:
        """Take a region for `owner`, by default for the table's ordinary writers; as `wal.claim.claim`."""
        self._check_writable()
        return claim(region, owner=owner or self.config.owner)

    def seal(self, region: Region) -> Head:
        """End a region for writes, for ever; as `wal.claim.seal`."""
        self._check_writable()
        return seal(region)

    # Inside

    @property
    def _context(self) -> TableContext:
        return self._opened.context

    @property
    def _schema(self) -> TableSchema:
        return self._opened.config.schema

    @cached_property
    def _target(self) -> WriteTarget:
        return self._opened.target()

    @cached_property
    def _pinned(self) -> View:
        assert self._at is not None, "only a snapshot has one view"
        return snapshot_view(self._opened, self._at)

    def _check_writable(self) -> None:
        if self._at is not None:
            raise Invalid(
                "the table is open at a snapshot",
                remedy="Open it without one to write, fold or follow it",
                table=self.uri,
                snapshot=self._at.name,
            )

    def _time_to_live(self, ttl: str | float | None) -> float | None:
        with error_context(table=self.uri):
            return time_to_live(self.settings.snapshot_ttl_seconds if ttl is None else ttl)

    def _while_standing(self, stream: pa.RecordBatchReader, pin: Pin) -> pa.RecordBatchReader:
        """The same rows; where something is missing because the snapshot is gone, its error says so."""

        def batches() -> Iterator[pa.RecordBatch]:
            with standing(self._context, pin):
                yield from stream

        return pa.RecordBatchReader.from_batches(stream.schema, batches())

    def _append(self, rows: pa.Table) -> Committed:
        with self._lock:
            if self._writers is None:
                self._writers = RegionWriters(self._target, owner=self._owner)
        try:
            return self._writers.append_all(route(rows, self._target.regions))
        except Corrupt:
            check_there(self._context)
            raise

    def _regions_of(self, keys: pa.Table) -> list[Region]:
        """The regions that may have rows of these keys above the base."""
        if self.config.regions is None:
            return regions(self._context)
        parts = route(keys, self._target.regions)
        return [region for part in parts if (region := self._target.directory.find(part.values)) is not None]

    def _reading(self, read: Callable[[View], T], listed: Callable[[], Sequence[Region]]) -> T:
        """Read from a view; from a second one if something in the first was collected before the first row came."""
        if self._at is not None:
            check_standing(self._context, self._at)
            with error_context(table=self.uri, snapshot=self._at.name), standing(self._context, self._at):
                return read(self._pinned)
        with error_context(table=self.uri):
            view = take_view(self._context, listed, self._opened.read_base)
            try:
                return read(view)
            except Corrupt:
                return read(take_view(self._context, listed, self._opened.read_base))


def create(
    uri: str | Path,
    data_or_schema: Any,
    *,
    primary_key: str | Sequence[str],
    regions: str | None = None,
    registry: str | None = None,
    owner: str = DEFAULT_OWNER,
    settings: Mapping[str, object] | None = None,
    storage_options: Mapping[str, str] | None = None,
    ports: Ports | None = None,
) -> Table:
    """Make a table at a path or URL and open it; data, if given, becomes version 1 of its base.

    Args:
        data_or_schema: an Arrow schema, or the first rows, as for `Table.upsert`.
        primary_key: its columns, in order.
        regions: how keys map to regions, `bucket(a, 4)` or another form of `routing.spec`; by default there is one.
        registry: `sqlite` (default for paths), `object` (default for URLs) or `dynamodb:NAME`.
        owner: the name that ordinary writers share.
        settings: by name, kept in the table's configuration.
        storage_options: for Lance and for our own objects, as Lance takes them.

    Raises:
        Invalid: a table or another dataset is there, or the schema, key, spec or settings don't fit.
        Contended: another process is making a table there.
        Unavailable: a store or the registry did not answer.

    After an error or a crash the same call goes on where this one stopped.
    """
    return Table(
        make_table(
            uri,
            data_or_schema,
            primary_key=primary_key,
            regions=regions,
            registry=registry,
            owner=owner,
            settings=settings,
            storage_options=storage_options,
            ports=ports or Ports(),
        )
    )


def open(  # noqa: A001 - read as lancelsm.open
    uri: str | Path,
    *,
    settings: Mapping[str, object] | None = None,
    storage_options: Mapping[str, str] | None = None,
    owner: str | None = None,
    at: str | None = None,
    ports: Ports | None = None,
) -> Table:
    """Open a table at a path or URL.

    Args:
        at: the name of a snapshot: the table as it was then, for reading alone.
        settings: by name, for this object alone, instead of the environment's and the table's own.
        storage_options: for Lance and for our own objects, as Lance takes them.
        owner: write under a name of one's own, which claims each region at the first write to it; by default the name
            that the table's ordinary writers share.

    Raises: as `region.handle.open_table`, and as `Table.at`.
    """
    handle = open_table(uri, settings=settings, storage_options=storage_options, ports=ports or Ports())
    table = Table(handle, owner=owner)
    return table if at is None else table.at(at)
