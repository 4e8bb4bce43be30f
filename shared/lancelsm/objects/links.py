"""Find symbolic links below the directory of a table, so that nothing is read, written or deleted through one.

The directory of the table itself may be a link. A link below it may lead out of the table.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from lancelsm.errors import Corrupt
from lancelsm.objects.location import local_path

_REMEDY = (
    "Replace it by the files that it points to, or remove it. Only the directory of the table itself may be a link"
)


def linked_part(root: str | Path, key: str) -> str | None:
    """Return the first part of a key that is a symbolic link; None if no part is. Stops at a part that is absent."""
    path, parts = str(root), key.split("/") if key else []
    for number, part in enumerate(parts, start=1):
        path = f"{path}/{part}"
        try:
            if stat.S_ISLNK(os.lstat(path).st_mode):
                return "/".join(parts[:number])
        except OSError:
            return None
    return None


def check_no_link(root: str | Path, key: str) -> None:
    """Raise `Corrupt` if a part of a key is a symbolic link."""
    part = linked_part(root, key)
    if part is not None:
        raise Corrupt(f"{part} is a symbolic link", remedy=_REMEDY, path=f"{root}/{part}", object=key)


def check_directories(uri: str, directories: Iterable[str], *, below: str = "") -> None:
    """Raise `Corrupt` if one of these directories of a local table, or the directory `below` they are in, is a link."""
    root = local_path(uri)
    if root is None:
        return
    check_no_link(root, below)
    inner = f"{root}/{below}" if below else str(root)
    try:
        with os.scandir(inner) as found:
            links = [entry.name for entry in found if entry.is_symlink()]
    except OSError:  # absent: who reads it finds out
        return
    for link in set(links).intersection(directories):
        check_no_link(inner, link)


def first_link(uri: str, directories: Iterable[str]) -> str | None:
    """Return the path, relative to a local table, of a symbolic link in these directories; None if there is none."""
    root = local_path(uri)
    if root is None:
        return None
    for directory in directories:
        if os.path.islink(root / directory):
            return directory
        for parent, folders, files in os.walk(root / directory):
            for name in sorted([*folders, *files]):
                path = os.path.join(parent, name)
                if os.path.islink(path):
                    return os.path.relpath(path, root)
    return None
