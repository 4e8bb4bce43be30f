"""The commands `index` and `search`, and `init --index`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.console import Json, Run, lines
from tests.unit.index_tables import create, rows, vector


def test_indexes_are_created_listed_used_and_dropped(tmp_path: Path, as_json: Json) -> None:
    table = create(tmp_path)
    table.upsert(rows(range(5), version=1))
    table.flush()

    made = as_json("index", "create", table.uri, "vec", "--kind", "IVF_FLAT", "-o", "metric=cosine")
    as_json("index", "create", table.uri, "text", "--kind", "INVERTED", "-o", "with_position=true")

    assert (made["name"], made["metric"], made["generations"], made["maintained"]) == ("vec_idx", "cosine", 1, True)
    assert [one["name"] for one in as_json("index", "list", table.uri)["indexes"]] == ["text_idx", "vec_idx"]
    assert [one["rows_without"] for one in as_json("status", table.uri)["indexes"]] == [0, 0]
    assert as_json("index", "drop", table.uri, "--name", "text_idx") == {"dropped": "text_idx"}
    assert [one["name"] for one in as_json("index", "list", table.uri)["indexes"]] == ["vec_idx"]


@pytest.mark.rest
def test_reads_are_explained_instead_of_printed(tmp_path: Path, run: Run, as_json: Json) -> None:
    table = create(tmp_path)
    table.upsert(rows([7], version=1))

    scanned = as_json("scan", table.uri, "--explain", "--where", "id = 7")
    counted = as_json("scan", table.uri, "--explain", "--count")
    few = as_json("scan", table.uri, "--explain", "--count", "--limit", "3")
    looked_up = as_json("get", table.uri, "--explain", "--key", "7")
    searched = run("search", table.uri, "--explain", "--vector", json.dumps(vector(7)), "--k", "1")

    assert scanned["rows"] == looked_up["rows"] == 1
    assert counted["rows"] == table.scan().to_arrow().num_rows
    assert few["rows"] == 3
    assert looked_up["levels"][0]["rows"] == 1
    assert searched.out.startswith("1 row, from version ")


def test_init_creates_indexes(tmp_path: Path, as_json: Json, run: Run) -> None:
    location, file = tmp_path / "t", tmp_path / "rows.ndjson"
    file.write_text(lines({"id": 1, "text": "red"}))

    as_json("init", location, "--schema", file, "--primary-key", "id", "--load", "--index", "text:INVERTED:stem=false")

    (found,) = as_json("index", "list", location)["indexes"]
    assert (found["name"], found["kind"], found["rows"]) == ("text_idx", "INVERTED", 1)
    refused = run("init", tmp_path / "u", "--schema", file, "--primary-key", "id", "--index", "text")
    assert refused.code == 2
    assert "COLUMN:KIND" in refused.err
    twice = ("--index", "text:INVERTED", "--index", "text:NGRAM")
    assert run("init", tmp_path / "u", "--schema", file, "--primary-key", "id", *twice).code == 2
    assert run("init", tmp_path / "u", "--schema", file, "--primary-key", "id", "--index", "text:IVF_PQ").code == 1
    assert not (tmp_path / "u").exists()


def test_search_by_vector_by_text_and_by_both(tmp_path: Path, run: Run) -> None:
    table = create(tmp_path)
    table.create_index("text", kind="INVERTED")
    table.upsert(rows([7], version=1))
    file = tmp_path / "query.json"
    file.write_text("\ufeff" + json.dumps(vector(10_007)))

    near = run("search", table.uri, "--vector", file, "--k", 2, "--columns", "id,_distance", "--output", "json").rows
    best = run("search", table.uri, "--text", "item107", "--columns", "id,_score", "--output", "json").rows
    both = run(
        *("search", table.uri, "--vector", json.dumps(vector(10_007)), "--text", "item107", "--k", 1),
        *("--columns", "id,_relevance_score", "--output", "json"),
    ).rows

    assert near[0] == {"id": 7, "_distance": 0.0}
    assert len(near) == 2
    assert [one["id"] for one in best] == [7]
    assert [one["id"] for one in both] == [7]
    for wrong in ("[1, ", "[" * 100_000):
        assert run("search", table.uri, "--vector", wrong).code == 2
    assert run("search", table.uri).code == 1
