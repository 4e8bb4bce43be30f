"""Increments of threads and processes add up, also if processes are killed; threads of one call don't mix regions."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import lancelsm
from lancelsm.table import Table
from lancelsm.wal.region_writer import RegionWriters

INCREMENTS = """
import sys, lancelsm
table = lancelsm.open(sys.argv[1])
for _ in range(int(sys.argv[2])):
    table.transact([1], lambda current: [{**one, "n": one["n"] + 1} for one in current.to_pylist()])
    print("done", flush=True)
"""
KILLED, LEFT = 3, 10


def counter(path: Path) -> Table:
    return lancelsm.create(path / "table", [{"id": 1, "n": 0}], primary_key="id")


def value(table: Table) -> int:
    return int(table.get([1])["n"][0].as_py())


def increment(table: Table) -> None:
    table.transact([1], lambda current: [{**one, "n": one["n"] + 1} for one in current.to_pylist()])


def start(table: Table, times: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", INCREMENTS, table.uri, str(times)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("threads", "times"), [(3, 4), pytest.param(3, 30, marks=pytest.mark.rest)])
def test_increments_of_threads_add_up(tmp_path: Path, threads: int, times: int) -> None:
    table = counter(tmp_path)

    def work() -> None:
        for _ in range(times):
            increment(table)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert value(table) == threads * times


@pytest.mark.rest
def test_increments_of_processes_add_up(tmp_path: Path) -> None:
    table = counter(tmp_path)
    workers = [start(table, 30) for _ in range(8)]

    ended = [(worker.communicate(), worker.returncode)[1] for worker in workers]

    assert ended == [0] * 8
    assert value(table) == 240


@pytest.mark.rest
def test_a_killed_process_neither_loses_an_acknowledged_increment_nor_doubles_one(tmp_path: Path) -> None:
    table = counter(tmp_path)
    workers = [start(table, 1_000) for _ in range(KILLED)]
    steady = start(table, LEFT)
    acknowledged = 0
    for worker in workers:
        assert worker.stdout is not None
        for _ in range(5):
            assert worker.stdout.readline() == "done\n"
        worker.kill()
        acknowledged += 5 + worker.communicate()[0].count("done\n")

    assert steady.communicate()[0].count("done\n") == LEFT
    increment(table)  # it commits what a killed process put and did not commit

    assert 0 <= value(table) - (acknowledged + LEFT + 1) <= KILLED


def test_regions_of_one_call_get_their_own_rows_at_any_switch_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": 1, "n": 0}, {"id": 2, "n": 0}]
    table = lancelsm.create(tmp_path / "table", rows, primary_key="id", regions="identity(id)")
    append_all, together = RegionWriters.append_all, threading.Barrier(2)

    def in_lockstep(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            together.wait(10)
        return in_lockstep

    def traced_append_all(writers: RegionWriters, rows: Any, *, next_draft: Any, **options: Any) -> Any:
        def traced(*arguments: Any) -> Any:
            before = sys.gettrace()
            sys.settrace(lambda frame, *_: in_lockstep if frame.f_code is next_draft.__code__ else None)
            try:
                return next_draft(*arguments)
            finally:
                sys.settrace(before)

        return append_all(writers, rows, next_draft=traced, **options)

    monkeypatch.setattr(RegionWriters, "append_all", traced_append_all)

    table.transact([1, 2], lambda current: [{**one, "n": one["id"]} for one in current.to_pylist()])

    assert table.scan().to_arrow().sort_by("id").to_pylist() == [{"id": 1, "n": 1}, {"id": 2, "n": 2}]
