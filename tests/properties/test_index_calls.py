"""Searches and indexes end in a result or in one of the six kinds of errors, whatever their arguments are."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from lance.query import MatchQuery

import lancelsm
from tests.properties.test_public_calls import ODD, call, sample

VECTOR = pa.list_(pa.float32(), 4)
SCHEMA = pa.schema([("id", pa.int64()), ("v", VECTOR), ("text", pa.string()), ("n", pa.int64()), ("u", VECTOR)])

# Values that are often right. Each argument may also be odd.
SEARCH: dict[str, list[Any]] = {
    "query": [[1, 2, 3, 4], "apple", np.ones(4, np.float32)],
    "vector": [[1.0, 2, 3, 4], [[1, 2, 3, 4], [4, 3, 2, 1]], [np.nan] * 4, [np.inf] * 4, [1e300] * 4, np.zeros(4)],
    "text": [
        MatchQuery("apple", "text"),
        ["apple"],
        "apple",
        "",
        " ",
        "apple pear",
        "\0",
        '"apple pear"',
        "a" * 10_000,
    ],
    "column": ["v", "text", "n", "u", "V", "v.x"],
    "text_columns": [["text"], ["v"], ["text", "text"]],
    "k": [1, 10, 10_000, 2**31 - 1, 2**31, 2**63 - 1],
    "where": ["id > 1", "n = 1", "text = 'x'", "_distance < 1"],
    "columns": [["id"], ["_distance"], ["_score"], ["id", "id"], ["_rowid"]],
    "metric": ["l2", "cosine", "dot", "hamming", "L2"],
    "nprobes": [1, 1_000, 2**31, 2**63 - 1],
    "refine_factor": [1, 1_000, 2**31, 2**63 - 1],
    "rerank": ["rrf", lambda first, second: first, lambda first, second: None, lambda first, second: 1 / 0],
    "at": ["s", "none"],
}
INDEX: dict[str, list[Any]] = {
    "column": ["v", "text", "n", "u", "id", "V"],
    "kind": ["IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_HNSW_SQ", "INVERTED", "BTREE", "BITMAP", "LABEL_LIST", "NGRAM",
             "ZONEMAP", "BLOOMFILTER", "inverted", "VECTOR"],
    "name": ["v_idx", "other", "a/b", "..", ""],
    "replace": [True, False],
    "metric": ["l2", "hamming"],
    "num_partitions": [1, 0, -1, 10**6, 2**63 - 1],
    "num_sub_vectors": [1, 3, 0, -1, 2**40],
    "with_position": [True, "x"],
    "base_tokenizer": ["simple", "none"],
    "unknown": [1],
}  # fmt: skip


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "t"
    rows = [
        {"id": at, "v": [at, 1, 2, 3], "text": f"apple {at}", "n": at % 3, "u": None if at % 2 else [0, 0, 0, at]}
        for at in range(40)
    ]
    table = lancelsm.create(
        path, pa.Table.from_pylist(rows, SCHEMA), primary_key="id", settings={"retry_budget_seconds": 0.2}
    )
    table.create_index("v", kind="IVF_FLAT", num_partitions=2)
    table.create_index("text", kind="INVERTED")
    table.upsert(rows[:10])
    table.flush()
    table.upsert(rows[5:15])
    table.snapshot("s")
    return path


def drawn(values: dict[str, list[Any]], needed: set[str], data: st.DataObject) -> dict[str, Any]:
    chosen = needed | data.draw(st.sets(st.sampled_from(sorted(values)), max_size=5), label="given")
    odd = data.draw(st.sets(st.sampled_from(sorted(values)), max_size=1), label="odd")
    return {
        name: data.draw(ODD if name in odd else st.sampled_from(values[name]), label=name) for name in sorted(chosen)
    }


def check_search(template: Path, data: st.DataObject) -> None:
    call(lancelsm.open(template).search, drawn(SEARCH, {data.draw(st.sampled_from(["vector", "text", "query"]))}, data))


def check_index(template: Path, folder: Path, data: st.DataObject) -> None:
    given = drawn(INDEX, {"column", "kind"}, data)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    table = lancelsm.open(folder)
    call(table.create_index, given)
    table.upsert([{"id": 3, "v": [0, 0, 0, 0], "text": "pear", "n": 1, "u": None}])
    table.flush()
    assert table.search(text="pear").to_arrow().num_rows == 1
    call(table.drop_index, {"name": data.draw(ODD | st.sampled_from(["v_idx", "text_idx"]), label="name")})
    assert table.scrub().ok


@pytest.mark.parametrize(
    "given", [{"k": 2**31}, {"k": 10**6 + 1}, {"refine_factor": 10**6, "k": 11}, {"nprobes": 2**40}, {"k": 0}]
)
def test_a_search_for_more_rows_than_memory_may_hold_is_invalid(template: Path, given: dict[str, int]) -> None:
    with pytest.raises(lancelsm.Invalid, match=r"from 1 to 1,000,000|Keep the product at"):
        lancelsm.open(template).search(vector=[1, 2, 3, 4], **given)


@pytest.mark.rest
def test_a_search_ends_right(template: Path) -> None:
    sample(60, partial(check_search, template))


@pytest.mark.rest
def test_a_call_for_an_index_ends_right(template: Path, tmp_path: Path) -> None:
    sample(15, partial(check_index, template, tmp_path / "t"))


@pytest.mark.long
def test_many_searches_and_indexes_end_right(template: Path, tmp_path: Path) -> None:
    sample(1_000, partial(check_search, template))
    sample(200, partial(check_index, template, tmp_path / "t"))
