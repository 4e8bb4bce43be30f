"""Store records in one SQLite file in the directory of the table: the registry of embedded use.

SQLite runs with a write-ahead log and `synchronous=FULL`: a swap costs one sync (a rollback journal costs three), and
readers don't wait for writers. SQLite before 3.51.3 can lose committed pages when a checkpoint runs concurrently with a
commit that restarts the log (sqlite.org/wal.html#walresetbug), and Python ships with older versions. So automatic
checkpoints are off. When the log is long, a swap runs a `TRUNCATE` checkpoint. That holds the write lock while it
copies, so no commit runs at the same time.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from lancelsm.common.full_disk import is_full, no_room
from lancelsm.common.json_text import parse_json
from lancelsm.common.layout import LOCK, Key
from lancelsm.errors import Corrupt, Invalid, LsmError, Unavailable
from lancelsm.objects.posix import locked, locks_work, make_directory, sync_directory, to_lsm_error
from lancelsm.registry import (
    Fields,
    Record,
    SwapApplied,
    SwapLost,
    SwapUnknown,
    apply_swap,
    bytes_to_json,
    check_record,
    matches,
    repair_remedy,
)

FORMAT = 1
_CHECKPOINT_BYTES = 4 << 20
_UNUSED_SECONDS = 1.0  # how long the end of a process waits for a thread that uses the connection
_BAD_TEXT = "decode to UTF-8"  # in the message of an error without a code: the bytes of a text are damaged

_READ = "SELECT fields FROM records WHERE partition = ? AND sort = ?"
_LIST = "SELECT sort, fields FROM records WHERE partition = ? ORDER BY sort"
_WRITE = "INSERT INTO records VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET fields = excluded.fields"
_DELETE = "DELETE FROM records WHERE partition = ? AND sort = ?"
_CREATE = """
    CREATE TABLE IF NOT EXISTS records (
        partition TEXT NOT NULL, sort TEXT NOT NULL, fields TEXT NOT NULL, PRIMARY KEY (partition, sort)
    ) WITHOUT ROWID
"""


class _Handle:
    """The connection of one process; one thread uses it at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: sqlite3.Connection | None = None
        self.file: tuple[int, int] | None = None

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class SqliteRegistry:
    """Records in the file at `path`. The first swap creates it; reads do not.

    Safe between threads and processes: a forked child opens its own connection. A swap returns `SwapUnknown` only if a
    commit failed. If the file stays busy or the disk is full, `Unavailable` is raised, and nothing was written.

    Args:
        path: the file; its directory is created with it.
        busy_seconds: how long to wait for a swap of another process.
        probe: returns whether file locks work in a directory.
        connect: opens the file; has the parameters of `sqlite3.connect`.

    Raises:
        Invalid: at the first swap or read: file locks do not work, there is no access, or the format is newer.
        Corrupt: the file is not a registry.
    """

    def __init__(
        self,
        path: Path,
        *,
        busy_seconds: float = 30.0,
        probe: Callable[[str], bool] = locks_work,
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect,
    ) -> None:
        self._path = os.path.abspath(path)
        self._busy_seconds = busy_seconds
        self._probe = probe
        self._connect = connect
        self._handles: dict[int, _Handle] = {}
        weakref.finalize(self, _close_unused, self._handles)

    def close(self) -> None:
        """Close the connection of this process. It is also closed when the registry is garbage collected."""
        _close(self._handles)

    def read(self, key: Key) -> Record | None:
        if not os.path.exists(self._path):
            return None
        with self._connection() as connection:
            return _read(connection, key)

    def read_all(self, keys: Sequence[Key]) -> list[Record | None]:
        if not os.path.exists(self._path):
            return [None] * len(keys)
        with self._connection() as connection:
            try:
                connection.execute("BEGIN")  # else each statement locks the file
                rows = [connection.execute(_READ, (key.partition, key.sort)).fetchone() for key in keys]
                connection.execute("COMMIT")
            except BaseException:
                self.close()  # this ends the transaction in any state
                raise
        return [None if row is None else _fields(key, row[0]) for key, row in zip(keys, rows, strict=True)]

    def list(self, partition: str) -> list[tuple[Key, Record]]:
        if not os.path.exists(self._path):
            return []
        with self._connection() as connection:
            rows = connection.execute(_LIST, (partition,)).fetchall()
        keyed = [(Key(partition=partition, sort=sort), fields) for sort, fields in rows]
        return [(key, _fields(key, fields)) for key, fields in keyed]

    def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        def write(connection: sqlite3.Connection, old: Record | None) -> Record | None:
            new = apply_swap(key, old, expect=expect, change=change)
            if new is not None:
                connection.execute(_WRITE, (key.partition, key.sort, json.dumps(new, default=bytes_to_json)))
            return new

        return self._transaction(key, write)

    def delete(self, key: Key, *, expect: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        def write(connection: sqlite3.Connection, old: Record | None) -> Record | None:
            if old is None or not matches(old, expect):
                return None
            connection.execute(_DELETE, (key.partition, key.sort))
            return old

        return self._transaction(key, write)

    def discard(self, key: Key) -> None:
        with self._connection() as connection:
            connection.execute(_DELETE, (key.partition, key.sort))  # without a read: it may be unreadable

    def _transaction(
        self, key: Key, write: Callable[[sqlite3.Connection, Record | None], Record | None]
    ) -> SwapApplied | SwapLost | SwapUnknown:
        """Write a record that depends on the present one. `write` returns the result; None if the condition fails."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                old = _read(connection, key)
                new = write(connection, old)
                if new is None:
                    connection.execute("ROLLBACK")
                    return SwapLost(record=old)
            except BaseException:
                self.close()  # this ends the transaction in any state
                raise
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                self.close()
                if _code(error) == sqlite3.SQLITE_FULL:  # a page was not written, so the log has no such commit
                    raise
                full = ", and the disk is full" if is_full(self._path) else ""
                return SwapUnknown(cause=f"commit to {self._path} failed{full}: {error}")
            self._checkpoint(connection)
            return SwapApplied(record=new)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        handle = self._handles.setdefault(os.getpid(), _Handle())
        with handle.lock:
            try:
                # After a table was dropped and created again there is a new file. Swaps in the old one would be lost.
                if handle.connection is None or handle.file != _identity(self._path):
                    handle.close()
                    handle.connection = self._open()
                    handle.file = _identity(self._path)
                yield handle.connection
            except sqlite3.Error as error:
                handle.close()
                raise self._translated(error) from error
            except OSError as error:
                raise to_lsm_error(error, self._path) from error

    def _open(self) -> sqlite3.Connection:
        directory = os.path.dirname(self._path)
        make_directory(directory, os.fsync)
        if not self._probe(directory):
            raise Invalid(
                "file locks do not work on this file system, so two writers could corrupt the registry",
                remedy="Put the table on a local disk, or create it with `lancelsm init --registry object`",
                path=directory,
            )
        connection = self._connect(
            self._path, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare(connection, directory)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection, directory: str) -> None:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            # If two processes turn on the log of a new file at once, SQLite fails as busy without waiting.
            with locked(os.path.join(directory, os.path.basename(LOCK))):
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                if mode != "wal":
                    raise Invalid(
                        "the file system has no shared memory for the log of SQLite",
                        remedy="Put the table on a local disk, or create it with `lancelsm init --registry object`",
                        path=directory,
                    )
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(_CREATE)
                connection.execute(f"PRAGMA user_version = {FORMAT}")
                connection.execute("COMMIT")
                sync_directory(directory, os.fsync)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > FORMAT:
            raise Invalid(
                f"the registry has format {version}, this release reads up to {FORMAT}",
                remedy="Install a newer lancelsm",
                path=self._path,
            )

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        """Checkpoint a long log into the file. The swap is already committed; on an error the next swap tries again."""
        with suppress(OSError, sqlite3.Error):
            if os.stat(f"{self._path}-wal").st_size >= _CHECKPOINT_BYTES:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _translated(self, error: sqlite3.Error) -> LsmError:
        code = _code(error)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Unavailable(
                f"the registry was busy for {self._busy_seconds:g} s; nothing was written",
                remedy="Retry; if it stays busy, look for a process that has it open",
                path=self._path,
            )
        if _BAD_TEXT in str(error):
            return Corrupt(f"the registry has an unreadable record: {error}", remedy=repair_remedy(""), path=self._path)
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return Corrupt(
                f"the registry can't be read: {error}",
                remedy="Stop all writers, move this file and all files whose names start with its name away, then "
                "run `lancelsm registry rebuild`",
                path=self._path,
            )
        if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and is_full(self._path)):
            return no_room(f"the registry can't be used: {error}", path=self._path)
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            return Invalid(
                f"no access to the registry: {error}",
                remedy="Grant this user read and write access to it and to its directory",
                path=self._path,
            )
        return Unavailable(f"the registry failed: {error}", remedy="Check the disk", path=self._path)


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _read(connection: sqlite3.Connection, key: Key) -> Record | None:
    row = connection.execute(_READ, (key.partition, key.sort)).fetchone()
    return None if row is None else _fields(key, row[0])


def _fields(key: Key, text: str) -> Record:
    try:
        return check_record(parse_json(text))
    except (ValueError, TypeError) as error:
        raise Corrupt(
            f"the registry has an unreadable record: {error}",
            remedy=repair_remedy(key.partition),
            record=f"{key.partition}/{key.sort}",
        ) from error


def _close(handles: dict[int, _Handle]) -> None:
    # Connections of the parent process stay open: they belong to it.
    handle = handles.get(os.getpid())
    if handle is not None:
        handle.close()


def _close_unused(handles: dict[int, _Handle]) -> None:
    # A process may end while a thread uses the connection: to close it then ends the process in SQLite.
    handle = handles.get(os.getpid())
    if handle is not None and handle.lock.acquire(timeout=_UNUSED_SECONDS):
        try:
            handle.close()
        finally:
            handle.lock.release()


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
