"""Run random operations by lancelsm and by Lance on one table. Both must read the same rows.

The seed, which is in the test's name, decides everything except the names of files.
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
from lancelsm.common.layout import Generation, RegionId, published_version
from lancelsm.region import manifest_codec
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
    """Random rows and keys of one shape, and the rows that the table must have."""

    def __init__(self, shape: str, seed: int) -> None:
        self.columns, self.key, self.regions = SHAPES[shape]
        self.random = random.Random(f"{shape} {seed}")
        self.rows: dict[tuple[Any, ...], Row] = {}

    def random_key(self) -> Row:
        pools: dict[str, list[Any]] = {"id": list(range(12)), "a": [0, 1, -7], "b": ["", "x", "yy", "é"]}
        return {name: self.random.choice(pools[name]) for name in self.key}

    def upserts(self, maximum: int = 6) -> pa.Table:
        rows = []
        for _ in range(self.random.randint(1, maximum)):
            row = {name: self.random.choice([None, 0, 1, 2]) for name in self.columns.names}
            row |= {"w": self.random.choice([None, "", "z"])} if "w" in row else {}
            rows.append(row | self.random_key())
            self.rows[self.key_of(rows[-1])] = rows[-1]
        return pa.Table.from_pylist(rows, schema=self.columns)

    def deletes(self, maximum: int = 3) -> pa.Table:
        keys = [self.random_key() for _ in range(self.random.randint(1, maximum))]
        for key in keys:
            self.rows.pop(self.key_of(key), None)
        return pa.Table.from_pylist(keys, schema=pa.schema([self.columns.field(name) for name in self.key]))

    def key_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.key)

    def expected(self) -> list[Row]:
        return [self.rows[key] for key in sorted(self.rows)]

    def sorted(self, rows: pa.Table) -> list[Row]:
        return oracle.by_key(rows.select(self.columns.names), *self.key)


def snapshots(location: Path, merged: dict[RegionId, Generation]) -> Iterator[ShardSnapshot]:
    """Yield the unmerged generations of every region, as a planner of Lance would list them."""
    for region in sorted((location / "_mem_wal").glob("*")):
        published = {published_version(f"_mem_wal/{region.name}/manifest/{path.name}"): path for path in _files(region)}
        manifest = manifest_codec.decode(published[max(published)].read_bytes(), key="")
        snapshot = ShardSnapshot(region.name).with_current_generation(manifest.current_generation)
        for one in manifest.generations:
            if one.generation > merged.get(RegionId(region.name), 0):
                snapshot = snapshot.with_sstable(one.generation, one.path)
        yield snapshot


def _files(region: Path) -> list[Path]:
    return list((region / "manifest").glob("*.binpb"))


def as_lance_reads(location: Path, merged: dict[RegionId, Generation] | None = None) -> pa.Table:
    found = list(snapshots(location, merged or {}))
    dataset = lance.dataset(str(location))
    return LsmScanner.from_snapshots(dataset, found).to_table() if found else dataset.to_table()


def counters(table: Table) -> dict[RegionId, Generation]:
    return {one.region: Generation(one.merged_generation) for one in table.status().regions}


@pytest.mark.one_case
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES)
def test_lance_reads_what_lancelsm_wrote_after_every_step(tmp_path: Path, shape: str, seed: int) -> None:
    work, location = Work(shape, seed), tmp_path / "table"
    limits = {"max_generations": 1}
    table = lancelsm.create(location, work.columns, primary_key=work.key, regions=work.regions, settings=limits)
    for step in range(14):
        match work.random.choice(
            ["upsert", "upsert", "upsert", "delete", "flush", "flush", "compact", "merge", "reopen", "claim"]
        ):
            case "upsert":
                table.upsert(work.upserts())
            case "delete":
                table.delete(work.deletes())
            case "flush":
                table.flush()
                assert work.sorted(as_lance_reads(location, counters(table))) == work.expected()
            case "compact":
                table.flush()
                table.compact()
                assert work.sorted(as_lance_reads(location, counters(table))) == work.expected()
            case "merge":
                table.merge(engine="inprocess")
            case "reopen":
                table = lancelsm.open(location)
            case "claim" if table.list_regions():
                table.claim(work.random.choice(table.list_regions()))
        assert work.sorted(table.scan().to_arrow()) == work.expected(), step
        if step % 4 == 3:
            read_by_lances_writer(table, tmp_path / f"copy-{step}", work)


def read_by_lances_writer(table: Table, copy: Path, work: Work) -> None:
    """Check a copy: Lance claims each region, replays our tail and flushes it. Its scan then has all rows."""
    merged = counters(table)
    shutil.copytree(table.uri, copy)
    for region in table.list_regions():
        lance.dataset(str(copy)).mem_wal_writer(region.id).close()
    assert work.sorted(as_lance_reads(copy, merged)) == work.expected()
    shutil.rmtree(copy)


@pytest.mark.one_case
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", ["unsharded", "composite"])
def test_lances_markers_follow_our_counters(tmp_path: Path, shape: str, seed: int) -> None:
    work, location = Work(shape, seed), tmp_path / "table"
    table = lancelsm.create(location, work.columns, primary_key=work.key, regions=work.regions)
    for _ in range(2):
        table.upsert(work.upserts(10))
        table.delete(work.deletes())
        table.flush()
        table.merge(engine="inprocess")
    table.upsert(work.upserts(10))
    table.flush()

    merged = counters(table)
    assert set(merged.values()) == {2}
    for region, generation in merged.items():
        with pytest.raises(OSError, match="Stale SSTable"):
            mark(location, region, generation)
    assert work.sorted(as_lance_reads(location, merged)) == work.expected()
    assert work.sorted(table.scan().to_arrow()) == work.expected()
    for region in table.list_regions():
        found = newest_published(region)
        assert found is not None
        if found.manifest.newest > merged[region.id]:
            mark(location, region.id, found.manifest.newest)


def mark(location: Path, region: RegionId, generation: Generation) -> None:
    dataset = lance.dataset(str(location))
    key_columns = [
        name for name in dataset.schema.names if b"lance-schema:unenforced-primary-key" in key_metadata(dataset, name)
    ]
    operation = dataset.merge_insert(key_columns).when_matched_update_all().when_not_matched_insert_all()
    operation.mark_sstables_as_compacted([CompactedSsTable(region, generation)]).execute(dataset.schema.empty_table())


def key_metadata(dataset: lance.LanceDataset, name: str) -> dict[bytes, bytes]:
    return dataset.schema.field(name).metadata or {}


@pytest.mark.one_case
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("routing", ["unsharded", "spec 0"])
def test_lancelsm_reads_and_continues_what_lance_wrote(tmp_path: Path, routing: str, seed: int) -> None:
    work, location = Work("unsharded", seed), tmp_path / "table"
    loaded = work.upserts()
    first = pa.Table.from_pylist(list(work.rows.values()), schema=loaded.schema)
    oracle.make_table(location, work.columns, ("id",), first, **({"unsharded": True} if routing == "unsharded" else {}))
    write_randomly_with_lance(location, work)

    table = Table(adopt(location))
    assert work.sorted(table.scan().to_arrow()) == work.expected()
    assert work.sorted(as_lance_reads(location)) == work.expected()
    if work.random.random() < 0.5:
        table.flush()
        assert work.sorted(as_lance_reads(location)) == work.expected()
        table.merge(engine="inprocess")
    if routing == "spec 0":
        table = Table(set_regions(table._handle, "bucket(id, 2)"))
    for _ in range(6):
        table.upsert(work.upserts())
        table.delete(work.deletes())
        work.random.choice([table.flush, lambda: table.merge(engine="inprocess"), lambda: None])()
        assert work.sorted(table.scan().to_arrow()) == work.expected()
        assert work.sorted(table.get(list(range(12)))) == work.expected()
    table.flush()
    assert work.sorted(as_lance_reads(location, counters(table))) == work.expected()


def write_randomly_with_lance(location: Path, work: Work) -> None:
    """Put and delete rows with Lance's writer, and reopen it. It flushes when it closes, or earlier."""
    schema = lance.dataset(str(location)).schema
    for _ in range(work.random.randint(1, 3)):
        with lance.dataset(str(location)).mem_wal_writer(oracle.SHARD, max_memtable_rows=8) as writer:
            for _ in range(work.random.randint(1, 4)):
                if work.random.random() < 0.7:
                    writer.put(work.upserts().cast(schema))
                else:
                    writer.delete(work.deletes().cast(pa.schema([schema.field("id")])))


def test_a_table_that_lance_wrote_with_buckets_is_read_flushed_and_merged(tmp_path: Path) -> None:
    """Lance's Python writer does not record the bucket of a region, so the region of a key is unknown."""
    work, location = Work("unsharded", 0), tmp_path / "table"
    oracle.make_table(location, work.columns, ("id",), bucket_column="id", num_buckets=2)
    schema = lance.dataset(str(location)).schema
    for number, keys in ((1, (0, 2, 4)), (2, (1, 3))):
        region = f"5f0b2f3e-9a0a-4c4c-8f7e-00000000000{number}"
        rows = [{"id": key, "v": number, "w": None} for key in keys]
        with lance.dataset(str(location)).mem_wal_writer(region) as writer:
            writer.put(pa.Table.from_pylist(rows, schema=schema))
        work.rows |= {(row["id"],): row for row in rows}

    table = Table(adopt(location))

    assert work.sorted(table.scan().to_arrow()) == work.expected()
    with pytest.raises(lancelsm.Invalid, match="without a region spec") as refusal:
        table.upsert([{"id": 0, "v": 0, "w": None}])
    assert "lancelsm region adopt" in refusal.value.remedy
    assert len(table.flush()) == 0
    assert len(table.merge(engine="inprocess").regions) == 2
    assert lance.dataset(str(location)).count_rows() == 5
    for region in table.list_regions():
        table.seal(region)
    assert work.sorted(table.get([0, 1, 2, 3, 4])) == work.expected()
