"""Share of setsums in a whole append, encode to acknowledgement, one after the other: on a disk, and over 100 ms.

Beside what a share of 10 % would be. The sums are of the rows and of the entry; `hot_path` has their CPU alone.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

import lancelsm
from benchmarks.append_latency import PUT_SECONDS, REGISTRY_SECONDS, SCHEMA, Slow
from benchmarks.figures import Figure
from lancelsm.region.handle import Ports
from lancelsm.wal import entry
from tests.simulation.faults import MemoryRegistry, MemoryStore

WANTED = 10.0


def run(scale: float) -> Iterator[Figure]:
    for where, ports in (("disk", Ports), ("100 ms store", _slow)):
        for rows in (100, 1000):
            share, milliseconds = _share(ports(), rows, appends=max(10, int(100 * scale)))
            how = f"of {milliseconds:.0f} ms; its peer is the share that is wanted"
            yield Figure(
                what=f"setsums in an append of {rows:,} rows of 1 KB, {where}",
                ours=share,
                unit="%",
                peer=WANTED,
                how=how,
            )


def _slow() -> Ports:
    store, registry = Slow(MemoryStore(), PUT_SECONDS), Slow(MemoryRegistry(), REGISTRY_SECONDS)
    return Ports(store=lambda *_: store, registry=lambda *_, **__: registry)


def _share(ports: Ports, rows: int, *, appends: int) -> tuple[float, float]:
    """Percent of the wall time of an append that passes in sums, and that time in ms."""
    with tempfile.TemporaryDirectory() as directory, _Timed() as timed:
        table = lancelsm.create(Path(directory) / "table", SCHEMA, primary_key="id", ports=ports)
        body = pa.array([os.urandom(496).hex() for _ in range(rows)])
        table.upsert({"id": [-1], "body": ["the region is there after this one"]})
        timed.seconds, begin = 0.0, time.perf_counter()
        for number in range(appends):
            table.upsert({"id": pa.array(range(number * rows, (number + 1) * rows)), "body": body})
        whole = time.perf_counter() - begin
    return 100 * timed.seconds / whole, 1000 * whole / appends


class _Timed:
    """The wall time of both sums while they are replaced by timed ones."""

    NAMES = ("row_setsum", "_entry_setsum")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._original = {name: getattr(entry, name) for name in self.NAMES}

    def __enter__(self) -> Self:
        for name, act in self._original.items():
            setattr(entry, name, self._timed(act))
        return self

    def __exit__(self, *_: object) -> None:
        for name, act in self._original.items():
            setattr(entry, name, act)

    def _timed(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            begin = time.perf_counter()
            try:
                return act(*given)
            finally:
                self.seconds += time.perf_counter() - begin

        return timed
