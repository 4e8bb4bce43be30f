"""Find the rows with the nearest vectors over all levels.

Each level returns its nearest rows with exact distances: an index that only approximates them refines its hits. So the
distances of all levels compare, and the nearest of all are the result. The log has no index and is compared as a whole;
so are small generations, once their rows are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.read_trace import NO_TRACE, Trace
from lancelsm.common.task_pool import TaskPool
from lancelsm.dataset.search_reads import DISTANCE, nearest
from lancelsm.read.search.levels import Levels, StoredLevel
from lancelsm.read.search.memory_rows import MemoryRows, live_rows, nearest_of
from lancelsm.read.search.queries import QUERY, SearchOutput, VectorQuery, Vectors, refine

T = TypeVar("T")

_THREADS = 8
_MOST_INLINE = 1 << 22  # numbers that are compared in a millisecond, about
_IN_GENERATIONS = "IVF_SQ"


def nearest_rows(
    levels: Levels,
    query: VectorQuery,
    output: SearchOutput,
    *,
    memory: MemoryRows,
    uri: str,
    trace: Trace = NO_TRACE,
) -> pa.Table:
    """Return the `k` nearest rows of each query vector, nearest first, with `_distance`.

    Args:
        memory: the rows of the log at least.

    Raises:
        Invalid: the condition fails on a row, or Lance refuses the query.
        Corrupt, Unavailable: a level can't be read.
    """
    found = [_nearest(levels, query, vectors, output, memory=memory, uri=uri, trace=trace) for vectors in query.vectors]
    if not query.many:
        return found[0]
    numbered = [
        one.append_column(QUERY, pa.repeat(pa.scalar(number, pa.int32()), one.num_rows))
        for number, one in enumerate(found)
    ]
    return pa.concat_tables(numbered)


def _nearest(
    levels: Levels,
    query: VectorQuery,
    vectors: Vectors,
    output: SearchOutput,
    *,
    memory: MemoryRows,
    uri: str,
    trace: Trace,
) -> pa.Table:
    def of_level(level: StoredLevel, kind: str) -> pa.Table:
        if output.where is not None and not level.searched.has_all_columns:
            rows = output.where.matching(live_rows(levels, levels.number_of(level), trace), table=uri)
            return nearest_of(rows, query, vectors, output)
        return nearest(
            level.searched,
            column=query.column,
            query=vectors,
            k=output.k,
            metric=query.metric,
            nprobes=query.nprobes,
            refine_factor=refine(query, kind),
            columns=output.columns,
            where=output.where,
            hidden=level.hidden,
        )

    def of_memory() -> pa.Table:
        if output.where is None:
            return memory.nearest(query, vectors, output)
        return nearest_of(output.where.matching(memory.rows, table=uri), query, vectors, output)

    kind = _IN_GENERATIONS if query.of_base else ""
    reads: list[Callable[[], pa.Table]] = [
        lambda: of_level(levels.base, query.of_base),
        *(
            lambda level=level: of_level(level, kind)
            for number, level in enumerate(levels.generations)
            if number not in memory.generations
        ),
    ]
    is_small = memory.rows.num_rows * vectors.size <= _MOST_INLINE
    parts = in_threads(reads if is_small else [*reads, of_memory])
    if is_small and memory.rows.num_rows:
        parts.append(of_memory())
    found = pa.concat_tables(parts)
    found = found.filter(pc.is_finite(found.column(DISTANCE)))
    return found.take(pc.sort_indices(found, [(DISTANCE, "ascending")])[: output.k])


def in_threads(reads: Sequence[Callable[[], T]]) -> list[T]:
    """Call these functions, the first in this thread and several at a time; return their results in order."""
    if len(reads) <= 1:
        return [read() for read in reads]
    with TaskPool(min(len(reads) - 1, _THREADS)) as pool:
        others = [pool.submit(read) for read in reads[1:]]
        return [reads[0](), *(one.result() for one in others)]
