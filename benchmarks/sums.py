"""Share of setsums in the time of an append, from encode to acknowledgement: on a disk, and with a 100 ms store.

Appends run one after the other. The sums are those of the rows and of the entry. The target is 10 %. `hot_path`
measures the CPU time of the sums alone.
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

TARGET = 10.0


def run(scale: float) -> Iterator[Figure]:
    for where, ports in (("disk", Ports), ("100 ms store", _slow)):
        for rows in (100, 1000):
            share, milliseconds = _share(ports(), rows, appends=max(10, int(100 * scale)))
            how = f"of {milliseconds:.0f} ms"
            yield Figure(
                what=f"setsums in an append of {rows:,} rows of 1 KB, {where}",
                ours=share,
                unit="%",
                peer=TARGET,
                peer_name="target",
                limit=True,
                how=how,
            )


def _slow() -> Ports:
    store, registry = Slow(MemoryStore(), PUT_SECONDS), Slow(MemoryRegistry(), REGISTRY_SECONDS)
    return Ports(store=lambda *_: store, registry=lambda *_, **__: registry)


def _share(ports: Ports, rows: int, *, appends: int) -> tuple[float, float]:
    """Return the share of sums in the wall time of an append, in percent, and that wall time in ms."""
    with tempfile.TemporaryDirectory() as directory, _Timed() as timed:
        table = lancelsm.create.on(ports)(Path(directory) / "table", SCHEMA, primary_key="id")
        body = pa.array([os.urandom(496).hex() for _ in range(rows)])
        table.upsert({"id": [-1], "body": ["this append creates the region"]})
        timed.seconds, begin = 0.0, time.perf_counter()
        for number in range(appends):
            table.upsert({"id": pa.array(range(number * rows, (number + 1) * rows)), "body": body})
        total = time.perf_counter() - begin
    return 100 * timed.seconds / total, 1000 * total / appends


class _Timed:
    """Measure the wall time of both sums, by replacing them with timed ones for the duration of a `with` block."""

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
        def timed(*args: Any) -> Any:
            begin = time.perf_counter()
            try:
                return act(*args)
            finally:
                self.seconds += time.perf_counter() - begin

        return timed
