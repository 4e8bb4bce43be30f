"""lancelsm reads trees that older releases of pylance wrote. fixtures/generate.py describes their content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lancelsm.common.layout import generation_number
from lancelsm.dataset.generation import lookup_generation, read_generation
from tests.interop import lance_oracle as oracle

pytestmark = pytest.mark.interop

KEYS = {"orders": ("id",), "parts": ("a", "b")}


@pytest.fixture(params=oracle.FROZEN)
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    return tmp_path, oracle.frozen(request.param, tmp_path)


@pytest.mark.parametrize("name", KEYS)
def test_generations_have_the_rows_that_the_release_read(tree: tuple[Path, dict[str, Any]], name: str) -> None:
    root, expected = tree
    schema = oracle.table_schema(root / name)
    assert [generation_number(found["path"]) for found in expected["tables"][name]["generations"]] == [1, 2]

    for generation in expected["tables"][name]["generations"]:
        uri = str(oracle.shard_directory(root / name) / generation["path"])
        rows = [row for batch in read_generation(uri=uri, schema=schema) for row in batch.to_pylist()]

        assert oracle.by_key(rows, *KEYS[name]) == oracle.by_key(generation["rows"], *KEYS[name])


@pytest.mark.parametrize("name", KEYS)
def test_every_key_is_found_only_in_its_generations(tree: tuple[Path, dict[str, Any]], name: str) -> None:
    root, expected = tree
    schema = oracle.table_schema(root / name)
    generations = expected["tables"][name]["generations"]
    keys = {tuple(row[column] for column in KEYS[name]) for found in generations for row in found["rows"]}
    keys |= {(1000,) if name == "orders" else (1000, "")}

    for generation in generations:
        uri = str(oracle.shard_directory(root / name) / generation["path"])
        for key in keys:
            row = dict(zip(KEYS[name], key, strict=True))
            wanted = pa.Table.from_pylist([row], schema=schema.key)
            found = lookup_generation(uri=uri, schema=schema, keys=wanted).to_pylist()
            assert found == [held for held in generation["rows"] if held.items() >= row.items()]
