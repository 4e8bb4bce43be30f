"""Notes at a table's place: of what a copy of a table is made, and that a table is being dropped.

Each says of which `table` it is and where that has its `registry`, so that what was begun there can be dropped.
"""

from __future__ import annotations

import json

from lancelsm.errors import Corrupt
from lancelsm.objects import ObjectStore

REMEDY = "Remove that object, then drop what is there; if that is a clone, drop its snapshot in the source too"


def read_marker(store: ObjectStore, key: str) -> dict[str, str] | None:
    """What a note says, or None if there is none; raises as `decode_marker`."""
    found = store.get(key)
    return None if found is None else decode_marker(found.body, key)


def decode_marker(body: bytes, key: str) -> dict[str, str]:
    """What a note says, whose bytes were read; raises `Corrupt` for what is none."""
    try:
        marker = json.loads(body)
    except ValueError:
        marker = None
    if (
        not isinstance(marker, dict)
        or not {"table", "registry"} <= marker.keys()
        or not all(isinstance(value, str) for value in marker.values())
    ):
        raise Corrupt("the note of what was begun there is unreadable", remedy=REMEDY, object=key)
    return marker
