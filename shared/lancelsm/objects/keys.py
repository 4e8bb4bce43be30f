"""Check that every adapter can store a key and list it unchanged."""

from __future__ import annotations

import re

from lancelsm.errors import Invalid

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def is_key(key: str) -> bool:
    """Return whether a key has no segment that is empty, `.` or `..`, so that it can't lead out of the table."""
    return {"", ".", ".."}.isdisjoint(key.split("/"))


def check_key(key: str) -> str:
    """Check a key and return it.

    Raises:
        Invalid: the key is not valid UTF-8, has a control character, or has a segment that is empty, `.` or `..`.
    """
    if not is_key(key):
        raise Invalid("a key has no segments that are empty, `.` or `..`", remedy="Use another key", object=key)
    if _FORBIDDEN.search(key):
        raise Invalid("a key has no control characters and is valid UTF-8", remedy="Use another key", object=repr(key))
    return key
