"""Flush the log of a table's regions into generations; the deployment calls this function `compaction`."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.errors import Invalid
from lancelsm.region.handle import open_table
from lancelsm.stack import documents
from lancelsm.stack.fan_out import SqsChunks
from lancelsm.stack.flush_run import flush_in_time
from lancelsm.stack.function import Document, FunctionCall, function, parse_event, settings, table_uri

SETTINGS = settings("LANCELSM_TABLES", "LANCELSM_DISPATCH_QUEUE_URL")
QUEUE = SqsChunks(SETTINGS["LANCELSM_DISPATCH_QUEUE_URL"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Which regions to flush; by default all.

    It is safe to repeat or interrupt: each generation is committed separately and is not written again.

    Args:
        region: one region, by its id or the start of it.
        regions: these regions, each under a lease. `dispatch` starts the function this way. A region that another
            invocation flushes now is left out. If the time was not enough, a message lets `dispatch` go on at once.

    Returns:
        {"generations": [{"region", "generation", "rows", "path"}], "left": whether to call it again, "overtaken": [ids
        of regions that another invocation flushes]}. If nothing is left, all rows acknowledged before the call are in
        generations. Something is left if the time was not enough.

    Raises:
        Invalid: table or region not found.
        Contended, Ambiguous, Unavailable: call it again.
        Corrupt: an object is damaged; names it. The region stops.
    """

    table: str
    region: str | None = None
    regions: list[str] | None = None


@function
def handler(event: Document, call: FunctionCall) -> Document:
    request = parse_event(Input, event)
    if request.region is not None and request.regions is not None:
        raise Invalid("the event has both 'region' and 'regions'", remedy="Give one of them", field="regions")
    handle = open_table(table_uri(request.table, root=SETTINGS["LANCELSM_TABLES"]))
    done = flush_in_time(handle, region=request.region, leased=request.regions, seconds=call.seconds)
    for region in done.overtaken:
        call.telemetry.log("overtaken, nothing written", table=handle.context.uri, region=region)
    call.telemetry.measure("generations_flushed", len(done.flushed), table=handle.context.uri)
    call.telemetry.measure("rows_flushed", sum(one.rows for one in done.flushed), table=handle.context.uri)
    if done.stopped and request.regions is not None:
        QUEUE.send([{handle.config.table: done.stopped}])  # `dispatch` starts the next invocation at once
    return {**documents.flushed(done.flushed), "left": done.left, "overtaken": list(done.overtaken)}
