"""What an operation costs in each further region: Python calls and threads. A region has a few rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common import task_pool
from lancelsm.common.layout import SQLITE, Key
from lancelsm.objects.filesystem import LocalStore
from lancelsm.region.handle import Ports
from lancelsm.registry import Record
from lancelsm.registry.sqlite import SqliteRegistry
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


OPERATIONS: dict[str, Callable[[Table, pa.Table], object]] = {
    "upsert": lambda table, given: table.upsert(given),
    "flush": lambda table, _: table.flush(),
    "open": lambda table, _: reopened(table),
    "scan": lambda table, _: reopened(table).scan().to_arrow(),
    "scan of one key": lambda table, _: reopened(table).scan(where="id = 1").to_arrow(),
}


def reopened(table: Table) -> Table:
    return lancelsm.open.on(Ports(threads=1))(table.uri)


@pytest.mark.parametrize(
    ("operation", "most"), [("upsert", 310), ("flush", 2200), ("open", 140), ("scan", 1060), ("scan of one key", 140)]
)
def test_a_further_region_costs_few_calls(operation: str, most: int, tmp_path: Path) -> None:
    calls = []
    for regions in (FEW, MANY):
        table, given = table_of(tmp_path, regions, threads=1), rows(regions)
        calls.append(calls_of(partial(OPERATIONS[operation], table, given)))

    assert (calls[1] - calls[0]) / (MANY - FEW) < most


@pytest.mark.parametrize("operation", ["open", "scan of one key"])
def test_a_further_region_costs_no_request(operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = list[str]()
    for port, names in ((LocalStore, ("get", "list")), (SqliteRegistry, ("read", "read_all", "list"))):
        for name in names:
            counted(port, name, requests, monkeypatch)
    counts = []
    for regions in (FEW, MANY):
        table = table_of(tmp_path, regions, threads=1)
        requests.clear()
        OPERATIONS[operation](table, rows(regions))
        counts.append(Counter(requests))

    assert counts[0] == counts[1]
    assert counts[0]["read_all"] > 0


def counted(port: type, name: str, requests: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    inner = getattr(port, name)
    monkeypatch.setattr(port, name, lambda *args: requests.append(name) or inner(*args))


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


def test_heads_that_a_merge_overtook_are_all_read_again(tmp_path: Path) -> None:
    writer = table_of(tmp_path, FEW, threads=1)
    overtaking: list[Callable[[], object]] = []
    reads = list[int]()

    class Overtaken(SqliteRegistry):
        def read_all(self, keys: Sequence[Key]) -> list[Record | None]:
            found = super().read_all(keys)
            reads.append(len(keys))
            if overtaking:
                overtaking.pop()()
            return found

    ports = Ports(registry=lambda _, uri, **__: Overtaken(Path(uri) / SQLITE), threads=1)
    table = lancelsm.open.on(ports)(writer.uri)
    reads.clear()
    overtaking.append(lambda: (writer.flush(), writer.merge(engine="inprocess")))

    assert table.scan().to_arrow().num_rows == rows(FEW).num_rows
    assert reads == [FEW, FEW]
