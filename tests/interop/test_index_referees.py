"""Lance's planner, its scanner and LanceDB search tables of lancelsm. They return no stale and no deleted row.

The tables have indexes, pending generations, and overwritten, deleted and new rows in several regions. The readers see
what is flushed. Brute force over a dictionary is the referee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import lancedb
import numpy as np
import pyarrow as pa
import pytest
from lance.mem_wal import LsmScanner, LsmVectorSearchPlanner

import lancelsm
from lancelsm.compaction.maintenance import optimize_table
from lancelsm.table import Table
from tests.unit.index_tables import WORDS

pytestmark = [pytest.mark.interop]

DIMENSIONS = 16
COLUMNS = pa.schema([("id", pa.int64()), ("vec", pa.list_(pa.float32(), DIMENSIONS)), ("text", pa.string())])
K = 10

Model = dict[int, dict[str, Any]]
Search = Callable[[Table, str, np.ndarray], pa.Table]


def row(key: int, version: int) -> dict[str, Any]:
    random = np.random.default_rng([key, version])
    words = [WORDS[int(one)] for one in random.integers(0, 5, 4)]
    vector = random.normal(size=DIMENSIONS).astype(np.float32)
    return {"id": key, "vec": [float(one) for one in vector], "text": f"{' '.join(words)} version{version}"}


def write(table: Table, model: Model, version: int, *, upserts: range, deletes: range) -> None:
    rows = [row(key, version) for key in upserts]
    table.upsert(rows)
    model.update({one["id"]: one for one in rows})
    table.delete(list(deletes))
    for key in deletes:
        model.pop(key, None)
    table.flush()


def searched(path: Path, kind: str, metric: str, **options: Any) -> tuple[Table, Model]:
    """A table in NAME.lance with generations from before and after its indexes."""
    base = [row(key, 0) for key in range(600)]
    model: Model = {one["id"]: one for one in base}
    table = lancelsm.create(
        path / "docs.lance", pa.Table.from_pylist(base, schema=COLUMNS), primary_key="id", regions="bucket(id, 2)"
    )
    write(table, model, 1, upserts=range(100), deletes=range(90, 110))
    table.create_index("vec", kind=kind, name="vec_idx", metric=metric, **options)
    table.create_index("text", kind="INVERTED", name="text_idx")
    write(table, model, 2, upserts=range(50, 150), deletes=range(300, 320))
    write(table, model, 3, upserts=range(600, 640), deletes=range(10))
    return table, model


def distances(model: Model, query: np.ndarray, metric: str) -> dict[int, float]:
    vectors = np.array([one["vec"] for one in model.values()], np.float32)
    match metric:
        case "l2":
            far = ((vectors - query) ** 2).sum(axis=1)
        case "dot":
            far = 1 - vectors @ query
        case _:
            far = 1 - vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    return dict(zip(model, (float(one) for one in far), strict=True))


def with_planner(table: Table, metric: str, query: np.ndarray) -> pa.Table:
    planner = LsmVectorSearchPlanner(*table.lance_snapshot(index="vec_idx"), "vec", distance_type=metric)
    return planner.plan_search(
        pa.array(query), k=K, nprobes=20, refine_base_table=True, overfetch_factor=8.0
    ).to_table()


def with_lancedb(table: Table, metric: str, query: np.ndarray) -> pa.Table:
    found = lancedb.connect(Path(table.uri).parent).open_table("docs")
    return found.search(query, vector_column_name="vec").distance_type(metric).use_lsm(True).limit(K).to_arrow()


def check_vectors(table: Table, model: Model, metric: str, search: Search) -> float:
    """No row is stale, deleted or returned twice. Return the share of the true neighbours that were found."""
    hits = 0
    for seed in range(20):
        query = np.random.default_rng(seed).normal(size=DIMENSIONS).astype(np.float32)
        true = distances(model, query, metric)
        found = search(table, metric, query).to_pylist()
        ids = [one["id"] for one in found]
        assert len(ids) == len(set(ids)) == K
        assert [one["text"] for one in found] == [model[key]["text"] for key in ids]
        hits += len(set(ids) & set(sorted(true, key=lambda key: true[key])[:K]))
    return hits / (20 * K)


def levels(table: Table) -> Iterator[str]:
    yield "generations"
    lancelsm.open(table.uri, settings={"max_generations": 1}).compact()
    yield "compacted"
    table.merge(engine="inprocess")
    yield "merged, indexes behind"
    optimize_table(table._handle)
    yield "merged"


@pytest.mark.rest
@pytest.mark.parametrize("search", [with_planner, with_lancedb])
@pytest.mark.parametrize(
    ("kind", "metric", "options"),
    [
        ("IVF_FLAT", "l2", {"num_partitions": 1}),
        ("IVF_SQ", "cosine", {"num_partitions": 2}),
        ("IVF_PQ", "l2", {"num_partitions": 1, "num_sub_vectors": 8}),
        ("IVF_FLAT", "dot", {"num_partitions": 1}),
    ],
    ids=["flat", "sq cosine", "pq", "flat dot"],
)
def test_vector_search_of_lance_finds_the_newest_rows(
    tmp_path: Path, kind: str, metric: str, options: dict[str, Any], search: Search
) -> None:
    table, model = searched(tmp_path, kind, metric, **options)

    recalls = {level: check_vectors(table, model, metric, search) for level in levels(table)}

    # Readers of Lance compare approximate distances of one level with those of another.
    assert min(recalls.values()) >= (0.9 if kind == "IVF_FLAT" else 0.4), recalls


def test_scans_of_lance_see_the_newest_rows(tmp_path: Path) -> None:
    table, model = searched(tmp_path, "IVF_FLAT", "l2", num_partitions=1)

    table.snapshot("before")
    for _ in levels(table):
        found = LsmScanner.from_snapshots(*table.lance_snapshot()).to_table()
        few = LsmScanner.from_snapshots(*table.lance_snapshot()).filter("id >= 80 AND id < 120").to_table()

        assert {one["id"]: one["text"] for one in found.to_pylist()} == {key: one["text"] for key, one in model.items()}
        assert set(few["id"].to_pylist()) == {key for key in model if 80 <= key < 120}

    write(table, {}, 4, upserts=range(700, 710), deletes=range(20))
    found = LsmScanner.from_snapshots(*table.at("before").lance_snapshot()).to_table()
    assert {one["id"]: one["text"] for one in found.to_pylist()} == {key: one["text"] for key, one in model.items()}


def test_text_search_of_lancedb_finds_exactly_the_newest_rows(tmp_path: Path) -> None:
    table, model = searched(tmp_path, "IVF_FLAT", "l2", num_partitions=1)

    for _ in levels(table):
        found = lancedb.connect(tmp_path).open_table("docs")
        for word in WORDS:
            hits = found.search(word, query_type="fts", fts_columns="text").use_lsm(True).limit(1000).to_arrow()

            ids = hits["id"].to_pylist()
            assert len(ids) == len(set(ids))
            assert set(ids) == {key for key, one in model.items() if word in one["text"].split()}


def test_vector_search_of_lancedb_with_a_condition_finds_the_newest_rows(tmp_path: Path) -> None:
    table, model = searched(tmp_path, "IVF_FLAT", "l2", num_partitions=1)
    some = {key: one for key, one in model.items() if key < 120}

    for _ in levels(table):
        found = lancedb.connect(tmp_path).open_table("docs")
        query = np.zeros(DIMENSIONS, np.float32)
        hits = found.search(query, vector_column_name="vec").where("id < 120").use_lsm(True).limit(K).to_arrow()

        true = distances(some, query, "l2")
        best = set(sorted(true, key=lambda key: true[key])[:K])
        assert set(hits["id"].to_pylist()) <= set(some)
        assert len(best & set(hits["id"].to_pylist())) >= K - 2


def test_lancedb_refuses_the_same_queries_on_a_table_of_lances_writer(tmp_path: Path) -> None:
    ours, _ = searched(tmp_path, "IVF_FLAT", "l2", num_partitions=1)
    theirs = tmp_path / "theirs.lance"
    rows = pa.Table.from_pylist([row(key, 0) for key in range(300)], schema=COLUMNS)
    key = pa.field("id", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"})
    schema = pa.schema([key, *list(COLUMNS)[1:]])
    dataset = lance.write_dataset(rows.cast(schema), theirs)
    dataset.create_index("vec", "IVF_FLAT", name="vec_idx", num_partitions=1)
    dataset.create_scalar_index("text", "INVERTED", name="text_idx")
    dataset.initialize_mem_wal(maintained_indexes=["vec_idx", "text_idx"], unsharded=True)
    database = lancedb.connect(tmp_path)

    def refused(name: str) -> str:
        table = database.open_table(name)
        query = table.search(query_type="hybrid", vector_column_name="vec", fts_columns="text")
        with pytest.raises(Exception) as raised:  # noqa: PT011 - LanceDB has no error class of its own for it
            query.vector([0.0] * DIMENSIONS).text("red").use_lsm(True).limit(3).to_arrow()
        return str(raised.value).split("\n")[0].split(", /")[0]

    assert refused(Path(ours.uri).stem) == refused(theirs.stem)
