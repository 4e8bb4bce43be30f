"""Append a batch of the queue to the log; or, invoked directly, append rows and return their positions.

Despite its name, this function only appends. `compaction` flushes.
"""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.common.clock import SystemClock
from lancelsm.stack.delivery import events
from lancelsm.stack.delivery.queue import SqsQueue
from lancelsm.stack.delivery.request import RowsInput, stored_rows, write
from lancelsm.stack.delivery.table_cache import Inbox, Tables
from lancelsm.stack.function import Document, FunctionCall, function, parse_event, settings

SETTINGS = settings("LANCELSM_TABLES", "LANCELSM_WORK", "LANCELSM_QUEUE_URL", "LANCELSM_DEAD_LETTER_URL")
TABLES = Tables(SETTINGS["LANCELSM_TABLES"])
INBOX = Inbox.below(SETTINGS["LANCELSM_WORK"])
QUEUE = SqsQueue(SETTINGS["LANCELSM_QUEUE_URL"], clock=SystemClock())
DEAD_LETTERS = SqsQueue(SETTINGS["LANCELSM_DEAD_LETTER_URL"], clock=SystemClock())


@dataclass(frozen=True, slots=True, kw_only=True)
class Input(RowsInput):
    """Rows for one table, in the forms of `ingest`. They are durable and visible when the function returns.

    Output: {"rows", "entries": [{"region", "position", "rows"}]}.

    An SQS event {"Records": [...]} is input too. Its output is {"batchItemFailures": [{"itemIdentifier"}]}: the
    messages that must be delivered again.
    """


@function
def handler(event: Document, call: FunctionCall) -> Document:
    if events.is_batch(event):
        return events.answer(event, call, tables=TABLES, inbox=INBOX, queue=QUEUE, dead_letters=DEAD_LETTERS)
    request = parse_event(Input, event)
    handle, rows = TABLES.converted(request.table, lambda one: stored_rows(request, handle=one, inbox=INBOX))
    document = write(rows, handle=handle, seconds=call.seconds)
    for entry in document["entries"]:
        call.telemetry.log("appended", table=handle.context.uri, **entry, requests=[call.id])
    call.telemetry.measure("rows", document["rows"], table=handle.context.uri)
    return document
