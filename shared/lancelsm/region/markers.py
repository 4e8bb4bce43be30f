"""Notes at a table's place: of what a copy of a table is made, and that a table is being dropped.

Each says of which `table` it is and where that has its `registry`, so that what was begun there can be dropped.
"""

from __future__ import annotations

import json

from lancelsm.errors import Corrupt
from lancelsm.objects import ObjectStore

REMEDY = "Remove that object, then drop what is there; if that is a clone, drop its snapshot in the source too"


def read_note(store: ObjectStore, key: str) -> dict[str, str] | None:
    """What a note says, or None if there is none; raises as `decode_note`."""
    found = store.get(key)
    return None if found is None else decode_note(found.body, key)


def decode_note(body: bytes, key: str) -> dict[str, str]:
    """What a note says, whose bytes were read; raises `Corrupt` for what is none."""
    try:
        note = json.loads(body)
    except ValueError:
        note = None
    if (
        not isinstance(note, dict)
        or not {"table", "registry"} <= note.keys()
        or not all(isinstance(value, str) for value in note.values())
    ):
        raise Corrupt("the note of what was begun there is unreadable", remedy=REMEDY, object=key)
    return note
