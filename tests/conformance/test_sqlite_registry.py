"""What the SQLite registry promises beyond the contract."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from lancelsm.common.layout import SQLITE, Key
from lancelsm.errors import Corrupt, Invalid, Unavailable
from lancelsm.registry import SwapApplied, SwapLost, SwapUnknown, sqlite
from lancelsm.registry.open import open_registry
from lancelsm.registry.sqlite import SqliteRegistry
from tests.conformance.durable import acknowledged_until_killed, record_key
from tests.conformance.race import ROOT

KEY = Key(partition="H#t#r", sort="head")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table" / SQLITE


def failing_commits(before: bool):
    """Return a connection class whose commits report an I/O error, before or after they take effect."""

    class Connection(sqlite3.Connection):
        armed = False

        def execute(self, sql, *arguments):
            if sql == "COMMIT" and Connection.armed:
                if not before:
                    super().execute(sql)
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, *arguments)

    return Connection


@pytest.mark.parametrize("before", [True, False])
def test_a_failed_commit_is_unknown_and_the_next_read_shows_its_effect(path, before):
    connection_class = failing_commits(before)
    registry = SqliteRegistry(
        path, connect=lambda *args, **options: sqlite3.connect(*args, factory=connection_class, **options)
    )
    registry.swap(KEY, expect=None, change={"n": 1})
    connection_class.armed = True

    assert isinstance(registry.swap(KEY, expect={"n": 1}, change={"n": 2}), SwapUnknown)

    connection_class.armed = False
    n = 1 if before else 2
    assert registry.read(KEY) == {"n": n}
    assert registry.swap(KEY, expect={"n": n}, change={"n": 9}) == SwapApplied(record={"n": 9})


def test_many_records_are_read_in_the_order_of_the_keys_in_one_transaction(path):
    statements = []

    class Connection(sqlite3.Connection):
        def execute(self, sql, *arguments):
            statements.append(sql.split()[0])
            return super().execute(sql, *arguments)

    registry = SqliteRegistry(path, connect=partial(sqlite3.connect, factory=Connection))
    keys = [Key(partition=f"H#t#{n}", sort="head") for n in range(5)]
    assert registry.read_all(keys) == [None] * 5
    assert not path.exists()
    for number in (4, 0, 2):
        registry.swap(keys[number], expect=None, change={"n": number, "b": b"x"})

    statements.clear()
    assert registry.read_all(keys[::-1]) == [registry.read(key) for key in keys[::-1]]
    assert statements[:7] == ["BEGIN", *["SELECT"] * 5, "COMMIT"]
    assert registry.swap(keys[1], expect=None, change={"n": 1}) == SwapApplied(record={"n": 1})


def test_an_interrupted_read_of_many_records_leaves_no_transaction(path):
    class Connection(sqlite3.Connection):
        armed = False

        def execute(self, sql, *arguments):
            if sql.startswith("SELECT") and Connection.armed:
                raise KeyboardInterrupt
            return super().execute(sql, *arguments)

    registry = SqliteRegistry(path, connect=partial(sqlite3.connect, factory=Connection))
    registry.swap(KEY, expect=None, change={"n": 1})
    Connection.armed = True
    with pytest.raises(KeyboardInterrupt):
        registry.read_all([KEY])
    Connection.armed = False

    assert registry.swap(KEY, expect={"n": 1}, change={"n": 2}) == SwapApplied(record={"n": 2})


def test_a_registry_that_stays_busy_is_unavailable_and_the_swap_has_no_effect(path):
    registry = SqliteRegistry(path, busy_seconds=0.05)
    registry.swap(KEY, expect=None, change={"n": 1})
    holder = sqlite3.connect(path, isolation_level=None)
    try:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="busy"):
            registry.swap(KEY, expect={"n": 1}, change={"n": 2})
        assert registry.read(KEY) == {"n": 1}
    finally:
        holder.close()
    assert isinstance(registry.swap(KEY, expect={"n": 1}, change={"n": 2}), SwapApplied)


def test_a_file_system_without_working_locks_is_refused(path):
    registry = SqliteRegistry(path, probe=lambda directory: False)

    with pytest.raises(Invalid, match="locks do not work") as raised:
        registry.swap(KEY, expect=None, change={"n": 1})
    assert "object" in raised.value.remedy
    assert not path.exists()


def test_reading_creates_no_file(path):
    registry = SqliteRegistry(path)

    assert registry.read(KEY) is None
    assert registry.list("H#t#r") == []
    assert not path.parent.exists()


def test_a_file_that_is_not_a_registry_is_corrupt(path):
    path.parent.mkdir(parents=True)
    path.write_bytes(b"this is not a database, although it is long" * 100)

    with pytest.raises(Corrupt) as raised:
        SqliteRegistry(path).read(KEY)
    assert "registry rebuild" in raised.value.remedy


def test_a_newer_format_is_refused(path):
    SqliteRegistry(path).swap(KEY, expect=None, change={"n": 1})
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()

    with pytest.raises(Invalid, match="format 2"):
        SqliteRegistry(path).read(KEY)


def test_a_registry_whose_file_was_replaced_writes_to_the_new_file(path):
    registry = SqliteRegistry(path)
    registry.swap(KEY, expect=None, change={"n": 1})
    shutil.rmtree(path.parent)
    assert registry.read(KEY) is None

    assert SqliteRegistry(path).swap(KEY, expect=None, change={"n": 2}) == SwapApplied(record={"n": 2})
    assert registry.swap(KEY, expect={"n": 1}, change={"n": 3}) == SwapLost(record={"n": 2})
    assert registry.swap(KEY, expect={"n": 2}, change={"n": 3}) == SwapApplied(record={"n": 3})
    assert SqliteRegistry(path).read(KEY) == {"n": 3}


def test_the_log_of_sqlite_does_not_grow_without_bound(path):
    registry = SqliteRegistry(path)
    registry.swap(KEY, expect=None, change={"n": 0})
    sizes = []
    for n in range(12):
        assert isinstance(
            registry.swap(KEY, expect={"n": n}, change={"n": n + 1, "text": f"{n:x}" * 1_000_000}), SwapApplied
        )
        sizes.append(os.stat(f"{path}-wal").st_size)

    assert max(sizes) < 8 << 20
    assert sizes != sorted(sizes)
    assert SqliteRegistry(path).read(KEY)["n"] == 12


def test_a_closed_registry_opens_again(path):
    registry = SqliteRegistry(path)
    registry.swap(KEY, expect=None, change={"n": 1})
    registry.close()
    registry.close()

    assert sorted(os.listdir(path.parent)) == ["lock", "registry.sqlite"]
    assert registry.read(KEY) == {"n": 1}


FORKING = """
import os, sys
from functools import partial
from pathlib import Path
from lancelsm.common.layout import Key
from lancelsm.registry import SwapApplied
from lancelsm.registry.sqlite import SqliteRegistry
registry = SqliteRegistry(Path(sys.argv[1]))
key = Key(partition="H#t#r", sort="head")
registry.swap(key, expect=None, change={"n": 0})
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        done = 0
        while done < 10:
            n = registry.read(key)["n"]
            done += isinstance(registry.swap(key, expect={"n": n}, change={"n": n + 1}), SwapApplied)
        sys.exit(0)
    children.append(child)
for _ in range(10):
    while True:
        n = registry.read(key)["n"]
        if isinstance(registry.swap(key, expect={"n": n}, change={"n": n + 1}), SwapApplied):
            break
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
print(registry.read(key)["n"])
"""


def test_forked_children_share_the_file_but_not_the_connection(path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKING, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert (done.stdout, done.stderr) == ("40\n", "")


@pytest.mark.parametrize("kind", ["sqlite", "object"])
def test_writes_acknowledged_to_a_killed_writer_are_in_the_registry(tmp_path, kind):
    description = {"backend": f"{kind}-on-local", "uri": str(tmp_path)}

    acknowledged = acknowledged_until_killed("registry", description, 40)

    from tests.conformance.backends import opened_registry

    records = opened_registry(description).list(record_key(0).partition)
    assert len(acknowledged) >= 40
    assert len(acknowledged) <= len(records) <= len(acknowledged) + 1
    assert records == [(record_key(number), {"n": number}) for number in range(len(records))]


def test_a_sqlite_registry_of_a_url_is_invalid(tmp_path):
    with pytest.raises(Invalid, match="needs a table at a path"):
        open_registry("sqlite", uri="s3://bucket/table", store=None, clock=None, ids=None)
    with pytest.raises(Invalid, match="unknown kind of registry: 'etcd'"):
        open_registry("etcd", uri=tmp_path, store=None, clock=None, ids=None)


def test_the_end_of_a_process_closes_no_connection_that_a_thread_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_UNUSED_SECONDS", 0)
    registry = SqliteRegistry(tmp_path / "registry.sqlite")
    registry.swap(Key(partition="p", sort="s"), expect=None, change={"n": 1})

    with registry._connection() as connection:
        sqlite._close_unused(registry._handles)
        assert connection.execute("SELECT 1").fetchone() == (1,)
    sqlite._close_unused(registry._handles)

    with pytest.raises(sqlite3.ProgrammingError):
        connection.execute("SELECT 1")
