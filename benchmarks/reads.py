"""Scans of a base with 8 generations and a log, compared with a scan of the base alone; gets, with pylance's lookups.

Where nothing else is said, each read opens everything again. lancelsm also reads registry and log, so it sees
everything that was acknowledged; pylance's lookups get the list of generations as an argument, and see no log.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.mem_wal import LsmPointLookupPlanner, ShardSnapshot

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
        generator = np.random.default_rng(7)
        wanted = [pa.array(generator.choice(base, keys, replace=False) * 2) for keys in (1, 100, 10_000)]
        for keys in wanted:
            yield _gets(uri, snapshot, keys)
        lance.dataset(str(uri)).create_scalar_index("id", "BTREE")
        for keys in wanted:
            yield _gets(uri, snapshot, keys, base=", BTREE on the base")
        table.upsert(tables.changes(base, count // 50, seed=99))
        yield from _scans(uri, f"{base:,} rows, 8 generations of {count:,}, {count // 50:,} rows of log")


_SCANS: dict[str, dict[str, Any]] = {
    "6 columns": {},
    "2 columns": {"columns": ["id", "amount"]},
    "1 % of the rows, by a condition": {"where": "amount < 0.01"},
    "limit 10": {"limit": 10},
    "the key column, as a count does": {"columns": ["id"]},
}


def _scans(uri: Path, what: str) -> Iterator[Figure]:
    """Scan with a new handle and with a held one. The peer scans the base alone, which has nearly as many rows."""
    held = lancelsm.open(uri)
    for name, arguments in _SCANS.items():

        def ours(arguments: dict[str, Any] = arguments) -> pa.Table:
            return lancelsm.open(uri).scan(**arguments).to_arrow()

        def again(arguments: dict[str, Any] = arguments) -> pa.Table:
            return held.scan(**arguments).to_arrow()

        def peer(arguments: dict[str, Any] = arguments) -> pa.Table:
            options = dict(arguments)
            return lance.dataset(str(uri)).to_table(filter=options.pop("where", None), **options)

        assert ours().num_rows == again().num_rows
        our_seconds, held_seconds, peer_seconds = best(ours, again, peer)
        for handle, measured in (("", our_seconds), (", held table", held_seconds)):
            yield Figure(
                what=f"scan of {name}{handle}",
                ours=measured * 1000,
                unit="ms",
                peer=peer_seconds * 1000,
                how=f"{what}; peer: Lance, the base alone",
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
