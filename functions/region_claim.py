"""Claim regions in a new epoch. Their previous owners are fenced."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.region.catalog import select_regions
from lancelsm.region.handle import open_configured
from lancelsm.stack import documents
from lancelsm.stack.function import Document, FunctionCall, function, parse_event, settings, table_uri
from lancelsm.wal.claim import claim

SETTINGS = settings("LANCELSM_TABLES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The regions and the new owner; by default all regions, for the table's ordinary writers.

    After an exclusive writer crashed, this gives its regions back to the ordinary writers.

    Returns:
        {"regions": [{"region", "epoch", "owner", "status", "values"}]}, like `lancelsm region claim`.

    Raises:
        Invalid: table or region not found, or the region is sealed.
        Fenced: another claim came right after this one.
        Contended, Ambiguous, Unavailable, Corrupt: regions before the failed one are claimed; call it again.
    """

    table: str
    region: str | None = None
    owner: str | None = None


@function
def handler(event: Document, call: FunctionCall) -> Document:
    request = parse_event(Input, event)
    handle = open_configured(table_uri(request.table, root=SETTINGS["LANCELSM_TABLES"]))
    owner = request.owner or handle.config.owner
    claimed = [(region, claim(region, owner=owner)) for region in select_regions(handle.context, request.region)]
    call.telemetry.measure("regions_claimed", len(claimed), table=handle.context.uri)
    return documents.region_owners(claimed, handle.config)
