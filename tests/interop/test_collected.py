"""Lance reads and writes tables after garbage collection, and lancelsm adopts what Lance wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

import lancelsm
from lancelsm.admin.adopt import adopt
from lancelsm.admin.rebuild import rebuild
from lancelsm.common.layout import SQLITE, wal_position
from lancelsm.region.handle import open_table
from lancelsm.scrubbing.inspection import find_entries, find_generations, find_manifest
from lancelsm.table import Table
from lancelsm.wal.claim import claim
from tests.interop import lance_oracle as oracle
from tests.interop.adopt_scenarios import COLUMNS, rows_of, write_with_lance

pytestmark = pytest.mark.interop


def collect(table: Table) -> Any:
    return table.collect(yes=True, interval_seconds=0)


@pytest.fixture
def collected(tmp_path: Path) -> Table:
    """A table with rows 1 to 5 merged and collected, row 6 in an unmerged generation, row 7 in the log."""
    table = lancelsm.create(tmp_path / "table", [{"id": 1, "v": 1}], primary_key="id")
    for key in range(2, 6):
        table.upsert([{"id": key, "v": key}])
        table.flush()
    table.merge(engine="inprocess")
    table.upsert([{"id": 6, "v": 6}])
    table.flush()
    assert collect(table).deleted > 10
    table.upsert([{"id": 7, "v": 7}])
    return table


ROWS = [{"id": key, "v": key} for key in range(1, 8)]


def test_all_operations_work_on_a_collected_table(collected: Table) -> None:
    assert rows_of(collected) == ROWS
    assert collected.get([2, 6, 7]).num_rows == 3
    (region,) = collected.list_regions()
    assert find_manifest(region).published
    assert [entry.position for entry in find_entries(region)] == [6]
    assert [found.state for found in find_generations(region, merged=4)] == ["pending"]  # type: ignore[arg-type]
    claim(region, owner="default")
    with collected.writer(exclusive=True) as writer:
        writer.upsert([{"id": 8, "v": 8}])
    for _ in range(2):
        collected.flush()
        collected.merge(engine="inprocess")
        collect(collected)
        assert rows_of(lancelsm.open(collected.uri)) == [*ROWS, {"id": 8, "v": 8}]
    collected.seal(region)
    collect(collected)
    assert rows_of(collected) == [*ROWS, {"id": 8, "v": 8}]


def test_a_lost_registry_is_rebuilt_after_a_collection(collected: Table) -> None:
    head = collected.list_regions()[0].head()
    for path in Path(collected.uri).glob(f"{SQLITE}*"):
        path.unlink()

    rebuild(open_table(collected.uri))

    table = lancelsm.open(collected.uri)
    rebuilt = table.list_regions()[0].head()
    assert (rebuilt.first_position, rebuilt.collector_round) == (head.first_position, head.collector_round)
    assert rows_of(table) == ROWS
    table.flush()
    table.merge(engine="inprocess")
    assert collect(table).deleted > 0
    assert rows_of(table) == ROWS


def test_lance_reads_a_collected_table(collected: Table) -> None:
    (region,) = collected.list_regions()
    with lance.dataset(collected.uri).mem_wal_writer(region.id) as writer:
        snapshot = oracle.snapshot(collected.uri, region.id)
        found = writer.lsm_scanner([snapshot]).to_table()
    assert {row["id"] for row in found.to_pylist()} >= {6, 7}


def test_lances_writes_to_a_collected_region_are_adopted_and_collected(collected: Table) -> None:
    (region,) = collected.list_regions()
    floor = region.head().first_position
    write_with_lance(collected.uri, {"id": 3, "v": 30}, region=region.id)

    table = Table(adopt(collected.uri))

    expected = [{"id": row["id"], "v": 30 if row["id"] == 3 else row["v"]} for row in ROWS]
    assert rows_of(table) == expected
    assert table.list_regions()[0].head().first_position >= floor
    for value in (31, 32):
        table.upsert([{"id": 3, "v": value}])
        table.flush()
        table.merge(engine="inprocess")
        collect(table)
        expected[2]["v"] = value
        assert rows_of(table) == expected
    assert list(Path(table.uri).glob("_mem_wal/*/*_gen_*")) == []


def test_an_adopted_table_is_collected_and_keeps_the_fence_against_lance(tmp_path: Path) -> None:
    oracle.make_table(tmp_path, COLUMNS, ("id",), unsharded=True)
    write_with_lance(tmp_path, {"id": 1, "v": 1})
    table = Table(adopt(tmp_path))
    for value in (2, 3):
        table.upsert([{"id": 2, "v": value}])
        table.flush()
        table.merge(engine="inprocess")
        collect(table)

    (region,) = table.list_regions()
    remaining = sorted(filter(None, map(wal_position, (str(p) for p in Path(tmp_path).glob("_mem_wal/*/wal/*.arrow")))))
    entries = {found.position: found for found in find_entries(region)}
    assert [entries[position].fence for position in remaining] == [True]
    assert remaining[0] < region.head().first_position
    assert rows_of(table) == [{"id": 1, "v": 1}, {"id": 2, "v": 3}]


def test_files_that_another_tool_wrote_before_the_fence_cannot_be_committed_after_it(collected: Table) -> None:
    dataset = lance.dataset(collected.uri)
    fragments = write_fragments(
        pa.table({"id": pa.array([99], pa.int64()), "v": pa.array([99], pa.int64())}, schema=dataset.schema), dataset
    )
    collected.merge(engine="inprocess")
    collect(collected)
    path = Path(collected.uri) / "data" / fragments[0].files[0].path
    assert not path.exists()

    with pytest.raises(Exception, match="conflict"):
        lance.LanceDataset.commit(collected.uri, lance.LanceOperation.Append(fragments), read_version=dataset.version)
    assert rows_of(collected) == ROWS
