"""Latency of appends at 10,000 and 40,000 rows of 1 KB a second: a store request takes 100 ms, of the registry 8 ms.

It runs the real writer with group commit, and measures from `submit` until its future is done. Store and registry
are in memory and sleep. The peer is wal3: the published figures for its own log at the same rate and store latency.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import lancelsm
from benchmarks.figures import Figure, quantile, used
from lancelsm.region.handle import Ports
from tests.simulation.faults import MemoryRegistry, MemoryStore

ROWS_A_SUBMIT = 100
PUT_SECONDS = 0.100
REGISTRY_SECONDS = 0.008
_RATE = 10_000  # that of wal3, a second
WAL3 = {"p50": 270.0, "p99": 330.0, "max": 360.0}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("body", pa.string())])


class Slow:
    """A port whose calls each take additional time. Callers do not wait for each other."""

    def __init__(self, inner: Any, seconds: float) -> None:
        self._inner = inner
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._inner, name)

        def slow(*args: Any, **named: Any) -> Any:
            time.sleep(self._seconds)
            return act(*args, **named)

        return slow


def run(scale: float) -> Iterator[Figure]:
    seconds = max(2.0, 10 * scale)
    for depth, rate in ((8, _RATE), (1, _RATE), (8, 4 * _RATE)):
        latencies, cores = _measure(depth, rate, seconds)
        measured = {
            "p50": quantile(latencies, 0.5) * 1000,
            "p99": quantile(latencies, 0.99) * 1000,
            "max": max(latencies) * 1000,
        }
        how = f"{seconds:.0f} s, {ROWS_A_SUBMIT} rows a submit, {cores:.2f} cores used"
        for name, milliseconds in measured.items():
            yield Figure(
                what=f"append, {rate:,} rows/s, depth {depth}, {name}",
                ours=milliseconds,
                unit="ms",
                peer=WAL3[name] if rate == _RATE else None,
                peer_name="wal3, as published",
                how=how,
                drawn=name != "max",
            )


def _measure(depth: int, rate: int, seconds: float) -> tuple[list[float], float]:
    """Return the seconds from submit to acknowledgement, one per submit, and the number of busy cores."""
    with tempfile.TemporaryDirectory() as directory:
        uri = Path(directory) / "table"
        store, registry = Slow(MemoryStore(), PUT_SECONDS), Slow(MemoryRegistry(), REGISTRY_SECONDS)
        ports = Ports(store=lambda *_: store, registry=lambda *_, **__: registry)
        table = lancelsm.create.on(ports)(uri, SCHEMA, primary_key="id")
        body = pa.array([os.urandom(496).hex() for _ in range(ROWS_A_SUBMIT)])
        submits = int(seconds * rate / ROWS_A_SUBMIT)
        latencies: list[float] = []
        lock = threading.Lock()

        def record(start: float) -> None:
            with lock:
                latencies.append(time.perf_counter() - start)

        with table.writer(pipeline_depth=depth) as writer:
            writer.upsert({"id": [-1], "body": ["this append claims the region"]})
            with used() as load:
                begin = time.perf_counter()
                for number in range(submits):
                    due = begin + number * ROWS_A_SUBMIT / rate
                    time.sleep(max(0.0, due - time.perf_counter()))
                    ids = pa.array(range(number * ROWS_A_SUBMIT, (number + 1) * ROWS_A_SUBMIT))
                    future = writer.submit({"id": ids, "body": body})
                    # Measured from when the submit was due, so that a late submit counts as slow.
                    future.add_done_callback(lambda _, due=due: record(due))
                future.result()
    return latencies, load.cores
