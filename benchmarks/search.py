"""Vector and text search with pending rows, beside LanceDB's LSM search and plain Lance on the merged table.

A table has vectors of 128 dimensions in clusters, and an index. Then 0 %, 5 % and 20 % of its rows are replaced in
generations that are not merged yet. The merged table is a copy that is merged and optimized. All three answer the same
queries in turns. Neighbours that an answer misses are counted against brute force over the live rows, best texts
against the merged table, where texts with equal scores are equally good.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import lancedb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lancelsm
from benchmarks.figures import Figure, Used, quantile, used
from benchmarks.texts import docstrings, queries
from lancelsm.compaction.maintenance import optimize_table
from lancelsm.table import Table

_DIMENSIONS = 128
_QUERIES = 50
_K = 10
_PENDING = (0.0, 0.05, 0.2)
_GENERATIONS = 2  # to reach each share of pending rows
_NPROBES = 20
_KINDS: dict[str, tuple[dict[str, Any], int]] = {  # options beside the partitions, and the factor for plain Lance
    "IVF_SQ": ({}, 5),
    "IVF_FLAT": ({}, 1),
    "IVF_PQ": ({"num_sub_vectors": 16}, 10),
}
_SETTINGS = {"flush_rows": 1 << 30, "flush_bytes": 1 << 40}

Vectors = npt.NDArray[np.float32]
Search = Callable[[Any], list[int]]


def run(scale: float) -> Iterator[Figure]:
    count = int(100_000 * scale)
    vectors = _Vectors.of(count)
    for kind in _KINDS:
        with tempfile.TemporaryDirectory() as directory:
            yield from _vector_figures(kind, vectors, Path(directory))
    with tempfile.TemporaryDirectory() as directory:
        yield from _text_figures(docstrings(count // 2), Path(directory))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vectors:
    """Vectors around centers, and queries near some of them."""

    centers: Vectors
    first: Vectors
    queries: Vectors

    @classmethod
    def of(cls, count: int) -> _Vectors:
        generator = np.random.default_rng(3)
        centers = generator.normal(size=(max(count // 200, 8), _DIMENSIONS)).astype(np.float32)
        found = cls(centers=centers, first=np.empty((0, _DIMENSIONS), np.float32), queries=centers)
        return cls(centers=centers, first=found.more(count, seed=4), queries=found.more(_QUERIES, seed=5))

    def more(self, count: int, *, seed: int) -> Vectors:
        generator = np.random.default_rng(seed)
        around = self.centers[generator.integers(0, len(self.centers), count)]
        return around + generator.normal(scale=0.7, size=around.shape).astype(np.float32)


def _rows(ids: npt.NDArray[np.int64], vectors: Vectors) -> pa.Table:
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), _DIMENSIONS)
    return pa.table({"id": pa.array(ids, pa.int64()), "vec": column})


def _vector_figures(kind: str, given: _Vectors, directory: Path) -> Iterator[Figure]:
    options, refined = _KINDS[kind]
    live = given.first.copy()
    table = lancelsm.create(
        directory / "docs.lance",
        _rows(np.arange(len(live)), live),
        primary_key="id",
        settings=_SETTINGS,
        indexes={"vec": {"kind": kind, "num_partitions": max(1, len(live) // 1000), **options}},
    )
    before = 0.0
    for share in _PENDING:
        for part in range(_GENERATIONS if share else 0):
            size = int(len(live) * (share - before) / _GENERATIONS)
            seed = int(1000 * share) + part
            chosen = np.random.default_rng(seed).choice(len(live), size, replace=False)
            live[chosen] = given.more(size, seed=seed)
            table.upsert(_rows(chosen, live[chosen]))
            table.flush()
        before = share
        merged = _merged(table, directory / f"merged{share}.lance")

        def ours(query: Vectors, table: Table = table) -> list[int]:
            return _ids(table.search(query, k=_K, columns=["id"]).to_arrow())

        def plain(query: Vectors, merged: lance.LanceDataset = merged) -> list[int]:
            near = {"column": "vec", "q": query, "k": _K, "nprobes": _NPROBES, "refine_factor": refined}
            return _ids(merged.scanner(columns=["id", "_distance"], nearest=near).to_table())

        docs = lancedb.connect(directory).open_table("docs")

        def lsm(query: Vectors, found: Any = docs) -> list[int]:
            asked = found.search(query, vector_column_name="vec").use_lsm(True).nprobes(_NPROBES)
            return _ids(asked.refine_factor(refined).limit(_K).select(["id"]).to_arrow())

        true = [_nearest(live, query) for query in given.queries]
        measured = _measured(list(given.queries), true, ours, plain, lsm)
        yield from _figures(f"{kind}, {share:.0%} pending", measured, "neighbours")


def _merged(table: Table, copy: Path) -> lance.LanceDataset:
    shutil.copytree(table.uri, copy)
    merged = lancelsm.open(copy)
    merged.merge(engine="inprocess")
    optimize_table(merged._handle)
    return lance.dataset(str(copy))


def _nearest(live: Vectors, query: Vectors) -> list[int]:
    far = ((live - query) ** 2).sum(axis=1)
    return [int(one) for one in np.argsort(far, kind="stable")[:_K]]


def _ids(found: pa.Table) -> list[int]:
    return [int(one) for one in found.column("id").to_pylist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """Of each search, in the order given: the share of true rows that it missed, medians of wall and CPU time."""

    missed: list[float]
    milliseconds: list[float]
    cpu: list[float]


def _measured(asked: Sequence[Any], true: Sequence[list[int]], *searches: Search) -> _Result:
    """Ask every query of each search, in turns, after one round that opens files and fills caches."""
    missed = []
    for search in searches:
        found = [search(query) for query in asked]
        hits = sum(len(set(one) & set(wanted)) for one, wanted in zip(found, true, strict=True))
        missed.append(1 - hits / max(sum(min(len(wanted), _K) for wanted in true), 1))
    times: list[list[Used]] = [[] for _ in searches]
    for query in asked:
        for search, taken in zip(searches, times, strict=True):
            with used() as one:
                search(query)
            taken.append(one)
    return _Result(
        missed=missed,
        milliseconds=[1000 * quantile([one.wall for one in taken], 0.5) for taken in times],
        cpu=[1000 * quantile([one.cpu for one in taken], 0.5) for taken in times],
    )


def _figures(what: str, result: _Result, of: str) -> Iterator[Figure]:
    for number, peer in ((1, "plain Lance, merged table"), (2, "LanceDB, use_lsm")):
        yield Figure(
            what=f"{what}: {of} missed",
            ours=100 * result.missed[0],
            unit="%",
            peer=100 * result.missed[number],
            peer_name=peer,
        )
        for name, values in (("latency, p50", result.milliseconds), ("CPU, p50", result.cpu)):
            yield Figure(
                what=f"{what}: {name}",
                ours=values[0],
                unit="ms",
                peer=values[number],
                peer_name=peer,
                limit=number == 1,
                drawn=number == 2 and name.startswith("latency"),
            )


def _best_and_equal(merged: lance.LanceDataset, words: str) -> list[int]:
    """Return the best rows, and the rows with the same score as the last of them."""
    found = merged.scanner(columns=["id", "_score"], full_text_query=words, limit=10 * _K).to_table()
    scores = found.column("_score").to_pylist()
    least = scores[min(_K, len(scores)) - 1] if scores else 0.0
    return [one for one, score in zip(_ids(found), scores, strict=True) if score >= least]


def _text_figures(texts: list[str], directory: Path) -> Iterator[Figure]:
    ids = np.arange(len(texts))
    table = lancelsm.create(
        directory / "docs.lance",
        pa.table({"id": ids, "text": texts}),
        primary_key="id",
        settings=_SETTINGS,
        indexes={"text": "INVERTED"},
    )
    live = list(texts)
    asked: list[Any] = list(queries(texts, _QUERIES))
    before = 0.0
    for share in _PENDING:
        for part in range(_GENERATIONS if share else 0):
            generator = np.random.default_rng(int(1000 * share) + part)
            chosen = generator.choice(len(live), int(len(live) * (share - before) / _GENERATIONS), replace=False)
            for one, other in zip(chosen, generator.permutation(chosen), strict=True):
                live[one] = texts[other]
            table.upsert(pa.table({"id": chosen, "text": [live[one] for one in chosen]}))
            table.flush()
        before = share
        merged = _merged(table, directory / f"merged{share}.lance")
        merged.create_scalar_index("text", "INVERTED", name="text_idx", replace=True)

        def ours(words: str, table: Table = table) -> list[int]:
            return _ids(table.search(words, k=_K, columns=["id"]).to_arrow())

        def plain(words: str, merged: lance.LanceDataset = merged) -> list[int]:
            return _ids(merged.scanner(columns=["id", "_score"], full_text_query=words, limit=_K).to_table())

        docs = lancedb.connect(directory).open_table("docs")

        def lsm(words: str, found: Any = docs) -> list[int]:
            return _ids(
                found.search(words, query_type="fts", fts_columns="text")
                .use_lsm(True)
                .limit(_K)
                .select(["id"])
                .to_arrow()
            )

        true = [_best_and_equal(merged, words) for words in asked]
        yield from _figures(f"text, {share:.0%} pending", _measured(asked, true, ours, plain, lsm), "best rows")
