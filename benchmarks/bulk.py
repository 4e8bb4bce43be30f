"""Write 200,000 rows of 1 KB in ten puts and flush them: wall time, and the peak of memory of the flush.

The peers write the same rows and close, so that other processes see them. Each starts with a new table, in turns. Ours
reads the log again, compares the sums of all rows, and reads back what it wrote.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.contenders import PEERS, Contender, Opened, Ours
from benchmarks.figures import Figure, attempt, seconds
from benchmarks.runs import ROOT
from benchmarks.tables import KEYS, kilobyte_rows

_PUTS = 10
_BODIES = (("distinct", True), ("256 distinct", False))


def run(scale: float) -> Iterator[Figure]:
    count, rounds = int(20_000 * scale), 2 if scale >= 0.1 else 1
    with tempfile.TemporaryDirectory() as directory:
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

    ours = measured("ours", Ours)()
    theirs = {name: attempt(measured(name, opened)) for name, opened in peers.items()}
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
    """Measure one table, then delete it. Before, `sync` writes what others left: our syncs don't pay for them."""
    os.sync()
    table = opened(path, parts[0].slice(0, 1), KEYS[kind])
    acts = [table.prepare(rows) for rows in parts]
    took = sum(seconds(act) for act in acts) + seconds(table.close)
    shutil.rmtree(path)
    return took


def _flushed(path: Path, parts: list[pa.Table], bodies: str) -> Iterator[Figure]:
    """Measure the flush alone, beside the close of the writer that has the rows in memory."""
    path.mkdir()
    count = _PUTS * len(parts[0])
    peer, name = "pylance ShardWriter", f"flush of {count:,} rows alone, {bodies} bodies"
    theirs = attempt(lambda: seconds(_put(path / "peer", PEERS[peer], parts).close))
    os.sync()
    ours = seconds(_put(path / "ours", Ours, parts).close)
    how = theirs.failure or f"ours {count / ours:,.0f} rows/s"
    yield Figure(what=name, ours=ours, unit="s", peer=theirs.value, peer_name=peer, how=how, drawn=True)
    _put(path / "small", Ours, [parts[0].slice(0, 1)])
    _put(path / "large", Ours, parts)
    memory = _flush_megabytes(path / "small", path / "large")
    size = sum(rows.nbytes for rows in parts) / 1e6
    yield Figure(what=f"{name}, peak of memory", ours=memory, unit="MB", how=f"the rows have {size:.0f} MB")


def _put(path: Path, opened: Opened, parts: list[pa.Table]) -> Contender:
    table = opened(path, parts[0].slice(0, 1), KEYS["int64"])
    for rows in parts:
        table.prepare(rows)()
    return table


def _flush_megabytes(small: Path, large: Path) -> float:
    """Return the peak of memory of a flush in a process of its own, which has flushed a small table before."""
    script = (
        "import sys, lancelsm\n"
        "from benchmarks.figures import peak_megabytes\n"
        "small, large = map(lancelsm.open, sys.argv[1:])\n"
        "small.flush()\n"
        "print(peak_megabytes(large.flush))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(small), str(large)], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT
    )
    return float(done.stdout)
