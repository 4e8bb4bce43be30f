"""Increments of threads and processes add up, also if processes are killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import lancelsm
from lancelsm.table import Table

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
