"""The methods of a table that read rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from lancelsm.common.argument_checks import checked
from lancelsm.common.row_types import Keys, LanceQuery, Vector
from lancelsm.dataset.lance_readers import LanceSnapshot
from lancelsm.errors import Invalid, error_context
from lancelsm.history.pin_records import Pin
from lancelsm.history.snapshot import snapshot_errors
from lancelsm.read import reader
from lancelsm.read.explain import Explanation, ReadTrace, skipped_regions
from lancelsm.read.explained_read import ReadName, explained_read
from lancelsm.read.freshness import Consistency
from lancelsm.read.key_regions import KeyRegions
from lancelsm.read.lance_snapshot import take_lance_snapshot
from lancelsm.read.ordering import in_order, parse_order
from lancelsm.read.pruning.region_pruning import pruned_view, regions_for
from lancelsm.read.result import Rows, with_first_batch
from lancelsm.read.transact.read_token import RowsWithToken
from lancelsm.read.view import View
from lancelsm.record.normalize import deletes
from lancelsm.table.searches import TableSearch

if TYPE_CHECKING:  # packages that few processes use
    from duckdb import DuckDBPyConnection, DuckDBPyRelation
    from pandas import DataFrame
    from polars import DataFrame as PolarsFrame


class TableReads(TableSearch):
    """Scans, lookups by key, searches, and what a read costs."""

    @checked
    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        order_by: str | Sequence[str] | None = None,
        consistency: Consistency = "strong",
        max_staleness: float | None = None,
    ) -> Rows:
        """Read every live row as of now. All rows acknowledged before the call are included.

        Args:
            columns: the columns to return, in this order; all by default.
            where: an SQL condition over the table's columns, in Lance's dialect: text in single quotes, and backticks
                around a column name that is not a plain word.
            limit: return at most this many rows.
            order_by: sort by these columns, such as `total desc, id`; by default there is no order. NaN and null come
                last. Every matching row is read; without `limit`, all of them are in memory.
            consistency: with `eventual` the rows may be up to `max_staleness` seconds old. The read then uses what
                this object has read before, without asking whether anything has changed.
            max_staleness: above 0 and below the setting `collect_interval_seconds`.

        Raises:
            Invalid: unknown column, negative limit, the condition is not valid SQL, a column can't be sorted, or
                `max_staleness` is missing or out of range. At a snapshot also: it was dropped or has expired; this
                error may come after some rows.
            Corrupt: an object is missing, or a check finds it damaged; the error names it. Reads can't detect a changed
                value in a data file that still decodes: docs/concepts/sums.md, "What scrub and readers can't tell".
            Unavailable: a store or the registry did not answer.
        """

        def read(view: View) -> Rows:
            needed = pruned_view(view, where, self.config.regions)
            self._trace.viewed(needed)
            stream = reader.scan(
                needed,
                uri=self.uri,
                columns=wanted,
                where=where,
                limit=limit if order is None else None,
                kept=self._views.kept,
                parallel=self._context.parallel,
                trace=self._trace,
            )
            stream = stream if self._at is None else self._explain_missing(stream, self._at)
            if order is None:
                return Rows(with_first_batch(stream))
            found = in_order(stream, order, limit=limit).read_all()
            return Rows((found if columns is None else found.select(columns)).to_reader())

        with error_context(table=self.uri):
            if limit is not None and limit < 0:
                raise Invalid(f"the limit is {limit}", remedy="Give 0 or more", field="limit")
            order = None if order_by is None else self._with_columns(lambda: parse_order(order_by, self.schema))
        wanted = columns if order is None or columns is None else list(dict.fromkeys([*columns, *order.columns]))
        staleness = self._staleness(consistency, max_staleness)
        spec = self.config.regions
        list_regions, select = regions_for(where, spec, context=self._context, schema=self._schema)
        return self._read_with_retry(read, list_regions, spec=spec, select=select, max_staleness=staleness)

    @checked
    def count(
        self, *, where: str | None = None, consistency: Consistency = "strong", max_staleness: float | None = None
    ) -> int:
        """Count the live rows as of now. All rows acknowledged before the call are included.

        Args:
            where: an SQL condition over the table's columns, in Lance's dialect: text in single quotes, and backticks
                around a column name that is not a plain word.
            consistency: with `eventual` the count may be up to `max_staleness` seconds old.
            max_staleness: above 0 and below the setting `collect_interval_seconds`.

        Raises:
            Invalid: the condition is not valid SQL, `max_staleness` is missing or out of range, or the table is at a
                snapshot that was dropped or has expired.
            Corrupt: an object is missing or damaged; the error names it.
            Unavailable: a store or the registry did not answer.
        """

        def read(view: View) -> int:
            needed = pruned_view(view, where, self.config.regions)
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
        spec = self.config.regions
        list_regions, select = regions_for(where, spec, context=self._context, schema=self._schema)
        return self._read_with_retry(read, list_regions, spec=spec, select=select, max_staleness=staleness)

    @checked
    def count_rows(self, where: str | None = None) -> int:
        """Count the live rows as of now: `count` under the name that LanceDB and Lance use.

        Args:
            where: an SQL condition over the table's columns, in Lance's dialect: text in single quotes, and backticks
                around a column name that is not a plain word.

        Raises:
            Invalid: the condition is not valid SQL, or the table is at a snapshot that was dropped or has expired.
            Corrupt: an object is missing or damaged; the error names it.
            Unavailable: a store or the registry did not answer.
        """
        return self.count(where=where)

    @checked
    def head(self, n: int = 5) -> pa.Table:
        """Return some live rows, at most `n`, in no order.

        Raises:
            Invalid: `n` is negative; or the table is at a snapshot that was dropped or has expired.
            Corrupt: an object is missing or damaged; the error names it.
            Unavailable: a store or the registry did not answer.
        """
        return self.scan(limit=n).to_arrow()

    @checked
    def to_arrow(self) -> pa.Table:
        """Return all live rows as of now. To read only some columns or rows, use `scan(...).to_arrow()`.

        Raises:
            Invalid: the table is at a snapshot that was dropped or has expired.
            Corrupt: an object is missing or damaged; the error names it.
            Unavailable: a store or the registry did not answer.
        """
        return self.scan().to_arrow()

    @checked
    def to_pylist(self) -> list[dict[str, Any]]:
        """Return all live rows as of now as a list of dicts. To read only some of them, use `scan(...).to_pylist()`.

        Raises:
            Invalid: the table is at a snapshot that was dropped or has expired.
            Corrupt: an object is missing or damaged; the error names it.
            Unavailable: a store or the registry did not answer.
        """
        return self.scan().to_pylist()

    @checked
    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Iterate over all live rows as of now in batches, without holding them all in memory.

        Raises:
            Invalid: the table is at a snapshot that was dropped or has expired.
            Corrupt: an object is missing or damaged; the error names it.
            Unavailable: a store or the registry did not answer.
        """
        return self.scan().to_batches()

    @checked
    def to_pandas(self) -> DataFrame:
        """Return all live rows as of now as a pandas DataFrame.

        Raises:
            Invalid: pandas is not installed; or the table is at a snapshot that was dropped or has expired.
            Corrupt: an object is missing or damaged; the error names it.
            Unavailable: a store or the registry did not answer.
        """
        return self.scan().to_pandas()

    @checked
    def to_polars(self) -> PolarsFrame:
        """Return all live rows as of now as a polars DataFrame. `lancelsm.polars_frame` is a lazy frame.

        Raises:
            Invalid: polars is not installed, or lacks the type of a column; or the table is at a snapshot that was
                dropped or has expired.
            Corrupt: an object is missing or damaged; the error names it.
            Unavailable: a store or the registry did not answer.
        """
        return self.scan().to_polars()

    @checked
    def to_duckdb(self, connection: DuckDBPyConnection | None = None) -> DuckDBPyRelation:
        """Return the table as a relation of duckdb. Each query scans the table as it is at that moment.

        Args:
            connection: a connection of duckdb; by default its default connection.

        Raises:
            Invalid: duckdb is not installed, or lacks the type of a column; or this is no open connection of it.
        """
        from lancelsm.read.sources.arrow_dataset import duckdb_relation  # noqa: PLC0415 - few processes use it

        return duckdb_relation(self, connection)

    @overload
    def get(
        self,
        keys: Keys,
        *,
        columns: Sequence[str] | None = None,
        consistency: Consistency = "strong",
        max_staleness: float | None = None,
        with_token: Literal[False] = False,
    ) -> pa.Table: ...

    @overload
    def get(
        self,
        keys: Keys,
        *,
        columns: Sequence[str] | None = None,
        consistency: Consistency = "strong",
        max_staleness: float | None = None,
        with_token: Literal[True],
    ) -> RowsWithToken: ...

    @checked
    def get(
        self,
        keys: Keys,
        *,
        columns: Sequence[str] | None = None,
        consistency: Consistency = "strong",
        max_staleness: float | None = None,
        with_token: bool = False,
    ) -> pa.Table | RowsWithToken:
        """Read the live rows of these keys as of now, in no particular order. Keys without a row are left out.

        Args:
            keys: one key or several: values for a key of one column; tuples for a key of several, in order; dicts; or
                the key columns in any form that `upsert` takes. A tuple is one key of several columns, a list is many.
            columns: the columns to return, in this order; all by default.
            consistency: `strong`, or `eventual`: the rows may be up to `max_staleness` seconds old.
            max_staleness: with `eventual`, in seconds, above 0 and below the setting `collect_interval_seconds`.
            with_token: return `RowsWithToken`: the rows, and a token for `upsert(rows, if_unchanged=token)`.

        Raises:
            Invalid: a key does not fit the schema, unknown column, or `max_staleness` is missing or out of range. At a
                snapshot also: it was dropped or has expired.
            Corrupt: an object is missing or damaged; the error names it.
            Unavailable: a store or the registry did not answer.
        """
        staleness = self._staleness(consistency, max_staleness)
        with error_context(table=self.uri):
            wanted = deletes(keys, schema=self._schema).select(list(self._schema.primary_key))

        def read(view: View) -> tuple[pa.Table, View]:
            rows = reader.get(
                view,
                wanted,
                uri=self.uri,
                columns=columns,
                kept=self._views.kept,
                parallel=self._context.parallel,
                trace=self._trace,
            )
            return rows, view

        if wanted.num_rows == 0 and not with_token:
            return self.scan(columns=columns, limit=0).to_arrow()
        if self.config.regions is None and not with_token:
            return self._read_with_retry(read, self.list_regions, spec=None)[0]
        while True:
            own = KeyRegions(wanted, self._target)
            # A kept listing or the region snapshot has the regions, so an eventual read lists no catalog.
            list_regions, select = (own.existing, None) if staleness is None else (self.list_regions, own.select)
            rows, view = self._read_with_retry(
                read, list_regions, spec=own.spec, select=select, max_staleness=staleness
            )
            if not with_token:
                return rows
            if own.spec == self._target.regions:  # guard: token has the regions of its view
                return RowsWithToken(rows=rows, token=own.token(view, table=self.config.table))

    @checked
    def explain(
        self,
        keys: Keys | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        count: bool = False,
        consistency: Consistency = "strong",
        max_staleness: float | None = None,
        vector: Vector | None = None,
        text: str | LanceQuery | None = None,
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

        Args: those of that read, which their methods describe; `count`: count the rows that match `where`.

        Returns:
            The steps with their requests, bytes and seconds, and the levels and regions that were left out and why.

        Raises:
            Invalid: that read has no such argument, or refuses one.
            Corrupt: an object is missing or damaged; the error names it.
            Unavailable: a store or the registry did not answer.
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
        listed = self.list_regions()
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
            Corrupt: a head, a manifest or the base is missing or damaged.
            Unavailable: a store or the registry did not answer.
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
            # An index may not cover merged generations of a retired region.
            lambda: [replace(one, retired=None) for one in self.list_regions()],
            spec=None,
            select=list,
        )

    # Private

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
