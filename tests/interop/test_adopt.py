"""Adoption of tables and regions that Lance's own writer wrote."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.adopt import adopt, set_regions
from lancelsm.admin.rebuild import rebuild
from lancelsm.errors import Corrupt, Invalid, LsmWarning
from lancelsm.region.handle import open_table
from lancelsm.table import Table
from tests.interop import lance_oracle as oracle
from tests.interop.adopt_scenarios import (
    COLUMNS,
    adoption_turns_automatic_cleanup_off,
    lance_is_fenced_before_its_entries_count,
    rows_of,
    write_with_lance,
)

pytestmark = pytest.mark.interop

KEYS = {"orders": ("id",), "parts": ("a", "b")}


@pytest.fixture
def ours(tmp_path: Path) -> Table:
    """A table of lancelsm with one row in the base, one in a generation and one in the log."""
    table = lancelsm.create(tmp_path / "table", [{"id": 1, "v": 1}], primary_key="id")
    table.upsert([{"id": 2, "v": 2}])
    table.flush()
    table.upsert([{"id": 3, "v": 3}])
    return table


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("release", oracle.FROZEN)
def test_a_table_of_an_older_pylance_release_is_adopted_with_all_rows(tmp_path: Path, release: str, name: str) -> None:
    merged = oracle.frozen(release, tmp_path)["tables"][name]["merged"]

    table = Table(adopt(tmp_path / name))

    for _ in ("as Lance left it", "flushed and merged"):
        found = table.scan().to_arrow().to_pylist()
        assert oracle.by_key(found, *KEYS[name]) == oracle.by_key(merged, *KEYS[name])
        table.flush()
        table.merge(engine="inprocess")


def test_a_table_whose_routing_lance_records_accepts_writes_at_once(tmp_path: Path) -> None:
    oracle.make_table(tmp_path, COLUMNS, ("id",), unsharded=True)
    write_with_lance(tmp_path, {"id": 1, "v": 1})

    table = Table(adopt(tmp_path))
    assert table.status().problems == ()
    table.upsert([{"id": 2, "v": 2}])

    assert rows_of(table) == [{"id": 1, "v": 1}, {"id": 2, "v": 2}]
    assert [region.id for region in table.list_regions()] == [oracle.SHARD]


def test_a_condition_on_the_key_reads_a_region_whose_id_lance_chose(tmp_path: Path) -> None:
    loaded = pa.table({"id": [1, 2], "v": [0, 0]})
    oracle.make_table(tmp_path, COLUMNS, ("id",), rows=loaded, unsharded=True)
    write_with_lance(tmp_path, {"id": 1, "v": 1}, {"id": 4, "v": 4})
    table = Table(adopt(tmp_path))

    for options in ({}, {}, {"consistency": "eventual", "max_staleness": 60}):
        assert table.scan(where="id = 1", **options).to_arrow().to_pylist() == [{"id": 1, "v": 1}]
        assert table.count(where="id = 4", **options) == 1
        assert table.get([1], **options).to_pylist() == [{"id": 1, "v": 1}]


def test_a_table_whose_routing_lance_does_not_record_needs_a_region_spec_for_writes(tmp_path: Path) -> None:
    oracle.make_table(tmp_path, COLUMNS, ("id",))
    write_with_lance(tmp_path, {"id": 1, "v": 1}, {"id": 2, "v": 2})
    adopted = adopt(tmp_path)
    with pytest.raises(Invalid, match="without a region spec"):
        Table(adopted).upsert([{"id": 1, "v": 10}])
    with pytest.raises(Invalid, match="without a region spec"):
        Table(adopted).delete([2])

    table = Table(set_regions(adopted, "bucket(id, 2)"))
    table.upsert([{"id": 1, "v": 10}])
    table.delete([2])

    assert rows_of(table) == rows_of(lancelsm.open(tmp_path)) == [{"id": 1, "v": 10}]
    assert {region.region: region.status for region in table.status().regions}[oracle.SHARD] == "sealed"


def test_adoption_turns_automatic_cleanup_off(tmp_path: Path) -> None:
    adoption_turns_automatic_cleanup_off(tmp_path)


def test_lance_is_fenced_before_its_entries_count(tmp_path: Path) -> None:
    lance_is_fenced_before_its_entries_count(tmp_path)


@pytest.mark.parametrize("remedy", ["adopt", "rebuild"])
def test_a_region_that_lance_wrote_to_is_adopted_again_with_all_rows(ours: Table, remedy: str) -> None:
    write_with_lance(ours.uri, {"id": 4, "v": 4}, region=ours.list_regions()[0].id)
    with pytest.raises(Corrupt, match="does not use the registry"):
        ours.upsert([{"id": 5, "v": 5}])
    with pytest.warns(LsmWarning), pytest.raises(Corrupt, match=f"region adopt {ours.uri}"):
        ours.flush()

    if remedy == "adopt":
        adopt(ours.uri)
    else:
        rebuild(open_table(ours.uri))

    ours.upsert([{"id": 5, "v": 5}])
    for _ in ("as Lance left it", "flushed and merged"):
        assert rows_of(ours) == [{"id": number, "v": number} for number in (1, 2, 3, 4, 5)]
        ours.flush()
        ours.merge(engine="inprocess")


@pytest.mark.parametrize("remedy", ["adopt", "rebuild"])
def test_a_compacted_region_that_lance_wrote_to_is_adopted_again(tmp_path: Path, remedy: str) -> None:
    """Lance's writer does not keep which numbers a compacted generation replaces."""
    table = lancelsm.create(tmp_path / "table", [{"id": 1, "v": 1}], primary_key="id", settings={"max_generations": 1})
    for number in (2, 3, 4):
        table.upsert([{"id": number, "v": number}])
        table.flush()
    table.compact()
    table.upsert([{"id": 5, "v": 5}])
    table.flush()
    write_with_lance(table.uri, {"id": 6, "v": 6}, region=table.list_regions()[0].id)

    if remedy == "adopt":
        adopt(table.uri)
    else:
        rebuild(open_table(table.uri))

    table = lancelsm.open(table.uri)
    for _ in ("as Lance left it", "flushed and merged"):
        assert rows_of(table) == [{"id": number, "v": number} for number in range(1, 7)]
        table.flush()
        table.merge(engine="inprocess")


def test_adopting_again_leaves_untouched_regions_alone(tmp_path: Path) -> None:
    table = lancelsm.create(tmp_path, COLUMNS, primary_key="id", regions="bucket(id, 2)")
    (entry,) = table.upsert([{"id": 1, "v": 0}]).entries
    touched = entry.region
    (untouched,) = {region.id for region in table.list_regions()} - {touched}
    write_with_lance(tmp_path, {"id": 1, "v": 1}, region=touched)

    adopt(tmp_path)

    epochs = {region.region: region.epoch for region in table.status().regions}
    assert epochs[untouched] == 1 < epochs[touched]
    with pytest.raises(Invalid, match="Lance's writer did not change it"):
        adopt(tmp_path)
