"""Flush: fold the committed log of a table's regions into generations."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.compaction.maintenance import flush_table
from lancelsm.region.handle import open_table
from lancelsm.stack import documents
from lancelsm.stack.function import Document, FunctionCall, function, parsed, place, settings

SETTINGS = settings("LANCELSM_TABLES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Which regions; by default all.

    Everything that was acknowledged before is in generations when it returns. Repeated or interrupted it does no harm:
    each generation is committed by itself, and what is done is not done again.

    Returns:
        {"generations": [{"region", "generation", "rows", "path"}]}, as `lancelsm flush`.

    Raises:
        Invalid: no such table or region.
        Contended, Ambiguous, Unavailable: do it again.
        Corrupt: names the object; the region stops.
    """

    table: str
    region: str | None = None


@function
def handler(event: Document, call: FunctionCall) -> Document:
    asked = parsed(Input, event)
    handle = open_table(place(asked.table, root=SETTINGS["LANCELSM_TABLES"]))
    made = flush_table(handle, region=asked.region)
    call.telemetry.measure("generations_flushed", len(made), table=handle.context.uri)
    call.telemetry.measure("rows_flushed", sum(one.rows for one in made), table=handle.context.uri)
    return documents.flushed(made)
