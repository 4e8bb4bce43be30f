"""Lance reads snapshots and clones, and pylance behaves as both require."""

from __future__ import annotations

import json
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.region.handle import open_table
from lancelsm.table import Table

pytestmark = pytest.mark.interop


@pytest.fixture
def table(tmp_path: Path) -> Table:
    created = lancelsm.create(tmp_path / "source", [{"id": n, "v": "a"} for n in range(6)], primary_key="id")
    created.upsert([{"id": 0, "v": "b"}])
    created.run()
    created.upsert([{"id": 0, "v": "c"}])
    created.snapshot("monday")
    return created


def rows(uri: str, version: int | None = None) -> list[dict[str, object]]:
    return sorted(lance.dataset(uri, version=version).to_table().to_pylist(), key=lambda row: row["id"])


def test_lances_clean_up_keeps_the_version_of_a_snapshot(table: Table) -> None:
    (pin,) = table.snapshots()
    table.upsert([{"id": n, "v": "d"} for n in range(6)])
    table.run()
    dataset = lance.dataset(table.uri)
    versions = [one["version"] for one in dataset.versions()]
    dataset.cleanup_old_versions(versions=versions[:-1], error_if_tagged_old_versions=False)

    assert pin.base_version in [one["version"] for one in lance.dataset(table.uri).versions()]
    assert rows(table.uri, pin.base_version)[0] == {"id": 0, "v": "b"}
    assert table.at("monday").get([0]).to_pylist() == [{"id": 0, "v": "c"}]


def test_lance_reads_and_writes_a_clone_like_any_dataset(table: Table, tmp_path: Path) -> None:
    clone_snapshot(open_table(table.uri), "monday", tmp_path / "clone")
    clone = lancelsm.open(tmp_path / "clone")
    assert rows(clone.uri)[0] == {"id": 0, "v": "b"}
    clone.run()
    assert rows(clone.uri)[0] == {"id": 0, "v": "c"}

    dataset = lance.dataset(clone.uri)
    dataset.create_scalar_index("id", "BTREE")
    dataset.optimize.compact_files()
    clone.upsert([{"id": 3, "v": "e"}])
    clone.run()
    assert [row["v"] for row in rows(clone.uri)] == ["c", "a", "a", "e", "a", "a"]
    assert [row["v"] for row in rows(table.uri)] == ["b", "a", "a", "a", "a", "a"]


def test_an_index_of_the_source_works_in_the_clone(table: Table, tmp_path: Path) -> None:
    lance.dataset(table.uri).create_scalar_index("id", "BTREE")
    table.snapshot("tuesday")
    clone_snapshot(open_table(table.uri), "tuesday", tmp_path / "clone")
    clone = lancelsm.open(tmp_path / "clone")
    clone.upsert([{"id": 5, "v": "e"}, {"id": 9, "v": "e"}])
    clone.run()

    assert clone.get([0, 5, 9]).sort_by("id").column("v").to_pylist() == ["c", "e", "e"]
    assert lance.dataset(clone.uri).scanner(filter="id = 5").to_table().column("v").to_pylist() == ["e"]


def test_fragments_of_a_shallow_clone_refer_to_the_source_after_a_commit(tmp_path: Path) -> None:
    rows_of = pa.table({"a": pa.array([1, 2])})
    source = lance.write_dataset(rows_of, str(tmp_path / "source"))
    clone = source.shallow_clone(str(tmp_path / "clone"), source.version)
    (shared,) = clone.get_fragments()
    hidden = shared.delete_rows([0])
    assert hidden is not None
    document = hidden.to_json()
    operation = lance.LanceOperation.Merge([lance.FragmentMetadata.from_json(json.dumps(document))], clone.lance_schema)
    merged = lance.LanceDataset.commit(clone, lance.Transaction(clone.version, operation))

    assert document["files"][0]["base_id"] is not None
    assert document["deletion_file"]["base_id"] is None
    assert merged.to_table().column("a").to_pylist() == [2]
    assert not (tmp_path / "clone" / "data").exists()
    assert (tmp_path / "clone" / "_deletions").exists()
