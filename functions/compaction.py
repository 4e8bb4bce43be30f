"""Flush the log of a table's regions into generations; the deployment calls this function `compaction`."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.compaction.maintenance import flush_table
from lancelsm.region.handle import open_table
from lancelsm.stack import documents
from lancelsm.stack.function import Document, FunctionCall, function, parse_event, settings, table_uri

SETTINGS = settings("LANCELSM_TABLES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Which regions to flush; by default all.

    When the function returns, all rows acknowledged before the call are in generations. It is safe to repeat or
    interrupt: each generation is committed separately and is not written again.

    Returns:
        {"generations": [{"region", "generation", "rows", "path"}]}, like `lancelsm flush`.

    Raises:
        Invalid: table or region not found.
        Contended, Ambiguous, Unavailable: call it again.
        Corrupt: an object is damaged; names it. The region stops.
    """

    table: str
    region: str | None = None


@function
def handler(event: Document, call: FunctionCall) -> Document:
    request = parse_event(Input, event)
    handle = open_table(table_uri(request.table, root=SETTINGS["LANCELSM_TABLES"]))
    flushed = flush_table(handle, region=request.region)
    call.telemetry.measure("generations_flushed", len(flushed), table=handle.context.uri)
    call.telemetry.measure("rows_flushed", sum(one.rows for one in flushed), table=handle.context.uri)
    return documents.flushed(flushed)
