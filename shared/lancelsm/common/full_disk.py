"""Recognise a full disk, and say so: adapters and libraries report it in many ways."""

from __future__ import annotations

import errno
import os
import re

from lancelsm.errors import Unavailable

_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TEXT = re.compile(
    r"no space left|disk quota exceeded|file too large|os error (?:28|122|27)\b|errno (?:28|122|27)\b", re.I
)
_LEAST_BYTES = 64 << 10  # with less than this, a failed write has no other likely cause


def no_room(reason: str, **where: str) -> Unavailable:
    """Build the error for a write that the disk has no room for. `where` names the path, table or object."""
    remedy = "Free space on the file system of this path, then retry"
    return Unavailable(f"the disk is full: {reason}", remedy=remedy, **where)


def means_full(error: OSError) -> bool:
    """Return whether an error of the file system says that the disk is full, or that a file may not grow."""
    return error.errno in _ERRORS


def says_full(text: str) -> bool:
    """Return whether the text of a library's error says that the disk is full."""
    return _TEXT.search(text) is not None


def is_full(path: str) -> bool:
    """Return whether the file system of an existing path has no room. For errors that don't say what failed."""
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _LEAST_BYTES
