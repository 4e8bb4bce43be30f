"""Random work on one table by us and by Lance: whoever reads sees the same rows.

A seed decides everything but the names of files; it is in the test's name.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import CompactedSsTable, LsmScanner, ShardSnapshot

import lancelsm
from lancelsm.admin.adopt import adopt, set_regions
from lancelsm.admin.rebuild import newest_published
from lancelsm.common.layout import Generation, RegionId, generation_number
from lancelsm.table import Table
from tests.interop import lance_oracle as oracle

pytestmark = pytest.mark.interop

SINGLE = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64()), pa.field("w", pa.string())])
PAIR = pa.schema([pa.field("v", pa.int64()), pa.field("b", pa.string()), pa.field("a", pa.int32())])
SHAPES: dict[str, tuple[pa.Schema, tuple[str, ...], str | None]] = {
    "unsharded": (SINGLE, ("id",), None),
    "bucket": (SINGLE, ("id",), "bucket(id, 2)"),
    "identity": (PAIR, ("a", "b"), "identity(a)"),
    "composite": (PAIR, ("a", "b"), "bucket(b, 2)"),
}
Row = dict[str, Any]


class Work:
    """Random rows and keys of one shape, and the rows that must be there."""

    def __init__(self, shape: str, seed: int) -> None:
        self.columns, self.key, self.regions = SHAPES[shape]
        self.random = random.Random(f"{shape} {seed}")
        self.rows: dict[tuple[Any, ...], Row] = {}

    def a_key(self) -> Row:
        pools: dict[str, list[Any]] = {"id": list(range(12)), "a": [0, 1, -7], "b": ["", "x", "yy", "é"]}
        return {name: self.random.choice(pools[name]) for name in self.key}

    def upserted(self, most: int = 6) -> pa.Table:
        rows = []
        for _ in range(self.random.randint(1, most)):
            row = {name: self.random.choice([None, 0, 1, 2]) for name in self.columns.names}
            row |= {"w": self.random.choice([None, "", "z"])} if "w" in row else {}
            rows.append(row | self.a_key())
            self.rows[self.of(rows[-1])] = rows[-1]
        return pa.Table.from_pylist(rows, schema=self.columns)

    def deleted(self, most: int = 3) -> pa.Table:
        keys = [self.a_key() for _ in range(self.random.randint(1, most))]
        for key in keys:
            self.rows.pop(self.of(key), None)
        return pa.Table.from_pylist(keys, schema=pa.schema([self.columns.field(name) for name in self.key]))

    def of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.key)

    def wanted(self) -> list[Row]:
        return [self.rows[key] for key in sorted(self.rows)]

    def sorted(self, rows: pa.Table) -> list[Row]:
        return oracle.by_key(rows.select(self.columns.names), *self.key)


def snapshots(place: Path, above: dict[RegionId, Generation]) -> Iterator[ShardSnapshot]:
    """Of every region the generations that the base doesn't hold, as a planner of Lance would list them."""
    for region in sorted((place / "_mem_wal").glob("*")):
        paths = oracle.generations(place, region.name)
        kept = [path for path in paths if generation_number(path.name) > above.get(RegionId(region.name), 0)]
        snapshot = ShardSnapshot(region.name).with_current_generation(len(paths) + 1)
        for path in kept:
            snapshot = snapshot.with_sstable(generation_number(path.name), path.name)
        yield snapshot


def as_lance_reads(place: Path, above: dict[RegionId, Generation] | None = None) -> pa.Table:
    found = list(snapshots(place, above or {}))
    dataset = lance.dataset(str(place))
    return LsmScanner.from_snapshots(dataset, found).to_table() if found else dataset.to_table()


def counters(table: Table) -> dict[RegionId, Generation]:
    return {one.region: Generation(one.merged_generation) for one in table.status().regions}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES)
def test_lance_reads_at_any_point_what_we_wrote(tmp_path: Path, shape: str, seed: int) -> None:
    work, place = Work(shape, seed), tmp_path / "table"
    table = lancelsm.create(place, work.columns, primary_key=work.key, regions=work.regions)
    for step in range(14):
        match work.random.choice(["upsert", "upsert", "upsert", "delete", "flush", "merge", "reopen", "claim"]):
            case "upsert":
                table.upsert(work.upserted())
            case "delete":
                table.delete(work.deleted())
            case "flush":
                table.flush()
                assert work.sorted(as_lance_reads(place, counters(table))) == work.wanted()
            case "merge":
                table.merge(engine="inprocess")
            case "reopen":
                table = lancelsm.open(place)
            case "claim" if table.regions():
                table.claim(work.random.choice(table.regions()))
        assert work.sorted(table.scan().to_arrow()) == work.wanted(), step
        if step % 4 == 3:
            read_by_lances_writer(table, tmp_path / f"copy-{step}", work)


def read_by_lances_writer(table: Table, copy: Path, work: Work) -> None:
    """Lance claims each region of a copy, replays our tail and flushes it; its scan then has all rows."""
    above = counters(table)
    shutil.copytree(table.uri, copy)
    for region in table.regions():
        lance.dataset(str(copy)).mem_wal_writer(region.id).close()
    assert work.sorted(as_lance_reads(copy, above)) == work.wanted()
    shutil.rmtree(copy)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", ["unsharded", "composite"])
def test_lances_markers_keep_up_with_our_counters(tmp_path: Path, shape: str, seed: int) -> None:
    work, place = Work(shape, seed), tmp_path / "table"
    table = lancelsm.create(place, work.columns, primary_key=work.key, regions=work.regions)
    for _ in range(2):
        table.upsert(work.upserted(10))
        table.delete(work.deleted())
        table.flush()
        table.merge(engine="inprocess")
    table.upsert(work.upserted(10))
    table.flush()

    above = counters(table)
    assert set(above.values()) == {2}
    for region, generation in above.items():
        with pytest.raises(OSError, match="Stale SSTable"):
            mark(place, region, generation)
    assert work.sorted(as_lance_reads(place, above)) == work.wanted()
    assert work.sorted(table.scan().to_arrow()) == work.wanted()
    for region in table.regions():
        found = newest_published(region)
        assert found is not None
        if found.manifest.newest > above[region.id]:
            mark(place, region.id, found.manifest.newest)


def mark(place: Path, region: RegionId, generation: Generation) -> None:
    dataset = lance.dataset(str(place))
    on = [
        name for name in dataset.schema.names if b"lance-schema:unenforced-primary-key" in key_metadata(dataset, name)
    ]
    operation = dataset.merge_insert(on).when_matched_update_all().when_not_matched_insert_all()
    operation.mark_sstables_as_compacted([CompactedSsTable(region, generation)]).execute(dataset.schema.empty_table())


def key_metadata(dataset: lance.LanceDataset, name: str) -> dict[bytes, bytes]:
    return dataset.schema.field(name).metadata or {}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("how", ["unsharded", "spec 0"])
def test_we_read_and_write_on_what_lance_wrote(tmp_path: Path, how: str, seed: int) -> None:
    work, place = Work("unsharded", seed), tmp_path / "table"
    loaded = work.upserted()
    first = pa.Table.from_pylist(list(work.rows.values()), schema=loaded.schema)
    oracle.make_table(place, work.columns, ("id",), first, **({"unsharded": True} if how == "unsharded" else {}))
    lance_works(place, work)

    table = Table(adopt(place))
    assert work.sorted(table.scan().to_arrow()) == work.wanted()
    assert work.sorted(as_lance_reads(place)) == work.wanted()
    if work.random.random() < 0.5:
        table.flush()
        assert work.sorted(as_lance_reads(place)) == work.wanted()
        table.merge(engine="inprocess")
    if how == "spec 0":
        table = Table(set_regions(table._opened, "bucket(id, 2)"))
    for _ in range(6):
        table.upsert(work.upserted())
        table.delete(work.deleted())
        work.random.choice([table.flush, lambda: table.merge(engine="inprocess"), lambda: None])()
        assert work.sorted(table.scan().to_arrow()) == work.wanted()
        assert work.sorted(table.get(list(range(12)))) == work.wanted()
    table.flush()
    assert work.sorted(as_lance_reads(place, counters(table))) == work.wanted()


def lance_works(place: Path, work: Work) -> None:
    """Puts, deletes and reopenings by Lance's writer, which flushes when it closes, or as it goes."""
    schema = lance.dataset(str(place)).schema
    for _ in range(work.random.randint(1, 3)):
        with lance.dataset(str(place)).mem_wal_writer(oracle.SHARD, max_memtable_rows=8) as writer:
            for _ in range(work.random.randint(1, 4)):
                if work.random.random() < 0.7:
                    writer.put(work.upserted().cast(schema))
                else:
                    writer.delete(work.deleted().cast(pa.schema([schema.field("id")])))


def test_a_bucketed_table_of_lance_is_read_flushed_and_merged(tmp_path: Path) -> None:
    """Its Python writer doesn't say which bucket a region is, so a key's region stays unknown."""
    work, place = Work("unsharded", 0), tmp_path / "table"
    oracle.make_table(place, work.columns, ("id",), bucket_column="id", num_buckets=2)
    schema = lance.dataset(str(place)).schema
    for number, keys in ((1, (0, 2, 4)), (2, (1, 3))):
        region = f"5f0b2f3e-9a0a-4c4c-8f7e-00000000000{number}"
        rows = [{"id": key, "v": number, "w": None} for key in keys]
        with lance.dataset(str(place)).mem_wal_writer(region) as writer:
            writer.put(pa.Table.from_pylist(rows, schema=schema))
        work.rows |= {(row["id"],): row for row in rows}

    table = Table(adopt(place))

    assert work.sorted(table.scan().to_arrow()) == work.wanted()
    with pytest.raises(lancelsm.Invalid, match="which region a key is in") as refusal:
        table.upsert([{"id": 0, "v": 0, "w": None}])
    assert "lancelsm region adopt" in refusal.value.remedy
    assert len(table.flush()) == 0
    assert len(table.merge(engine="inprocess").regions) == 2
    assert lance.dataset(str(place)).count_rows() == 5
    for region in table.regions():
        table.seal(region)
    assert work.sorted(table.get([0, 1, 2, 3, 4])) == work.wanted()
