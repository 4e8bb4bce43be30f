"""Check and route rows, and send them to the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from lancelsm.common.clock import SystemClock
from lancelsm.errors import Invalid
from lancelsm.region.handle import TableHandle
from lancelsm.stack.delivery.queue import SqsQueue
from lancelsm.stack.delivery.request import RowsInput, event_rows, over_http, stored_rows
from lancelsm.stack.delivery.send import send
from lancelsm.stack.delivery.table_cache import Inbox, Tables
from lancelsm.stack.function import Document, FunctionCall, function, parse_event, settings

SETTINGS = settings("LANCELSM_TABLES", "LANCELSM_WORK", "LANCELSM_QUEUE_URL")
TABLES = Tables(SETTINGS["LANCELSM_TABLES"])
INBOX = Inbox.below(SETTINGS["LANCELSM_WORK"])
QUEUE = SqsQueue(SETTINGS["LANCELSM_QUEUE_URL"], clock=SystemClock())


@dataclass(frozen=True, slots=True, kw_only=True)
class Input(RowsInput):
    """Rows for one table, as an event or as the JSON body of a call by function URL.

    Exactly one of: `upserts` (whole rows) and `deletes` (key columns; a delete wins over an upsert of the same key);
    `arrow`, a base64 Arrow IPC stream; `object`, the key of such a stream below work/inbox. `op` is the operation of
    `arrow` and `object`; `events` are change events in `format`, which need no row that is there (docs/how-to/cdc.md).

    The same producer and sequence within 5 minutes are the same request, so a call may be repeated. The default
    producer is this invocation. Requests of one producer stay in order if it waits for each answer.

    Output: {"rows": number of rows on the queue, "messages": [{"region", "id", "sequence"}]}.
    """

    events: list[Any] | None = None
    format: Literal["debezium", "flattened", "rows"] = "debezium"
    producer: str | None = None
    sequence: int = 0


def _rows(request: Input, handle: TableHandle) -> pa.Table:
    if request.events is None:
        return stored_rows(request, handle=handle, inbox=INBOX)
    if (request.upserts, request.deletes, request.arrow, request.object) == (None,) * 4:
        return event_rows(request.events, format=request.format, handle=handle)
    raise Invalid("the event needs rows in exactly one form", remedy="Give events, or rows", field="events")


def ingest(event: Document, call: FunctionCall) -> Document:
    request = parse_event(Input, event)
    handle, rows = TABLES.converted(request.table, lambda handle: _rows(request, handle))
    sent = send(
        rows,
        handle=handle,
        queue=QUEUE,
        inbox=INBOX,
        producer=request.producer or call.id,
        sequence=request.sequence,
        by_reference=request.object is not None,
        seconds=call.seconds,
        request=call.id,
    )
    call.telemetry.measure("rows", rows.num_rows, table=handle.context.uri)
    messages = [{"region": one.region, "id": one.id, "sequence": one.sequence} for one in sent]
    return {"rows": rows.num_rows, "messages": messages}


handler = function(lambda event, call: over_http(event, call, ingest))
