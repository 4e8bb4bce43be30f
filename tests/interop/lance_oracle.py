"""Create, write and read tables with pylance itself: MemWAL index, shard writer, readers of base and generations."""

from __future__ import annotations

import json
import tarfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.mem_wal import LsmPointLookupPlanner, LsmScanner, LsmVectorSearchPlanner, ShardSnapshot

from lancelsm.common.layout import generation_number
from lancelsm.dataset.base_table import open_base
from lancelsm.record.schema import TOMBSTONE, TableSchema, declare_primary_key

SHARD = "5f0b2f3e-9a0a-4c4c-8f7e-000000000001"
FIXTURES = Path(__file__).with_name("fixtures")
FROZEN = ("9.0.1", "12.0.0", "14.0.2")  # releases of pylance that wrote the trees in FIXTURES


def make_table(
    uri: Path | str,
    columns: pa.Schema,
    primary_key: Sequence[str],
    rows: pa.Table | None = None,
    version: str | None = None,
    **mem_wal: Any,
) -> lance.LanceDataset:
    """Create a base with a primary key, rows and a MemWAL index. `mem_wal` is passed to `initialize_mem_wal`."""
    declared = declare_primary_key(columns, tuple(primary_key))
    data = rows.cast(declared) if rows else pa.RecordBatchReader.from_batches(declared, [])  # of any type
    dataset = lance.write_dataset(data, str(uri), schema=declared, data_storage_version=version)
    dataset.initialize_mem_wal(**mem_wal)
    return dataset


def table_schema(uri: Path | str) -> TableSchema:
    return open_base(uri=str(uri)).schema


def stored(schema: TableSchema, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return rows in stored form. A missing column is null, a missing `_tombstone` false."""
    filled = [{name: row.get(name) for name in schema.names} | {TOMBSTONE: row.get(TOMBSTONE, False)} for row in rows]
    return pa.Table.from_pylist(filled, schema=schema.stored)


def shard_directory(uri: Path | str, shard: str = SHARD) -> Path:
    return Path(uri) / "_mem_wal" / shard


def fresh_generation(uri: Path | str, number: int, shard: str = SHARD) -> str:
    """Return the URI for a new generation, and create the shard's directory."""
    shard_directory(uri, shard).mkdir(parents=True, exist_ok=True)
    return str(shard_directory(uri, shard) / f"{uuid.uuid4().hex[:8]}_gen_{number}")


def generations(uri: Path | str, shard: str = SHARD) -> list[Path]:
    """Return the shard's generation directories, oldest first."""
    found = [(generation_number(path.name), path) for path in shard_directory(uri, shard).iterdir()]
    return [path for number, path in sorted((number, path) for number, path in found if number)]


def snapshot(uri: Path | str, shard: str = SHARD) -> ShardSnapshot:
    """Return a snapshot for Lance's readers with every generation of the shard."""
    paths = generations(uri, shard)
    snap = ShardSnapshot(shard).with_current_generation(len(paths) + 1)
    for path in paths:
        snap = snap.with_sstable(generation_number(path.name), path.name)
    return snap


def scan(uri: Path | str, *, where: str | None = None, shard: str = SHARD) -> pa.Table:
    scanner = LsmScanner.from_snapshots(lance.dataset(str(uri)), [snapshot(uri, shard)])
    return (scanner.filter(where) if where else scanner).to_table()


def count(uri: Path | str, shard: str = SHARD) -> int:
    return LsmScanner.from_snapshots(lance.dataset(str(uri)), [snapshot(uri, shard)]).count_rows()


def lookup(uri: Path | str, key: pa.Array, columns: Sequence[str] | None = None, shard: str = SHARD) -> list[dict]:
    planner = LsmPointLookupPlanner(lance.dataset(str(uri)), [snapshot(uri, shard)])
    return planner.plan_lookup(key, list(columns) if columns else None).to_table().to_pylist()


def nearest(uri: Path | str, column: str, query: pa.Array, k: int, columns: Sequence[str]) -> list[dict]:
    planner = LsmVectorSearchPlanner(lance.dataset(str(uri)), [snapshot(uri)], column)
    return planner.plan_search(query, k=k, columns=list(columns)).to_table().to_pylist()


def frozen(release: str, into: Path) -> dict[str, Any]:
    """Unpack the tree that a release wrote, with tables `orders` and `parts`. Returns what Lance read (generate.py)."""
    with tarfile.open(FIXTURES / f"{release}.tar.xz") as archive:
        archive.extractall(into, filter="data")
    expected: dict[str, Any] = json.loads((into / "expected.json").read_text())
    return expected


def by_key(rows: pa.Table | Iterable[Mapping[str, Any]], *key: str) -> list[dict[str, Any]]:
    """Return rows as dicts in key order, for comparison."""
    dicts = rows.to_pylist() if isinstance(rows, pa.Table) else list(rows)
    return sorted((dict(row) for row in dicts), key=lambda row: tuple(row[name] for name in key))
