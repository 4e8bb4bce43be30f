"""Write 200,000 rows of 1 KB in ten puts and flush them: wall time, and the peak of memory of the flush.

The peers write the same rows and close, so that other processes see them. Each starts with a new table, in turns. Ours
reads the log again, compares the sums of all rows, and reads back what it wrote.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.contenders import PEERS, Opened, Ours
from benchmarks.figures import Figure, Measured, attempt, peak_megabytes, seconds
from benchmarks.tables import KEYS, kilobyte_rows

_PUTS = 10
_BODIES = (("distinct", True), ("256 distinct", False))


def run(scale: float) -> Iterator[Figure]:
    count, rounds = int(20_000 * scale), 2 if scale >= 0.1 else 1
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCHMARK_DIRECTORY")) as directory:
        path = Path(directory)
        for bodies, distinct in _BODIES:
            parts = _parts(count, distinct=distinct)
            what = f"write + flush of {_PUTS * count:,} rows, {bodies} bodies"
            yield from _written(path / bodies, what, parts, kind="int64", rounds=rounds)
            yield from _flushed(path / f"{bodies} flush", parts, bodies)
        for kind in ("text", "composite"):
            what = f"write + flush of {_PUTS * count:,} rows, {kind} keys"
            yield from _written(path / kind, what, _parts(count, kind=kind), kind=kind, rounds=rounds)


def _parts(count: int, *, kind: str = "int64", distinct: bool = True) -> list[pa.Table]:
    return [kilobyte_rows(count, number * count, kind=kind, distinct=distinct) for number in range(_PUTS)]


def _written(path: Path, what: str, parts: list[pa.Table], *, kind: str, rounds: int) -> Iterator[Figure]:
    path.mkdir()
    peers = {name: opened for name, opened in PEERS.items() if name in {"pylance ShardWriter", "LanceDB LSM"}}
    if kind == "int64":
        peers["delta-rs append"] = PEERS["delta-rs append"]

    def measured(name: str, opened: Opened) -> Callable[[], float]:
        return lambda: min(_write(path / f"{name} {number}.lance", opened, parts, kind) for number in range(rounds))

    theirs = {name: attempt(measured(name, opened)) for name, opened in peers.items()}
    ours = measured("ours", Ours)()
    for name, one in theirs.items():
        yield Figure(
            what=what,
            ours=ours,
            unit="s",
            peer=one.value,
            peer_name=name,
            how=one.failure or f"ours {_PUTS * len(parts[0]) / ours:,.0f} rows/s",
            drawn=name == "pylance ShardWriter",
        )


def _write(path: Path, opened: Opened, parts: list[pa.Table], kind: str) -> float:
    table = opened(path, parts[0].slice(0, 1), KEYS[kind])
    acts = [table.prepare(rows) for rows in parts]
    took = sum(seconds(act) for act in acts)
    return took + seconds(table.close)


def _flushed(path: Path, parts: list[pa.Table], bodies: str) -> Iterator[Figure]:
    """Measure the flush alone, beside the close of the writer that has the rows in memory."""
    path.mkdir()
    count = _PUTS * len(parts[0])

    def flush(opened: Opened, name: str) -> tuple[float, float]:
        table = opened(path / name, parts[0].slice(0, 1), KEYS["int64"])
        for rows in parts:
            table.prepare(rows)()
        took = 0.0

        def close() -> None:
            nonlocal took
            took = seconds(table.close)

        return peak_megabytes(close), took

    flush(Ours, "first")  # the first use of Lance in a process takes memory that stays
    memory, took = flush(Ours, "ours")
    theirs: dict[str, float] = {}

    def peer() -> float:
        theirs["memory"], theirs["took"] = flush(PEERS["pylance ShardWriter"], "peer")
        return theirs["took"]

    measured: Measured = attempt(peer)
    what = f"flush of {count:,} rows alone, {bodies} bodies"
    how = measured.failure or f"ours {count / took:,.0f} rows/s"
    name = "pylance ShardWriter"
    yield Figure(what=what, ours=took, unit="s", peer=measured.value, peer_name=name, how=how, drawn=True)
    yield Figure(what=f"{what}, peak of memory", ours=memory, unit="MB", peer=theirs.get("memory"), peer_name=name)
