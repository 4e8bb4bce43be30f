"""Store objects as files below one directory: as durable as the disk, safe between threads and processes.

A write goes to a temporary file, which is synced and then linked to its final name in one step. So a crash at any line
leaves no object or the whole object. Temporary files are in a separate directory that no key can name. A writer locks
its temporary file until it is done, so the next process that writes can delete files that a crash left unlocked.

No symbolic link below the directory is followed. A listing has the link itself, and a deletion deletes the link itself.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from xxhash import xxh3_128_hexdigest

from lancelsm.common.layout import LOCK, PRIVATE, SQLITE
from lancelsm.errors import Invalid
from lancelsm.objects import Body, ETag, Listed, Object, PreconditionFailed, WriteUnknown, Written
from lancelsm.objects.keys import check_key
from lancelsm.objects.links import check_no_link, linked_part
from lancelsm.objects.posix import Fsync, locked, make_directory, sync_directory, to_lsm_error, try_lock

TEMPORARY = f"{PRIVATE}/tmp"

# Measured on ext4 and Linux 6.18: a single write of 2 MiB or more to a new file takes up to ten times as long.
_WRITE_BYTES = 1 << 20

# SQLite's locks belong to the process. They are released when any descriptor of the file is closed, even a reader's.
_RESERVED = frozenset({LOCK, TEMPORARY, *(SQLITE + suffix for suffix in ("", "-wal", "-shm", "-journal"))})


class LocalStore:
    """Objects below `root`. The first write creates the directory.

    The ETag is the xxh3 of the content: it finds a change, not a forgery. `PreconditionFailed` is returned only after
    the conflicting object is durable. A reader may see an object before it is durable. Other programs may create files
    next to ours at any time. A read or a write through a symbolic link raises `Corrupt`.

    Args:
        root: the directory of the table.
        fsync: makes the data that was written through a descriptor durable.
    """

    def __init__(self, root: Path, *, fsync: Fsync = os.fsync) -> None:
        self._root = os.path.abspath(root)
        self._fsync = fsync
        self._lock = os.path.join(self._root, LOCK)
        self._temporary = os.path.join(self._root, TEMPORARY)
        self._numbers = itertools.count()
        self._durable: set[str] = set()

    def get(self, key: str) -> Object | None:
        path = self._real_path(key)
        try:
            with open(path, "rb", buffering=0) as file:
                body = file.readall()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise to_lsm_error(error, path) from error
        return Object(body=body, etag=etag_of)

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        path = self._real_path(key)
        try:
            if self._exists(path):
                return self._precondition_failed(path)
            with self._temporary_file(body) as temporary:
                applied = self._link(temporary, path)
            if not applied:
                return self._precondition_failed(path)
        except OSError as error:
            raise to_lsm_error(error, path) from error
        return self._written(path, body)

    def replace(self, key: str, body: Body, *, expect: ETag) -> Written | PreconditionFailed | WriteUnknown:
        path = self._real_path(key)
        try:
            if _etag_at(path) != expect:
                return self._precondition_failed(path)
            with self._temporary_file(body) as temporary, self._locked():
                applied = _etag_at(path) == expect
                if applied:
                    os.replace(temporary, path)
            if not applied:
                return self._precondition_failed(path)
        except OSError as error:
            raise to_lsm_error(error, path) from error
        return self._written(path, body)

    def list(self, prefix: str) -> Iterator[Listed]:
        parent, _, start = prefix.rpartition("/")
        directory = self._path(parent) if parent else self._root
        if linked_part(self._root, parent) is not None:
            return iter(())
        return self._walk(directory, f"{parent}/" if parent else "", start)

    def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            path = self._path(key)
            check_no_link(self._root, os.path.dirname(key))
            try:
                with suppress(FileNotFoundError, NotADirectoryError), self._locked():
                    os.unlink(path)
                self._prune(os.path.dirname(path))
            except OSError as error:
                raise to_lsm_error(error, path) from error

    def _prune(self, directory: str) -> None:
        """Delete empty directories, from this one upwards."""
        with suppress(OSError):
            while directory != self._root:
                os.rmdir(directory)
                directory = os.path.dirname(directory)

    def _path(self, key: str) -> str:
        if key in _RESERVED or key.startswith(f"{TEMPORARY}/"):
            raise Invalid("this key is reserved", remedy="Use another key", object=key)
        return f"{self._root}/{check_key(key)}"

    def _real_path(self, key: str) -> str:
        """Return the path of a key without symbolic links in it."""
        path = self._path(key)
        check_no_link(self._root, key)
        return path

    @contextmanager
    def _locked(self) -> Iterator[None]:
        check_no_link(self._root, LOCK)
        with locked(self._lock):
            yield

    def _exists(self, path: str) -> bool:
        """Return whether the object exists. This only saves a useless write: the link decides."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return False
        if stat.S_ISDIR(status.st_mode):
            raise Invalid("this key is a prefix of other keys", remedy="Use another key", path=path)
        return True

    def _link(self, temporary: str, path: str) -> bool:
        """Link the temporary file to its final name. Return False if that name exists."""
        directory = os.path.dirname(path)
        retried = False
        while True:
            self._ensure_directory(directory)
            try:
                with self._locked():
                    os.link(temporary, path)
            except FileExistsError:
                self._exists(path)
                return False
            except FileNotFoundError:
                if retried:
                    raise
                retried = True  # another process deleted the empty directory meanwhile
                self._durable.clear()
            else:
                return True

    @contextmanager
    def _temporary_file(self, body: Body) -> Iterator[str]:
        """Yield the path of a new durable temporary file with this content; delete it at the end."""
        check_no_link(self._root, TEMPORARY)
        if self._temporary not in self._durable:
            self._ensure_directory(self._temporary)
            self._remove_abandoned()
        descriptor, path = self._open_temporary()
        try:
            remaining = memoryview(body).cast("B")
            while remaining:
                remaining = remaining[os.write(descriptor, remaining[:_WRITE_BYTES]) :]
            self._fsync(descriptor)
            yield path
        finally:
            _remove(path)
            os.close(descriptor)

    def _open_temporary(self) -> tuple[int, str]:
        """Create and lock a new file."""
        while True:
            path = os.path.join(self._temporary, f"{os.getpid()}-{next(self._numbers)}")
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:  # of a crashed process with the same id, or of another machine
                continue
            except FileNotFoundError:
                self._durable.clear()
                self._ensure_directory(self._temporary)
                continue
            if try_lock(descriptor, wait=True) and os.fstat(descriptor).st_nlink:
                return descriptor, path
            os.close(descriptor)  # another process deleted it before we locked it

    def _remove_abandoned(self) -> None:
        """Delete the temporary files of crashed writers."""
        for name in os.listdir(self._temporary):
            path = os.path.join(self._temporary, name)
            with suppress(FileNotFoundError, PermissionError), open(path, "rb") as file:
                if try_lock(file.fileno(), wait=False):
                    _remove(path)

    def _ensure_directory(self, directory: str) -> None:
        """Create a directory and its parents, and make them durable, once per process: others may have created them."""
        if directory in self._durable:
            return
        make_directory(directory, self._fsync)
        if directory != self._root:
            parent = os.path.dirname(directory)
            self._ensure_directory(parent)
            sync_directory(parent, self._fsync)
        self._durable.add(directory)

    def _written(self, path: str, body: Body) -> Written | WriteUnknown:
        try:
            sync_directory(os.path.dirname(path), self._fsync)
        except OSError as error:
            return WriteUnknown(cause=f"{path} was written, but may not survive a power failure: {error.strerror}")
        return Written(etag=partial(etag_of, body))

    def _precondition_failed(self, path: str) -> PreconditionFailed:
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


def subdirectories(directory: Path) -> list[str]:
    """Return the names of the directories in a directory, and of links to directories; none if it does not exist."""
    try:
        with os.scandir(directory) as found:
            return [entry.name for entry in found if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise to_lsm_error(error, str(directory)) from error


def names_below(root: Path, parent: str, parts: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield what is in the directories `{parent}/{any name}/{part}` of a table: any name, part, and name.

    A listing of the store also asks for the size of each file. This takes a small part of its time. Like the listing,
    it follows no symbolic link, and finds nothing in directories that do not exist.
    """
    if linked_part(root, parent) is not None:
        return
    for name in _names_in(f"{root}/{parent}"):
        directory = f"{root}/{parent}/{name}"
        if os.path.islink(directory):
            continue
        for part in parts:
            for found in _names_in(f"{directory}/{part}"):
                yield name, part, found


def _names_in(directory: str) -> list[str]:
    """Return the names in a directory; none if it does not exist, or is a symbolic link."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return []
        raise to_lsm_error(error, directory) from error
    try:
        return os.listdir(descriptor)
    finally:
        os.close(descriptor)


def etag_of(body: Body) -> ETag:
    return ETag(xxh3_128_hexdigest(body))


def _etag_at(path: str) -> ETag | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return etag_of(file.readall())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def _entries(directory: str, start: str) -> list[tuple[str, Callable[[], int]]]:
    """List names in key order, directories with a trailing slash, each with a function that returns the file size.

    A symbolic link is not a directory, whatever it points to.
    """
    try:
        with os.scandir(directory) as found:
            entries = [
                (
                    entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name,
                    lambda entry=entry: int(entry.stat(follow_symlinks=False).st_size),
                )
                for entry in found
                if entry.name.startswith(start)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise to_lsm_error(error, directory) from error
    return sorted(entries, key=lambda entry: os.fsencode(entry[0]))


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
