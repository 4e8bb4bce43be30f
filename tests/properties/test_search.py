"""Search over any order of operations returns what brute force over a dictionary returns: no stale, no deleted row."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lancelsm.compaction.maintenance import optimize_table
from lancelsm.read.search.distances import distances
from tests.unit.index_tables import COLUMNS, WORDS, create, rows, vector

KEYS = 30
K = 6

ids = st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=12, unique=True)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), ids),
        st.tuples(st.just("delete"), ids),
        st.tuples(st.sampled_from(["flush", "merge", "optimize", "collect"]), st.just([])),
        st.tuples(st.sampled_from(["flat", "sq", "text", "drop"]), st.just([])),
    ),
    min_size=1,
    max_size=14,
)


def apply(table: Any, model: dict[int, Any], name: str, keys: list[int], version: int) -> None:
    known = {one.name for one in table.list_indices()}
    match name:
        case "upsert":
            found = rows(keys, version=version)
            table.upsert(found)
            model.update({one["id"]: one for one in found})
        case "delete":
            table.delete(keys)
            for key in keys:
                model.pop(key, None)
        case "flush":
            table.flush()
        case "merge":
            table.merge(engine="inprocess")
        case "optimize":
            optimize_table(table._handle)
        case "collect":
            table.collect(yes=True, interval_seconds=0)
        case "flat" | "sq":
            table.create_index("vec", kind=f"IVF_{name.upper()}", replace=True, num_partitions=1)
        case "text":
            table.create_index("text", kind="INVERTED", replace=True, stem=False, remove_stop_words=False)
        case "drop" if "vec_idx" in known:
            table.drop_index("vec_idx")


def check(table: Any, model: dict[int, Any], version: int) -> None:
    query = np.asarray(vector(version + 5000), np.float32)
    column = pa.chunked_array([pa.array([one["vec"] for one in model.values()], COLUMNS.field("vec").type)])
    best = sorted(distances(column, query, "l2"))[:K]

    for _ in range(2):  # the second search of a view reads small generations as a whole
        found = table.search(query, k=K).to_arrow().to_pylist()
        assert [model[one["id"]]["text"] for one in found] == [one["text"] for one in found]
        assert [one["_distance"] for one in found] == pytest.approx(best, rel=1e-3, abs=1e-3)
    if any(one.kind == "INVERTED" for one in table.list_indices()):
        for word in WORDS[:3]:
            hits = table.search(word, k=100, columns=["id", "text"]).to_arrow().to_pylist()
            wanted = {key: one["text"] for key, one in model.items() if word in one["text"].split()}
            assert {one["id"]: one["text"] for one in hits} == wanted
            assert len(hits) == len(wanted)


@pytest.mark.rest
@settings(max_examples=25, deadline=None)
@given(operations)
def test_search_finds_the_newest_rows_after_any_operations(steps: list[tuple[str, list[int]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        table = create(Path(directory), range(0, KEYS, 2), regions="bucket(id, 2)")
        model = {one["id"]: one for one in rows(range(0, KEYS, 2))}
        for number, (name, keys) in enumerate(steps, 1):
            apply(table, model, name, keys, number)
            check(table, model, number)
