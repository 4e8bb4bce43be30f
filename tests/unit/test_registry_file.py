"""Nobody but SQLite opens the registry's file: who closes one loses every lock that this process has on it.

POSIX locks belong to a process, not to what opened the file. Without them the next process that closes the registry
takes itself for the last one, and removes the log of writes that others acknowledge.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIFE = """
import sys
from pathlib import Path

import lancelsm
from lancelsm.backup import back_up, restore
from lancelsm.admin.clone import clone_snapshot
from lancelsm.admin.drop import drop_table
from lancelsm.region.handle import open_table
from lancelsm.admin.rebuild import rebuild


def hook(event, given):
    if event == "open" and "registry.sqlite" in str(given[0]):
        print("opened", given[0])
        raise RuntimeError(f"{given[0]} is opened")


def made(place):
    table = lancelsm.create(place, [{"id": 0, "v": 0}], primary_key="id", regions="bucket(id, 2)")
    table.upsert([{"id": n, "v": 1} for n in range(8)])
    table.snapshot("now", "1h")
    table.run()
    return table


root = Path(sys.argv[1])
sys.addaudithook(hook)
table = made(root / "t")
back_up(table, root / "backup")
for name, make in {
    "clone": lambda: clone_snapshot(open_table(root / "t"), "now", root / "clone"),
    "restored": lambda: restore(root / "backup", root / "restored"),
    "again": lambda: made(root / "again"),
}.items():
    make()
    drop_table(root / name)
    make()
table.collect(yes=True, interval_seconds=0)
assert table.scrub().ok
rebuild(open_table(root / "t"))
assert table.scan().to_arrow().num_rows == 8
"""

ANEW = """
import os, subprocess, sys

import lancelsm
from lancelsm.admin.drop import drop_table

place = sys.argv[1]
for number in range(2):
    table = lancelsm.create(place, [{"id": 0}], primary_key="id")
    table.upsert([{"id": 1}])
    if number == 0:
        drop_table(place)
LOOK = "import lancelsm, sys; print(lancelsm.open(sys.argv[1]).scan().to_arrow().num_rows)"
look = [sys.executable, "-c", LOOK, place]
assert subprocess.run(look, capture_output=True, check=True).stdout == b"2\\n"
for number in range(2, 10):
    table.upsert([{"id": number}])
print(subprocess.run(look, capture_output=True, check=True).stdout.decode())
os._exit(9)
"""


def test_no_step_of_a_table_s_life_opens_the_registry_s_file_but_by_sqlite(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIFE, str(tmp_path)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_what_is_acknowledged_by_who_dropped_a_table_and_made_it_again_is_there_for_others(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ANEW, str(tmp_path / "t")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (9, "10\n\n"), done.stderr
