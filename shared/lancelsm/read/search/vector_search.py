"""Find the rows with the nearest vectors over all levels.

Each level returns its nearest rows with exact distances: an index that only approximates them refines its hits. So the
distances of all levels compare, and the nearest of all are the result. The log has no index and is compared as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.pool import TaskPool
from lancelsm.dataset.generation import read_generation
from lancelsm.dataset.search_reads import DISTANCE, nearest
from lancelsm.read.search.levels import Levels, StoredLevel
from lancelsm.read.search.queries import QUERY, SearchOutput, VectorQuery, Vectors, refine
from lancelsm.record.casts import as_schema
from lancelsm.record.schema import TOMBSTONE

_THREADS = 8
_IN_GENERATIONS = "IVF_SQ"

Distances = npt.NDArray[np.float64]


def nearest_rows(levels: Levels, query: VectorQuery, output: SearchOutput, *, uri: str) -> pa.Table:
    """Return the `k` nearest rows of each query vector, nearest first, with `_distance`.

    Raises:
        Invalid: the condition fails on a row, or Lance refuses the query.
        Corrupt, Unavailable: a level can't be read.
    """
    found = [_nearest(levels, query, vectors, output, uri=uri) for vectors in query.vectors]
    if not query.many:
        return found[0]
    numbered = [
        one.append_column(QUERY, pa.repeat(pa.scalar(number, pa.int32()), one.num_rows))
        for number, one in enumerate(found)
    ]
    return pa.concat_tables(numbered)


def _nearest(levels: Levels, query: VectorQuery, vectors: Vectors, output: SearchOutput, *, uri: str) -> pa.Table:
    def of_level(level: StoredLevel, kind: str) -> pa.Table:
        if output.where is not None and not level.searched.has_all_columns:
            rows = output.where.matching(_live_rows(levels, level), table=uri)
            return _nearest_in_memory(rows, query, vectors, output)
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

    def of_tail() -> pa.Table:
        rows = levels.tail if output.where is None else output.where.matching(levels.tail, table=uri)
        return _nearest_in_memory(rows, query, vectors, output)

    reads: list[Callable[[], pa.Table]] = [lambda: of_level(levels.base, query.of_base)]
    in_generations = _IN_GENERATIONS if query.of_base else ""
    reads += [lambda level=level: of_level(level, in_generations) for level in levels.generations]  # type: ignore[misc]
    reads += [of_tail] if levels.tail.num_rows else []
    found = pa.concat_tables(in_threads(reads))
    found = found.filter(pc.is_finite(found.column(DISTANCE)))
    return found.take(pc.sort_indices(found, [(DISTANCE, "ascending")])[: output.k])


def in_threads(reads: list[Callable[[], pa.Table]]) -> list[pa.Table]:
    """Call these functions, several at a time; return their results in order."""
    if len(reads) <= 1:
        return [read() for read in reads]
    with TaskPool(min(len(reads), _THREADS)) as pool:
        return pool.map(lambda read: read(), reads)


def _live_rows(levels: Levels, level: StoredLevel) -> pa.Table:
    """Read all live rows of a generation whose columns differ from those of the table, in the table's form."""
    schema = levels.schema
    batches = read_generation(uri=level.searched.uri, schema=schema, storage_options=levels.view.base.storage_options)
    rows = pa.Table.from_batches(batches, schema.stored)
    above = levels.newest
    number = levels.generations.index(level)
    alive = (above.level_of(rows) == number) & ~rows.column(TOMBSTONE).to_numpy()
    return rows.filter(pa.array(alive)).drop_columns([TOMBSTONE])


def _nearest_in_memory(rows: pa.Table, query: VectorQuery, vectors: Vectors, output: SearchOutput) -> pa.Table:
    far = distances(rows.column(query.column), vectors, query.metric)
    best = np.argsort(far, kind="stable")[: output.k]
    best = best[np.isfinite(far[best])]
    names = list(output.columns)
    plain = pa.schema([pa.field(name, rows.schema.field(name).type) for name in names])
    taken = as_schema(rows.select(names).take(pa.array(best)), plain)
    return taken.append_column(DISTANCE, pa.array(far[best].astype(np.float32)))


def distances(column: pa.ChunkedArray, query: Vectors, metric: str) -> Distances:
    """Return the distance of each row from the query as Lance defines it; infinite for a row that no index finds.

    Args:
        query: one vector, or several that are compared with the several vectors of each row. Then the distance is the
            sum over the query vectors of the distance from the nearest vector of the row.
    """
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # an old pyarrow returns a chunked array
        array = pa.concat_arrays(array.chunks)
    if query.ndim == 1:
        return _each(array, query, metric)
    result = np.full(len(array), np.inf)
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    vectors = array.flatten()
    owners = np.repeat(np.arange(len(array)), lengths)
    total = np.zeros(len(array))
    for one in query:
        nearest_of_row = np.full(len(array), np.inf)
        np.minimum.at(nearest_of_row, owners, _each(vectors, one, metric))
        total += nearest_of_row
    present = lengths > 0
    result[present] = total[present]
    return result


def _each(vectors: pa.Array, query: Vectors, metric: str) -> Distances:
    result = np.full(len(vectors), np.inf)
    present = np.flatnonzero(vectors.is_valid().to_numpy(zero_copy_only=False))
    if not len(present):
        return result
    values: Any = vectors.drop_null().flatten().to_numpy(zero_copy_only=False).reshape(len(present), len(query))
    with np.errstate(all="ignore"):
        far = _METRICS[metric](values, query)
    result[present] = np.where(np.isfinite(far), far, np.inf)
    return result


def _l2(values: Any, query: Any) -> Any:
    return ((values.astype(np.float64) - query.astype(np.float64)) ** 2).sum(axis=1)


def _dot(values: Any, query: Any) -> Any:
    return 1 - values.astype(np.float64) @ query.astype(np.float64)


def _cosine(values: Any, query: Any) -> Any:
    values, query = values.astype(np.float64), query.astype(np.float64)
    return 1 - values @ query / (np.linalg.norm(values, axis=1) * np.linalg.norm(query))


def _hamming(values: Any, query: Any) -> Any:
    return np.unpackbits(values ^ query, axis=1).sum(axis=1).astype(np.float64)


_METRICS: dict[str, Callable[[Any, Any], Any]] = {"l2": _l2, "dot": _dot, "cosine": _cosine, "hamming": _hamming}
