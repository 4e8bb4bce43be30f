"""Local datasets that survive a loss of power: Lance leaves its files to the operating system."""

from __future__ import annotations

import os

from lancelsm.common.layout import PRIVATE
from lancelsm.errors import Corrupt, Unavailable
from lancelsm.objects.open import local_path


def make_durable(uri: str) -> None:
    """Sync every file and directory of a dataset, and the name of its own; does nothing for an object store's.

    Not what lies beside a base that is ours, which who wrote it has synced: opening the registry's file, and closing
    it, would take from SQLite every lock that this process has on it.

    Raises:
        Corrupt: something of it was removed meanwhile.
        Unavailable: the disk failed.
    """
    path = local_path(uri)
    if path is None:
        return
    try:
        for place, folders, names in os.walk(path):
            folders[:] = [folder for folder in folders if folder != PRIVATE]
            for found in [*(os.path.join(place, name) for name in names), place]:
                _sync(found)
        _sync(str(path.parent))
    except FileNotFoundError as gone:
        raise Corrupt("a file was removed before it was durable", remedy="Run it again", object=gone.filename) from gone
    except OSError as failed:
        raise Unavailable(f"files can't be made durable: {failed}", object=uri) from failed


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
