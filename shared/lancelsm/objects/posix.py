"""What the local adapters ask of a file system: directories that survive a power failure, and locks that hold.

Locks are `flock` on a descriptor that is opened for one use: threads exclude each other like processes do, and a fork
inherits nothing that it could hold by accident.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from lancelsm.errors import Invalid, LsmError, Unavailable

Fsync = Callable[[int], None]

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
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
    """Create a directory and those above it, durably; nothing happens if it exists."""
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
    """Hold the lock at `path` against every thread and process; its directory exists."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Closing would not do: a child forked meanwhile holds the same open file, hence the same lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def held(descriptor: int, *, wait: bool) -> bool:
    """Take the lock of an open file until it is closed; False if another has it and we don't wait."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def locks_hold(directory: str) -> bool:
    """Whether two descriptors of one file exclude each other, by `flock` and by the record locks that SQLite takes."""
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
        # Record locks belong to the process; only one that belongs to the open file can conflict within a process.
        whole_file = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return _refused(lambda: fcntl.fcntl(other, by_open_file, whole_file))


def _refused(take: Callable[[], object]) -> bool:
    try:
        take()
    except OSError as error:
        return error.errno in (errno.EAGAIN, errno.EACCES)
    return False


def explained(error: OSError, path: str) -> LsmError:
    """What an error of the file system means for the caller, naming the path."""
    reason = error.strerror or str(error)
    if error.errno in _NO_ROOM:
        return Unavailable(f"no room: {reason}", remedy="Free space on the file system", path=path)
    if error.errno in _NO_ACCESS:
        return Invalid(f"no access: {reason}", remedy="Grant this user read and write access", path=path)
    if error.errno in _NO_LOCKS:
        return Invalid(f"no file locks: {reason}", remedy="Use a file system with working locks", path=path)
    if error.errno in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
        return Invalid(f"no such place: {reason}", remedy="Use another key", path=path)
    return Unavailable(f"the file system failed: {reason}", remedy="Check the disk", path=path)
