"""256 regions: upsert of 50,000 rows, flush, scan, and a scan for one key. A smaller scale takes fewer regions.

The peer writes to as many shards with pylance's writer, from 8 threads. Scans are compared with a plain Lance table of
the same rows, and with pylance's reader of the same generations.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.mem_wal import LsmScanner

import lancelsm
from benchmarks import tables
from benchmarks.figures import Figure, attempt, best, seconds
from lancelsm.record.schema import declare_primary_key

_REGIONS = 256
_THREADS = 8
_OPENING = "first upsert of {:,} rows, with the claims"


def run(scale: float) -> Iterator[Figure]:
    regions = max(8, int(_REGIONS * min(scale, 1)))
    rows = tables.base_rows(max(20 * regions, int(50_000 * scale)))
    few = rows.slice(0, len(rows) // 10)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        taken: dict[str, float] = {}
        failure = attempt(lambda: _shards(path / "shards", rows, few, regions, taken)).failure
        table = lancelsm.create(path / "ours", tables.SCHEMA, primary_key="id", regions=f"bucket(id, {regions})")
        ours = {
            _OPENING.format(len(few)): seconds(lambda: table.upsert(few)),
            f"upsert of {len(rows):,} rows": seconds(lambda: table.upsert(rows)),
            "flush": seconds(table.flush),
        }
        for number, (what, took) in enumerate(ours.items()):
            peer = list(taken.values())[number] if number < len(taken) else None
            yield _figure(regions, what, took, peer, f"pylance, {regions} writers", failure)
        plain = str(path / "plain")
        lance.write_dataset(rows, plain)
        one = f"id = {rows.column('id')[0].as_py()}"
        for what, where in ((f"scan of {len(rows):,} rows", None), ("scan where the key is one", one)):
            yield from _scan(path / "ours", plain, regions, what, where)


def _scan(uri: Path, plain: str, regions: int, what: str, where: str | None) -> Iterator[Figure]:
    def ours() -> pa.Table:
        return lancelsm.open(uri).scan(where=where).to_arrow()

    def merged() -> pa.Table:
        return lance.dataset(plain).to_table(filter=where)

    _, generations = lancelsm.open(uri).lance_snapshot()

    def lsm() -> object:
        scanner = LsmScanner.from_snapshots(lance.dataset(str(uri)), generations)
        return (scanner if where is None else scanner.filter(where)).to_table()

    assert ours().num_rows == merged().num_rows
    our_seconds, plain_seconds = best(ours, merged)
    yield replace(_figure(regions, what, our_seconds, plain_seconds, "Lance, one table"), limit=True)
    theirs = attempt(lambda: seconds(lsm))
    yield _figure(regions, what, our_seconds, theirs.value, "pylance LsmScanner", theirs.failure)


def _figure(regions: int, what: str, ours: float, peer: float | None, name: str, how: str = "") -> Figure:
    return Figure(
        what=f"{regions} regions: {what}",
        ours=1000 * ours,
        unit="ms",
        peer=None if peer is None else 1000 * peer,
        peer_name=name,
        how=how,
        drawn=True,
    )


def _shards(path: Path, rows: pa.Table, few: pa.Table, regions: int, taken: dict[str, float]) -> None:
    """Open the writers and put a few rows, put each shard's part of the rows, and close the writers."""
    schema = declare_primary_key(tables.SCHEMA, ("id",))
    dataset = lance.write_dataset(rows.slice(0, 1).cast(schema), str(path), schema=schema)
    dataset.initialize_mem_wal()
    writers: dict[int, Any] = {}

    def put(number: int, declared: pa.Table) -> None:
        size = len(declared) // regions
        writers[number].put(declared.slice(number * size, size))

    def opened(number: int) -> None:
        writers[number] = dataset.mem_wal_writer(str(uuid.uuid4()))
        put(number, few.cast(schema))

    with ThreadPoolExecutor(_THREADS) as pool:
        taken["open"] = seconds(lambda: list(pool.map(opened, range(regions))))
        taken["upsert"] = seconds(lambda: list(pool.map(lambda number: put(number, rows.cast(schema)), range(regions))))
        taken["flush"] = seconds(lambda: list(pool.map(lambda number: writers[number].close(), range(regions))))
