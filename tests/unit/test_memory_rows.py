"""Rows that a vector search compares in memory: the same result as by exact distances, and no search of an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lancelsm.read.search import memory_rows, vector_search
from lancelsm.read.search.distances import Matrix, distances
from lancelsm.region.compare_and_swap import newest
from lancelsm.table import Table
from tests.unit.index_tables import create, rows, vector

DIMENSIONS = 16


def column_of(vectors: np.ndarray, nulls: np.ndarray) -> pa.ChunkedArray:
    values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), DIMENSIONS, mask=pa.array(nulls))
    return pa.chunked_array([values.slice(0, 70), values.slice(70)])


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
@pytest.mark.parametrize(("scale", "shift"), [(1, 0), (1e-3, 1e3), (1e15, 0), (1e-25, 0), (1e30, 0)])
def test_estimates_rule_out_no_row_of_the_result(metric: str, scale: float, shift: float) -> None:
    for seed in range(10):
        random = np.random.default_rng(seed)
        vectors = (random.normal(size=(300, DIMENSIONS)) * scale + shift).astype(np.float32)
        vectors[10:20], vectors[30], vectors[40], vectors[50] = vectors[0], np.nan, 0, np.inf
        column = column_of(vectors, random.random(300) < 0.1)
        query = (random.normal(size=DIMENSIONS) * scale + shift).astype(np.float32)
        true = distances(column, query, metric)
        best = np.argsort(true, kind="stable")[:12]

        found, far = Matrix.of(column).nearest(query, metric, 12)  # type: ignore[union-attr]

        assert found.tolist() == best[np.isfinite(true[best])].tolist()
        assert far.tolist() == true[found].tolist()


def test_estimates_rule_out_most_rows() -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(5_000, DIMENSIONS)).astype(np.float32)
    matrix = Matrix.of(column_of(vectors, np.zeros(5_000, bool)))

    for metric in ("l2", "cosine", "dot"):
        assert len(matrix._candidates(vectors[0], metric, 10)) < 20  # type: ignore[union-attr]


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The dataset of each search of an index."""
    found: list[str] = []
    nearest = vector_search.nearest

    def counted(level: Any, **options: Any) -> pa.Table:
        found.append(level.uri)
        return nearest(level, **options)

    monkeypatch.setattr(vector_search, "nearest", counted)
    return found


def with_generations(path: Path) -> Table:
    table = create(path, indexes={"vec": "IVF_FLAT"})
    for version in (1, 2):
        table.upsert(rows(range(10 * version), version=version))
        table.flush()
    return table


def test_from_its_second_search_on_a_view_searches_only_the_base_by_index(tmp_path: Path, searched: list[str]) -> None:
    table = with_generations(tmp_path)
    table.delete([3])

    first, second, third = (table.search(vector(7), k=8).to_arrow() for _ in range(3))
    by_search = [len(searched), searched.count(table.uri)]
    table.upsert(rows([39], version=3))
    table.search(vector(7), k=8)

    assert first["id"].to_pylist() == second["id"].to_pylist() == third["id"].to_pylist()
    assert first["_distance"].to_pylist() == pytest.approx(second["_distance"].to_pylist(), rel=1e-6)
    assert first["text"].equals(second["text"])
    assert by_search == [3 + 1 + 1, 3]
    assert len(searched) == 5 + 3  # the write made another view


def test_generations_that_are_large_together_are_searched_by_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, searched: list[str]
) -> None:
    table = with_generations(tmp_path)
    sizes = [one.bytes or 0 for region in table.list_regions() for one in newest(region, region.head())[1].generations]
    monkeypatch.setattr(memory_rows, "_MOST_BYTES", sum(sizes) - 1)

    first, second = (table.search(vector(7), k=8, columns=["id"]).to_arrow() for _ in range(2))

    assert first.equals(second)
    assert len(searched) == 3 + 2
