"""The public table object: upserts, deletes, consistent reads, snapshots, change streams and maintenance steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import pyarrow as pa

from lancelsm.common.bounded_cache import BoundedCache
from lancelsm.common.checked import checked
from lancelsm.common.committed import Committed
from lancelsm.common.duration import time_to_live
from lancelsm.common.settings import Settings
from lancelsm.common.trace import NO_TRACE, Trace
from lancelsm.compaction.runner import Engine
from lancelsm.dataset.lance_readers import LanceSnapshot
from lancelsm.errors import Corrupt, Invalid, error_context
from lancelsm.history.changes import Changes, Start, check_start, first_position
from lancelsm.history.cursor import drop_cursor, list_cursors, set_cursor
from lancelsm.history.pin_records import Pin
from lancelsm.history.snapshot import (
    check_readable,
    create_snapshot,
    drop_snapshot,
    find_snapshot,
    holding_snapshot,
    list_snapshots,
    refresh_snapshot,
    snapshot_errors,
    snapshot_view,
)
from lancelsm.read import reader
from lancelsm.read.counted_ports import counted
from lancelsm.read.explain import Explanation, ReadTrace, skipped_regions
from lancelsm.read.explained_read import ReadName, explained_read
from lancelsm.read.freshness import Consistency, read_staleness
from lancelsm.read.index_status import IndexStatus
from lancelsm.read.key_regions import KeyRegions
from lancelsm.read.lance_snapshot import take_lance_snapshot
from lancelsm.read.problems import warn_of_problems
from lancelsm.read.pruning.region_pruning import pruned_view, regions_for
from lancelsm.read.result import Rows, with_first_batch
from lancelsm.read.status import TableStatus, full_status
from lancelsm.read.transact.conditional import UpsertOptions, check_options, decide_by
from lancelsm.read.transact.edits import stored_edits
from lancelsm.read.transact.read_token import RowsWithToken, decode_token
from lancelsm.read.transact.transactions import Transactions
from lancelsm.read.view import View
from lancelsm.read.view_cache import ListRegions, Select, ViewCache
from lancelsm.record.normalize import deletes, partial_upserts, upserts
from lancelsm.record.schema import TableSchema
from lancelsm.region.catalog import Region, TableContext, regions, resolve_region
from lancelsm.region.config import Config
from lancelsm.region.handle import DEFAULT_OWNER, Ports, TableHandle, WriteTarget, open_with_base
from lancelsm.region.head import Head
from lancelsm.routing.route import route
from lancelsm.wal.claim import claim, seal
from lancelsm.wal.region_writer import NextDraft, RegionWriters
from lancelsm.wal.writer import Writer

if TYPE_CHECKING:  # a process that only reads or writes rows does not load these
    from lancelsm.compaction.background import Ran
    from lancelsm.compaction.compact import CompactedGeneration
    from lancelsm.compaction.maintenance import Flushed
    from lancelsm.compaction.merge import Merged
    from lancelsm.gc.collect import Collected
    from lancelsm.read.search.search import SearchRequest
    from lancelsm.read.transact.change_capture import Applied
    from lancelsm.scrub.report import Report

T = TypeVar("T")


class Table:
    """A table of rows with a primary key. Thread-safe.

    `lancelsm.create` and `lancelsm.open` return it. A table that is open at a snapshot always reads the rows of the
    snapshot and refuses writes.
    """

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
        self._lock = threading.Lock()
        self._in_function = threading.local()  # the function of a transaction runs in this thread
        self._sequence: tuple[str, ...] = ()
        self._writers: RegionWriters | None = None
        self._trace = trace
        self._views = views or ViewCache(
            handle.context,
            handle.read_keyed_base,
            kept=BoundedCache(handle.settings.view_cache_bytes),
            keep_seconds=handle.settings.collect_interval_seconds / 2,
            skew_seconds=handle.settings.skew_allowance_seconds,
        )

    def __repr__(self) -> str:
        key, regions = ", ".join(self._schema.primary_key), self.config.regions
        at = "" if self._at is None else f", at={self._at.name!r}"
        return f"<lancelsm.Table {self.uri!r}, primary_key={key!r}, regions={regions and regions.describe()!r}{at}>"

    @property
    def uri(self) -> str:
        return self._context.uri

    @property
    def at_snapshot(self) -> str | None:
        """The name of the snapshot that the table is open at; None if the table is open at its current state."""
        return None if self._at is None else self._at.name

    @property
    def config(self) -> Config:
        return self._handle.config

    @property
    def settings(self) -> Settings:
        return self._handle.settings

    @property
    def schema(self) -> pa.Schema:
        """The columns, each with Lance's field id in its metadata."""
        return self._schema.columns if self._at is None else self._pinned.base.schema.columns

    # Writing

    @checked
    def upsert(
        self,
        data: Any,
        *,
        on_duplicate: Literal["last", "error"] = "last",
        if_absent: bool = False,
        if_newer: str | None = None,
        if_unchanged: str | None = None,
        partial: bool = False,
    ) -> Committed:
        """Write rows by primary key. Return when they are durable and visible to every new read.

        With one of the last four options, each region writes what is right for the rows that are there right before
        its entry. Regions are independent: if one fails, `regions_done` in the error names those that are done.

        Args:
            data: anything with `__arrow_c_stream__` (Arrow, polars, pandas), a mapping of columns, one dict, or a list
                of dicts. Columns match the table's schema; key columns are not null.
            on_duplicate: if `data` has a key several times: `last` keeps the last row, `error` raises `Invalid`. This
                comes before the other options.
            if_absent: write only rows whose keys have no row.
            if_newer: a column. Write only rows whose value in it is greater than that of the row that is there, and
                rows whose keys have no row. Null and NaN are lower than every value; an equal row is not written.
            if_unchanged: the token of `get(keys, with_token=True)`. Write only if no row of these keys was written
                since that read, else raise `Contended`.
            partial: `data` has the key columns and any others. Columns that are left out keep their values; in a row
                whose key has no row they are null. It can be combined with one of the three others.

        Returns:
            The number of rows written, one log entry per region, and how many rows the options have `skipped`.

        Raises:
            Invalid: a row does not fit the schema; the error names column and row, and nothing was written. Or a region
                is sealed, the table was dropped, or it takes no rows since another tool changed its base. Or options
                exclude each other, the token is not of a read of the region of each row, or a partial row leaves out a
                column that must not be null, and has no row.
            Fenced: another owner holds a region. Nothing was written to that region; other regions may have committed
                their rows.
            Ambiguous: the rows of one region may or may not be written. Read, then decide.
            Contended, Unavailable: nothing was written to that region. Retry; if generations wait to be merged, merge.
                With `if_unchanged`, `Contended` also means that a row has changed, or that the log was collected past
                the read: read again.
            Corrupt: the log or the head of a region is damaged. No row of that region was acknowledged.

        After a crash at any line, readers see either all rows of the call in a region or none. A call that was
        interrupted may have written its rows, so a repeated `if_absent` or `if_newer` may skip the rows of the first.
        """
        self._check_writable()
        with error_context(table=self.uri):
            if not (if_absent or if_newer is not None or if_unchanged is not None or partial):
                return self._append(upserts(data, schema=self._schema, on_duplicate=on_duplicate))
            names: Sequence[str] = self._schema.names
            if partial:
                rows, names = partial_upserts(data, schema=self._schema, on_duplicate=on_duplicate)
            else:
                rows = upserts(data, schema=self._schema, on_duplicate=on_duplicate)
            check_options(self._schema, if_absent=if_absent, if_newer=if_newer, if_unchanged=if_unchanged, names=names)
            options = UpsertOptions(if_absent=if_absent, if_newer=if_newer, partial=partial, names=names)
            since = None if if_unchanged is None else decode_token(if_unchanged, table=self.config.table)
            return self._transactions.over_keys(
                rows, lambda given: options.decide(given, self._schema), reads_rows=options.need_rows, since=since
            )

    @checked
    def transact(self, keys: Any, fn: Callable[[pa.Table], Any], *, atomic: bool = False) -> Committed:
        """Read the rows of some keys, compute changes from them, and write these right after what was read.

        If another writer is faster, what it wrote is read, and `fn` runs again. So the rows that `fn` got are those
        right before its entry: transactions of a region are linearizable with all other writes. Transactions of this
        object in one region run one after the other; those of several processes retry with jittered backoff.

        Keys in several regions are one transaction per region: `fn` runs once or more for each, perhaps in several
        threads at once, with the live rows of that region. If one region fails, the others may be written.

        Args:
            keys: see `delete`.
            fn: gets a table with the live rows of these keys, with all columns, in no order. It returns rows to upsert
                in any form that `upsert` takes, an `Edits` with rows to upsert and keys to delete, or None. It may run
                several times, so it must have no effects of its own, and it can't write to this table. All its changes
                in a region are one entry. It may return rows for all of `keys`; each region takes its own.
            atomic: raise `Invalid` if the keys are in several regions.

        Returns:
            The number of rows written and keys deleted, and one log entry per region that has changes.

        Raises:
            Invalid: a key or a row does not fit the schema, a row has another key, or `atomic` excludes these keys.
                Or see `upsert`.
            Contended: other writers were faster until the retry budget was spent. Nothing was written to that region.
            Ambiguous: the changes of one region may or may not be written. Repeating an increment may apply it twice,
                so read first, or store in the row which operations it has.
            Fenced, Unavailable, Corrupt: see `upsert`.

        Raises also what `fn` raises; then that region has no changes.
        """
        self._check_writable()
        with error_context(table=self.uri):
            all_keys = deletes(keys, schema=self._schema)
            if not callable(fn):
                raise Invalid(f"fn is a {type(fn).__name__}", remedy="Give a function of a pyarrow table", field="fn")
            if atomic and len(regions := route(all_keys, self._target.regions)) > 1:
                raise Invalid(
                    f"the keys are in {len(regions)} regions, and a transaction is atomic in one region only",
                    remedy="Give keys of one region, or leave out atomic for one transaction per region",
                    field="atomic",
                )

            def call(current: pa.Table) -> pa.Table:
                self._in_function.active = True
                try:
                    return stored_edits(fn(current), self._schema)  # reads a generator to its end
                finally:
                    self._in_function.active = False

            return self._transactions.over_keys(all_keys, decide_by(call, self._schema, all_keys=all_keys))

    @checked
    def update(self, *, where: str, set: Mapping[str, str]) -> Committed:  # noqa: A002 - as in SQL
        """Set columns of every row that matches a condition. Return as `upsert` does.

        Each region changes exactly the rows that match right before its entry, from the values that they have there: a
        row that another writer changes meanwhile is checked and computed again. Regions are independent: if one fails,
        `regions_done` in the error names those that are done. The matching rows are held in memory.

        Args:
            where: a condition, see `scan`; `true` matches every row.
            set: an SQL expression in Lance's dialect for each column to set, such as `{"n": "n + 1", "state":
                "'paid'"}`. It sees the old values of all columns of the row. A literal may be written as in JSON rows.
                A sum or product that exceeds 64 bits wraps around, as in Lance. Lance has no CASE, subqueries or
                intervals: use `transact` for these. The value is cast to the type of the column if nothing is lost,
                so the time of now is `CAST(now() AS TIMESTAMP)`.

        Raises:
            Invalid: the condition or an expression is not valid, or fails on a row; the value does not fit its column;
                a column is unknown or a key column. Or see `upsert`.
            Fenced, Ambiguous, Contended, Unavailable, Corrupt: see `upsert`.
        """
        self._check_writable()
        with error_context(table=self.uri):
            return self._transactions.update(where=where, texts=set)

    @checked
    def delete(self, keys: Any = None, *, where: str | None = None) -> Committed:
        """Delete rows by key, or every row that matches a condition. Return as `upsert` does.

        Deleting a key that has no row is not an error. With a condition, each region loses exactly the rows that match
        right before its entry: a row that another writer changes meanwhile is checked again. Regions are independent:
        if one fails, `regions_done` in the error names those that are done.

        Args:
            keys: the key columns, in the same forms as the data of `upsert`; plain values for a key of one column,
                tuples for a key of several. A tuple is then one key, a list is many.
            where: a condition, see `scan`.

        Returns:
            The number of keys deleted, and one log entry per region.

        Raises:
            Invalid: a key does not fit the schema, or the condition is not valid. Nothing was written. Or a region is
                sealed, or the table was dropped.
            Fenced, Ambiguous, Contended, Unavailable, Corrupt: see `upsert`.
        """
        self._check_writable()
        if (keys is None) == (where is None):
            raise Invalid(
                "delete needs keys or a condition, and not both", remedy="Give one of keys and where", table=self.uri
            )
        if where is not None:
            with error_context(table=self.uri):
                return self._transactions.delete(where=where)
        with error_context(table=self.uri):
            return self._append(deletes(keys, schema=self._schema))

    @checked
    def apply_changes(
        self,
        events: Any,
        *,
        format: Literal["debezium", "flattened", "rows"] = "rows",  # noqa: A002 - the word of its users
        keys: str | Sequence[str] | None = None,
        sequence_by: str | Sequence[str] | Mapping[str, str] | None = None,
        apply_as_deletes: str | None = None,
        column_list: Sequence[str] | None = None,
        except_column_list: Sequence[str] | None = None,
        ignore_null_updates: bool = False,
        source: str | None = None,
        offset: int | Sequence[int] | None = None,
        on_bad_row: Literal["fail", "skip", "dead_letter"] = "fail",
    ) -> Applied:
        """Apply events of change data capture (SCD type 1). Return when they are durable and visible to every new read.

        The upserts and deletes of a call are one entry per region: readers see all of them in a region, in order, or
        none. `docs/cdc.md` has the rules and the encodings of values.

        Args:
            events: dicts, JSON lines (one text, or a line each), or Arrow data; in the order of the source.
            format: `debezium` for Debezium's envelope, `flattened` for records that its transformation flattened, or
                `rows`, of which each is an upsert.
            keys: the primary key of the table, to check it.
            sequence_by: columns of the table whose highest value wins, in this order; equal values win by arrival. By
                default those that the table remembers from an earlier call; without any, events win by arrival. A dict
                gives for each column the path of its value in the event.
            apply_as_deletes: an SQL condition over the fields of an event: the events that meet it are deletes.
            column_list: the columns that events change; others keep their values, and other fields are left out.
            except_column_list: columns that events don't change, and fields of events to leave out.
            ignore_null_updates: null in an upsert leaves the column as it is.
            source: the name of the source of these events. With `offset`, each event of a source is applied once.
            offset: an integer from 1 that rises from call to call: of the last event, or a list with one for each
                event. Calls of one source come one after the other.
            on_bad_row: `fail` raises `Invalid` for an event that does not fit, `skip` counts it as rejected,
                and `dead_letter` also keeps it with the reason in `_lancelsm/dead_letters/` of the table.

        Returns:
            The number of rows written, keys deleted, and events late, skipped and rejected.

        Raises:
            Invalid: an argument is wrong, the table is ordered by other columns, or an event does not fit. The error
                names the event by `row`; nothing was written. If an event leaves out a value that no stored row has,
                other regions may be written; also for an event that empties the source table (op t).
            Contended: other writers were faster until the retry budget was spent, or a region remembers too many
                sources. Call it again with the same events.
            Fenced, Ambiguous, Unavailable, Corrupt: see `upsert`. With a source, call it again with the same events.
        """
        from lancelsm.read.transact.change_capture import (  # noqa: PLC0415 - Lance is slow
            Access,
            apply_changes,
            request_of,
        )
        from lancelsm.region.config import newest_sequence, remember_sequence  # noqa: PLC0415

        self._check_writable()
        with error_context(table=self.uri):
            context = self._context
            self._sequence = self._sequence or newest_sequence(context.objects, self.config, uri=self.uri)
            request = request_of(
                self._schema,
                known=self._sequence,
                format=format,
                keys=keys,
                sequence_by=sequence_by,
                apply_as_deletes=apply_as_deletes,
                column_list=column_list,
                except_column_list=except_column_list,
                ignore_null_updates=ignore_null_updates,
                source=source,
                offset=offset,
                on_bad_row=on_bad_row,
            )
            names = tuple(request.selection.sequence)

            def order() -> None:
                if names != self._sequence:
                    remember_sequence(context.objects, names, uri=self.uri, budget=context.budget())
                    self._sequence = names

            if self._sequence:
                order()
            access = Access(read=self._read_with_retry, append=self._append, order=order, kept=self._views.kept)
            return apply_changes(events, request, access, context)

    @checked
    def source_offset(self, source: str) -> int | None:
        """Return the offset up to which all events of a source are applied; None if none are. Continue after it.

        Raises:
            Corrupt: the record of the source is unreadable.
            Unavailable: the registry did not answer.
        """
        from lancelsm.read.transact.source_offsets import check_source, read_offset  # noqa: PLC0415

        with error_context(table=self.uri):
            check_source(source)
            return read_offset(self._context, source)

    @checked
    def writer(self, *, pipeline_depth: int = 1, exclusive: bool = False) -> Writer:
        """Return a context that groups many small writes from many callers into few entries; see `Writer`.

        Args:
            pipeline_depth: how many entries of a region may be in flight at once; more than 1 implies `exclusive`.
            exclusive: claim each region for this writer alone, and give it back at the end. Other writers get `Fenced`
                meanwhile, and after a crash of this writer until the region is claimed.

        Raises:
            Invalid: `pipeline_depth` is below 1.
        """
        self._check_writable()
        return Writer(self._target, owner=self._owner, pipeline_depth=pipeline_depth, exclusive=exclusive)

    # Reading

    @checked
    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        consistency: Consistency = "strong",
        max_staleness: float | None = None,
    ) -> Rows:
        """Read every live row as of now. All rows acknowledged before the call are included.

        Args:
            columns: the columns to return, in this order; all by default.
            where: an SQL condition over the table's columns, in Lance's dialect: text in single quotes, and backticks
                around a column name that is not a plain word.
            limit: return at most this many rows.
            consistency: with `eventual` the rows may be up to `max_staleness` seconds old. The read then uses what
                this object has read before, without asking whether anything has changed.
            max_staleness: above 0 and below the setting `collect_interval_seconds`.

        Raises:
            Invalid: unknown column, the condition is not valid SQL, or `max_staleness` is missing or out of range. At a
                snapshot also: it was dropped or has expired; this error may come after some rows.
            Corrupt: an object is missing, or a check finds it damaged; the error names it. Reads can't detect a changed
                value in a data file that still decodes: docs/design.md, "What scrub and readers can't tell".
            Unavailable: a store or the registry did not answer.
        """

        def read(view: View) -> Rows:
            needed, _ = pruned_view(view, where, self.config)
            self._trace.viewed(needed)
            stream = reader.scan(
                needed,
                uri=self.uri,
                columns=columns,
                where=where,
                limit=limit,
                kept=self._views.kept,
                parallel=self._context.parallel,
                trace=self._trace,
            )
            return Rows(with_first_batch(stream if self._at is None else self._explain_missing(stream, self._at)))

        staleness = self._staleness(consistency, max_staleness)
        list_regions, select = regions_for(where, context=self._context, config=self.config)
        return self._read_with_retry(read, list_regions, select=select, max_staleness=staleness)

    @checked
    def count(
        self, *, where: str | None = None, consistency: Consistency = "strong", max_staleness: float | None = None
    ) -> int:
        """Count the live rows as of now. All rows acknowledged before the call are included.

        Args: see `scan`.

        Raises: the same errors as `scan`.
        """

        def read(view: View) -> int:
            needed, _ = pruned_view(view, where, self.config)
            self._trace.viewed(needed)
            return reader.count(
                needed,
                uri=self.uri,
                where=where,
                kept=self._views.kept,
                parallel=self._context.parallel,
                trace=self._trace,
            )

        staleness = self._staleness(consistency, max_staleness)
        list_regions, select = regions_for(where, context=self._context, config=self.config)
        return self._read_with_retry(read, list_regions, select=select, max_staleness=staleness)

    @overload
    def get(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        consistency: Consistency = "strong",
        max_staleness: float | None = None,
        with_token: Literal[False] = False,
    ) -> pa.Table: ...

    @overload
    def get(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        consistency: Consistency = "strong",
        max_staleness: float | None = None,
        with_token: Literal[True],
    ) -> RowsWithToken: ...

    @checked
    def get(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        consistency: Consistency = "strong",
        max_staleness: float | None = None,
        with_token: bool = False,
    ) -> pa.Table | RowsWithToken:
        """Read the live rows of these keys as of now, in no particular order. Keys without a row are left out.

        Args:
            keys: see `delete`.
            columns, consistency, max_staleness: see `scan`.
            with_token: return `RowsWithToken`: the rows, and a token for `upsert(rows, if_unchanged=token)`.

        Raises:
            Invalid: a key does not fit the schema, unknown column, or `max_staleness` is missing or out of range. At a
                snapshot also: it was dropped or has expired.
            Corrupt, Unavailable: see `scan`.
        """
        staleness = self._staleness(consistency, max_staleness)
        with error_context(table=self.uri):
            wanted = deletes(keys, schema=self._schema).select(list(self._schema.primary_key))
        own = KeyRegions(wanted, lambda: self._target)

        def read(view: View) -> pa.Table | RowsWithToken:
            rows = reader.get(
                view,
                wanted,
                uri=self.uri,
                columns=columns,
                kept=self._views.kept,
                parallel=self._context.parallel,
                trace=self._trace,
            )
            return RowsWithToken(rows=rows, token=own.token(view, table=self.config.table)) if with_token else rows

        if wanted.num_rows == 0 and not with_token:
            return self.scan(columns=columns, limit=0).to_arrow()
        if self.config.regions is None:
            return self._read_with_retry(read, self.regions)
        if staleness is None:
            return self._read_with_retry(read, own.existing)
        # A kept listing or the region snapshot has the regions, so no catalog is listed.
        return self._read_with_retry(read, self.regions, select=own.select, max_staleness=staleness)

    @checked
    def search(
        self,
        query: Any = None,
        *,
        vector: Any = None,
        text: Any = None,
        column: str | None = None,
        text_columns: Sequence[str] | None = None,
        k: int = 10,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        metric: str | None = None,
        nprobes: int | None = None,
        refine_factor: int | None = None,
        rerank: Literal["rrf"] | Callable[[pa.Table, pa.Table], pa.Table] = "rrf",
        at: str | None = None,
        consistency: Consistency = "strong",
        max_staleness: float | None = None,
    ) -> Rows:
        """Find the best rows by vector, by text or by both, as of now. All rows acknowledged before the call take part.

        A stale or deleted row is never returned, and takes no place among the results. A search without an index reads
        all vectors; a text search needs an index (`create_index`).

        Args:
            query: an array for `vector`, or text for `text`.
            vector: numbers, as many as each vector of the column has. A list of vectors is several searches, whose rows
                have their number in `query_index`; on a column with several vectors per row it is one search.
            text: words, of which a row has at least one; or a query object of `lance.query`. Lance ends the process if
                `BooleanQuery` or `BoostQuery` is nested some hundred times. Nothing can tell how deep an object is, so
                don't nest it by input that you don't trust.
            column: the column with the vectors; may be left out if only one fits.
            text_columns: the columns with the text, for plain words; by default all that have a text index. A query
                object names its own columns.
            k: the number of rows to return, at most 1,000,000.
            where: a condition that all returned rows match, see `scan`.
            columns: the columns to return, in this order; by default all, then `_distance` for a vector, `_score` for
                text, and `_relevance_score`, `_distance`, `_score` for both.
            metric: `l2`, `cosine`, `dot` or `hamming`; by default that of the index. Without an index `l2`, but
                `hamming` for vectors of uint8, and `cosine` for several vectors per row.
            nprobes: how many partitions of the index to search; by default 20.
            refine_factor: compare this many times `k` rows exactly, at most 10,000,000 rows; by default 1 to 10 times,
                as the kind of the index needs.
            rerank: for both: `rrf`, reciprocal-rank fusion; or a function of the two results, each with its score,
                that returns a table with the returned columns, best row first.
            at: the name of a snapshot to search.
            consistency, max_staleness: see `scan`.

        Returns:
            The rows, best first. In a hybrid result the score of a search that did not find the row is null.

        Raises:
            Invalid: a column is unknown, has no vectors or no text index; the vector has another length; the metric is
                not that of the index; the condition is not valid; an argument belongs to a vector or a text, and there
                is none; or another argument is not valid.
            Corrupt, Unavailable: see `scan`.
        """
        from lancelsm.read.search.search import read_request  # noqa: PLC0415

        request = read_request(
            query,
            vector=vector,
            text=text,
            column=column,
            text_columns=text_columns,
            k=k,
            where=where,
            columns=columns,
            metric=metric,
            nprobes=nprobes,
            refine_factor=refine_factor,
            rerank=rerank,
        )
        table = self if at is None else self.at(at)
        return table._search(request, max_staleness=table._staleness(consistency, max_staleness))

    @checked
    def explain(
        self,
        keys: Any = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        count: bool = False,
        consistency: Consistency = "strong",
        max_staleness: float | None = None,
        vector: Any = None,
        text: Any = None,
        column: str | None = None,
        text_columns: Sequence[str] | None = None,
        k: int | None = None,
        metric: str | None = None,
        nprobes: int | None = None,
        refine_factor: int | None = None,
    ) -> Explanation:
        """Do a read and explain it: its levels, what it left out, the indexes, and what it cost. Print it to see it.

        The read is a `get` if there are keys, a `search` if there is a vector or a text, a `count` if `count` is true,
        else a `scan`. All its rows are read. It uses what this object has read before, as the same read would.

        Raises: the same errors as that read; also `Invalid`: that read has no such argument.
        """
        arguments: dict[str, Any] = {
            "keys": keys,
            "columns": columns,
            "where": where,
            "limit": limit,
            "count": count or None,
            "vector": vector,
            "text": text,
            "column": column,
            "text_columns": text_columns,
            "k": k,
            "metric": metric,
            "nprobes": nprobes,
            "refine_factor": refine_factor,
        }
        given = {name: value for name, value in arguments.items() if value is not None}
        read = explained_read(given, table=self.uri)
        given |= {"consistency": consistency, "max_staleness": max_staleness}
        trace = ReadTrace(self._context.clock)
        rows = self._traced(trace)._rows_read(read, given)
        listed = self.regions()
        return trace.explanation(
            rows=rows,
            skipped_regions=skipped_regions(
                listed, trace.view, where=where, by_key=keys is not None, config=self.config
            ),
            objects=self._context.objects,
        )

    @checked
    def lance_snapshot(self, *, index: str | None = None) -> LanceSnapshot:
        """Return what Lance's own readers need to read every flushed row as of now; rows of the log are not included.

        `LsmScanner.from_snapshots(*table.lance_snapshot())` scans them. `flush` first to include all rows. Read within
        `collect_interval_seconds`, or from a table that is open at a snapshot.

        Args:
            index: the name of an index, for a reader that searches the base by it alone, such as
                `LsmVectorSearchPlanner`: includes the merged generations that the index does not cover yet.

        Raises:
            Invalid: the table has no such index; or it is open at a snapshot that was dropped or has expired, or that
                does not keep what `index` needs.
            Corrupt, Unavailable: see `scan`.
        """
        if index is not None and self._at is not None:
            raise Invalid(
                "a snapshot does not keep merged generations that an index lacks",
                remedy="Leave out index, or open the table without a snapshot",
                table=self.uri,
                snapshot=self._at.name,
                field="index",
            )
        return self._read_with_retry(
            lambda view: take_lance_snapshot(view, index=index, objects=self._context.objects),
            self.regions,
            select=list,
        )

    # Maintenance

    @checked
    def flush(self) -> list[Flushed]:
        """Flush the log of every region into generations: all rows acknowledged before the call leave the log.

        Raises:
            Corrupt: the log is not what was committed, or the written rows read back differently. Nothing of that
                region was committed.
            Contended, Ambiguous, Unavailable: retry; rows that are already flushed are not flushed again.
        """
        self._check_writable()
        from lancelsm.compaction.maintenance import flush_table  # noqa: PLC0415

        return flush_table(self._handle)

    @checked
    def compact(self) -> list[CompactedGeneration]:
        """Replace generations by fewer ones until no region has more than `max_generations` that are not merged.

        This keeps reads fast while merges are rare. The base does not change. A generation that replaces others has the
        newest row of each of their keys, deletes included.

        Returns:
            The generations that were written; empty if no region had more.

        Raises:
            Corrupt: a generation is missing or damaged, or the new one reads back differently. It was not committed.
            Contended, Ambiguous, Unavailable: retry; what is already compacted is not compacted again.
        """
        self._check_writable()
        from lancelsm.compaction.compact import compact_table  # noqa: PLC0415

        return compact_table(self._handle)

    @checked
    def merge(self, *, engine: Engine = "auto") -> Merged:
        """Merge all generations into the base.

        Args:
            engine: where the merge runs; `auto` decides by the sizes of delta and base.

        Raises:
            Invalid: unknown engine; or another tool changed the base: the error names a version to restore.
            Contended: another process merges or optimizes the table, or keeps changing the base. Retry.
            Ambiguous: the commit may have happened. Merge again: generations are not merged twice.
            Unavailable: a store did not answer; nothing was committed. Retry.
            Corrupt: the base belongs to another table, or a generation is missing or damaged.
        """
        self._check_writable()
        from lancelsm.compaction.maintenance import merge_table  # noqa: PLC0415

        return merge_table(self._handle, engine=engine)

    @checked
    def run(self, *, until_idle: bool = True, engine: Engine = "auto") -> Ran:
        """Flush and merge the table, and optimize its base after a merge. Compact generations while no merge is due.

        Args:
            until_idle: True: do everything that can be done, due or not, then return. False: do what is due by the
                table's settings, and never return.
            engine: see `merge`.

        Raises:
            Invalid: another tool changed the base: see `merge`.
            Corrupt: a region or the base is damaged.
            Contended, Ambiguous, Unavailable: only with `until_idle`; otherwise the step is tried again later.
        """
        self._check_writable()
        from lancelsm.compaction.background import run  # noqa: PLC0415

        return run(self._handle, until_idle=until_idle, engine=engine)

    @checked
    def create_index(
        self, column: str, *, kind: str, name: str | None = None, replace: bool = False, **options: Any
    ) -> IndexStatus:
        """Create an index on a column, and maintain it: every flush builds it for its rows too.

        Searches find all rows at any time; an index makes them fast. Generations get an index for vectors, INVERTED and
        BTREE; an index of another kind is on the base alone. When the call returns, every row is indexed, and Lance's
        own readers may rely on it; but `rows_without` of the result counts rows that Lance can't index.

        Args:
            kind: as Lance names it: IVF_FLAT, IVF_SQ, IVF_PQ, IVF_RQ, IVF_HNSW_FLAT, IVF_HNSW_SQ, IVF_HNSW_PQ for
                vectors, INVERTED for text, BTREE, BITMAP, LABEL_LIST, NGRAM, ZONEMAP or BLOOMFILTER for conditions.
            name: by default the name of the column and `_idx`.
            replace: replace an index of this name. Without it such an index is `Invalid`.
            options: Lance's options for this kind, such as `metric`, `num_partitions` or `with_position`. For PQ,
                `num_sub_vectors` is the length of the vectors divided by 16 or by 8, else 1, unless it is given.

        Raises:
            Invalid: unknown column, an unknown kind or option, one that Lance refuses for it, or the name is taken.
            Contended: another process maintains the indexes, or other processes kept changing the base.
            Corrupt: a head, a manifest, a generation or the base is missing or damaged.
            Unavailable: a store or the registry did not answer.

        After an error or a crash the index may exist on the base alone. The command `lancelsm optimize`, or the same
        call with `replace`, finishes it.
        """
        self._check_writable()
        from lancelsm.compaction.indexes import create_index  # noqa: PLC0415

        return create_index(self._handle, column, kind=kind, name=name, replace_existing=replace, options=options)

    @checked
    def drop_index(self, name: str) -> None:
        """Drop an index. Files of the index in generations stay until the generations are collected.

        Raises:
            Invalid: the table has no such index.
            Corrupt: see `create_index`.
            Contended, Unavailable: the index may still exist, and may no longer be maintained. Drop it again.
        """
        self._check_writable()
        from lancelsm.compaction.indexes import drop_index  # noqa: PLC0415

        drop_index(self._handle, name)

    @checked
    def list_indices(self) -> list[IndexStatus]:
        """List the indexes by name, with the rows that a search reads without them.

        Raises:
            Corrupt: a head, a manifest or the base is missing or damaged.
            Unavailable: a store or the registry did not answer.
        """
        from lancelsm.compaction.indexes import index_statuses  # noqa: PLC0415

        with error_context(table=self.uri):
            return index_statuses(self._handle)

    @checked
    def collect(self, *, yes: bool = False, interval_seconds: float | None = None) -> Collected:
        """Delete objects that are no longer needed. By default only list them, with what is kept and why.

        Args:
            yes: False: a dry run, nothing is written or deleted.
            interval_seconds: the time between a round's commit and its sweep, for reads that began before the commit;
                by default the table's setting. A committed round whose interval is over is swept now. A round that was
                committed just now is left to a later call, unless the interval is 0.

        Raises:
            Invalid: the interval is below 0, or the table was dropped.
            Corrupt: an object is missing or damaged; the error names it. Nothing of that region was deleted; other
                regions were collected.
            Contended, Ambiguous, Unavailable: run it again; it continues where this call stopped.
        """
        from lancelsm.gc.collect import collect  # noqa: PLC0415

        self._check_writable()
        with error_context(table=self.uri):
            return collect(self._handle, yes=yes, interval_seconds=interval_seconds)

    @checked
    def scrub(self, *, region: str | None = None, limit: int | None = None) -> Report:
        """Read everything that the table consists of and name every damaged object. At a snapshot: what it needs.

        Args:
            region: check only this region, given by its id or the start of it; the rows of the base are not checked.
            limit: read at most this many objects, besides registry records and the manifests that they name.

        Raises:
            Invalid: region or snapshot not found, a limit below 1, or the table was dropped.
            Unavailable: a store or the registry did not answer.
        """
        from lancelsm.scrub.table import scrub  # noqa: PLC0415

        with error_context(table=self.uri):
            return scrub(self._handle, region=region, at=self.at_snapshot, limit=limit)

    # Snapshots

    @checked
    def snapshot(self, name: str, ttl: str | float | None = None) -> Pin:
        """Keep the table as it is now under a name. All rows acknowledged before the call are included.

        While the snapshot exists, the log written after it and the generations made of that log are kept too.

        Args:
            name: up to 100 letters, digits, `-` and `_`.
            ttl: time to live unless it is refreshed: seconds, text such as `15m`, `1h`, `7d`, or `never`; by default
                the setting `snapshot_ttl_seconds`.

        Raises:
            Invalid: the name is taken or not valid.
            Contended: collections overtook the snapshot several times; it does not exist.
            Corrupt: an object that the snapshot needs is missing or damaged.
            Unavailable: a store or the registry did not answer; the snapshot may exist.
        """
        self._check_writable()
        return create_snapshot(self._handle, name, ttl_seconds=self._time_to_live(ttl))

    @checked
    def snapshots(self) -> list[Pin]:
        """List every snapshot by name, including expired ones that no collection has removed yet."""
        return list_snapshots(self._context)

    @checked
    def refresh_snapshot(self, name: str, ttl: str | float | None = None) -> Pin:
        """Let a snapshot expire `ttl` from now.

        Raises:
            Invalid: snapshot not found; it may have been dropped or have expired.
            Contended, Unavailable: the snapshot was not refreshed. Retry before it expires.
        """
        self._check_writable()
        return refresh_snapshot(self._handle, name, ttl_seconds=self._time_to_live(ttl))

    @checked
    def drop_snapshot(self, name: str) -> None:
        """Drop a snapshot. The next collection may delete what only the snapshot kept.

        Raises:
            Invalid: snapshot not found, or it keeps the files of a clone; or the clone's location can't be read.
            Corrupt: what the clone records about its source is unreadable.
            Contended, Unavailable: the snapshot may still exist. Retry.
        """
        self._check_writable()
        drop_snapshot(self._handle, name)

    @checked
    @contextmanager
    def holding_snapshot(self, name: str, ttl: str | float | None = None) -> Iterator[Table]:
        """Create a snapshot, refresh it in the `with` block, and drop it at the end. Yield the table at the snapshot.

        Raises:
            Invalid: the name is taken or not valid, or `ttl` is `never`; at the end also: the snapshot was lost.
            Contended, Corrupt, Unavailable: see `snapshot`.
        """
        self._check_writable()
        seconds = self._time_to_live(ttl)
        if seconds is None:
            raise Invalid("a held snapshot needs a time to live", remedy="Give seconds, or text such as 15m or 1h")
        with holding_snapshot(self._handle, name, ttl_seconds=seconds) as pin:
            yield Table(self._handle, owner=self._owner, at=pin)

    @checked
    def at(self, name: str) -> Table:
        """Return the table at a snapshot. Raise `Invalid` if the snapshot is not found or has expired."""
        pin = find_snapshot(self._context, name)
        check_readable(self._context, pin)
        return Table(self._handle, owner=self._owner, at=pin)

    # Changes

    @checked
    def changes(
        self,
        *,
        cursor: str | None = None,
        start: Start = "earliest",
        regions: Iterable[str] | None = None,
        follow: bool = False,
        limit: int | None = None,
    ) -> Changes:
        """Stream every committed upsert and delete, in commit order within each region.

        Rows that the table was created with are only in the base; they do not appear in the stream.

        Args:
            cursor: continue where the cursor of this name was last saved. If there is no such cursor, create it at
                `start`. A cursor keeps everything that it has not passed from being collected. Save it with
                `Changes.save`.
            start: `earliest` (the oldest kept entry), `latest`, a position, Unix seconds as a float, or the next
                position of each region of this table (`Changes.positions`). Only the last form overrides an existing
                cursor.
            regions: ids of the regions to read; all by default.
            follow: True: wait for more entries and never end. False: end after the entries that existed at the start.
            limit: end after the entry that reaches this many rows.

        Raises:
            Invalid: unknown region, `start` is not valid or holds positions of another table, or `limit` is below 1.
                While reading: `start` was collected or is past the end of the log.
            Corrupt: while reading: an object is missing or damaged.
            Unavailable: a store or the registry did not answer.
        """
        self._check_writable()
        only = None if regions is None else [self.region(one).id for one in regions]
        return Changes(self._context, self._schema, start=start, cursor=cursor, only=only, follow=follow, limit=limit)

    @checked
    def cursors(self) -> list[Pin]:
        """List every cursor by name."""
        return list_cursors(self._context)

    @checked
    def set_cursor(self, name: str, *, start: Start = "earliest", region: str | None = None) -> Pin:
        """Create a cursor, or move it forward or back, in all regions or in one.

        Args:
            start: see `changes`.
            region: move only this region, given by its id; the cursor must exist and stays where it is in the others.

        Raises:
            Invalid: unknown region, cursor not found, or `start` is not valid or was collected. Nothing changed.
            Contended: collections overtook the change several times, or another process moved the cursor.
            Corrupt: a record of the registry is damaged.
            Unavailable: the registry did not answer; the cursor may have moved.
        """
        self._check_writable()
        check_start(self._context, start)
        only = None if region is None else self.region(region).id
        return set_cursor(self._context, name, start=lambda one, head: first_position(one, head, start), only=only)

    @checked
    def drop_cursor(self, name: str) -> None:
        """Drop a cursor. What only the cursor kept may be collected.

        Raises:
            Invalid: cursor not found.
            Contended, Unavailable: the cursor may still exist. Retry.
        """
        self._check_writable()
        drop_cursor(self._context, name)

    # Regions

    @checked
    def status(self) -> TableStatus:
        """Read heads, lag and counters of every region, the progress of every index, and what other tools did.

        Raises:
            Corrupt: a head or the manifest that it names is missing or damaged.
            Unavailable: a store or the registry did not answer.
        """
        return full_status(self._handle)

    @checked
    def regions(self) -> list[Region]:
        """List every region in the catalog."""
        return regions(self._context)

    @checked
    def region(self, identity: str) -> Region:
        """Find the region by its id or the start of it. Raise `Invalid` if no region or several regions match."""
        return resolve_region(regions(self._context), identity, table=self.uri)

    @checked
    def claim(self, region: Region, *, owner: str | None = None) -> Head:
        """Take a region for `owner`, by default for the table's ordinary writers. The previous owner is fenced.

        Raises:
            Invalid: the region is sealed, or `owner` is not a valid name.
            Fenced: another claim came right after this one.
            Corrupt: the log of the region is damaged. The region was not claimed.
            Contended, Unavailable, Ambiguous: the claim may be incomplete. Claim again.
        """
        self._check_writable()
        return claim(region, owner=owner or self.config.owner)

    @checked
    def seal(self, region: Region) -> Head:
        """End a region for writes, permanently. Flush, merge and collection of the region continue to work.

        Raises:
            Contended, Unavailable, Ambiguous: the region may be sealed. Seal it again, which finishes it.
        """
        self._check_writable()
        return seal(region)

    # Private

    @property
    def _context(self) -> TableContext:
        return self._handle.context

    @property
    def _schema(self) -> TableSchema:
        return self._handle.config.schema

    @cached_property
    def _target(self) -> WriteTarget:
        return self._handle.target()

    @cached_property
    def _transactions(self) -> Transactions:
        return Transactions(
            self._target, self.config, read=self._read_with_retry, append=self._append, kept=self._views.kept
        )

    @cached_property
    def _pinned(self) -> View:
        assert self._at is not None, "only a snapshot has one view"
        return snapshot_view(self._handle, self._at)

    def _check_writable(self) -> None:
        if self._at is not None:
            raise Invalid(
                "the table is open at a snapshot",
                remedy="Open the table without a snapshot for this call",
                table=self.uri,
                snapshot=self._at.name,
            )

    def _time_to_live(self, ttl: str | float | None) -> float | None:
        with error_context(table=self.uri):
            return time_to_live(self.settings.snapshot_ttl_seconds if ttl is None else ttl)

    def _search(self, request: SearchRequest, *, max_staleness: float | None) -> Rows:
        from lancelsm.read.search.search import Prepared, search  # noqa: PLC0415

        # The scores of words depend on the rows of all regions; those of a query object are of each level.
        where = None if isinstance(request.text, str) else request.where

        def read(view: View) -> Rows:
            needed, _ = pruned_view(view, where, self.config)
            self._trace.viewed(needed)
            prepared = Prepared.of(needed, self._views.kept, uri=self.uri, trace=self._trace)
            with self._trace.step("search"):
                return Rows(search(prepared, request, uri=self.uri, trace=self._trace).to_reader())

        list_regions, select = regions_for(where, context=self._context, config=self.config)
        return self._read_with_retry(read, list_regions, select=select, max_staleness=max_staleness)

    def _traced(self, trace: ReadTrace) -> Table:
        """Return a table that shares what this one has read. The trace collects its requests."""
        context = counted(self._context, trace)
        handle = replace(self._handle, context=context)
        views = self._views.traced(context, handle.read_keyed_base, trace)
        table = Table(handle, owner=self._owner, at=self._at, views=views, trace=trace)
        if self.config.regions is not None:
            table._target = replace(self._target, context=context, directory=self._target.directory.within(context))
        return table

    def _rows_read(self, read: ReadName, arguments: Mapping[str, Any]) -> int:
        """Do a read, and return how many rows it found."""
        if read == "get":
            return len(self.get(**arguments))
        if read == "search":
            return len(self.search(**arguments).to_arrow())
        if read == "count":
            return self.count(**{name: value for name, value in arguments.items() if name != "count"})
        return sum(batch.num_rows for batch in self.scan(**arguments))

    def _explain_missing(self, stream: pa.RecordBatchReader, pin: Pin) -> pa.RecordBatchReader:
        """Return the same rows. If the snapshot is gone and a read fails, the error says that the snapshot is gone."""

        def batches() -> Iterator[pa.RecordBatch]:
            with snapshot_errors(self._context, pin):
                yield from stream

        return pa.RecordBatchReader.from_batches(stream.schema, batches())

    def _append(self, rows: pa.Table, *, next_draft: NextDraft | None = None) -> Committed:
        if getattr(self._in_function, "active", False):
            raise Invalid(
                "the function of a transaction can't write to the table",
                remedy="Return the rows instead of writing them",
            )
        with self._lock:
            if self._writers is None:
                self._writers = RegionWriters(self._target, owner=self._owner)
        return self._writers.append_all(route(rows, self._target.regions), next_draft=next_draft)

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
        select: Select | None = None,
        max_staleness: float | None = None,
    ) -> T:
        """Read from a view. If an object of it was collected before the first row, read once more from a new view."""
        if self._at is not None:
            check_readable(self._context, self._at)
            with error_context(table=self.uri, snapshot=self._at.name), snapshot_errors(self._context, self._at):
                self._trace.viewed(self._pinned)
                return read(self._pinned)  # guard: read of a snapshot takes no newer view
        with error_context(table=self.uri):
            view = None
            with self._trace.step("view"):
                if max_staleness is not None:
                    view = self._views.recent(list_regions, select=select, max_staleness=max_staleness)
                view = view or self._views.take(list_regions, select=select)
            self._trace.viewed(view)
            try:
                return read(view)
            except Corrupt:  # guard: reader takes a new view after a collection
                self._views.forget()
                return read(self._views.take(list_regions, select=select))


@checked
def create(
    uri: str | Path,
    data_or_schema: Any,
    *,
    primary_key: str | Sequence[str],
    regions: str | None = None,
    registry: str | None = None,
    owner: str = DEFAULT_OWNER,
    settings: Mapping[str, object] | None = None,
    indexes: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, str] | None = None,
    ports: Ports | None = None,
) -> Table:
    """Create a table at a path or URL and open it. Rows, if given, become version 1 of its base.

    Args:
        data_or_schema: an Arrow schema, or the first rows in any form that `Table.upsert` takes.
        primary_key: the key columns, in order.
        regions: the region spec: `bucket(a, 4)`, `multi_bucket(a, b, 8)`, `identity(a)`, `truncate(a, 10)`, `year(t)`,
            `month(t)`, `day(t)`, `hour(t)`, `expr(a % 4)`, or several joined by commas; by default the table has one
            region.
        registry: `sqlite` (default for paths), `object` (default for URLs) or `dynamodb:NAME`.
        owner: the owner name that ordinary writers share.
        settings: values by name, stored in the table's configuration.
        indexes: the indexes to create, by column: a kind, as in `{"vec": "IVF_SQ", "text": "INVERTED"}`, or a mapping
            with `kind` and the other arguments of `Table.create_index`, as in `{"vec": {"kind": "IVF_PQ",
            "num_sub_vectors": 16}}`.
        storage_options: options of the object store, as Lance takes them.

    Raises:
        Invalid: a table or another dataset exists there, or schema, key, region spec, settings or indexes are not
            valid. Then nothing was written, unless Lance refuses an index only when it reads the rows.
        Contended: another process is creating a table there.
        Unavailable: a store or the registry did not answer.

    After an error or a crash, the same call continues where this one stopped.
    """
    from lancelsm.admin.create import create_table  # noqa: PLC0415

    return Table(
        create_table(
            uri,
            data_or_schema,
            primary_key=primary_key,
            regions=regions,
            registry=registry,
            owner=owner,
            settings=settings,
            indexes=indexes,
            storage_options=storage_options,
            ports=ports or Ports(),
        )
    )


@checked
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
        at: the name of a snapshot; the table is then read-only and shows the rows of the snapshot.
        settings: values by name for this object only; they override the environment and the table's own settings.
        storage_options: options of the object store, as Lance takes them.
        owner: an owner name for this writer alone; it claims each region at its first write. By default the name that
            ordinary writers of the table share.

    Raises:
        Invalid: there is no table at this location, a newer release created it, or snapshot not found or expired.
        Corrupt: the table's configuration is unreadable or contradicts the base.
        Unavailable: a store or the registry did not answer.

    If another tool changed the table, `open` emits one `LsmWarning`; `Table.status` has the same in `problems`.
    """
    handle, base = open_with_base(uri, settings=settings, storage_options=storage_options, ports=ports or Ports())
    table = Table(handle, owner=owner)
    if at is not None:
        return table.at(at)
    warn_of_problems(handle, base=base, commits=True, stacklevel=3)
    return table
