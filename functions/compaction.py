"""Flush the log of a table's regions into generations; the deployment calls this function `compaction`."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.compaction.compact import Bounds, compact_table
from lancelsm.compaction.pace import SharedPace
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
        compact: compact the generations of these regions, if they have too many, each under a lease; flush nothing. A
            region that another invocation compacts now is left out. So are generations of more than 2 GiB together. If
            the time was not enough, a message lets `dispatch` go on at once.

    Returns:
        {"generations": [{"region", "generation", "rows", "path"}], "left": whether to call it again, "overtaken": [ids
        of regions that another invocation flushes]}. If nothing is left, all rows acknowledged before the call are in
        generations. `left` is also true for overtaken regions. With `compact`: {"generations": [{"region",
        "first_generation", "generation", "parts", "rows", "path"}], "left"}, like `lancelsm compact`.

    Raises:
        Invalid: table or region not found.
        Contended, Ambiguous, Unavailable: call it again.
        Corrupt: an object is damaged; names it. The region stops.
    """

    table: str
    region: str | None = None
    regions: list[str] | None = None
    compact: list[str] | None = None


@function
def handler(event: Document, call: FunctionCall) -> Document:
    request = parse_event(Input, event)
    given = [name for name in ("region", "regions", "compact") if getattr(request, name) is not None]
    if len(given) > 1:
        raise Invalid(f"the event has both {given[0]!r} and {given[1]!r}", remedy="Give one of them", field=given[1])
    handle = open_table(table_uri(request.table, root=SETTINGS["LANCELSM_TABLES"]))
    if request.compact is not None:
        bounds = Bounds(pace=SharedPace(clock=handle.context.clock, seconds=call.seconds))
        made = compact_table(handle, only=request.compact, leased=True, bounds=bounds)
        replaced = sum(one.parts for one in made)
        call.telemetry.measure("generations_compacted", replaced, table=handle.context.uri)
        if bounds.left:
            QUEUE.send([{handle.config.table: tuple(sorted(bounds.left))}])
        return {**documents.compacted(made), "left": bool(bounds.left)}
    done = flush_in_time(handle, region=request.region, leased=request.regions, seconds=call.seconds)
    for region in done.overtaken:
        call.telemetry.log("overtaken, nothing written", table=handle.context.uri, region=region)
    call.telemetry.measure("generations_flushed", len(done.flushed), table=handle.context.uri)
    call.telemetry.measure("rows_flushed", sum(one.rows for one in done.flushed), table=handle.context.uri)
    if done.stopped and request.regions is not None:
        QUEUE.send([{handle.config.table: done.stopped}])  # `dispatch` starts the next invocation at once
    return {**documents.flushed(done.flushed), "left": done.left, "overtaken": list(done.overtaken)}
