"""`optimize` writes a snapshot of all regions, from which a process that has just started reads eventually."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.compaction.maintenance import optimize_table
from lancelsm.compaction.snapshot_regions import snapshot_regions
from lancelsm.dataset import region_snapshots
from lancelsm.dataset.base_manifest import MEM_WAL_INDEX
from lancelsm.dataset.base_table import open_base
from lancelsm.dataset.region_snapshots import read_region_snapshot
from lancelsm.objects.filesystem import LocalStore
from lancelsm.region.manifest_codec import decode
from lancelsm.table import Table
from tests.simulation.faults import FakeClock, FaultPlan
from tests.unit.tables import NEWEST, by_key, faulty, three_levels

SETTINGS = {"skew_allowance_seconds": 10, "collect_interval_seconds": 1000}
EVENTUAL: dict[str, Any] = {"consistency": "eventual", "max_staleness": 60}


class Process:
    """A table with a region snapshot, and a clock that all its processes share."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.clock, self.plan = FakeClock(), FaultPlan()
        self.writing = three_levels(path, ports=faulty(FaultPlan(), clock=self.clock), settings=SETTINGS, **options)
        self.optimize()

    def optimize(self) -> None:
        optimize_table(self.writing._handle)

    def just_started(self) -> Table:
        table = lancelsm.open.on(faulty(self.plan, clock=self.clock))(self.writing.uri)
        self.plan.calls.clear()
        return table

    def calls(self) -> Counter[str]:
        return Counter(f"{call.port}.{call.method}" for call in self.plan.calls)


def stored_rows(table: Table) -> pa.Table:
    snapshot = read_region_snapshot(open_base(uri=table.uri), objects=LocalStore(Path(table.uri)))
    assert snapshot is not None
    return snapshot.rows


def listed_generations(table: Table) -> int:
    bodies = stored_rows(table)["lancelsm_manifest"].to_pylist()
    return sum(len(decode(body, key="").generations) for body in bodies)


def test_a_first_eventual_read_reads_no_head(tmp_path: Path) -> None:
    process = Process(tmp_path / "table")
    process.clock.advance(50)

    table = process.just_started()
    assert by_key(table.scan(**EVENTUAL).to_arrow()) == NEWEST
    assert process.calls() == {"objects.get": 3}, "the manifest of the base, and an entry of each region"

    process.plan.calls.clear()
    assert by_key(table.scan(**EVENTUAL).to_arrow()) == NEWEST
    assert process.calls() == {}

    assert by_key(process.just_started().get([0], **EVENTUAL)) == {0: 2}
    assert process.calls() == {"objects.get": 2}, "the region of a key follows from the key: no catalog is listed"

    process.clock.advance(1)
    process.plan.calls.clear()
    table.scan(**EVENTUAL)
    assert process.calls()["registry.read"] == 2, "the kept view and the snapshot are too old, with the clocks' skew"


def test_it_reads_rows_as_of_the_snapshot(tmp_path: Path) -> None:
    process = Process(tmp_path / "table")
    process.writing.upsert([{"id": 0, "v": 9}])

    assert by_key(process.just_started().scan(**EVENTUAL).to_arrow()) == NEWEST
    assert by_key(process.just_started().get([0, 1], **EVENTUAL)) == {0: 2, 1: 1}
    assert by_key(process.just_started().scan(**EVENTUAL, where="id = 0").to_arrow()) == {0: 2}
    table = process.just_started()
    table.scan(**EVENTUAL)
    assert by_key(table.scan().to_arrow()) == {**NEWEST, 0: 9}


def test_an_old_snapshot_is_not_used(tmp_path: Path) -> None:
    process = Process(tmp_path / "table")
    process.clock.advance(51)
    process.writing.upsert([{"id": 0, "v": 9}])

    assert by_key(process.just_started().scan(**EVENTUAL).to_arrow()) == {**NEWEST, 0: 9}


def test_a_snapshot_that_the_base_has_left_behind_is_not_used(tmp_path: Path) -> None:
    """The base has rows that are newer than those in the log of the snapshot."""
    process = Process(tmp_path / "table")
    process.writing.upsert([{"id": 0, "v": 9}])
    process.writing.flush()
    process.writing.merge(engine="inprocess")

    assert by_key(process.just_started().scan(**EVENTUAL).to_arrow()) == {**NEWEST, 0: 9}


def test_a_snapshot_whose_objects_are_collected_is_not_used(tmp_path: Path) -> None:
    """Another process collects with a shorter interval. The entries of the snapshot are gone."""
    process = Process(tmp_path / "table")
    process.writing.flush()
    entries = list(Path(process.writing.uri).glob("_mem_wal/*/wal/*.arrow"))
    for entry in entries:
        entry.unlink()

    assert by_key(process.just_started().scan(**EVENTUAL).to_arrow()) == NEWEST


def test_a_clone_does_not_read_the_snapshot_of_its_source(tmp_path: Path) -> None:
    process = Process(tmp_path / "table")
    process.writing.snapshot("monday")
    ports = faulty(FaultPlan(), process="clone", clock=process.clock)
    clone_snapshot(process.writing._handle, "monday", tmp_path / "clone", ports=ports)
    lancelsm.open.on(ports)(tmp_path / "clone").upsert([{"id": 0, "v": 9}])

    found = lancelsm.open.on(ports)(tmp_path / "clone").scan(**EVENTUAL).to_arrow()

    assert by_key(found) == {**NEWEST, 0: 9}


def test_a_merge_keeps_the_snapshot_and_it_is_used_beside_the_new_base(tmp_path: Path) -> None:
    process = Process(tmp_path / "table")
    process.writing.merge(engine="inprocess")

    assert by_key(process.just_started().scan(**EVENTUAL).to_arrow()) == NEWEST
    assert process.calls() == {"objects.get": 3}


def test_it_leaves_out_what_the_base_has(tmp_path: Path) -> None:
    process = Process(tmp_path / "table")
    process.writing.flush()
    process.optimize()
    assert listed_generations(process.writing) == 3
    process.writing.merge(engine="inprocess")
    process.optimize()

    assert listed_generations(process.writing) == 0
    assert by_key(process.just_started().scan(**EVENTUAL).to_arrow()) == NEWEST


@pytest.mark.filterwarnings("ignore:Lance.s own writer")
def test_it_has_the_columns_of_lance(tmp_path: Path) -> None:
    rows = [
        {"k": "ab", "day": dt.date(2024, 1, 2), "flag": True},
        {"k": "c", "day": dt.date(1969, 1, 2), "flag": False},
    ]
    schema = pa.schema([("k", pa.string()), ("day", pa.date32()), ("flag", pa.bool_())])
    table = lancelsm.create(
        tmp_path / "table",
        pa.Table.from_pylist(rows, schema=schema),
        primary_key=["k", "day", "flag"],
        regions="truncate(k, 1), year(day), identity(flag)",
    )
    table.upsert(pa.Table.from_pylist(rows, schema=schema))
    optimize_table(table._handle)

    found = stored_rows(table)

    assert found.schema.field("shard_id").type == pa.string()
    assert found.schema.field("shard_spec_id").type == pa.uint32()
    names = [name for name in found.column_names if name.startswith("shard_field_")]
    values = {tuple(row[name] for name in names) for row in found.to_pylist()}
    assert values == {("a", 2024, True), ("c", 1969, False)}
    assert set(found["shard_id"].to_pylist()) == {region.id for region in table.list_regions()}


def test_a_table_with_one_region_has_none(tmp_path: Path) -> None:
    table = lancelsm.create(tmp_path / "table", [{"id": 1, "v": 1}], primary_key="id")
    before = open_base(uri=table.uri).version

    assert optimize_table(table._handle).base_version == before


def test_a_base_without_its_mem_wal_index_has_none(tmp_path: Path) -> None:
    process = Process(tmp_path / "table")
    lance.dataset(process.writing.uri).drop_index(MEM_WAL_INDEX)
    before = open_base(uri=process.writing.uri).version

    assert not snapshot_regions(process.writing._handle)
    assert open_base(uri=process.writing.uri).version == before


def test_a_damaged_snapshot_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_snapshots, "INLINE_MOST", 1)
    process = Process(tmp_path / "table")
    (stored,) = Path(process.writing.uri).glob("_indices/*/index.lance")
    for body in (b"", stored.read_bytes()[:-40] + bytes(40)):
        stored.write_bytes(body)

        assert by_key(process.just_started().scan(**EVENTUAL).to_arrow()) == NEWEST
        assert process.calls()["registry.read"] == 2


@pytest.mark.rest
def test_the_snapshot_of_many_regions_is_an_object_of_its_own(tmp_path: Path) -> None:
    clock, plan = FakeClock(), FaultPlan()
    writing = lancelsm.create.on(faulty(FaultPlan(), clock=clock))(
        tmp_path / "table",
        [{"id": 0, "v": 0}],
        primary_key="id",
        regions="bucket(id, 101)",
        settings=SETTINGS,
    )
    writing.upsert([{"id": number, "v": number} for number in range(20)])
    optimize_table(writing._handle)
    table = lancelsm.open.on(faulty(plan, clock=clock))(writing.uri)
    plan.calls.clear()

    assert table.scan(**EVENTUAL).to_arrow().num_rows == 20

    assert {call.port for call in plan.calls} == {"objects"}
    (stored,) = Path(writing.uri).glob("_indices/*/index.lance")
    assert writing.scrub().ok
    stored.unlink()
    assert lancelsm.open.on(faulty(plan, clock=clock))(writing.uri).scan(**EVENTUAL).to_arrow().num_rows == 20
