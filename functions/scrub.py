"""Read everything that a table consists of, and name what is missing or damaged."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.scrub.table import scrub_location
from lancelsm.stack import documents
from lancelsm.stack.function import Document, FunctionCall, function, parse_event, settings, table_uri

SETTINGS = settings("LANCELSM_TABLES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The table; optionally only one region (its id or the start of it), or what one snapshot, `at`, needs.

    `limit` is the largest number of objects to read. Damage is not an error: `ok` is false then.

    Raises:
        Invalid: table, region or snapshot not found.
        Unavailable: call it again.
    """

    table: str
    region: str | None = None
    at: str | None = None
    limit: int | None = None


@function
def handler(event: Document, _call: FunctionCall) -> Document:
    request = parse_event(Input, event)
    uri = table_uri(request.table, root=SETTINGS["LANCELSM_TABLES"])
    return documents.scrubbed(scrub_location(uri, region=request.region, at=request.at, limit=request.limit))
