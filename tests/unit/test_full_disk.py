"""A full disk is reported as a full disk, wherever it is noticed."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common import full_disk
from lancelsm.common.layout import Key
from lancelsm.dataset.native import native_errors, read_errors
from lancelsm.errors import Ambiguous, LsmError, Unavailable
from lancelsm.objects import posix
from lancelsm.objects.filesystem import LocalStore
from lancelsm.record.export import write_file
from lancelsm.registry.sqlite import SqliteRegistry
from lancelsm.table import Table
from tests.unit.tables import create, row, rows_of

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """Let no file grow beyond a size, in this process: writes fail in Python, SQLite and Lance alike."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "text",
    [
        "LanceError(IO): No space left on device (os error 28), rust/lance-io/src/object_writer.rs:1:2",
        "LanceError(IO): Generic LocalFileSystem error: Unable to copy data to file: No space left on device",
        "LanceError(IO): File too large (os error 27)",
        "Disk quota exceeded (os error 122)",
        "[Errno 28] No space left on device",
    ],
)
@pytest.mark.parametrize("translated", [native_errors, read_errors])
def test_the_errors_of_lance_name_the_disk(text: str, translated: Callable[..., Any]) -> None:
    with (
        pytest.raises(Unavailable, match="the disk is full: rows can't be written") as caught,
        translated("rows can't be written", table="/data/t"),
    ):
        raise OSError(text)

    assert caught.value.where["table"] == "/data/t"
    assert "Free space" in caught.value.remedy


@pytest.mark.parametrize("call", ["write", "open", "link", "fsync"])
def test_each_write_of_the_store_names_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    store = LocalStore(tmp_path)
    store.create("a/b", b"old")
    found = store.get("a/b")
    assert found is not None
    true = getattr(os, call)

    def full(*arguments: Any, **options: Any) -> Any:
        if call == "open" and not arguments[1] & os.O_CREAT:
            return true(*arguments, **options)
        raise NO_SPACE

    store = LocalStore(tmp_path, fsync=full if call == "fsync" else os.fsync)
    if call != "fsync":
        monkeypatch.setattr(os, call, full)
    with pytest.raises(Unavailable, match="the disk is full") as caught:
        store.create("a/c", b"new")
    assert str(tmp_path) in caught.value.where["path"]
    if call != "link":
        with pytest.raises(Unavailable, match="the disk is full"):
            store.replace("a/b", b"new", expect=found.etag)
    monkeypatch.undo()
    assert store.get("a/b") == found


class FullAtCommit(sqlite3.Connection):
    """A connection for whose commits there is no room while `full` is set."""

    full = False

    def execute(self, sql: str, *arguments: Any) -> Any:
        if sql == "COMMIT" and FullAtCommit.full:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return super().execute(sql, *arguments)


def test_a_swap_that_the_registry_has_no_room_for_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Key(partition="p", sort="s")
    connect = partial(sqlite3.connect, factory=FullAtCommit)
    registry = SqliteRegistry(tmp_path / "r.sqlite", connect=connect)
    registry.swap(key, expect=None, change={"n": 1})
    monkeypatch.setattr(FullAtCommit, "full", True)
    with pytest.raises(Unavailable, match="the disk is full") as caught:
        registry.swap(key, expect={"n": 1}, change={"n": 2})
    monkeypatch.undo()

    assert "r.sqlite" in caught.value.where["path"]
    assert registry.read(key) == {"n": 1}
    registry.swap(key, expect={"n": 1}, change={"n": 3})
    assert registry.read(key) == {"n": 3}


def test_an_io_error_of_the_registry_names_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = SqliteRegistry(tmp_path / "r.sqlite")
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR

    assert "the disk is full" not in str(registry._translated(error))
    monkeypatch.setattr("lancelsm.registry.sqlite.is_full", lambda _: True)
    assert "the disk is full" in str(registry._translated(error))


STEPS: dict[str, Callable[[Table], object]] = {
    "upsert": lambda table: table.upsert([row(key, "x" * 100) for key in range(3000)]),
    "flush": lambda table: table.flush(),
    "merge": lambda table: table.merge(engine="inprocess"),
    "snapshot": lambda table: table.snapshot("s"),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("size", [0, 1024, 20_000])
def test_a_step_that_may_not_write_names_the_disk_and_succeeds_later(tmp_path: Path, step: str, size: int) -> None:
    table = create(tmp_path, registry="object", settings={"retry_budget_seconds": 0.2})
    values = [row(key, os.urandom(60).hex()) for key in range(2000)]
    table.upsert(values)
    if step == "merge":
        table.flush()
    failure: LsmError | None = None
    with small_files(size):
        try:
            STEPS[step](table)
        except LsmError as error:
            failure = error

    if failure is not None:
        assert isinstance(failure, Unavailable | Ambiguous), failure
        assert "the disk is full" in str(failure)
    assert size or failure is not None
    if step == "snapshot" and table.snapshots():
        table.drop_snapshot("s")
    STEPS[step](lancelsm.open(table.uri))
    assert len(rows_of(table)) == 3000 if step == "upsert" else 2000


@pytest.mark.parametrize("step", ["flush", "compact"])
def test_a_generation_that_the_disk_has_no_room_for_leaves_no_files(tmp_path: Path, step: str) -> None:
    table = create(tmp_path, registry="object", settings={"max_generations": 1})
    for _ in range(2):
        table.upsert([row(key, os.urandom(60).hex()) for key in range(2000)])
        if step == "compact":
            table.flush()
    before = set(tmp_path.rglob("*"))
    for _ in range(3):
        with small_files(20_000), pytest.raises(Unavailable, match="the disk is full"):
            getattr(table, step)()
    left = {path for path in set(tmp_path.rglob("*")) - before if path.is_file()}
    assert {path for path in left if "_mem_wal" in path.parts} == set()
    getattr(lancelsm.open(table.uri), step)()
    assert len(rows_of(table)) == 2000


def test_an_export_to_a_full_disk_is_unavailable(tmp_path: Path) -> None:
    rows = pa.table({"v": [os.urandom(50).hex() for _ in range(2000)]})
    with small_files(100), pytest.raises(Unavailable, match="the disk is full"):
        write_file(str(tmp_path / "rows.arrow"), rows.schema, rows.to_batches())


def test_a_disk_with_room_is_not_full(tmp_path: Path) -> None:
    assert not full_disk.is_full(str(tmp_path))
    assert not full_disk.is_full(str(tmp_path / "absent"))
    assert "the disk is full" in str(posix.to_lsm_error(NO_SPACE, "/x"))


ON_A_SMALL_DISK = """
import os, sys, lancelsm, pyarrow as pa
disk = sys.argv[1]
table = lancelsm.create(f"{disk}/t", pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_key="id")
rows = [{"id": key, "v": os.urandom(20).hex()} for key in range(300)]
table.upsert(rows)
table.flush()
table.merge(engine="inprocess")
table.upsert(rows)
table.flush()
table.upsert(rows)
table = lancelsm.open(table.uri, settings={"retry_budget_seconds": 0.1})
steps = [
    lambda: table.upsert(rows), table.flush, lambda: table.merge(engine="inprocess"), table.run,
    lambda: table.snapshot("s"), lambda: table.set_cursor("c"),
    lambda: lancelsm.create(f"{disk}/u", rows, primary_key="id"),
]
for pages in range(0, 40, 2):
    for step in steps:
        status = os.statvfs(disk)
        with open(f"{disk}/filler", "wb") as filler:
            filler.write(bytes(max(0, status.f_bavail * status.f_frsize - pages * 4096)))
        try:
            step()
        except (lancelsm.Unavailable, lancelsm.Ambiguous) as error:
            assert "the disk is full" in str(error), error
        except (lancelsm.Invalid, lancelsm.Contended):
            pass  # snapshot, cursor or table exists by now; a lease that could not be released expires
        os.unlink(f"{disk}/filler")
        assert table.scan().to_arrow().num_rows == 300
"""


@pytest.mark.rest
def test_every_step_on_a_small_disk_names_the_disk(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a file system can't be mounted here")
    try:
        done = subprocess.run(
            [sys.executable, "-c", ON_A_SMALL_DISK, tmp_path], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)
