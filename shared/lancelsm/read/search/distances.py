"""Compute distances of vectors exactly, as Lance defines them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.read.search.queries import Vectors

Distances = npt.NDArray[np.float64]
Offsets = npt.NDArray[np.int64]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The float32 vectors of a column, to be compared with many queries. `rows` has their offsets in the column."""

    values: npt.NDArray[np.float32]
    norms: Distances
    rows: Offsets

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> Matrix | None:
        """Return None for a column of another type."""
        if not pa.types.is_fixed_size_list(column.type) or not pa.types.is_float32(column.type.value_type):
            return None
        array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
        values = array.drop_null().flatten().to_numpy(zero_copy_only=False).reshape(len(rows), column.type.list_size)
        with np.errstate(all="ignore"):
            norms = np.sqrt(np.einsum("ij,ij->i", values, values, dtype=np.float64))
        return cls(values=np.ascontiguousarray(values), norms=norms, rows=rows)

    def nearest(self, query: Vectors, metric: str, k: int) -> tuple[Offsets, Distances]:
        """Return offsets and exact distances of the `k` nearest rows, nearest first; the first one of equal rows first.

        One product of floats estimates all distances. A row is compared exactly unless its estimate, whose error is
        bounded, rules it out.
        """
        chosen = self._candidates(query, metric, k)
        with np.errstate(all="ignore"):
            far = _METRICS[metric](self.values[chosen], query)
        far = np.where(np.isfinite(far), far, np.inf)
        best = np.argsort(far, kind="stable")[:k]
        best = best[np.isfinite(far[best])]
        return self.rows[chosen[best]], far[best]

    def _candidates(self, query: Vectors, metric: str, k: int) -> Offsets:
        every = np.arange(len(self.rows))
        if metric == "hamming" or len(every) <= 4 * k:
            return every
        length = float(np.linalg.norm(query.astype(np.float64)))
        with np.errstate(all="ignore"):
            # Not `@`: the threads of a BLAS library wait busily, which costs more than this product.
            products = np.einsum("ij,j->i", self.values, query).astype(np.float64)
            error = self.values.shape[1] * (_ROUNDING * self.norms * length + _SMALLEST)
            match metric:
                case "l2":
                    estimates, error = self.norms**2 - 2 * products, 2 * error + _ROUNDING * self.norms**2
                case "cosine":
                    estimates, error = -products / (self.norms * length), error / (self.norms * length)
                case _:
                    estimates = -products
            most = np.partition(estimates + error, k - 1)[k - 1]
            if not np.isfinite(most):
                return every
            return np.flatnonzero(estimates - error <= most)


_ROUNDING, _SMALLEST = float(np.finfo(np.float32).eps), float(np.finfo(np.float32).tiny)
