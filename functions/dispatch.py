"""Start flushes and merges that are due, in the tables where something was written."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.common import aws
from lancelsm.common.clock import SystemClock, SystemIds
from lancelsm.errors import LsmError
from lancelsm.region.handle import open_configured
from lancelsm.registry.dynamodb import DynamoRegistry
from lancelsm.stack.dispatch import Elsewhere, dispatch
from lancelsm.stack.function import Document, FunctionCall, function, parsed, settings

SETTINGS = settings("LANCELSM_REGISTRY", "LANCELSM_COMPACTION", "LANCELSM_MERGE_MACHINE")
REGISTRY = DynamoRegistry(
    SETTINGS["LANCELSM_REGISTRY"].removeprefix("dynamodb:"),
    client=aws.client("dynamodb"),
    clock=SystemClock(),
    ids=SystemIds(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Nothing, as the schedule sends it; or the URI of the one table to look at.

    Returns:
        {"flushed": [URIs of the tables whose flush was started], "merges": [ARNs of executions]}. A merge that an
        earlier call started, with nothing new since, is named again and not started again.

    Raises:
        What was wrong with one table, once the others are served; each is in the log. Unavailable: do it again.
    """

    table: str | None = None


@function
def handler(event: Document, call: FunctionCall) -> Document:
    asked = parsed(Input, event)
    elsewhere = Elsewhere(compaction=SETTINGS["LANCELSM_COMPACTION"], machine=SETTINGS["LANCELSM_MERGE_MACHINE"])
    only = None if asked.table is None else asked.table.rstrip("/")
    done = dispatch(REGISTRY, open_table=open_configured, work=elsewhere, only=only)
    for table in done.flushed:
        call.telemetry.measure("flushes_started", 1, table=table)
    for table, error in done.failed.items():
        call.telemetry.log("a table was left out", table=table, kind=getattr(error, "kind", type(error).__name__))
    if done.failed:
        first = next(iter(done.failed.values()))
        if isinstance(first, LsmError):
            first.where.setdefault("tables_left_out", len(done.failed))
        raise first
    return {"flushed": list(done.flushed), "merges": list(done.merges)}
