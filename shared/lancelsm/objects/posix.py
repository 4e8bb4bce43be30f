"""File system primitives of the local adapters: durable directories, and locks.

A lock is an `flock` on a descriptor that is opened for one use. So threads exclude each other like processes do, and a
forked child inherits no lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from lancelsm.common.full_disk import means_full, no_room
from lancelsm.errors import Invalid, LsmError, Unavailable

Fsync = Callable[[int], None]

_NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def sync_directory(directory: str, fsync: Fsync) -> None:
    """Make the entries of a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: str, fsync: Fsync) -> None:
    """Create a directory and its parents durably. Do nothing if it exists."""
    try:
        os.mkdir(directory)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_directory(os.path.dirname(directory), fsync)
        with suppress(FileExistsError):
            os.mkdir(directory)
    sync_directory(os.path.dirname(directory), fsync)


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Context manager that holds the exclusive lock at `path`; its directory must exist."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Closing is not enough: a child that was forked meanwhile shares the open file and so the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, *, wait: bool) -> bool:
    """Lock an open file until it is closed. Return False if another descriptor has the lock and `wait` is False."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def locks_work(directory: str) -> bool:
    """Return whether two descriptors of one file exclude each other by `flock` and by the record locks of SQLite."""
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".probe-") as one, open(one.name, "rb+") as other:
        try:
            fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _refused(lambda: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)):
                return False
            fcntl.flock(one, fcntl.LOCK_UN)
            fcntl.lockf(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        by_open_file = getattr(fcntl, "F_OFD_SETLK", None)
        if by_open_file is None:
            return True
        # Ordinary record locks belong to the process. Only open file description locks conflict within a process.
        whole_file = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return _refused(lambda: fcntl.fcntl(other, by_open_file, whole_file))


def _refused(take: Callable[[], object]) -> bool:
    try:
        take()
    except OSError as error:
        return error.errno in (errno.EAGAIN, errno.EACCES)
    return False


def to_lsm_error(error: OSError, path: str) -> LsmError:
    """Translate an error of the file system; the result names the path."""
    reason = error.strerror or str(error)
    if means_full(error):
        return no_room(reason, path=path)
    if error.errno in _NO_ACCESS:
        return Invalid(f"no access: {reason}", remedy="Grant this user read and write access", path=path)
    if error.errno in _NO_LOCKS:
        return Invalid(f"no file locks: {reason}", remedy="Use a file system with working locks", path=path)
    if error.errno in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
        return Invalid(f"no such location: {reason}", remedy="Use another key", path=path)
    return Unavailable(f"the file system failed: {reason}", remedy="Check the disk", path=path)
