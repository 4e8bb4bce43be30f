"""The levels of a view to search, each without its stale rows.

A row is stale if a newer level has its key, as a row or as a tombstone. Each level hides its own stale rows before it
takes the best ones, so every level returns rows that the table has, and the best of all levels are the best of the
table. What a view hides does not depend on the query, so it is prepared once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancelsm.common.read_trace import NO_TRACE, Trace
from lancelsm.dataset.indexes import BaseIndex, base_indexes
from lancelsm.dataset.key_lookup import ABSENT
from lancelsm.dataset.search_reads import (
    RowIds,
    Searched,
    blocklist,
    keys_with_row_ids,
    searched_base,
    searched_generation,
)
from lancelsm.read.newest import NewestLevels
from lancelsm.read.view import View
from lancelsm.record.schema import TOMBSTONE, TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLevel:
    """The base or a generation. `rows` includes its stale rows and tombstones; `hidden` is their list for Lance."""

    searched: Searched
    rows: int
    deleted: int  # rows that Lance has marked as deleted; not in `rows`
    stale: RowIds
    hidden: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """What a search of one view reads. `tail` has the live rows of all logs, without `_tombstone`."""

    view: View
    schema: TableSchema
    indexes: tuple[BaseIndex, ...]
    base: StoredLevel
    generations: tuple[StoredLevel, ...]
    tail: pa.Table
    newest: NewestLevels

    @property
    def stored(self) -> tuple[StoredLevel, ...]:
        return (self.base, *self.generations)

    def number_of(self, level: StoredLevel) -> int:
        """Return the number of a generation."""
        return next(number for number, one in enumerate(self.generations) if one is level)

    @property
    def nbytes(self) -> int:
        """The bytes in memory, about."""
        lists = sum(int(level.stale.nbytes) + len(level.hidden or b"") for level in self.stored)
        return lists + int(self.tail.nbytes) + self.newest.nbytes


def prepare(view: View, *, uri: str, trace: Trace = NO_TRACE) -> Levels:
    """Find the stale rows of every level.

    Raises:
        Corrupt: a generation or the base is missing or damaged.
        Unavailable: a store did not answer.
    """
    schema = view.base.schema
    opened = [
        searched_generation(
            uri=f"{uri}/{region.path(one)}",
            version=one.indexes.version if one.indexes else None,
            schema=schema,
            storage_options=view.base.storage_options,
            trace=trace,
        )
        for region in view.regions
        for one in region.generations
    ]
    keys = [_keys(level, schema) for level in opened]
    tails = pa.concat_tables(
        [schema.stored.empty_table(), *(part for region in view.regions for part in region.tail.in_order())]
    )
    above = NewestLevels.of(enumerate([*(found for found, _ in keys), tails]), schema)
    generations = tuple(
        _level(level, found.num_rows, ids[_is_stale(above, number, found)])
        for number, (level, (found, ids)) in enumerate(zip(opened, keys, strict=True))
    )
    base = searched_base(view.base)
    hidden: list[RowIds] = [np.empty(0, np.uint64)]
    if len(above):
        hidden += [ids[above.level_of(found) != ABSENT] for found, ids in keys_with_row_ids(base)]
    return Levels(
        view=view,
        schema=schema,
        indexes=tuple(base_indexes(view.base)),
        base=_level(
            base,
            view.base.rows,
            np.concatenate(hidden),
            deleted=sum(fragment.deleted_rows for fragment in view.base.fragments),
        ),
        generations=generations,
        tail=tails.filter(_alive(tails)).drop_columns([TOMBSTONE]),
        newest=above,
    )


def _is_stale(above: NewestLevels, level: int, rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Return for each row of a level whether a newer level replaces it, or it is a tombstone."""
    stale: npt.NDArray[np.bool_] = (above.level_of(rows) != level) | ~_alive(rows).to_numpy(zero_copy_only=False)
    return stale


def _level(searched: Searched, rows: int, stale: RowIds, *, deleted: int = 0) -> StoredLevel:
    return StoredLevel(searched=searched, rows=rows, deleted=deleted, stale=stale, hidden=blocklist(stale))


def _keys(level: Searched, schema: TableSchema) -> tuple[pa.Table, RowIds]:
    parts, ids = [], [np.empty(0, np.uint64)]
    for found, row_ids in keys_with_row_ids(level):
        tombstones = found.column(TOMBSTONE) if TOMBSTONE in found.column_names else _false(found.num_rows)
        parts.append(found.select(list(schema.primary_key)).append_column(TOMBSTONE, tombstones))
        ids.append(row_ids)
    wanted = pa.schema([*(schema.columns.field(name).remove_metadata() for name in schema.primary_key), _FLAG])
    table = pa.concat_tables([one.cast(wanted) for one in parts]) if parts else wanted.empty_table()
    return table, np.concatenate(ids)


_FLAG = pa.field(TOMBSTONE, pa.bool_())


def _false(rows: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.repeat(pa.scalar(False), rows)])


def _alive(rows: pa.Table) -> pa.Array:
    return pa.array(~rows.column(TOMBSTONE).to_numpy())
