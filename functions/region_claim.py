"""Take regions in a fresh epoch: whoever holds them is fenced."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.region.catalog import chosen
from lancelsm.region.handle import open_configured
from lancelsm.stack import documents
from lancelsm.stack.function import Document, FunctionCall, function, parsed, place, settings
from lancelsm.wal.claim import claim

SETTINGS = settings("LANCELSM_TABLES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Which regions, for whom; by default all, for the table's ordinary writers.

    After the crash of an exclusive writer this gives its regions back to everybody.

    Returns:
        {"regions": [{"region", "epoch", "owner", "status", "values"}]}, as `lancelsm region claim`.

    Raises:
        Invalid: no such table or region; the region is sealed.
        Ambiguous, Unavailable, Corrupt: regions before this one are claimed; do it again.
    """

    table: str
    region: str | None = None
    owner: str | None = None


@function
def handler(event: Document, call: FunctionCall) -> Document:
    asked = parsed(Input, event)
    handle = open_configured(place(asked.table, root=SETTINGS["LANCELSM_TABLES"]))
    owner = asked.owner or handle.config.owner
    claimed = [(region, claim(region, owner=owner)) for region in chosen(handle.context, asked.region)]
    call.telemetry.measure("regions_claimed", len(claimed), table=handle.context.uri)
    return documents.held(claimed, handle.config.regions)
