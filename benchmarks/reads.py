"""Scans, counts and gets over a base, 8 generations and a log, beside the same reads of the base alone.

Where nothing else is said, each read opens everything again: ours also reads registry and log, so it sees everything
that was acknowledged. Lance alone reads a base that has nearly as many rows. pylance's lookups get the list of
generations as an argument and see no log.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.mem_wal import LsmPointLookupPlanner

import lancelsm
from benchmarks import tables
from benchmarks.figures import Figure, attempt, best

_MOST_LOOKUPS = 20  # the time of more is extrapolated: a thousand would take pylance minutes
_BASE_ALONE = "Lance, base alone"
_SCANS: dict[str, dict[str, Any]] = {
    "all columns": {},
    "2 columns": {"columns": ["id", "amount"]},
    "1 % of the rows, by a condition": {"where": "amount < 0.01"},
    "limit 10": {"limit": 10},
}


def run(scale: float) -> Iterator[Figure]:
    for kind, share in (("int64", 1.0), ("text", 0.4), ("composite", 0.4)):
        base, count = int(2_500_000 * scale * share), int(50_000 * scale * share)
        with tempfile.TemporaryDirectory() as directory:
            uri = Path(directory) / "table"
            table = tables.with_generations(uri, base=base, count=count, generations=8, kind=kind)
            if kind == "int64":
                yield from _gets(uri, base, kind, "no index")
            table.create_index("id", kind="BTREE")
            yield from _gets(uri, base, kind, "BTREE")
            table.upsert(tables.keyed(tables.changes(base, max(1, count // 50), seed=99), kind))
            yield from _scans(uri, kind, f"{base:,} rows, 8 generations of {count:,}, {count // 50:,} rows of log")
    yield from _many_generations(base=int(2_500_000 * scale), count=int(5_000 * scale))


def _many_generations(*, base: int, count: int, generations: int = 64) -> Iterator[Figure]:
    """Read a table with many small generations after their compaction. The peer is the same read before it."""
    with tempfile.TemporaryDirectory() as directory:
        uri = Path(directory) / "table"
        table = tables.with_generations(uri, base=base, count=count, generations=generations, kind="int64")
        key = [int(np.random.default_rng(7).integers(base)) * 2]
        reads = {
            "scan of 2 columns": lambda: lancelsm.open(uri).scan(columns=["id", "amount"]).to_arrow(),
            "get of 1 key": lambda: lancelsm.open(uri).get(key),
            "count": lambda: lancelsm.open(uri).count(),
        }
        before = dict(zip(reads, best(*reads.values()), strict=True))
        took = best(table.compact, rounds=1)[0]
        (status,) = table.status().regions
        after = dict(zip(reads, best(*reads.values()), strict=True))
        how = f"{generations} generations of {count:,} rows became {status.generations} in {took:.2f} s"
        for name in reads:
            ours, peer = 1000 * after[name], 1000 * before[name]
            yield Figure(what=f"{name}, compacted", ours=ours, unit="ms", peer=peer, peer_name="not compacted", how=how)


def _scans(uri: Path, kind: str, what: str) -> Iterator[Figure]:
    """Scan with a new handle and with a held one. The peer scans the base alone."""
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
        yield _figure(f"scan of {name}, {kind} key", best(ours, again, peer), what, _BASE_ALONE)

    def keys() -> pa.Table:
        return lance.dataset(str(uri)).to_table(columns=list(tables.KEYS[kind]))

    counted = best(lambda: lancelsm.open(uri).count(), held.count, keys)
    yield _figure(f"count, {kind} key", counted, what, "Lance, keys of the base")


def _figure(what: str, measured: list[float], how: str, peer: str) -> Figure:
    new, held, theirs = (1000 * took for took in measured)
    return Figure(
        what=what, ours=new, unit="ms", peer=theirs, peer_name=peer, how=how, held=held, limit=True, drawn=True
    )


def _gets(uri: Path, base: int, kind: str, index: str) -> Iterator[Figure]:
    held = lancelsm.open(uri)
    _, generations = held.lance_snapshot()
    for count in (1, 1_000):
        chosen = np.random.default_rng(7).choice(base, min(count, base), replace=False) * 2
        wanted = tables.keyed(tables.rows(chosen), kind).select(list(tables.KEYS[kind]))
        keys = wanted if kind == "composite" else wanted.column("id").combine_chunks()

        def ours(keys: Any = keys) -> pa.Table:
            return lancelsm.open(uri).get(keys)

        def plain(wanted: pa.Table = wanted) -> pa.Table:
            listed = ", ".join(repr(one) for one in wanted.column("id").to_pylist())
            return lance.dataset(str(uri)).to_table(filter=f"id IN ({listed})")

        def again(keys: Any = keys) -> pa.Table:
            return held.get(keys)

        assert ours().num_rows == again().num_rows == len(wanted)
        our_seconds, held_seconds, plain_seconds = best(ours, again, plain)
        what = f"get of {count:,} {'key' if count == 1 else 'keys'}, {kind} key, {index}"
        milliseconds = 1000 * our_seconds
        yield Figure(
            what=what,
            ours=milliseconds,
            unit="ms",
            peer=1000 * plain_seconds,
            peer_name=_BASE_ALONE,
            held=1000 * held_seconds,
            limit=True,
            drawn=True,
        )
        if kind == "int64":
            looked_up = keys.slice(0, _MOST_LOOKUPS)

            def lookups(looked_up: pa.Array = looked_up) -> pa.Table:
                planner = LsmPointLookupPlanner(lance.dataset(str(uri)), generations)
                return pa.concat_tables(
                    [planner.plan_lookup(looked_up.slice(i, 1)).to_table() for i in range(len(looked_up))]
                )

            one = attempt(lambda lookups=lookups: best(lookups, rounds=2)[0])
            rest = f"peer extrapolated from {len(looked_up)} lookups" if len(looked_up) < count else ""
            yield Figure(
                what=what,
                ours=milliseconds,
                unit="ms",
                peer=None if one.value is None else 1000 * one.value * len(keys) / len(looked_up),
                peer_name="pylance lookups",
                held=1000 * held_seconds,
                how=one.failure or rest,
                drawn=True,
            )
