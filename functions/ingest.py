"""Rows in, checked and routed, onto the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lancelsm.common.clock import SystemClock
from lancelsm.stack.delivery.queue import SqsQueue
from lancelsm.stack.delivery.request import Op, over_http, stored_rows
from lancelsm.stack.delivery.send import send
from lancelsm.stack.delivery.table_cache import Inbox, Tables
from lancelsm.stack.function import Document, FunctionCall, function, parsed, settings

SETTINGS = settings("LANCELSM_TABLES", "LANCELSM_WORK", "LANCELSM_QUEUE_URL")
TABLES = Tables(SETTINGS["LANCELSM_TABLES"])
INBOX = Inbox.below(SETTINGS["LANCELSM_WORK"])
QUEUE = SqsQueue(SETTINGS["LANCELSM_QUEUE_URL"], clock=SystemClock())


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Rows for one table, as an event or as the JSON body of a call by function URL.

    Exactly one of: upserts (whole rows) and deletes (key columns; they win over upserts of the same keys); arrow, a
    base64 Arrow IPC stream; object, the key of such a stream below work/inbox. `op` says what the latter two are for.

    The same producer and sequence within 5 minutes are the same request, so that it may be repeated; without producer
    it is this invocation's. Requests of one producer stay in order if it waits for each answer.

    Output: {"rows": how many the queue holds now, "messages": [{"region", "id", "sequence"}]}.
    """

    table: str
    upserts: list[dict[str, Any]] | None = None
    deletes: list[dict[str, Any]] | None = None
    arrow: str | None = None
    object: str | None = None
    op: Op = "upsert"
    producer: str | None = None
    sequence: int = 0


def ingest(event: Document, call: FunctionCall) -> Document:
    given = parsed(Input, event)
    handle = TABLES.open(given.table)
    rows = stored_rows(given, handle=handle, inbox=INBOX)
    sent = send(
        rows,
        handle=handle,
        queue=QUEUE,
        inbox=INBOX,
        producer=given.producer or call.id,
        sequence=given.sequence,
        by_reference=given.object is not None,
        seconds=call.seconds,
    )
    call.telemetry.measure("rows", rows.num_rows, table=handle.context.uri)
    messages = [{"region": one.region, "id": one.id, "sequence": one.sequence} for one in sent]
    return {"rows": rows.num_rows, "messages": messages}


handler = function(lambda event, call: over_http(event, call, ingest))
