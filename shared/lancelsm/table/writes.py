"""The methods of a table that write rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from lancelsm.common.argument_checks import checked
from lancelsm.common.error_text import shown
from lancelsm.common.row_types import ArrowLike, Keys
from lancelsm.common.write_result import Committed
from lancelsm.errors import Invalid, error_context
from lancelsm.read.transact.conditional import UpsertOptions, check_options, decide_by
from lancelsm.read.transact.edits import Edits, stored_edits
from lancelsm.read.transact.read_token import decode_token
from lancelsm.record.normalize import deletes, partial_upserts, readable_again, upserts
from lancelsm.record.schema import TableSchema, conform, names_now
from lancelsm.record.shapes import reads_as_condition
from lancelsm.region.catalog import check_takes_plain_writes
from lancelsm.table.open_table import OpenTable
from lancelsm.wal.writer import Writer

if TYPE_CHECKING:  # a process that only reads or writes rows does not load these
    from lancelsm.read.transact.change_capture import Applied


class TableWrites(OpenTable):
    """Upserts, deletes, transactions and change events."""

    @checked
    def upsert(
        self,
        data: ArrowLike,
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
            data: anything with `__arrow_c_stream__` (Arrow, polars, pandas), a mapping of columns, one row, or a list
                of rows: dicts, dataclasses, named tuples or pydantic models. Columns match the table's schema; key
                columns are not null.
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
                is sealed, the table was dropped, or it takes no rows since another tool changed its base. Or the table
                takes only change events, since `apply_changes` had `sequence_by`. Or options
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
        self._check_takes_plain_writes()
        with error_context(table=self.uri):

            def convert(data: Any, schema: TableSchema) -> tuple[pa.Table, Sequence[str]]:
                if partial:
                    return partial_upserts(data, schema=schema, on_duplicate=on_duplicate)
                return upserts(data, schema=schema, on_duplicate=on_duplicate), schema.names

            (rows, names), then = self._converted(data, convert)
            if not (if_absent or if_newer is not None or if_unchanged is not None or partial):
                return self._append(rows)

            def write() -> Committed:
                schema = self._schema
                given, known = conform(rows, schema), names_now(names, then, schema)
                check_options(schema, if_absent=if_absent, if_newer=if_newer, if_unchanged=if_unchanged, names=known)
                options = UpsertOptions(if_absent=if_absent, if_newer=if_newer, partial=partial, names=known)
                since = None if if_unchanged is None else decode_token(if_unchanged, table=self.config.table)
                return self._transactions_of(schema).over_keys(
                    given, lambda part: options.decide(part, schema), reads_rows=options.need_rows, since=since
                )

            return self._with_columns(write)

    @checked
    def transact(
        self, keys: Keys, fn: Callable[[pa.Table], ArrowLike | Edits | None], *, atomic: bool = False
    ) -> Committed:
        """Read the rows of some keys, compute changes from them, and write these right after what was read.

        If another writer is faster, what it wrote is read, and `fn` runs again. So the rows that `fn` got are those
        right before its entry: transactions of a region are linearizable with all other writes. Transactions of this
        object in one region run one after the other; those of several processes retry with jittered backoff.

        Keys in several regions are one transaction per region: `fn` runs once or more for each, perhaps in several
        threads at once, with the live rows of that region. If one region fails, the others may be written.

        Args:
            keys: one key or several: values for a key of one column; tuples for a key of several, in order; dicts; or
                the key columns in any form that `upsert` takes. A tuple is one key of several columns, a list is many.
            fn: gets a table with the live rows of these keys, with all columns, in no order. It returns rows to upsert
                in any form that `upsert` takes, an `Edits` with rows to upsert and keys to delete, or None. It may run
                several times, so it must have no effects of its own, and it can't write to this table. All its changes
                in a region are one entry. It may return rows for all of `keys`; each region takes its own.
            atomic: raise `Invalid` if the keys are in several regions.

        Returns:
            The number of rows written and keys deleted, and one log entry per region that has changes.

        Raises:
            Invalid: a key or a row does not fit the schema, a row has another key, or `atomic` excludes these keys.
                Or a region is sealed, or the table was dropped or takes only change events.
            Contended: other writers were faster until the retry budget was spent. Nothing was written to that region.
            Ambiguous: the changes of one region may or may not be written. Repeating an increment may apply it twice,
                so read first, or store in the row which operations it has.
            Fenced: another owner holds a region. Nothing was written to that region.
            Unavailable: a store did not answer. Nothing was written to that region.
            Corrupt: the log or the head of a region is damaged. No change of that region was acknowledged.

        Raises also what `fn` raises; then that region has no changes.
        """
        self._check_takes_plain_writes()
        with error_context(table=self.uri):
            given, _ = self._converted(keys, lambda data, schema: deletes(data, schema=schema))
            if not callable(fn):
                raise Invalid(f"fn is a {type(fn).__name__}", remedy="Give a function of a pyarrow table", field="fn")

            def write() -> Committed:
                schema = self._schema
                all_keys = conform(given, schema)

                def call(current: pa.Table) -> pa.Table:
                    self._in_function.active = True
                    try:
                        return stored_edits(fn(current), schema)  # reads a generator to its end
                    finally:
                        self._in_function.active = False

                decide = decide_by(call, schema, all_keys=all_keys)
                return self._transactions_of(schema).over_keys(all_keys, decide, atomic=atomic)

            return self._with_columns(write)

    @checked
    def update(self, *, where: str, set: Mapping[str, str]) -> Committed:  # noqa: A002 - as in SQL
        """Set columns of every row that matches a condition. Return when this is durable and visible to every new read.

        Each region changes exactly the rows that match right before its entry, from the values that they have there: a
        row that another writer changes meanwhile is checked and computed again. Regions are independent: if one fails,
        `regions_done` in the error names those that are done. The matching rows are held in memory.

        Args:
            where: an SQL condition over the table's columns, in Lance's dialect: text in single quotes, and backticks
                around a column name that is not a plain word. `true` matches every row.
            set: an SQL expression in Lance's dialect for each column to set, such as `{"n": "n + 1", "state":
                "'paid'"}`. It sees the old values of all columns of the row. A literal may be written as in JSON rows.
                A sum or product that exceeds 64 bits wraps around, as in Lance. Lance has no CASE, subqueries or
                intervals: use `transact` for these. The value is cast to the type of the column if nothing is lost,
                so the time of now is `CAST(now() AS TIMESTAMP)`.

        Returns:
            The number of rows written, and one log entry per region that has changes.

        Raises:
            Invalid: the condition or an expression is not valid, or fails on a row; the value does not fit its column;
                a column is unknown or a key column. Or a region is sealed, or the table was dropped or takes only
                change events.
            Fenced: another owner holds a region. Nothing was written to that region.
            Ambiguous: the rows of one region may or may not be written. Read, then decide.
            Contended, Unavailable: nothing was written to that region. Retry.
            Corrupt: the log or the head of a region is damaged. No row of that region was acknowledged.
        """
        self._check_takes_plain_writes()
        with error_context(table=self.uri):
            return self._with_columns(
                lambda: self._append_whole(lambda: self._transactions.update(where=where, texts=set))
            )

    @checked
    def delete(self, keys: Keys | None = None, *, where: str | None = None) -> Committed:
        """Delete rows by key, or every row that matches a condition. Return when no new read shows them.

        Deleting a key that has no row is not an error. With a condition, each region loses exactly the rows that match
        right before its entry: a row that another writer changes meanwhile is checked again. Regions are independent:
        if one fails, `regions_done` in the error names those that are done.

        Args:
            keys: one key or several: values for a key of one column; tuples for a key of several, in order; dicts; or
                the key columns in any form that `upsert` takes. A tuple is one key of several columns, a list is many.
            where: an SQL condition over the table's columns, in Lance's dialect: text in single quotes, and backticks
                around a column name that is not a plain word.

        Returns:
            The number of keys deleted, and one log entry per region.

        Raises:
            Invalid: a key does not fit the schema, or the condition is not valid. Nothing was written. Or a region is
                sealed, the table was dropped, or it takes only change events.
            Fenced: another owner holds a region. Nothing was written to that region.
            Ambiguous: the rows of one region may or may not be written. Read, then decide.
            Contended, Unavailable: nothing was written to that region. Retry.
            Corrupt: the log or the head of a region is damaged. No row of that region was acknowledged.
        """
        self._check_takes_plain_writes()
        if (keys is None) == (where is None):
            raise Invalid(
                "delete needs keys or a condition, and not both", remedy="Give one of keys and where", table=self.uri
            )
        if where is not None:
            with error_context(table=self.uri):
                return self._with_columns(lambda: self._append_whole(lambda: self._transactions.delete(where=where)))
        if isinstance(keys, str) and reads_as_condition(keys, self._schema.names):
            raise Invalid(
                f"the key {shown(keys)} reads as a condition",
                remedy=f"Write delete(where={shown(keys)}), or the key in a list: delete([{shown(keys)}])",
                table=self.uri,
                field="keys",
            )
        with error_context(table=self.uri):
            rows, _ = self._converted(keys, lambda data, schema: deletes(data, schema=schema))
            return self._append(rows)

    @checked
    def apply_changes(
        self,
        events: ArrowLike | str | bytes,
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
        none. `docs/how-to/cdc.md` has the rules and the encodings of values.

        Args:
            events: dicts, JSON lines (one text, or a line each), or Arrow data; in the order of the source.
            format: `debezium` for Debezium's envelope, `flattened` for records that its transformation flattened, or
                `rows`, of which each is an upsert.
            keys: the primary key of the table, to check it.
            sequence_by: columns of the table whose highest value wins, in this order; equal values win by arrival. By
                default those that the table remembers from an earlier call; without any, events win by arrival. Once a
                table has them, it takes no other writes than change events. A dict gives for each column the path of
                its value in the event.
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
            Fenced: another owner holds a region. Nothing was written to that region.
            Ambiguous: the events of one region may or may not be applied. With a source, call it again with the same
                events.
            Unavailable: a store did not answer. Call it again with the same events.
            Corrupt: the log or the head of a region is damaged. No event of that region was acknowledged.
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
            if on_bad_row != "fail":  # an event that fits the columns of now is not left out
                self._learn_columns()
            self._sequence = self._sequence or newest_sequence(context.objects, self.config, uri=self.uri)
            held = readable_again(events)

            def write() -> Applied:
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
                access = Access(
                    read=self._read_with_retry,
                    append=self._append,
                    order=order,
                    kept=self._views.kept,
                    find_target=lambda: self._target,
                )
                return apply_changes(held, request, access, context)

            return self._with_columns(write, partly_done="Call it again with the same events")

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
        """Return a `Writer`: a context that groups many small writes from many callers into few entries.

        Args:
            pipeline_depth: how many entries of a region may be in flight at once; more than 1 implies `exclusive`.
            exclusive: claim each region for this writer alone, and give it back at the end. Other writers get `Fenced`
                meanwhile, and after a crash of this writer until the region is claimed.

        Raises:
            Invalid: `pipeline_depth` is below 1.
        """
        self._check_takes_plain_writes()
        return Writer(
            replace(self._target, schema=self._schema),
            owner=self._owner,
            pipeline_depth=pipeline_depth,
            exclusive=exclusive,
            finish=self._finish_reshard,
        )

    def _check_takes_plain_writes(self) -> None:
        self._check_writable()
        check_takes_plain_writes({"table": self.uri}, ordered=self._sequence or self._context.ordered)
