"""What an operation costs in each further region: Python calls and threads. A region has a few rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common import task_pool
from lancelsm.region.handle import Ports
from lancelsm.table import Table
from tests.unit.python_calls import calls_of
from tests.unit.tables import create, row

FEW, MANY = 4, 8


def table_of(path: Path, regions: int, *, threads: int) -> Table:
    """Return a table with a generation and two entries in each region. What is done once in a process is done."""
    created = create(path / f"{regions}", regions=f"bucket(id, {regions})")
    table = lancelsm.open.on(Ports(threads=threads))(created.uri)
    for flushed in (True, False, False):
        table.upsert(rows(regions))
        if flushed:
            table.flush()
    return table


def rows(regions: int) -> pa.Table:
    return pa.Table.from_pylist([row(key) for key in range(20 * regions)])


@pytest.mark.parametrize(("operation", "most"), [("upsert", 340), ("flush", 2550)])
def test_a_further_region_costs_few_calls(operation: str, most: int, tmp_path: Path) -> None:
    calls = []
    for regions in (FEW, MANY):
        table = table_of(tmp_path, regions, threads=1)
        given = rows(regions)
        act = {"upsert": lambda table=table, given=given: table.upsert(given), "flush": table.flush}[operation]
        calls.append(calls_of(act))

    assert (calls[1] - calls[0]) / (MANY - FEW) < most


def test_the_flush_of_a_further_small_region_starts_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, start = list[object](), task_pool._thread.start_new_thread
    counts = []
    for regions in (FEW, MANY):
        table = table_of(tmp_path, regions, threads=2)
        monkeypatch.setattr(task_pool._thread, "start_new_thread", lambda *args: started.append(args) or start(*args))
        started.clear()
        table.flush()
        counts.append(len(started))
        monkeypatch.undo()

    assert counts[0] == counts[1] > 0
