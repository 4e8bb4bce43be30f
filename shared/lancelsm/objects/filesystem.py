"""Objects as files below one directory, as durable as the disk and safe between threads and processes.

A write goes to a temporary file, is synced there, and then takes its name in one step: a crash at any line leaves no
object or the whole object. What a crash leaves behind lies in a directory of its own that no key reaches. Its writer
holds a lock on a temporary file until it is done, so the next process to write removes those that nobody holds.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lancelsm.common.layout import LOCK, PRIVATE, SQLITE
from lancelsm.errors import Invalid
from lancelsm.objects import Body, ETag, Listed, Object, PreconditionFailed, WriteUnknown, Written
from lancelsm.objects.keys import checked
from lancelsm.objects.posix import Fsync, explained, held, locked, make_directory, sync_directory

TEMPORARY = f"{PRIVATE}/tmp"

# SQLite's locks belong to the process and fall when any descriptor of the file is closed, a reader's included.
_RESERVED = frozenset({LOCK, TEMPORARY, *(SQLITE + suffix for suffix in ("", "-wal", "-shm", "-journal"))})


class LocalStore:
    """Objects below `root`; the directory is made by the first write.

    ETag = SHA-256 of the content. `PreconditionFailed` is said only when what refused us is durable. A reader may see
    an object a moment before its writer knows that it is durable. Other programs may create files beside ours at any
    time.

    Args:
        root: the table's directory.
        fsync: makes what was written through a descriptor durable.
    """

    def __init__(self, root: Path, *, fsync: Fsync = os.fsync) -> None:
        self._root = os.path.abspath(root)
        self._fsync = fsync
        self._lock = os.path.join(self._root, LOCK)
        self._temporary = os.path.join(self._root, TEMPORARY)
        self._numbers = itertools.count()
        self._settled: set[str] = set()

    def get(self, key: str) -> Object | None:
        path = self._path(key)
        try:
            with open(path, "rb", buffering=0) as file:
                body = file.readall()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise explained(error, path) from error
        return Object(body=body, etag=etag_of(body))

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        path = self._path(key)
        try:
            if self._stands(path):
                return self._refused(path)
            with self._temporary_file(body) as temporary:
                applied = self._linked(temporary, path)
            if not applied:
                return self._refused(path)
        except OSError as error:
            raise explained(error, path) from error
        return self._written(path, body)

    def replace(self, key: str, body: Body, *, expect: ETag) -> Written | PreconditionFailed | WriteUnknown:
        path = self._path(key)
        try:
            if _etag_at(path) != expect:
                return self._refused(path)
            with self._temporary_file(body) as temporary, locked(self._lock):
                applied = _etag_at(path) == expect
                if applied:
                    os.replace(temporary, path)
            if not applied:
                return self._refused(path)
        except OSError as error:
            raise explained(error, path) from error
        return self._written(path, body)

    def list(self, prefix: str) -> Iterator[Listed]:
        above, _, start = prefix.rpartition("/")
        directory = self._path(above) if above else self._root
        return self._walk(directory, f"{above}/" if above else "", start)

    def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            path = self._path(key)
            try:
                with suppress(FileNotFoundError, NotADirectoryError), locked(self._lock):
                    os.unlink(path)
                self._prune(os.path.dirname(path))
            except OSError as error:
                raise explained(error, path) from error

    def _prune(self, directory: str) -> None:
        """Remove directories that nothing lies in any more."""
        with suppress(OSError):
            while directory != self._root:
                os.rmdir(directory)
                directory = os.path.dirname(directory)

    def _path(self, key: str) -> str:
        if key in _RESERVED or key.startswith(f"{TEMPORARY}/"):
            raise Invalid("this key is no object's", remedy="Use another key", object=key)
        return f"{self._root}/{checked(key)}"

    def _stands(self, path: str) -> bool:
        """Whether an object stands there. Saves the writing that the link would refuse; the link decides."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return False
        if stat.S_ISDIR(status.st_mode):
            raise Invalid("other objects lie below this key", remedy="Use another key", path=path)
        return True

    def _linked(self, temporary: str, path: str) -> bool:
        """Give the temporary file its name unless it is taken."""
        directory = os.path.dirname(path)
        vanished = False
        while True:
            self._settle(directory)
            try:
                with locked(self._lock):
                    os.link(temporary, path)
            except FileExistsError:
                self._stands(path)
                return False
            except FileNotFoundError:
                if vanished:
                    raise
                vanished = True  # somebody removed an empty directory since it was settled
                self._settled.clear()
            else:
                return True

    @contextmanager
    def _temporary_file(self, body: Body) -> Iterator[str]:
        """The path of a new durable file with this content, which is gone in the end unless it got another name."""
        if self._temporary not in self._settled:
            self._settle(self._temporary)
            self._remove_abandoned()
        descriptor, path = self._open_temporary()
        try:
            rest = memoryview(body).cast("B")
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            self._fsync(descriptor)
            yield path
        finally:
            _remove(path)
            os.close(descriptor)

    def _open_temporary(self) -> tuple[int, str]:
        """A new file with its lock."""
        while True:
            path = os.path.join(self._temporary, f"{os.getpid()}-{next(self._numbers)}")
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:  # of a crashed process with our number, or of another machine
                continue
            except FileNotFoundError:
                self._settled.clear()
                self._settle(self._temporary)
                continue
            if held(descriptor, wait=True) and os.fstat(descriptor).st_nlink:
                return descriptor, path
            os.close(descriptor)  # removed before it had its lock

    def _remove_abandoned(self) -> None:
        """Remove the temporary files of writers that have crashed."""
        for name in os.listdir(self._temporary):
            path = os.path.join(self._temporary, name)
            with suppress(FileNotFoundError, PermissionError), open(path, "rb") as file:
                if held(file.fileno(), wait=False):
                    _remove(path)

    def _settle(self, directory: str) -> None:
        """Make a directory, and everything above it up to the root, durable: once, since others may have made it."""
        if directory in self._settled:
            return
        make_directory(directory, self._fsync)
        if directory != self._root:
            above = os.path.dirname(directory)
            self._settle(above)
            sync_directory(above, self._fsync)
        self._settled.add(directory)

    def _written(self, path: str, body: Body) -> Written | WriteUnknown:
        try:
            sync_directory(os.path.dirname(path), self._fsync)
        except OSError as error:
            return WriteUnknown(cause=f"{path} was written but may not survive a power failure: {error.strerror}")
        return Written(etag=etag_of(body))

    def _refused(self, path: str) -> PreconditionFailed:
        with suppress(FileNotFoundError, NotADirectoryError):
            sync_directory(os.path.dirname(path), self._fsync)
        return PreconditionFailed()

    def _walk(self, directory: str, prefix: str, start: str) -> Iterator[Listed]:
        for name, size_of in _entries(directory, start):
            key = prefix + name
            if key.rstrip("/") in _RESERVED:
                continue
            if name.endswith("/"):
                yield from self._walk(os.path.join(directory, name[:-1]), key, "")
                continue
            with suppress(FileNotFoundError):
                yield Listed(key=key, size=size_of())


def etag_of(body: Body) -> ETag:
    return ETag(hashlib.sha256(body).hexdigest())


def _etag_at(path: str) -> ETag | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return etag_of(file.readall())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def _entries(directory: str, start: str) -> list[tuple[str, Callable[[], int]]]:
    """Names in the order of keys, directories with a slash behind, and how to learn the size of a file."""
    try:
        with os.scandir(directory) as found:
            entries = [
                (entry.name + "/" if entry.is_dir() else entry.name, lambda entry=entry: int(entry.stat().st_size))
                for entry in found
                if entry.name.startswith(start)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise explained(error, directory) from error
    return sorted(entries, key=lambda entry: os.fsencode(entry[0]))


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
