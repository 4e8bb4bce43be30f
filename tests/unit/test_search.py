"""Search by vector, by text and by both, over base, generations and log, against brute force."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lance.query import BooleanQuery, BoostQuery, MatchQuery, Occur, PhraseQuery

import lancelsm
from lancelsm.dataset import search_reads
from lancelsm.errors import Invalid
from lancelsm.read.search import levels as searched
from lancelsm.read.search import text_search
from lancelsm.read.search.distances import distances
from lancelsm.table import Table
from tests.unit.index_tables import COLUMNS, DIMENSIONS, WORDS, create, generations, rows, vector

Model = dict[int, dict[str, Any]]
K = 5


def upsert(table: Table, model: Model, ids: range, version: int) -> None:
    found = rows(ids, version=version)
    table.upsert(found)
    model.update({one["id"]: one for one in found})


def delete(table: Table, model: Model, ids: range) -> None:
    table.delete(list(ids))
    for one in ids:
        model.pop(one, None)


def every_level(path: Path, **options: Any) -> tuple[Table, Model]:
    """A table with rows in the base, two generations and the log; each has stale and deleted rows."""
    table, model = (
        create(path, range(200), regions="bucket(id, 2)", **options),
        {one["id"]: one for one in rows(range(200))},
    )
    upsert(table, model, range(50), 1)
    delete(table, model, range(40, 60))
    table.flush()
    upsert(table, model, range(30, 70), 2)
    delete(table, model, range(5))
    table.flush()
    upsert(table, model, range(65, 75), 3)
    upsert(table, model, range(200, 205), 3)
    delete(table, model, range(30, 34))
    return table, model


def exact(model: Model, query: Any, metric: str, k: int = K) -> list[int]:
    column = pa.chunked_array([pa.array([one["vec"] for one in model.values()], COLUMNS.field("vec").type)])
    far = distances(column, np.asarray(query, np.float32), metric)
    return [list(model)[number] for number in np.argsort(far, kind="stable")[:k]]


def indexed(table: Table, kind: str, metric: str) -> None:
    options = {"IVF_PQ": {"num_sub_vectors": 2}}.get(kind, {})
    if kind:
        table.create_index("vec", kind=kind, name="vec_idx", metric=metric, num_partitions=2, **options)


def stages(table: Table) -> Iterator[str]:
    yield "log"
    table.flush()
    yield "generations"
    table.merge(engine="inprocess")
    yield "merged"
    table.run()
    yield "optimized"


@pytest.mark.parametrize(
    ("kind", "metric", "least"),
    [
        ("", "l2", 1.0),
        ("", "cosine", 1.0),
        ("", "dot", 1.0),
        ("IVF_FLAT", "l2", 1.0),
        ("IVF_SQ", "cosine", 0.95),
        ("IVF_SQ", "dot", 0.95),
        pytest.param("IVF_HNSW_SQ", "l2", 0.95, marks=pytest.mark.rest),
        pytest.param("IVF_PQ", "l2", 0.9, marks=pytest.mark.rest),
    ],
)
def test_vector_search_returns_the_nearest_newest_rows(tmp_path: Path, kind: str, metric: str, least: float) -> None:
    table, model = every_level(tmp_path)
    indexed(table, kind, metric)

    for stage in stages(table):
        hits = 0
        for seed in range(10):
            query = vector(seed + 777)
            found = table.search(query, k=K, metric=metric).to_arrow()

            assert found.column_names == ["id", "vec", "text", "_distance"]
            assert [model[one["id"]]["text"] for one in found.to_pylist()] == found["text"].to_pylist(), stage
            far = found["_distance"].to_pylist()
            assert far == sorted(far)
            true = distances(found["vec"], np.asarray(query, np.float32), metric)
            assert far == pytest.approx(list(true), rel=1e-3, abs=1e-3)
            hits += len(set(found["id"].to_pylist()) & set(exact(model, query, metric)))
        assert hits >= least * 10 * K, (stage, hits)


def test_a_condition_applies_before_the_nearest_rows_are_taken(tmp_path: Path) -> None:
    table, model = every_level(tmp_path)
    indexed(table, "IVF_SQ", "l2")
    for low in (0, 30, 66, 190):
        some = {key: one for key, one in model.items() if low <= key < low + 15}

        found = table.search(vector(5), k=K, where=f"id >= {low} AND id < {low + 15}", columns=["id"]).to_arrow()

        assert found["id"].to_pylist() == exact(some, vector(5), "l2")


def test_stale_rows_take_no_place_even_if_almost_all_are_stale(tmp_path: Path) -> None:
    table = create(tmp_path, range(300))
    indexed(table, "IVF_SQ", "l2")
    table.upsert([{"id": one, "vec": [100.0] * DIMENSIONS, "text": "far"} for one in range(295)])

    for _ in stages(table):
        found = table.search(vector(3), k=K, columns=["id"]).to_arrow()

        assert set(found["id"].to_pylist()) == set(range(295, 300))


def test_search_at_a_snapshot_finds_the_rows_of_the_snapshot(tmp_path: Path) -> None:
    table, model = every_level(tmp_path)
    indexed(table, "IVF_FLAT", "l2")
    table.create_index("text", kind="INVERTED")
    table.snapshot("then")
    before = dict(model)
    upsert(table, model, range(100), 7)
    table.run()

    found = table.search(vector(1), k=K, at="then", columns=["id", "text"]).to_arrow()
    texts = table.search("red", k=300, at="then", columns=["id"]).to_arrow()

    assert found["id"].to_pylist() == exact(before, vector(1), "l2")
    assert found["text"].to_pylist() == [before[key]["text"] for key in found["id"].to_pylist()]
    assert set(texts["id"].to_pylist()) == {key for key, one in before.items() if "red" in one["text"].split()}


def test_several_vectors_are_several_searches(tmp_path: Path) -> None:
    table, model = every_level(tmp_path)

    found = table.search([vector(1), vector(2)], k=2, columns=["query_index", "id"]).to_arrow()

    assert found["query_index"].to_pylist() == [0, 0, 1, 1]
    assert found["id"].to_pylist() == [*exact(model, vector(1), "l2", 2), *exact(model, vector(2), "l2", 2)]


def test_a_search_can_return_its_scores_alone(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("vec", pa.list_(pa.float32(), 1))])
    table = lancelsm.create(tmp_path / "table", schema, primary_key="id")
    table.upsert([{"id": n, "vec": [float(n)]} for n in range(3)])

    found = table.search([[0.0], [2.0]], k=2, columns=["_distance", "query_index"]).to_arrow()

    assert found.to_pydict() == {"_distance": [0.0, 1.0, 0.0, 1.0], "query_index": [0, 0, 1, 1]}


def test_binary_vectors_are_compared_by_hamming_distance(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("bits", pa.list_(pa.uint8(), 8))])
    random = np.random.default_rng(1)
    values = random.integers(0, 256, (320, 8)).tolist()
    data = pa.Table.from_pylist([{"id": n, "bits": one} for n, one in enumerate(values[:300])], schema=schema)
    table = lancelsm.create(tmp_path / "table", data, primary_key="id")
    table.create_index("bits", kind="IVF_FLAT", metric="hamming", num_partitions=1)
    table.upsert([{"id": n, "bits": one} for n, one in enumerate(values) if n >= 300])
    query = random.integers(0, 256, 8).tolist()
    far = {n: sum((a ^ b).bit_count() for a, b in zip(one, query, strict=True)) for n, one in enumerate(values)}

    for _ in stages(table):
        found = table.search(query, k=K).to_arrow()

        assert found["_distance"].to_pylist() == sorted(far.values())[:K]
        assert [far[key] for key in found["id"].to_pylist()] == sorted(far.values())[:K]


def test_a_column_with_several_vectors_per_row_is_searched_by_the_nearest_of_each(tmp_path: Path) -> None:
    several = pa.list_(pa.list_(pa.float32(), DIMENSIONS))
    schema = pa.schema([("id", pa.int64()), ("vecs", several)])
    model = {n: [vector(n), vector(n + 500)][: 1 + n % 2] for n in range(60)}
    data = pa.Table.from_pylist([{"id": n, "vecs": model[n]} for n in range(50)], schema=schema)
    table = lancelsm.create(tmp_path / "table", data, primary_key="id")
    table.create_index("vecs", kind="IVF_FLAT", metric="cosine", num_partitions=1)
    table.upsert([{"id": n, "vecs": model[n]} for n in range(50, 60)])
    query = [vector(901), vector(902)]
    column = pa.chunked_array([pa.array(list(model.values()), several)])
    far = distances(column, np.asarray(query, np.float32), "cosine")

    for _ in stages(table):
        found = table.search(query, k=K).to_arrow()

        assert found["id"].to_pylist() == np.argsort(far)[:K].tolist()
        assert found["_distance"].to_pylist() == pytest.approx(sorted(far)[:K], rel=1e-3)


@pytest.mark.parametrize("value", [None, [float("nan")] * DIMENSIONS, [float("inf")] * DIMENSIONS])
def test_rows_without_a_comparable_vector_are_not_found(tmp_path: Path, value: list[float] | None) -> None:
    table = create(tmp_path, range(3))
    table.upsert([{"id": 9, "vec": value, "text": "x"}])

    for _ in stages(table):
        assert set(table.search(vector(1)).to_arrow()["id"].to_pylist()) == {0, 1, 2}


# Text


def text_table(path: Path) -> tuple[Table, Model]:
    table, model = every_level(path)
    table.create_index("text", kind="INVERTED", with_position=True, stem=False, remove_stop_words=False)
    return table, model


def having(model: Model, matches: Callable[[list[str]], bool]) -> set[int]:
    return {key for key, one in model.items() if matches(one["text"].split())}


def test_text_search_returns_exactly_the_newest_rows_with_a_word(tmp_path: Path) -> None:
    table, model = text_table(tmp_path)

    for stage in stages(table):
        for word in WORDS:
            found = table.search(word, k=300).to_arrow()

            assert found.column_names == ["id", "vec", "text", "_score"]
            ids = found["id"].to_pylist()
            assert len(ids) == len(set(ids))
            assert set(ids) == having(model, lambda words, word=word: word in words), (stage, word)
            scores = found["_score"].to_pylist()
            assert scores == sorted(scores, reverse=True)


def test_scores_of_all_levels_are_those_of_one_table(tmp_path: Path) -> None:
    table, model = text_table(tmp_path)
    one = lancelsm.create(
        tmp_path / "one", pa.Table.from_pylist(list(model.values()), schema=COLUMNS), primary_key="id"
    )
    one.create_index("text", kind="INVERTED", with_position=True, stem=False, remove_stop_words=False)

    for stage in stages(table):
        for query in ("red item7", "amber black", "item31 item66 green"):
            found = table.search(query, k=20, columns=["id", "_score"]).to_arrow()
            wanted = one.search(query, k=20, columns=["id", "_score"]).to_arrow()

            assert found["_score"].to_pylist() == pytest.approx(wanted["_score"].to_pylist(), rel=0.02), (stage, query)


@pytest.mark.parametrize(("text", "skipped"), [("red", 0), (MatchQuery("red", "text"), 3)])
def test_a_condition_on_the_key_leaves_out_regions_unless_their_words_count(
    tmp_path: Path, text: Any, skipped: int
) -> None:
    table = create(tmp_path, range(10), regions="identity(id)", indexes={"text": "INVERTED"})
    table.upsert(rows([5, 6, 7, 8]))

    found = table.explain(text=text, where="id = 5")

    assert found.rows == 1
    assert len(found.skipped_regions) == skipped


@pytest.mark.rest
def test_a_word_is_looked_up_once_in_each_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = text_table(tmp_path)
    table.flush()
    looked_up: list[str] = []
    real = text_search.scores_of

    def scores_of(searched: Any, query: Any) -> Any:
        looked_up.append(searched.uri)
        return real(searched, query)

    monkeypatch.setattr(text_search, "scores_of", scores_of)
    levels = 1 + len(generations(table))

    table.search("red green").to_arrow()
    assert len(looked_up) == 2 * levels
    table.search("green amber red").to_arrow()
    assert len(looked_up) == 3 * levels

    table.upsert(rows([1], version=3))  # a level more: the log, in a directory of its own
    table.search("red green").to_arrow()
    assert len(looked_up) == 3 * levels + 2


def test_queries_of_lance_find_the_newest_rows(tmp_path: Path) -> None:
    table, model = text_table(tmp_path)
    cases: list[tuple[Any, set[int]]] = [
        (PhraseQuery("green red", "text"), having(model, lambda words: words[:2] == ["green", "red"])),
        (MatchQuery("gren", "text", fuzziness=1), having(model, lambda words: "green" in words)),
        (
            BooleanQuery([(Occur.MUST, MatchQuery("red", "text")), (Occur.MUST, MatchQuery("amber", "text"))]),
            having(model, lambda words: {"red", "amber"} <= set(words)),
        ),
        (
            BoostQuery(MatchQuery("red", "text"), MatchQuery("amber", "text"), negative_boost=0.5),
            having(model, lambda words: "red" in words),
        ),
    ]

    for stage in stages(table):
        for query, wanted in cases:
            found = table.search(text=query, k=300, columns=["id"]).to_arrow()

            assert set(found["id"].to_pylist()) == wanted, (stage, type(query))


def test_text_search_with_a_condition(tmp_path: Path) -> None:
    table, model = text_table(tmp_path)

    found = table.search("red", k=300, where="id < 70 AND id > 20", columns=["id"]).to_arrow()

    assert set(found["id"].to_pylist()) == {key for key in having(model, lambda words: "red" in words) if 20 < key < 70}


# Both


def test_hybrid_search_fuses_the_ranks_of_both_results(tmp_path: Path) -> None:
    table, model = text_table(tmp_path)
    near = table.search(vector(4), k=10, columns=["id"]).to_arrow()["id"].to_pylist()
    best = table.search("red item9", k=10, columns=["id"]).to_arrow()["id"].to_pylist()
    relevance: dict[int, float] = {}
    for ranked in (near, best):
        for rank, key in enumerate(ranked, 1):
            relevance[key] = relevance.get(key, 0.0) + 1 / (60 + rank)

    found = table.search(vector=vector(4), text="red item9", k=10).to_arrow()

    assert found.column_names == ["id", "vec", "text", "_relevance_score", "_distance", "_score"]
    scores = dict(zip(found["id"].to_pylist(), found["_relevance_score"].to_pylist(), strict=True))
    assert scores == {key: pytest.approx(relevance[key], rel=1e-5) for key in scores}
    assert min(scores.values()) >= sorted(relevance.values())[-10] - 1e-6
    for one in found.to_pylist():
        assert one["text"] == model[one["id"]]["text"]
        assert (one["_distance"] is None) == (one["id"] not in near)
        assert (one["_score"] is None) == (one["id"] not in best)


def test_a_reranker_of_the_caller_gets_both_results(tmp_path: Path) -> None:
    table, _ = text_table(tmp_path)
    seen: list[pa.Table] = []

    def texts_first(near: pa.Table, best: pa.Table) -> pa.Table:
        seen.extend([near, best])
        return best

    found = table.search(vector(4), text="red", k=3, columns=["id", "_score"], rerank=texts_first).to_arrow()

    assert [one.column_names for one in seen] == [["id", "_distance"], ["id", "_score"]]
    assert found.num_rows == 3
    with pytest.raises(Invalid, match="'_relevance_score'"):
        table.search(vector(4), text="red", rerank=texts_first)


# Arguments


@pytest.mark.parametrize(
    ("arguments", "field", "problem"),
    [
        ({}, "query", "needs a vector or a text"),
        ({"query": [1.0, 2.0]}, "vector", "not a vector of 8 numbers"),
        ({"query": [float("nan")] * DIMENSIONS}, "vector", "not finite"),
        ({"query": ["a"] * DIMENSIONS}, "vector", "not a vector of 8 numbers"),
        ({"query": vector(1), "vector": vector(1)}, "vector", "two queries"),
        ({"query": vector(1), "k": 0}, "k", "k is 0"),
        ({"query": vector(1), "column": "nope"}, "column", "no column 'nope'"),
        ({"query": vector(1), "column": "text"}, "column", "no vectors"),
        ({"query": vector(1), "metric": "cosine"}, "metric", "has the metric l2"),
        ({"query": vector(1), "metric": "far"}, "metric", "unknown metric"),
        ({"query": vector(1), "nprobes": 0}, "nprobes", "nprobes is 0"),
        ({"query": vector(1), "columns": ["id", "_score"]}, "_score", "no column '_score'"),
        ({"query": vector(1), "columns": []}, "columns", "empty"),
        ({"query": "red"}, "text_columns", "no text index"),
        ({"query": "red", "text_columns": []}, "text_columns", "text_columns is an empty list"),
        ({"query": "red \ud800"}, "text", "half of a character"),
        ({"query": "red", "metric": "l2"}, "metric", "metric is for a vector, and the search has none"),
        ({"query": "red", "column": "vec"}, "column", "column is for a vector"),
        ({"query": "red", "refine_factor": 2}, "refine_factor", "refine_factor is for a vector"),
        ({"query": MatchQuery("red", "text"), "text_columns": ["text"]}, "text_columns", "names its own columns"),
        ({"query": vector(1), "text_columns": ["text"]}, "text_columns", "text_columns is for a text"),
        ({"query": vector(1), "rerank": max}, "rerank", "rerank is for a search by vector and text"),
        ({"query": vector(1), "where": "id ="}, None, "condition"),
        ({"query": vector(1), "text": "red", "rerank": "best"}, "rerank", "unknown reranker"),
    ],
)
def test_a_search_that_does_not_fit_the_table_is_invalid(
    tmp_path: Path, arguments: dict[str, Any], field: str | None, problem: str
) -> None:
    table = create(tmp_path)
    indexed(table, "IVF_FLAT", "l2")
    if problem != "no text index":
        table.create_index("text", kind="INVERTED")

    with pytest.raises(Invalid, match=problem) as raised:
        table.search(**arguments)

    assert field is None or raised.value.where["field"] == field


@pytest.mark.parametrize(
    ("item", "query", "problem"),
    [
        (pa.uint8(), [1.5, 2], "not a vector of 2 numbers of type uint8"),
        (pa.uint8(), np.array([300.0, 1.0]), "not a vector of 2 numbers of type uint8"),
        (pa.uint8(), np.array([-1, 1]), "not a vector of 2 numbers of type uint8"),
        (pa.float16(), [1e6, 1.0], "not finite as halffloat"),
        (pa.float32(), [1e39, 1.0], "not finite as float"),
        (pa.float32(), np.array([1j, 1.0]), "not a vector of 2 numbers of type float"),
    ],
)
def test_a_query_that_would_become_another_vector_is_invalid(
    tmp_path: Path, item: pa.DataType, query: Any, problem: str
) -> None:
    schema = pa.schema([("id", pa.int64()), ("vec", pa.list_(item, 2))])
    table = lancelsm.create(tmp_path / "table", schema, primary_key="id")

    with pytest.raises(Invalid, match=problem):
        table.search(query)


@pytest.mark.parametrize("name", ["_distance", "_score", "_relevance_score"])
def test_a_column_with_the_name_of_a_score_is_left_out_or_refused(tmp_path: Path, name: str) -> None:
    schema = pa.schema([*COLUMNS, (name, pa.float32())])
    table = lancelsm.create(tmp_path / "table", schema, primary_key="id")
    table.create_index("text", kind="INVERTED")
    table.upsert([{**one, name: 1.0} for one in rows(range(20))])
    table.flush()
    table.merge()

    def search(**options: Any) -> pa.Table:
        return table.search(vector(1), text="red", k=3, **options).to_arrow()

    with pytest.raises(Invalid, match=f"has a column '{name}'"):
        search()
    with pytest.raises(Invalid, match=f"has a column '{name}'"):
        search(columns=["id", name])
    assert search(columns=["id", "text"]).column_names == ["id", "text"]


def test_an_empty_table_has_no_nearest_row(tmp_path: Path) -> None:
    table = lancelsm.create(tmp_path / "table", COLUMNS, primary_key="id")

    assert table.search(vector(1)).to_arrow().num_rows == 0
    table.create_index("vec", kind="IVF_SQ")
    table.create_index("text", kind="INVERTED")
    assert table.search(vector(1)).to_arrow().num_rows == 0
    assert table.search("red").to_arrow().num_rows == 0
    assert table.search(vector(1), text="red").to_arrow().num_rows == 0


# Hidden rows


@pytest.mark.parametrize("count", [1, 4096, 4097, 70_000])
def test_lance_hides_exactly_the_rows_of_a_blocklist(tmp_path: Path, count: int) -> None:
    import lance

    table = pa.table({"id": pa.array(range(100_000), pa.int64())})
    dataset = lance.write_dataset(table, tmp_path / "rows", max_rows_per_file=80_000)
    random = np.random.default_rng(count)
    ids = dataset.scanner(columns=[], with_row_id=True).to_table()["_rowid"].to_numpy()
    hidden = random.choice(ids, count, replace=False)

    found = dataset.scanner(columns=[], with_row_id=True, row_addr_blocklist=search_reads.blocklist(hidden)).to_table()[
        "_rowid"
    ]

    assert set(found.to_pylist()) == set(ids.tolist()) - set(hidden.tolist())


def test_a_view_is_prepared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = every_level(tmp_path)
    prepared = []
    real = searched.prepare

    def counted(*arguments: Any, **options: Any) -> Any:
        prepared.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr("lancelsm.read.search.search.prepare", counted)
    for _ in range(3):
        table.search(vector(1))
    table.upsert(rows([1], version=9))
    table.search(vector(1))

    assert len(prepared) == 2
