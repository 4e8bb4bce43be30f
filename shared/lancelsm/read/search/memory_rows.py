"""The rows of a view that a vector search compares in memory.

These are the rows of the log and, from the second search of a view on, those of small generations: a search of an index
takes some milliseconds of CPU however few rows it has, and exact distances of some thousand rows take less than one.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lancelsm.common.read_trace import NO_TRACE, Trace
from lancelsm.dataset.generation import read_generation
from lancelsm.dataset.search_reads import DISTANCE
from lancelsm.read.search.distances import Distances, Matrix, Offsets, distances
from lancelsm.read.search.levels import Levels
from lancelsm.read.search.queries import SearchOutput, VectorQuery, Vectors
from lancelsm.record.casts import as_schema
from lancelsm.record.schema import TOMBSTONE

_MOST_BYTES = 16 << 20  # of the files of small generations, all together


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRows:
    """Live rows in the table's form: of the log, and of the generations with these numbers."""

    rows: pa.Table
    generations: AbstractSet[int] = frozenset()
    _matrices: dict[str, Matrix | None] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes in memory, about: the rows, and their vectors once more."""
        return 2 * int(self.rows.nbytes)

    @classmethod
    def of_log(cls, levels: Levels) -> MemoryRows:
        return cls(rows=levels.tail)

    @classmethod
    def with_generations(cls, levels: Levels, trace: Trace = NO_TRACE) -> MemoryRows:
        """Read the rows of small generations, the smallest first.

        Raises:
            Corrupt, Unavailable: a generation can't be read.
        """
        chosen, left = set(), _MOST_BYTES
        for size, number in sorted(_sizes(levels)):
            left -= size
            if left < 0:
                break
            chosen.add(number)
        parts = [live_rows(levels, number, trace) for number in sorted(chosen)]
        return cls(rows=pa.concat_tables([levels.tail, *parts]), generations=chosen)

    def nearest(self, query: VectorQuery, vectors: Vectors, output: SearchOutput) -> pa.Table:
        """Return the nearest rows with their exact distance."""
        if query.column not in self._matrices:
            self._matrices[query.column] = Matrix.of(self.rows.column(query.column))
        matrix = self._matrices[query.column]
        if matrix is None or vectors.ndim != 1:
            return nearest_of(self.rows, query, vectors, output)
        return _taken(self.rows, *matrix.nearest(vectors, query.metric, output.k), output)


def _sizes(levels: Levels) -> list[tuple[int, int]]:
    """Return the bytes in storage and the number of each generation whose size is known."""
    listed = [one for region in levels.view.regions for one in region.generations]
    return [(one.bytes, number) for number, one in enumerate(listed) if one.bytes is not None]


def live_rows(levels: Levels, number: int, trace: Trace = NO_TRACE) -> pa.Table:
    """Read all live rows of a generation, in the table's form. Raises `Corrupt` or `Unavailable`."""
    schema = levels.schema
    uri, options = levels.generations[number].searched.uri, levels.view.base.storage_options
    stored = read_generation(uri=uri, schema=schema, storage_options=options, trace=trace)
    rows = pa.Table.from_batches(stored, schema.stored)
    alive = (levels.newest.level_of(rows) == number) & ~rows.column(TOMBSTONE).to_numpy()
    return rows.filter(pa.array(alive)).drop_columns([TOMBSTONE])


def nearest_of(rows: pa.Table, query: VectorQuery, vectors: Vectors, output: SearchOutput) -> pa.Table:
    """Return the nearest of these rows with their exact distance."""
    far = distances(rows.column(query.column), vectors, query.metric)
    best = np.argsort(far, kind="stable")[: output.k]
    best = best[np.isfinite(far[best])]
    return _taken(rows, best, far[best], output)


def _taken(rows: pa.Table, offsets: Offsets, far: Distances, output: SearchOutput) -> pa.Table:
    names = list(output.columns)
    plain = pa.schema([pa.field(name, rows.schema.field(name).type) for name in names])
    taken = as_schema(rows.select(names).take(pa.array(offsets)), plain)
    return taken.append_column(DISTANCE, pa.array(far.astype(np.float32)))
