"""Read everything that a table consists of, and name what is missing or wrong."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.scrub.table import scrub_place
from lancelsm.stack import documents
from lancelsm.stack.function import Document, FunctionCall, function, parsed, place, settings

SETTINGS = settings("LANCELSM_TABLES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Which table, or of it one region (by its id or the start of it) or what one snapshot, `at`, needs.

    `limit` is how many objects are read at most. What is wrong is no error: `ok` is false then.

    Raises:
        Invalid: no such table, region or snapshot.
        Unavailable: call it again.
    """

    table: str
    region: str | None = None
    at: str | None = None
    limit: int | None = None


@function
def handler(event: Document, _call: FunctionCall) -> Document:
    asked = parsed(Input, event)
    uri = place(asked.table, root=SETTINGS["LANCELSM_TABLES"])
    return documents.scrubbed(scrub_place(uri, region=asked.region, at=asked.at, limit=asked.limit))
