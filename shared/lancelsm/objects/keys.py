"""Which keys every adapter can store and list back unchanged."""

from __future__ import annotations

import re

from lancelsm.errors import Invalid

_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def checked(key: str) -> str:
    """The key itself.

    Raises:
        Invalid: it is no text in UTF-8, holds a control character, or has a segment that is empty, `.` or `..`.
    """
    if not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise Invalid("a key's segments are not empty, `.` or `..`", remedy="Use another key", object=key)
    if _NO_TEXT.search(key):
        raise Invalid("a key is text without control characters", remedy="Use another key", object=repr(key))
    return key
