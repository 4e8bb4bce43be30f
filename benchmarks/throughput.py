"""The highest rate of rows of 1 KB that a deployed table keeps up with, by simulation, and what binds it.

CPU is measured in this run, on one core: of `writer_flush` for messages of the queue, of a flush, a compaction of
generations, and a merge. Every request takes 100 ms. `simulated` has the model. A core of a job is taken to be as fast.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lancelsm
from benchmarks.figures import Figure
from benchmarks.queues import KeptQueue
from benchmarks.simulated import Load, Times, highest_rate
from benchmarks.tables import kilobyte_rows
from lancelsm.record.normalize import upserts
from lancelsm.region.handle import open_table
from lancelsm.stack.delivery import apply
from lancelsm.stack.delivery.send import send
from lancelsm.stack.delivery.table_cache import Tables
from lancelsm.table import Table

_CASES = (
    ("64 regions, by the queue", Load(rows_per_second=50_000, regions=64), 50_000),
    ("1 region, by the queue", Load(rows_per_second=20_000, regions=1), 20_000),
    (
        "1 region, by the queue, a schedule of 2 minutes",
        Load(rows_per_second=20_000, regions=1, schedule_seconds=120),
        20_000,
    ),
    ("1 region, by writers that append directly", Load(rows_per_second=20_000, regions=1, queued=False), 20_000),
)
_NAMES = {"queue": "rows wait in the queue: appends bind", "log": "logs grow: flushes bind", "unmerged": "merges bind"}


def run(scale: float) -> Iterator[Figure]:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    times = measured(max(5_000, int(200_000 * scale)))
    for name in ("append", "flush", "compact", "merge"):
        how = f"and {times.merge_base * 1e9:.2g} ns for each row of the base" if name == "merge" else ""
        yield Figure(what=f"CPU of a row of 1 KB, {name}", ours=getattr(times, name) * 1e6, unit="us", how=how)
    for what, load, goal in _CASES:
        many = load.regions > 1
        if many and scale < 0.1:  # a simulation of so many regions takes a minute
            continue
        rate, queue = highest_rate(load, times, precision=1.1 if many else 1.02)
        how = f"{rate:,.0f} rows/s, then {_NAMES[queue]}"
        yield Figure(
            what=f"time for a million rows, {what}", ours=1e6 / rate, unit="s", peer=1e6 / goal, peer_name="goal",
            limit=True, how=how,
        )  # fmt: skip


def measured(rows: int) -> Times:
    """Measure the CPU time of each step for a row."""
    with tempfile.TemporaryDirectory() as directory:
        small, large = (_table(Path(directory) / "tables", name, rows * times) for name, times in (("a", 1), ("b", 6)))
        append = _cpu(_delivered(Path(directory) / "tables", "a", rows)) / rows
        flush = _cpu(small.flush) / rows
        _append(small, rows, start=rows // 2)
        small.flush()
        compact = _cpu(small.compact) / (2 * rows)
        small.merge(engine="inprocess")
        merges = []
        for table in (small, large):
            _append(table, rows, start=0)
            table.flush()
            merges.append(_cpu(partial(table.merge, engine="inprocess")))
        of_base = max(0.0, (merges[1] - merges[0]) / (large.count() - small.count()))
        merge = max(0.0, merges[0] - of_base * small.count()) / rows
    return Times(append=append, flush=flush, compact=compact, merge=merge, merge_base=of_base)


def _table(root: Path, name: str, rows: int) -> Table:
    """Create a table with a base."""
    settings = {"max_generations": 1, "flush_rows": 10**9, "flush_bytes": 10**12}
    return lancelsm.create(root / name, kilobyte_rows(rows, 0), primary_key="id", settings=settings)


def _append(table: Table, rows: int, *, start: int) -> None:
    for at in range(0, rows, 5_000):
        table.upsert(kilobyte_rows(min(5_000, rows - at), start + at))


def _delivered(root: Path, name: str, rows: int) -> Callable[[], Any]:
    """Send rows through the functions' code. Return what `writer_flush` does with the messages."""
    queue, handle, inbox = KeptQueue(), open_table(root / name), None
    for number, at in enumerate(range(0, rows, 1_000)):
        given = upserts(kilobyte_rows(min(1_000, rows - at), at), schema=handle.config.schema)
        send(given, handle=handle, queue=queue, inbox=inbox, producer="p", sequence=number, seconds=60)  # type: ignore[arg-type]
    deliveries = queue.deliveries()
    ports = apply.BatchPorts(tables=Tables(str(root)), inbox=inbox, dead_letters=queue, source="q")  # type: ignore[arg-type]

    def deliver() -> None:
        for start in range(0, len(deliveries), 5):
            assert apply.apply(deliveries[start : start + 5], ports=ports, seconds=60).entries

    return deliver


def _cpu(act: Callable[[], Any]) -> float:
    start = time.process_time()
    act()
    return time.process_time() - start
