"""Lance's readers see a table in each state of a reshard; its writers learn the new region spec, or refuse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import LsmScanner, evaluate_sharding_spec

from lancelsm.admin import reshard as resharding
from lancelsm.admin.adopt import adopt
from lancelsm.routing.route import route, values_json
from lancelsm.table import Table
from tests.interop.lancedb_writes import ROWS, connected, create, lancedb_merges, seen, shard_writes

pytestmark = [pytest.mark.interop, pytest.mark.rest]
STEPS = ("_merge_rest", "_commit_spec", "install_spec", "_retire")


@contextmanager
def _stopped_at(step: str) -> Iterator[None]:
    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt(step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resharding, step, crash)
        with pytest.raises(KeyboardInterrupt):
            yield


def _by_lance(table: Table) -> list[dict[int, int]]:
    """Rows of the base and its generations, as Lance and LanceDB read them."""
    snapshot = table.lance_snapshot()
    found = [LsmScanner.from_snapshots(*snapshot).to_table() if snapshot.shards else snapshot.dataset.to_table()]
    found.append(connected(table).search().use_lsm(True).limit(100).to_arrow())
    rows = [one.to_pylist() for one in found]
    assert all(len({row["id"] for row in one}) == len(one) for one in rows)
    return [{row["id"]: row["v"] for row in one} for one in rows]


@pytest.mark.parametrize("step", STEPS)
def test_lances_readers_see_every_row_in_each_state_of_a_reshard(tmp_path: Path, step: str) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    table.upsert([{"id": key, "v": 1} for key in range(5, 15)])
    expected = {key: int(key >= 5) for key in range(15)}

    with _stopped_at(step):
        table.reshard("bucket(id, 5)")
    table.flush()

    assert _by_lance(table) == [expected, expected]
    table.reshard()
    table.upsert([{"id": 0, "v": 2}])
    table.flush()
    assert _by_lance(table) == [{**expected, 0: 2}, {**expected, 0: 2}]
    table.merge()
    assert _by_lance(table) == [{**expected, 0: 2}, {**expected, 0: 2}]


def test_the_index_routes_rows_as_the_new_spec_does(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    table.reshard("bucket(id, 5)")
    dataset, spec = lance.dataset(table.uri), table.config.regions
    (stored,) = dataset.mem_wal_index_details()["sharding_specs"]
    rows = pa.table({"id": pa.array(range(50), pa.int64())})

    found = evaluate_sharding_spec(rows.to_batches()[0], stored, dataset.lance_schema)

    assert (stored["spec_id"], stored["fields"][0]["parameters"]) == (2, {"num_buckets": "5"})
    assert spec is not None
    ours = {
        key: values_json(one.values, spec)["bucket"] for one in route(rows, spec) for key in one.rows["id"].to_pylist()
    }
    assert [ours[key] for key in range(50)] == found.column(0).to_pylist()


def test_lances_writer_refuses_a_region_of_the_old_spec(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    old = table.list_regions()
    table.reshard("bucket(id, 5)")

    for region in old:
        with pytest.raises(Exception, match=r"spec|sealed|Sealed"):
            shard_writes(table, region.id, ROWS[:1])
    assert not table.status().problems


def test_lancedb_can_not_write_to_a_resharded_table(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    table.reshard("bucket(id, 5)")

    with pytest.raises(RuntimeError, match="shard_spec_id 1 does not match"):
        lancedb_merges(table, ROWS[:1])
    assert seen(table) == {row["id"]: row["v"] for row in ROWS}
    assert not table.status().problems


def test_an_index_that_another_tool_dropped_is_installed_again_with_the_new_spec(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    table.reshard("bucket(id, 5)")
    lance.dataset(table.uri).drop_index("__lance_mem_wal")

    adopt(table.uri)

    (stored,) = lance.dataset(table.uri).mem_wal_index_details()["sharding_specs"]
    assert (stored["spec_id"], stored["fields"][0]["parameters"]) == (2, {"num_buckets": "5"})
    assert not table.status().problems
