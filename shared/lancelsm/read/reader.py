"""Scan, count and look up the rows of a view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.bounded_cache import NOTHING_KEPT, BoundedCache
from lancelsm.common.read_trace import NO_TRACE, Trace
from lancelsm.dataset.base_reads import rows_of_keys
from lancelsm.dataset.conditions import Condition, read_condition, unexpired
from lancelsm.dataset.generation import lookup_generation
from lancelsm.errors import Invalid
from lancelsm.read.levels_above_base import levels_of, possible_keys_by_path, with_key
from lancelsm.read.live_rows import Candidates, LiveRowsQuery, PartOfView, live_rows
from lancelsm.read.tail import Tail
from lancelsm.read.view import View
from lancelsm.record.casts import as_schema
from lancelsm.record.key import has_key_of
from lancelsm.record.schema import TOMBSTONE, TableSchema, unknown_column
from lancelsm.record.ttl import Expiry

_ALL_FOUND = "newer levels have all keys"


def scan(
    view: View,
    *,
    uri: str,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    limit: int | None = None,
    kept: BoundedCache = NOTHING_KEPT,
    parallel: int = 1,
    part: PartOfView | None = None,
    trace: Trace = NO_TRACE,
) -> pa.RecordBatchReader:
    """Stream the rows of a view.

    Args:
        uri: of the table; generations are found by it.
        columns: columns to return, in this order; all by default.
        where: SQL condition over the table's columns, in Lance's dialect: text in single quotes, names in backticks.
        limit: maximum number of rows, 0 or more.
        kept: keeps which rows are live, for the next scan of the same view, and pages of key filters.
        parallel: maximum number of threads that read generations and key filters.
        part: read only a part of the rows. It takes no limit.
        trace: collects what the read does.

    Returns:
        Batches of these columns; rows in no order, each key once.

    Raises:
        Invalid: an unknown or repeated column, or a condition that is not valid SQL or fails on a row.
        Corrupt, Unavailable: see `dataset.generation.read_generation`. The reader can raise them while it streams.
    """
    schema = view.base.schema
    names = _wanted(schema, columns, uri=uri)
    if not names:
        raise Invalid("the list of columns is empty", remedy="Name a column; to count rows, a key column", table=uri)
    out = pa.schema([schema.columns.field(name).remove_metadata() for name in names])
    query = LiveRowsQuery(uri=uri, columns=names, where=_condition(where, view, uri=uri), limit=limit, part=part)
    found = live_rows(view, query, Candidates.live, kept=kept, parallel=parallel, trace=trace)
    batches = _limited(found, limit)
    return pa.RecordBatchReader.from_batches(out, _shaped(batches, out))


def count(
    view: View,
    *,
    uri: str,
    where: str | None = None,
    kept: BoundedCache = NOTHING_KEPT,
    parallel: int = 1,
    trace: Trace = NO_TRACE,
) -> int:
    """Count the live rows that match the condition. Reads no row if everything is merged and there is no condition.

    Args and Raises: the same as in `scan`. `kept` also keeps the count.
    """
    condition, expiry = _condition(where, view, uri=uri), view.expiry
    if condition is None and not any(region.generations or region.tail.num_rows for region in view.regions):
        return view.base.rows

    def counted() -> int:
        own = condition is not None and condition.is_of_caller
        column = view.base.schema.primary_key[0] if own or expiry is None else expiry.column
        query = LiveRowsQuery(uri=uri, columns=[column], where=condition)
        return sum(live_rows(view, query, Candidates.count, kept=kept, parallel=parallel, trace=trace))

    if condition is not None:  # the same condition may find other rows later: it may contain the time
        return counted()
    return kept.get_or_make(("count", view.identity), counted, size=lambda _: 0)


def get(
    view: View,
    keys: pa.Table,
    *,
    uri: str,
    columns: Sequence[str] | None = None,
    kept: BoundedCache = NOTHING_KEPT,
    parallel: int = 1,
    deleted: bool = False,
    trace: Trace = NO_TRACE,
) -> pa.Table:
    """Look up the live rows with these keys. Reads the newest level first, and older ones only for missing keys.

    Args:
        keys: the key columns; keys must be distinct.
        kept: keeps pages of key filters and key indexes and open generations, for the next lookup.
        parallel: maximum number of threads that read key filters.
        deleted: return also the newest rows that are tombstones or have expired, and the column `_tombstone` last.

    Returns:
        One row per key that exists, in no order.

    Raises: the same errors as `scan`.
    """
    schema = view.base.schema
    names = _wanted(schema, columns, uri=uri)
    expiry = view.expiry
    read = with_key(schema, names if expiry is None else [*names, expiry.column])
    missing, found = keys.select(list(schema.primary_key)), []
    filtered: dict[str | None, tuple[pa.Table, str]] = {}
    for region in view.regions:
        for level in reversed(levels_of(region, region.generations)):  # guard: newest level is looked up first
            if missing.num_rows == 0:
                trace.skipped(level.name, _ALL_FOUND)
                continue
            if level.tail is not None:
                with trace.step("log"):
                    rows = _from_tail(level.tail, missing, read)
            else:
                with trace.step("generations"):
                    if not filtered:  # of all generations at once: each filter is one request
                        every = [one for part in view.regions for one in levels_of(part, part.generations)]
                        filtered = possible_keys_by_path(
                            view, every, missing, uri=uri, kept=kept, parallel=parallel, trace=trace
                        )
                    likely, why = filtered[level.path]
                    likely = likely.filter(has_key_of(likely, missing, schema.primary_key))
                    if not likely.num_rows:
                        trace.skipped(level.name, why or _ALL_FOUND)
                        continue
                    rows = lookup_generation(
                        uri=f"{uri}/{level.path}",
                        schema=schema,
                        keys=likely,
                        columns=read,
                        bloom_setsum=level.bloom_setsum,
                        filtered=level.keys is not None,
                        storage_options=view.base.storage_options,
                        kept=kept,
                        trace=trace,
                    )
            if rows.num_rows:
                is_found = has_key_of(missing, rows, schema.primary_key)
                missing = missing.filter(pc.invert(is_found))  # guard: found key is not looked up
                found.append(rows)
    if missing.num_rows:
        with trace.step("base"):
            rows = rows_of_keys(view.base, missing, columns=read, kept=kept, trace=trace)
            found.append(rows.append_column(TOMBSTONE, pa.repeat(False, rows.num_rows)))
    else:
        trace.skipped("base", _ALL_FOUND)
    out = pa.schema([schema.columns.field(name).remove_metadata() for name in names])
    if deleted:
        names, out = (
            [*names, TOMBSTONE],
            pa.schema([*(one.with_nullable(True) for one in out), (TOMBSTONE, pa.bool_())]),
        )
    found = [_without_expired(rows, expiry, deleted=deleted) for rows in found]
    return pa.concat_tables([out.empty_table(), *(as_schema(rows.select(names), out) for rows in found)])


def _wanted(schema: TableSchema, columns: Sequence[str] | None, *, uri: str) -> list[str]:
    """Return the names of the columns to return; raise `Invalid` for an unknown or repeated column."""
    if isinstance(columns, str):
        raise Invalid(f"columns is the text {columns!r}", remedy=f"Give a list: [{columns!r}]", table=uri)
    names = schema.names if columns is None else list(columns)
    known = set(schema.names)
    for name, times in Counter(names).items():
        if name not in known:
            raise unknown_column(name, schema.names, table=uri)
        if times > 1:
            raise Invalid(f"column {name!r} is named twice", remedy="Name each column once", table=uri, field=name)
    return names


def _condition(where: str | None, view: View, *, uri: str) -> Condition | None:
    """Return the condition of the caller, without rows that have expired."""
    columns = view.base.schema.columns
    own = None if where is None else read_condition(where, columns=columns, table=uri)
    return unexpired(own, view.expiry, columns)


def _without_expired(rows: pa.Table, expiry: Expiry | None, *, deleted: bool) -> pa.Table:
    """Return rows in stored form, those that have expired as tombstones; without tombstones unless `deleted`."""
    if expiry is not None:
        rows = expiry.as_deletes(rows)
    return rows if deleted else rows.filter(pc.invert(rows.column(TOMBSTONE)))


def _from_tail(tail: Tail, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Look up rows with these keys. Reads no entry again if the tail has none of the keys."""
    if not pc.any(has_key_of(tail.keys, keys, tail.schema.primary_key)).as_py():
        return tail.schema.stored.empty_table().select([*columns, TOMBSTONE])
    return pa.concat_tables(tail.rows(columns, among=keys))


def _limited(tables: Iterable[pa.Table], limit: int | None) -> Iterator[pa.Table]:
    """Return the first rows. Reads no table that is not needed."""
    if limit is None:
        yield from tables
        return
    left, rest = limit, iter(tables)
    while left > 0 and (table := next(rest, None)) is not None:
        yield table.slice(0, left)
        left -= table.num_rows


def _shaped(tables: Iterable[pa.Table], out: pa.Schema) -> Iterator[pa.RecordBatch]:
    return chain.from_iterable(as_schema(table.select(out.names), out).to_batches() for table in tables)
