"""Local datasets that survive a loss of power: Lance leaves its files to the operating system."""

from __future__ import annotations

import os

from lancelsm.objects.opening import local_path


def make_durable(uri: str) -> None:
    """Sync every file and directory of a dataset, and the name of its own; does nothing for an object store's."""
    path = local_path(uri)
    if path is None:
        return
    for place, _, names in os.walk(path):
        for found in [*(os.path.join(place, name) for name in names), place]:
            _sync(found)
    _sync(str(path.parent))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
