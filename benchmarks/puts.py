"""Durable puts of rows of 1 KB: wall time beside each peer, and beside SQLite and a bare fsync as limits.

All write distinct keys to the same disk. Each in its turn puts five times, one put after the other: Lance's writers
wait for the next write of their log, which is due a while after the last one. Before a turn of one that syncs, `sync`
writes what the others left in memory: its syncs do not pay for them. Rows are converted before the clock starts.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pyarrow as pa

from benchmarks.contenders import LIMITS, PEERS, Contender, Opened, Ours
from benchmarks.figures import Act, Figure, attempt, used
from benchmarks.tables import KEYS, kilobyte_rows

_OURS = "ours"
_BLOCKS = {1: 20, 100: 20, 1_000: 12, 10_000: 4}
_SLOW = {"delta-rs merge": 1_000, "slatedb": 1_000}  # they are left out of puts of more rows: minutes


def run(scale: float) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        block = 5 if scale >= 0.1 else 2
        with _Turns(path / "all", "int64", {**PEERS, **LIMITS}, block=block) as turns:
            for count, full in _BLOCKS.items():
                blocks = max(1, int(full * scale))
                yield from _figures(
                    f"put of {count:,} {'row' if count == 1 else 'rows'}", turns.measured(count, blocks)
                )
            measured = turns.measured(10_000, max(1, int(_BLOCKS[10_000] * scale)), distinct=False)
            yield from _figures("put of 10,000 rows, 256 distinct bodies", measured)
        for kind in ("text", "composite"):
            peers = {name: PEERS[name] for name in ("pylance ShardWriter", "LanceDB LSM")}
            with _Turns(path / kind, kind, peers, block=block) as turns:
                measured = turns.measured(10_000, max(1, int(_BLOCKS[10_000] * scale)))
                yield from _figures(f"put of 10,000 rows, {kind} keys", measured)


@dataclass
class _Taken:
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    failure: str = ""

    def put(self, contender: Contender, block: Sequence[pa.Table], *, sync: bool) -> None:
        """Put each of the tables. After a failure, do nothing: the others go on."""
        if not self.failure:
            self.failure = attempt(lambda: self._put([contender.prepare(rows) for rows in block], sync=sync)).failure

    def _put(self, acts: Sequence[Act], *, sync: bool) -> None:
        if sync:
            os.sync()
        for act in acts:
            with used() as load:
                act()
            self.wall.append(load.wall)
            self.cpu.append(load.cpu)


class _Turns:
    """Ours and its peers, that put the same rows one after the other."""

    def __init__(self, path: Path, kind: str, peers: dict[str, Opened], *, block: int) -> None:
        self._path, self._kind, self._peers, self._block = path, kind, peers, block
        self._opened: dict[str, Contender] = {}
        self._failed: dict[str, str] = {}
        self._next = 0

    def __enter__(self) -> Self:
        self._path.mkdir()
        first = kilobyte_rows(1, -1, kind=self._kind)
        for number, (name, opened) in enumerate({_OURS: Ours, **self._peers}.items()):
            where = self._path / f"{number}.lance"

            def made(name: str = name, opened: Opened = opened, where: Path = where) -> None:
                self._opened[name] = opened(where, first, KEYS[self._kind])

            if failure := attempt(made).failure:
                self._failed[name] = failure
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for name, contender in self._opened.items():
                if name != _OURS:
                    stack.callback(lambda contender=contender: attempt(contender.close))

    def measured(self, count: int, blocks: int, *, distinct: bool = True) -> dict[str, _Taken]:
        taking = [name for name in self._opened if count <= _SLOW.get(name, count)]
        taken = {name: _Taken() for name in taking} | {name: _Taken(failure=why) for name, why in self._failed.items()}
        for _ in range(blocks):
            starts = range(self._next, self._next + self._block * count, count)
            block = [kilobyte_rows(count, start, kind=self._kind, distinct=distinct) for start in starts]
            self._next += self._block * count
            for name in taking:
                taken[name].put(self._opened[name], block, sync=name == _OURS or name in LIMITS)
        if failure := taken[_OURS].failure:
            raise RuntimeError(f"our put of {count} rows {failure}")
        return taken


def _figures(what: str, taken: dict[str, _Taken]) -> Iterator[Figure]:
    ours = taken.pop(_OURS)
    least = f"least {1000 * min(ours.wall):.1f} ms"
    for name, theirs in taken.items():
        yield Figure(
            what=what,
            ours=1000 * statistics.median(ours.wall),
            unit="ms",
            peer=None if theirs.failure else 1000 * statistics.median(theirs.wall),
            peer_name=name,
            how=theirs.failure or f"{least}, peer's {1000 * min(theirs.wall):.1f} ms",
            limit=name in LIMITS,
            drawn=name in {"pylance ShardWriter", "LanceDB LSM", "SQLite, synced"},
        )
    for name, theirs in taken.items():
        if not theirs.failure:
            yield Figure(
                what=f"{what}, CPU",
                ours=1000 * min(ours.cpu),
                unit="ms",
                peer=1000 * min(theirs.cpu),
                peer_name=name,
                limit=name in LIMITS,
            )
