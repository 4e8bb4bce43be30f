"""Full scan and gets of a base with 8 generations, compared with pylance's own readers of the same files.

Each read opens everything again. lancelsm also reads registry and log, so it sees everything that was acknowledged;
pylance gets the list of generations as an argument. A pylance scan with `id IN (...)` takes as long as its lookups.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
from lance.mem_wal import LsmPointLookupPlanner, LsmScanner, ShardSnapshot

import lancelsm
from benchmarks import tables
from benchmarks.figures import Figure, best
from lancelsm.common.layout import generation_number
from lancelsm.table import Table

_MAX_LOOKUPS = 100  # the time of more is extrapolated: ten thousand would take pylance minutes


def run(scale: float) -> Iterator[Figure]:
    base, count = int(2_500_000 * scale), int(50_000 * scale)
    with tempfile.TemporaryDirectory() as directory:
        uri = Path(directory) / "table"
        table = tables.with_generations(uri, base=base, count=count, generations=8)
        snapshot = _snapshot(table)
        yield from _scans(uri, snapshot, f"{base:,} rows and 8 generations of {count:,}")
        generator = np.random.default_rng(7)
        wanted = [pa.array(generator.choice(base, keys, replace=False) * 2) for keys in (1, 100, 10_000)]
        for keys in wanted:
            yield _gets(uri, snapshot, keys)
        lance.dataset(str(uri)).create_scalar_index("id", "BTREE")
        for keys in wanted:
            yield _gets(uri, snapshot, keys, base=", BTREE on the base")


def _scans(uri: Path, snapshot: ShardSnapshot, what: str) -> Iterator[Figure]:
    for columns in (tables.SCHEMA.names, ["id", "amount"]):
        read: list[pa.Table] = []

        def ours(columns: list[str] = columns, read: list[pa.Table] = read) -> None:
            read.append(lancelsm.open(uri).scan(columns=columns).to_arrow())

        def peer(columns: list[str] = columns, read: list[pa.Table] = read) -> None:
            scanner = LsmScanner.from_snapshots(lance.dataset(str(uri)), [snapshot]).project(columns)
            read.append(pa.Table.from_batches(scanner.to_batches()))

        (our_seconds,), (peer_seconds,) = best(ours), best(peer, rounds=1)
        assert len({table.num_rows for table in read}) == 1
        yield Figure(
            what=f"scan of {len(columns)} columns, {what}",
            ours=our_seconds,
            unit="s",
            peer=peer_seconds,
            how="pylance LsmScanner",
        )


def _gets(uri: Path, snapshot: ShardSnapshot, keys: pa.Array, *, base: str = "") -> Figure:
    looked_up = keys.slice(0, _MAX_LOOKUPS)

    def ours(wanted: pa.Array = keys) -> pa.Table:
        return lancelsm.open(uri).get(wanted)

    def peer() -> pa.Table:
        planner = LsmPointLookupPlanner(lance.dataset(str(uri)), [snapshot])
        return pa.concat_tables([planner.plan_lookup(looked_up.slice(i, 1)).to_table() for i in range(len(looked_up))])

    assert ours(looked_up).sort_by("id").equals(peer().select(tables.SCHEMA.names).sort_by("id").cast(tables.SCHEMA))
    (our_seconds,) = best(ours)
    (peer_seconds,) = best(peer, rounds=1 if len(looked_up) > 1 else 3)
    how = "pylance LsmPointLookupPlanner, key by key"
    if len(looked_up) < len(keys):
        how += f"; extrapolated from {len(looked_up)} lookups"
    return Figure(
        what=f"get of {len(keys):,} {'key' if len(keys) == 1 else 'keys'}{base}",
        ours=our_seconds * 1000,
        unit="ms",
        peer=peer_seconds * 1000 * len(keys) / len(looked_up),
        how=how,
    )


def _snapshot(table: Table) -> ShardSnapshot:
    """Return the table's generations in the form that pylance's readers take."""
    (region,) = table.regions()
    directory = Path(table.uri) / "_mem_wal" / region.id
    numbered = sorted((generation_number(path.name) or 0, path.name) for path in directory.iterdir())
    found = [(number, name) for number, name in numbered if number]
    snapshot = ShardSnapshot(str(region.id)).with_current_generation(len(found) + 1)
    for number, name in found:
        snapshot = snapshot.with_sstable(number, name)
    return snapshot
