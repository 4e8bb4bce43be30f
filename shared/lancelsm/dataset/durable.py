"""Make local datasets survive a power failure: Lance itself does not sync its files."""

from __future__ import annotations

import errno
import os

from lancelsm.common.full_disk import means_full, no_room
from lancelsm.common.layout import PRIVATE
from lancelsm.errors import Corrupt, Unavailable
from lancelsm.objects.location import local_path


def make_durable(uri: str) -> None:
    """Sync every file and directory of a local dataset, and its parent directory. Do nothing for an object store.

    Skips lancelsm's own directory, whose files are synced when they are written. Opening and closing the registry's
    SQLite file here would also release all locks that this process holds on it. Skips symbolic links.

    Raises:
        Corrupt: a file was removed meanwhile.
        Unavailable: the disk failed.
    """
    path = local_path(uri)
    if path is None:
        return
    path = path.resolve()
    try:
        for directory, folders, names in os.walk(path):
            folders[:] = [folder for folder in folders if folder != PRIVATE]
            for found in [*(os.path.join(directory, name) for name in names), directory]:
                _sync(found)
        _sync(str(path.parent))
    except FileNotFoundError as gone:
        raise Corrupt("a file was removed before it was durable", remedy="Retry", object=gone.filename) from gone
    except OSError as failed:
        if means_full(failed):
            raise no_room(f"files can't be made durable: {failed.strerror}", object=uri) from failed
        raise Unavailable(f"files can't be made durable: {failed}", object=uri) from failed


def _sync(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:  # it is a symbolic link
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
