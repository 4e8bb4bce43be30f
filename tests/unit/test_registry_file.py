"""Only SQLite opens the registry's file: closing any other handle drops every lock that this process has on it.

POSIX locks belong to a process, not to a file handle. Without the locks, the next process that closes the registry
believes that it is the last one. It then removes SQLite's write-ahead log while other processes write to it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ALL_OPERATIONS = """
import sys
from pathlib import Path

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.region.handle import open_table
from lancelsm.admin.rebuild import rebuild


def hook(event, args):
    if event == "open" and "registry.sqlite" in str(args[0]):
        print("opened", args[0])
        raise RuntimeError(f"{args[0]} was opened")


def create_table(path):
    table = lancelsm.create(path, [{"id": 0, "v": 0}], primary_key="id", regions="bucket(id, 2)")
    table.upsert([{"id": n, "v": 1} for n in range(8)])
    table.snapshot("now", "1h")
    table.run()
    return table


root = Path(sys.argv[1])
sys.addaudithook(hook)
table = create_table(root / "t")
lancelsm.backup(table, root / "backup")
for name, make in {
    "clone": lambda: clone_snapshot(open_table(root / "t"), "now", root / "clone"),
    "restored": lambda: lancelsm.restore(root / "backup", root / "restored"),
    "again": lambda: create_table(root / "again"),
}.items():
    make()
    lancelsm.drop(root / name)
    make()
table.collect(yes=True, interval_seconds=0)
assert table.scrub().ok
rebuild(open_table(root / "t"))
assert table.scan().to_arrow().num_rows == 8
"""

RECREATE = """
import os, subprocess, sys

import lancelsm

path = sys.argv[1]
for number in range(2):
    table = lancelsm.create(path, [{"id": 0}], primary_key="id")
    table.upsert([{"id": 1}])
    if number == 0:
        lancelsm.drop(path)
COUNT = "import lancelsm, sys; print(lancelsm.open(sys.argv[1]).scan().to_arrow().num_rows)"
count = [sys.executable, "-c", COUNT, path]
assert subprocess.run(count, capture_output=True, check=True).stdout == b"2\\n"
for number in range(2, 10):
    table.upsert([{"id": number}])
print(subprocess.run(count, capture_output=True, check=True).stdout.decode())
os._exit(9)
"""


@pytest.mark.rest
def test_every_operation_on_a_table_opens_the_registry_file_only_through_sqlite(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALL_OPERATIONS, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.rest
def test_writes_of_a_process_that_dropped_and_recreated_a_table_are_visible_to_others(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RECREATE, str(tmp_path / "t")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (9, "10\n\n"), done.stderr
