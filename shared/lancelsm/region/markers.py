"""Marker files at the location of a table: the source of a copy, or the fact that the table is being dropped.

Each marker names the `table` and its `registry`, so that an unfinished copy or drop can be dropped.
"""

from __future__ import annotations

from lancelsm.common.json_text import parse_json
from lancelsm.common.layout import is_id
from lancelsm.errors import Corrupt
from lancelsm.objects import ObjectStore

REMEDY = "Delete this object, then drop the table there; if it is a clone, drop its snapshot in the source too"


def read_marker(store: ObjectStore, key: str) -> dict[str, str] | None:
    """Read a marker file; None if it does not exist. Raises: the same errors as `decode_marker`."""
    found = store.get(key)
    return None if found is None else decode_marker(found.body, key)


def decode_marker(body: bytes, key: str) -> dict[str, str]:
    """Decode the bytes of a marker file; raise `Corrupt` if they are not a marker."""
    try:
        marker = parse_json(body)
    except ValueError:
        marker = None
    if (
        not isinstance(marker, dict)
        or not {"table", "registry"} <= marker.keys()
        or not all(isinstance(value, str) for value in marker.values())
    ):
        raise Corrupt("the marker file of an unfinished copy or drop is unreadable", remedy=REMEDY, object=key)
    if not is_id(marker["table"]):
        what = f"the marker file names a table by an id that is not a UUID: {marker['table']!r}"
        raise Corrupt(what, remedy=REMEDY, object=key, field="table")
    return marker
