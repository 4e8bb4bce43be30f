"""Find the live rows of a view: the newest row of a key wins, and a tombstone hides older rows.

The levels are, from old to new: base, generations, tail. A row is dropped if a newer level has its key, even if the
newer row fails the condition (lance-memwal, "LSM-Tree Merging Read"). Keys above the base are held in memory; rows
stream. The flags of a level, which tell the live rows, are kept, so the next scan of the same view looks no keys up.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, Generic, TypeVar

import numpy as np
import pyarrow as pa

from lancelsm.common.bounded_cache import NOTHING_KEPT, BoundedCache
from lancelsm.common.read_trace import Trace
from lancelsm.common.task_pool import in_threads, mapped
from lancelsm.dataset.base_reads import scan_base
from lancelsm.dataset.conditions import Condition
from lancelsm.dataset.key_lookup import ABSENT
from lancelsm.read.flag_bits import FlagBits, Flags, FlagsToKeep
from lancelsm.read.levels_above_base import HELD_BYTES, Level, needed_levels, read_level, with_key
from lancelsm.read.newest import NewestLevels
from lancelsm.read.pruning.key_conditions import key_boxes
from lancelsm.read.view import View, level_name
from lancelsm.record.batches import gathered
from lancelsm.record.schema import TOMBSTONE

T = TypeVar("T")

_ROWS_AT_ONCE = 1 << 17  # many keys per lookup cost little more than a few
_BYTES_AT_ONCE = 8 << 20
_LEVELS_AT_ONCE = 4  # each reads ahead into a buffer of its own
_JUDGED_AT_ONCE = 2  # more threads hold more rows, and wait for each other
_BASE: Final = None  # in place of the path of a generation


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOfView:
    """A part of the rows of a view, for one of many tasks that read it together.

    Args:
        fragments: read only these fragments of the base; None for no row of the base.
        span: of the rows that match in these fragments, read only these: the first and how many; None for all.
        above: read the generations and logs of the view.
    """

    fragments: tuple[int, ...] | None = None
    span: tuple[int, int] | None = None
    above: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRowsQuery:
    """Which rows to find.

    Args:
        uri: of the table; generations are found by it.
        columns: the result has at least these.
        where: find only rows that match. It leaves out rows that have expired.
        limit: about how many rows are needed.
        part: find only a part of the rows; None for all.
    """

    uri: str
    columns: Sequence[str]
    where: Condition | None = None
    limit: int | None = None
    part: PartOfView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Rows of one level.

    Args:
        alive: a flag per row: whether it is live, that is the newest of its key and no tombstone. None if all are.
    """

    rows: pa.Table
    alive: Flags | None = None

    def count(self) -> int:
        """Return the number of live rows."""
        return self.rows.num_rows if self.alive is None else int(np.count_nonzero(self.alive))

    def live(self) -> pa.Table:
        """Return the live rows."""
        if self.alive is None:
            return self.rows
        parts, start = [], 0
        for batch in self.rows.to_batches():  # `filter` takes twice as long
            live = np.flatnonzero(self.alive[start : start + batch.num_rows])
            parts.append(batch.take(pa.array(live)))
            start += batch.num_rows
        return pa.Table.from_batches(parts, self.rows.schema)


def judged(
    tables: Iterable[pa.Table],
    judge: Callable[[int, pa.Table], Flags],
    finish: Callable[[Candidates], T],
    *,
    known: FlagBits | None,
    kept: BoundedCache,
    key: Hashable,
    threads: int = 1,
) -> Iterator[T]:
    """Judge which rows of a level of a view are live, and yield what a function makes of them, in order.

    Args:
        tables: the rows, always in the same order.
        judge: returns the flags of rows, of which the first has this number. Not called if they are known.
        known: the flags of all rows, if they were kept.
        kept: keeps the flags under `key` once all rows were judged.
        key: identifies the view and the level.
        threads: this many call `judge` and `finish`.
    """

    def act(numbered: tuple[int, pa.Table]) -> tuple[Flags, T]:
        start, rows = numbered
        alive = judge(start, rows) if known is None else known.part(start, rows.num_rows)
        return alive, finish(Candidates(rows=rows, alive=alive))

    flags = FlagsToKeep(kept)
    for alive, made in mapped(act, _numbered(tables), threads=threads):
        if known is None:
            flags.add(alive)
        del alive
        yield made
        del made
    if known is None:
        flags.keep(key)


def _numbered(tables: Iterable[pa.Table]) -> Iterator[tuple[int, pa.Table]]:
    """Yield each table with the number of its first row."""
    start = 0
    for rows in tables:
        yield start, rows
        start += rows.num_rows


def live_rows(
    view: View,
    query: LiveRowsQuery,
    finish: Callable[[Candidates], T],
    *,
    kept: BoundedCache,
    parallel: int,
    trace: Trace,
) -> Iterator[T]:
    """Find which rows of each level are live, and yield what a function makes of them.

    Args:
        finish: may be called in several threads at once.
        kept: keeps which rows are live, for the next scan of the same view, and pages of key filters.
        parallel: maximum number of threads that read generations, or judge rows of the base.

    Raises: the same errors as `read.reader.scan`.
    """
    own = query.where if query.where is not None and query.where.is_of_caller else None
    boxes = key_boxes(None if own is None else own.text, view.base.schema)
    levels, skipped = needed_levels(view, boxes, uri=query.uri, kept=kept, parallel=parallel, trace=trace)
    for one in skipped:
        trace.skipped(level_name(one.region, one.generation), one.why)
    if query.limit is not None and query.where is None:
        levels = _enough(levels, query.limit, trace)
    return _Scan(view, levels, query, finish, kept=kept, parallel=parallel, trace=trace).rows()


class _Scan(Generic[T]):
    def __init__(
        self,
        view: View,
        levels: Sequence[Level],
        query: LiveRowsQuery,
        finish: Callable[[Candidates], T],
        *,
        kept: BoundedCache,
        parallel: int,
        trace: Trace,
    ) -> None:
        self._view = view
        self._query = query
        self._finish = finish
        self._levels = levels
        self._generations = [level for level in levels if level.tail is None]
        self._part = query.part or PartOfView(above=True)
        self._kept, self._parallel, self._trace = kept, parallel, trace
        self._with_key = with_key(view.base.schema, query.columns)
        self._own_where = query.where if query.where is not None and query.where.is_of_caller else None
        self._above_columns = self._columns_above()
        self._identity = view.identity, tuple(level.path for level in levels)
        is_whole = self._own_where is None and query.limit is None
        size = sum(level.size for level in levels)
        self._read_once: dict[str | None, list[pa.RecordBatch]] | None = None
        if self._part.above and is_whole and size <= HELD_BYTES:
            self._read_once = {}
        # Flags are kept by their place in Lance's order, which is the same only if all rows are read. They say nothing
        # about expired rows: Lance leaves these out of the base, and `_matching` out of the levels above.
        self._kept_flags = kept if is_whole and query.part is None else NOTHING_KEPT
        self._kept_of_base = self._kept_flags if query.where is None else NOTHING_KEPT
        self._known = {level.path: self._kept_flags.get((self._identity, level.path)) for level in self._generations}
        self._known[_BASE] = self._kept_of_base.get((self._identity, _BASE))

    def _columns_above(self) -> Sequence[str]:
        """Return the columns to read above the base. A condition of the caller may use any column."""
        schema, where = self._view.base.schema, self._query.where
        if self._own_where is not None:
            return schema.names
        expiry = None if where is None else where.expiry
        return self._with_key if expiry is None else with_key(schema, [*self._with_key, expiry.column])

    def rows(self) -> Iterator[T]:
        has_base = self._query.part is None or self._part.fragments is not None
        if not self._levels:
            if has_base:
                for batch in self._trace.steps("base", self._base(self._query.columns, limit=self._query.limit)):
                    yield self._finish(Candidates(rows=pa.table(batch)))
            return
        if self._generations and not all(self._known.values()):
            _ = self._newest  # before the first row: a reader that a collection overtook can still take a new view
        if self._part.above:
            for level in self._levels:
                if level.tail is not None:
                    for rows in self._gathered("log", level.tail.rows(self._above_columns)):
                        alive = ~rows.column(TOMBSTONE).to_numpy()
                        yield self._finish_matching(Candidates(rows=rows, alive=alive))
            for place, level in enumerate(self._levels):
                if level.tail is None:
                    tables = self._gathered("generations", self._stored(level))
                    yield from self._judged(level.path, tables, partial(self._alive, place), self._finish_matching)
        if has_base:
            names = self._query.columns
            if self._known[_BASE] is None:
                names = self._with_key
                _ = self._newest  # once, and not in each thread
            tables = self._gathered("base", self._base(names))
            threads = min(self._parallel, _JUDGED_AT_ONCE) if self._query.limit is None else 1
            yield from self._judged(_BASE, tables, self._alive_in_base, self._finish, threads=threads)

    @cached_property
    def _newest(self) -> NewestLevels:
        """The newest level of each key. Reads the keys of all levels, unless they are kept."""

        def newest() -> NewestLevels:
            keys = in_threads(self._keys, self._levels, most=min(self._parallel, _LEVELS_AT_ONCE))
            numbers = [level.number for level in self._levels]
            return NewestLevels.of(zip(numbers, keys, strict=True), self._view.base.schema)

        with self._trace.step("keys above the base"):
            return self._kept.get_or_make(("newest", self._identity), newest, size=lambda made: made.nbytes)

    def _keys(self, level: Level) -> pa.Table:
        if level.tail is not None:
            return level.tail.keys
        if self._read_once is None:
            batches = list(self._read(level, ()))
        else:
            batches = self._read_once[level.path] = list(self._read(level, self._above_columns))
        return pa.Table.from_batches(batches).select(self._view.base.schema.primary_key)

    def _stored(self, level: Level) -> Iterable[pa.RecordBatch]:
        if self._read_once and level.path in self._read_once:
            return self._read_once.pop(level.path)
        return self._read(level, self._above_columns, where=self._own_where)

    def _read(
        self, level: Level, columns: Sequence[str], *, where: Condition | None = None
    ) -> Iterator[pa.RecordBatch]:
        return read_level(self._view, level, uri=self._query.uri, columns=columns, where=where, trace=self._trace)

    def _base(self, columns: Sequence[str], *, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        where, fragments = self._query.where, self._part.fragments
        offset, limit = self._part.span or (None, limit)
        return scan_base(
            self._view.base,
            columns=columns,
            where=where,
            limit=limit,
            offset=offset,
            fragments=fragments,
            trace=self._trace,
        )

    def _gathered(self, step: str, batches: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.Table]:
        """Combine batches into tables that are large enough for an efficient lookup of their keys."""
        limit = self._query.limit if self._query.where is None else None
        rows = _ROWS_AT_ONCE if limit is None else min(limit, _ROWS_AT_ONCE)
        return self._trace.steps(step, gathered(batches, rows=rows, size=_BYTES_AT_ONCE))

    def _alive(self, place: int, start: int, rows: pa.Table) -> Flags:
        alive: Flags = (
            self._is_newest(place, start, rows)  # guard: newer row hides a row of a generation
            & ~rows.column(TOMBSTONE).to_numpy()
        )
        return alive

    def _is_newest(self, place: int, start: int, rows: pa.Table) -> Flags:
        if self._own_where is None:  # these are all rows from `start` on, so their keys were compared before
            return self._newest.flags_of(place).part(start, rows.num_rows)
        flags: Flags = self._newest.level_of(rows) == self._levels[place].number
        return flags

    def _alive_in_base(self, _start: int, rows: pa.Table) -> Flags:
        newest = self._newest.level_of(rows)
        alive: Flags = newest == ABSENT  # guard: newer row hides a row of the base
        return alive

    def _judged(
        self,
        path: str | None,
        tables: Iterator[pa.Table],
        judge: Callable[[int, pa.Table], Flags],
        finish: Callable[[Candidates], T],
        *,
        threads: int = 1,
    ) -> Iterator[T]:
        kept, key = self._kept_of_base if path is _BASE else self._kept_flags, (self._identity, path)
        return judged(tables, judge, finish, known=self._known[path], kept=kept, key=key, threads=threads)

    def _finish_matching(self, found: Candidates) -> T:
        """Leave out the rows of a level above the base that fail the condition."""
        found = replace(found, rows=found.rows.drop_columns([TOMBSTONE]))
        where = self._query.where
        if where is not None:
            found = Candidates(rows=where.matching(found.live(), table=self._query.uri))
        return self._finish(found)


def _enough(levels: list[Level], limit: int, trace: Trace) -> list[Level]:
    """Return the levels that a scan without a condition needs: only the logs if they have as many rows."""
    logs = [level for level in levels if level.tail is not None]
    if sum(level.tail.live_rows for level in logs if level.tail is not None) < limit:
        return levels
    for level in levels:
        if level.tail is None:
            trace.skipped(level.name, "the log has enough rows")
    return logs
