"""Read the rows of a view: the newest row of a key wins, and a tombstone hides older rows.

The levels are, from old to new: base, generations, tail. A row is dropped if a newer level has its key, even if the
newer row fails the condition (lance-memwal, "LSM-Tree Merging Read"). Keys above the base are held in memory; rows
stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.bounded_cache import BoundedCache
from lancelsm.common.layout import Generation, RegionId
from lancelsm.common.pool import TaskPool
from lancelsm.common.setsum import Setsum
from lancelsm.common.trace import NO_TRACE, Trace
from lancelsm.dataset.base_reads import rows_of_keys, scan_base
from lancelsm.dataset.conditions import Condition, read_condition
from lancelsm.dataset.generation import lookup_generation, possible_keys, read_generation
from lancelsm.dataset.key_lookup import ABSENT
from lancelsm.errors import Invalid
from lancelsm.read.newest import NewestLevels
from lancelsm.read.pruning.generation_pruning import BOUNDS, FILTER, SkippedGeneration, by_bounds, keys_of, keys_within
from lancelsm.read.pruning.key_boxes import Boxes
from lancelsm.read.pruning.key_conditions import key_boxes
from lancelsm.read.tail import Tail
from lancelsm.read.view import RegionView, View, level_name
from lancelsm.record.batches import gathered
from lancelsm.record.casts import as_schema
from lancelsm.record.key import key_column
from lancelsm.record.schema import TOMBSTONE, TableSchema, unknown_column
from lancelsm.region.manifest import FlushedGeneration, GenerationKeys

_ROWS_AT_ONCE = 1 << 18  # many keys per lookup cost little more than a few
_BYTES_AT_ONCE = 16 << 20
_HELD_BYTES = 64 << 20  # generations up to this size, together, are read once instead of keys first
_NOTHING_KEPT = BoundedCache(0)
_ALL_FOUND = "newer levels have all keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOfView:
    """A part of the rows of a view, for one of many tasks that read it together.

    Args:
        fragments: read only these fragments of the base; None for no row of the base.
        above: read the generations and logs of the view.
    """

    fragments: tuple[int, ...] | None = None
    above: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """One level above the base: a generation (path, setsum of its bloom filter, keys), or the rows of the tail."""

    region: RegionId
    number: int  # newer levels of a region have higher numbers
    name: str  # for people
    path: str | None = None
    bloom_setsum: Setsum | None = None
    keys: GenerationKeys | None = None
    row_bytes: int = 0
    size: int = 0  # of the entries of a generation
    tail: Tail | None = None


def scan(
    view: View,
    *,
    uri: str,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    limit: int | None = None,
    kept: BoundedCache = _NOTHING_KEPT,
    parallel: int = 1,
    part: PartOfView | None = None,
    trace: Trace = NO_TRACE,
) -> pa.RecordBatchReader:
    """Stream the rows of a view.

    Args:
        uri: of the table; generations are found by it.
        columns: columns to return, in this order; all by default.
        where: SQL condition over the table's columns, in Lance's dialect: text in single quotes, names in backticks.
        limit: maximum number of rows.
        kept: keeps the newest level of each key, for the next scan of the same view, and pages of key filters.
        parallel: maximum number of threads that read key filters.
        part: read only a part of the rows. It takes no limit.
        trace: collects what the read does.

    Returns:
        Batches of these columns; rows in no order, each key once.

    Raises:
        Invalid: an unknown or repeated column, a condition that is not valid SQL or fails on a row, or a negative
            limit.
        Corrupt, Unavailable: see `dataset.generation.read_generation`. The reader can raise them while it streams.
    """
    schema = view.base.schema
    names = _wanted(schema, columns, uri=uri)
    if limit is not None and limit < 0:
        raise Invalid(f"the limit is {limit}", remedy="Give 0 or more", table=uri)
    if not names:
        raise Invalid("the list of columns is empty", remedy="Name a column; to count rows, a key column", table=uri)
    condition = None if where is None else read_condition(where, columns=schema.columns, table=uri)
    out = pa.schema([schema.columns.field(name).remove_metadata() for name in names])
    rows = _rows(
        view,
        uri=uri,
        columns=names,
        where=condition,
        limit=limit,
        kept=kept,
        parallel=parallel,
        part=part or PartOfView(above=True),
        whole=part is None,
        trace=trace,
    )
    batches = _limited(rows, limit)
    return pa.RecordBatchReader.from_batches(out, _shaped(batches, out))


def get(
    view: View,
    keys: pa.Table,
    *,
    uri: str,
    columns: Sequence[str] | None = None,
    kept: BoundedCache = _NOTHING_KEPT,
    parallel: int = 1,
    trace: Trace = NO_TRACE,
) -> pa.Table:
    """Look up the live rows with these keys. Reads the newest level first, and older ones only for missing keys.

    Args:
        keys: the key columns; keys must be distinct.
        kept: keeps pages of key filters, for the next lookup.
        parallel: maximum number of threads that read key filters.

    Returns:
        One row per key that exists, in no order.

    Raises: the same errors as `scan`.
    """
    schema = view.base.schema
    names = _wanted(schema, columns, uri=uri)
    read = _with_key(schema, names)
    missing, found = keys.select(list(schema.primary_key)), []
    filtered: dict[str | None, tuple[pa.Table, str]] = {}
    for region in view.regions:
        for level in reversed(_levels(region, region.generations)):  # guard: newest level is looked up first
            if missing.num_rows == 0:
                trace.skipped(level.name, _ALL_FOUND)
                continue
            if level.tail is not None:
                with trace.step("log"):
                    rows = _from_tail(level.tail, missing, read)
            else:
                with trace.step("generations"):
                    if not filtered:  # of all generations at once: each filter is one request
                        every = [one for part in view.regions for one in _levels(part, part.generations)]
                        filtered = _filtered(view, every, missing, uri=uri, kept=kept, parallel=parallel, trace=trace)
                    likely, why = filtered[level.path]
                    likely = likely.filter(_among(likely, missing, schema))
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
                        trace=trace,
                    )
            if rows.num_rows:
                missing = missing.filter(pc.invert(_among(missing, rows, schema)))  # guard: found key is not looked up
                found.append(rows.filter(pc.invert(rows.column(TOMBSTONE))))
    if missing.num_rows:
        with trace.step("base"):
            found.append(rows_of_keys(view.base, missing, columns=read, trace=trace))
    else:
        trace.skipped("base", _ALL_FOUND)
    out = pa.schema([schema.columns.field(name).remove_metadata() for name in names])
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
            raise Invalid(f"column {name!r} is named twice", table=uri, field=name)
    return names


def _rows(
    view: View,
    *,
    uri: str,
    columns: Sequence[str],
    where: Condition | None,
    limit: int | None,
    kept: BoundedCache,
    parallel: int,
    part: PartOfView,
    whole: bool,
    trace: Trace,
) -> Iterator[pa.Table]:
    """Yield the live rows, with at least these columns. If not `whole`, only those of a part."""
    schema = view.base.schema
    boxes = key_boxes(None if where is None else where.text, schema)
    levels, skipped = _needed(view, boxes, uri=uri, kept=kept, parallel=parallel, trace=trace)
    for one in skipped:
        trace.skipped(level_name(one.region, one.generation), one.why)
    read = _with_key(schema, columns)
    has_base = whole or part.fragments is not None
    if not levels:
        if not has_base:
            return
        rows = scan_base(view.base, columns=columns, where=where, limit=limit, fragments=part.fragments, trace=trace)
        yield from trace.steps("base", map(pa.table, rows))
        return
    # A condition may use any column, so rows that it is applied to need all columns.
    wanted = schema.names if where is not None else read
    at_least = _ROWS_AT_ONCE if limit is None or where is not None else min(limit, _ROWS_AT_ONCE)

    def live(rows: pa.Table, alive: pa.Array) -> pa.Table:
        found = rows.filter(alive).drop_columns([TOMBSTONE])
        return found if where is None else where.matching(found, table=uri)

    if limit is not None and where is None:
        levels = _enough(levels, limit, trace)
    tails = [level.tail for level in levels if level.tail is not None]
    read_once: dict[str | None, list[pa.RecordBatch]] = {}
    hold = part.above and where is None and limit is None and sum(level.size for level in levels) <= _HELD_BYTES

    def level_keys(level: _Level) -> pa.Table:
        if level.tail is not None:
            return level.tail.keys
        batches = list(_read(view, level, uri=uri, columns=wanted if hold else (), trace=trace))
        if hold:
            read_once[level.path] = batches
        return pa.Table.from_batches(batches).select(schema.primary_key)

    # Generations are opened before the first row: a reader that a collection overtook can still take a new view then.
    with trace.step("keys above the base"):
        above = kept.get_or_make(
            ("newest", view.identity, tuple(level.path for level in levels)),
            lambda: NewestLevels.of(((level.number, level_keys(level)) for level in levels), schema),
            size=lambda made: made.nbytes,
        )
    for tail in tails if part.above else ():
        for rows in trace.steps("log", _gathered(tail.rows(wanted), at_least)):
            yield live(rows, pc.invert(rows.column(TOMBSTONE)))
    for level in levels if part.above else ():
        if level.tail is None:
            stored = read_once.pop(level.path, None) or _read(
                view, level, uri=uri, columns=wanted, where=where, trace=trace
            )
            for rows in trace.steps("generations", _gathered(stored, at_least)):
                alive = (
                    (above.level_of(rows) == level.number)  # guard: newer row hides a row of a generation
                    & ~rows.column(TOMBSTONE).to_numpy()
                )
                yield live(rows, pa.array(alive))
    if not has_base:
        return
    stored = scan_base(view.base, columns=read, where=where, fragments=part.fragments, trace=trace)
    for rows in trace.steps("base", _gathered(stored, at_least)):
        yield rows.filter(pa.array(above.level_of(rows) == ABSENT))  # guard: newer row hides a row of the base


def _enough(levels: list[_Level], limit: int, trace: Trace) -> list[_Level]:
    """Return the levels that a scan without a condition needs: only the logs if they have as many rows."""
    logs = [level for level in levels if level.tail is not None]
    if sum(level.tail.live_rows for level in logs if level.tail is not None) < limit:
        return levels
    for level in levels:
        if level.tail is None:
            trace.skipped(level.name, "the log has enough rows")
    return logs


def _needed(
    view: View, boxes: Boxes, *, uri: str, kept: BoundedCache, parallel: int, trace: Trace
) -> tuple[list[_Level], list[SkippedGeneration]]:
    """Return the levels above the base that may have a key in the boxes, and the generations that have none."""
    schema = view.base.schema
    levels: list[_Level] = []
    skipped: list[SkippedGeneration] = []
    keys = keys_of(boxes, schema)
    for region in view.regions:
        likely, excluded = by_bounds(region.region, region.generations, boxes, schema)
        skipped += excluded
        levels += _levels(region, likely)
    if keys is None:
        return levels, skipped
    filtered = _filtered(view, levels, keys, uri=uri, kept=kept, parallel=parallel, trace=trace)
    skipped += [
        SkippedGeneration(region=one.region, generation=Generation(one.number), why=why)
        for one in levels
        if (why := filtered[one.path][1])
    ]
    return [one for one in levels if not filtered[one.path][1]], skipped


def _filtered(
    view: View, levels: Sequence[_Level], keys: pa.Table, *, uri: str, kept: BoundedCache, parallel: int, trace: Trace
) -> dict[str | None, tuple[pa.Table, str]]:
    """Return the result of `_likely` for each level by its path."""

    def likely(level: _Level) -> tuple[pa.Table, str]:
        return _likely(view, level, keys, uri=uri, kept=kept, trace=trace)

    threads = min(parallel, sum(level.keys is not None for level in levels))
    if threads <= 1:
        return {level.path: likely(level) for level in levels}
    with TaskPool(threads) as pool:
        return {level.path: found for level, found in zip(levels, pool.map(likely, levels), strict=True)}


def _likely(
    view: View, level: _Level, keys: pa.Table, *, uri: str, kept: BoundedCache, trace: Trace
) -> tuple[pa.Table, str]:
    """Return the keys that a level may have; if it has none of them, also why this is known."""
    if level.keys is None:
        return keys, ""
    inside = keys_within(keys, level.keys)
    if inside.num_rows == 0:
        return inside, BOUNDS
    likely = possible_keys(
        uri=f"{uri}/{level.path}",
        schema=view.base.schema,
        keys=inside,
        filter_blocks=level.keys.filter_blocks,
        storage_options=view.base.storage_options,
        kept=kept,
        trace=trace,
    )
    return likely, "" if likely.num_rows else FILTER


def _levels(region: RegionView, generations: Iterable[FlushedGeneration]) -> list[_Level]:
    """Return the levels of a region above the base, of its generations only these, oldest first."""
    levels = [
        _Level(
            region=region.region,
            number=g.generation,
            name=level_name(region.region, g.generation),
            path=region.path(g),
            bloom_setsum=g.folded.bloom_setsum if g.folded else None,
            keys=g.keys,
            row_bytes=(g.bytes or 0) // (g.rows or 1),
            size=_HELD_BYTES + 1 if g.bytes is None else g.bytes,
        )
        for g in generations
    ]
    if region.tail.num_rows:
        name, number = level_name(region.region, None), region.manifest.current_generation
        levels.append(_Level(region=region.region, number=number, name=name, tail=region.tail))
    return levels


def _read(
    view: View, level: _Level, *, uri: str, columns: Sequence[str], where: Condition | None = None, trace: Trace
) -> Iterator[pa.RecordBatch]:
    """Read a generation in stored form: these columns, the key, `_tombstone`. May skip rows that `where` excludes."""
    schema = view.base.schema
    return read_generation(
        uri=f"{uri}/{level.path}",
        schema=schema,
        columns=_with_key(schema, columns),
        where=where,
        row_bytes=level.row_bytes,
        storage_options=view.base.storage_options,
        trace=trace,
    )


def _from_tail(tail: Tail, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Look up rows with these keys. Reads no entry again if the tail has none of the keys."""
    if not pc.any(_among(tail.keys, keys, tail.schema)).as_py():
        return tail.schema.stored.empty_table().select([*columns, TOMBSTONE])
    return pa.concat_tables(tail.rows(columns, among=keys))


def _gathered(batches: Iterable[pa.RecordBatch | pa.Table], rows: int) -> Iterator[pa.Table]:
    """Combine batches into tables that are large enough for an efficient lookup of their keys."""
    return gathered(batches, rows=rows, size=_BYTES_AT_ONCE)


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


def _with_key(schema: TableSchema, columns: Sequence[str]) -> list[str]:
    wanted = {*columns, *schema.primary_key}
    return [name for name in schema.names if name in wanted]


def _among(rows: pa.Table, others: pa.Table, schema: TableSchema) -> pa.Array:
    """Return a flag per row: whether the other rows have its key."""
    return pc.is_in(key_column(rows, schema.primary_key), value_set=key_column(others, schema.primary_key))
