"""Tables and regions that Lance's own writer wrote, taken over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.adopt import adopt, set_regions
from lancelsm.admin.rebuild import rebuild
from lancelsm.errors import Corrupt, Invalid
from lancelsm.region.handle import open_table
from lancelsm.table import Table
from tests.interop import lance_oracle as oracle

pytestmark = pytest.mark.interop

COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64())])
KEYS = {"orders": ("id",), "parts": ("a", "b")}


def lance_writes(place: Path | str, *rows: dict[str, Any], region: str = oracle.SHARD) -> None:
    """Append rows by Lance's writer, which flushes what it replayed and wrote when it closes."""
    dataset = lance.dataset(str(place))
    with dataset.mem_wal_writer(region) as writer:
        writer.put(pa.Table.from_pylist(list(rows), schema=dataset.schema))


def rows_of(table: Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])


@pytest.fixture
def ours(tmp_path: Path) -> Table:
    """A table of ours with one row in the base, one in a generation, one in the log."""
    table = lancelsm.create(tmp_path / "table", [{"id": 1, "v": 1}], primary_key="id")
    table.upsert([{"id": 2, "v": 2}])
    table.flush()
    table.upsert([{"id": 3, "v": 3}])
    return table


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("release", oracle.FROZEN)
def test_what_a_release_of_pylance_wrote_is_adopted_with_all_its_rows(tmp_path: Path, release: str, name: str) -> None:
    merged = oracle.frozen(release, tmp_path)["tables"][name]["merged"]

    table = Table(adopt(tmp_path / name))

    for _ in ("as Lance left it", "flushed and merged"):
        found = table.scan().to_arrow().to_pylist()
        assert oracle.by_key(found, *KEYS[name]) == oracle.by_key(merged, *KEYS[name])
        table.flush()
        table.merge(engine="inprocess")


def test_a_table_whose_keys_lance_routes_takes_rows_at_once(tmp_path: Path) -> None:
    oracle.make_table(tmp_path, COLUMNS, ("id",), unsharded=True)
    lance_writes(tmp_path, {"id": 1, "v": 1})

    table = Table(adopt(tmp_path))
    table.upsert([{"id": 2, "v": 2}])

    assert rows_of(table) == [{"id": 1, "v": 1}, {"id": 2, "v": 2}]
    assert [region.id for region in table.regions()] == [oracle.SHARD]


def test_a_table_whose_keys_lance_does_not_route_takes_rows_once_it_has_a_spec(tmp_path: Path) -> None:
    oracle.make_table(tmp_path, COLUMNS, ("id",))
    lance_writes(tmp_path, {"id": 1, "v": 1}, {"id": 2, "v": 2})
    adopted = adopt(tmp_path)
    with pytest.raises(Invalid, match="which region a key is in"):
        Table(adopted).upsert([{"id": 1, "v": 10}])
    with pytest.raises(Invalid, match="which region a key is in"):
        Table(adopted).delete([2])

    table = Table(set_regions(adopted, "bucket(id, 2)"))
    table.upsert([{"id": 1, "v": 10}])
    table.delete([2])

    assert rows_of(table) == rows_of(lancelsm.open(tmp_path)) == [{"id": 1, "v": 10}]
    assert {region.region: region.status for region in table.status().regions}[oracle.SHARD] == "sealed"


def test_automatic_cleanup_is_taken_out_of_an_adopted_table(tmp_path: Path) -> None:
    dataset = oracle.make_table(tmp_path, COLUMNS, ("id",), unsharded=True)
    dataset.update_config({"lance.auto_cleanup.interval": "1", "lance.auto_cleanup.older_than": "0s"})

    adopt(tmp_path)

    assert not [name for name in lance.dataset(str(tmp_path)).config() if "cleanup" in name]


def test_lance_is_fenced_before_its_entries_count(tmp_path: Path) -> None:
    oracle.make_table(tmp_path, COLUMNS, ("id",), unsharded=True)
    dataset = lance.dataset(str(tmp_path))
    before, after = (pa.Table.from_pylist([{"id": key, "v": key}], schema=dataset.schema) for key in (1, 2))

    def adopted_on_the_way() -> None:
        with dataset.mem_wal_writer(oracle.SHARD) as writer:
            writer.put(before)
            adopt(tmp_path)
            writer.put(after)

    with pytest.raises(OSError, match="fenced"):
        adopted_on_the_way()
    assert rows_of(lancelsm.open(tmp_path)) == [{"id": 1, "v": 1}]


@pytest.mark.parametrize("remedy", ["adopt", "rebuild"])
def test_a_region_that_lance_wrote_to_is_taken_back_with_everybodys_rows(ours: Table, remedy: str) -> None:
    lance_writes(ours.uri, {"id": 4, "v": 4}, region=ours.regions()[0].id)
    with pytest.raises(Corrupt, match="outside the registry"):
        ours.upsert([{"id": 5, "v": 5}])
    with pytest.raises(Corrupt, match=f"region adopt {ours.uri}"):
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


def test_taking_back_leaves_the_regions_alone_that_lance_did_not_touch(tmp_path: Path) -> None:
    table = lancelsm.create(tmp_path, COLUMNS, primary_key="id", regions="bucket(id, 2)")
    touched, untouched = (region.id for region in table.regions())
    lance_writes(tmp_path, {"id": 1, "v": 1}, region=touched)

    adopt(tmp_path)

    epochs = {region.region: region.epoch for region in table.status().regions}
    assert epochs[untouched] == 1 < epochs[touched]
    with pytest.raises(Invalid, match="Lance did not touch"):
        adopt(tmp_path)
