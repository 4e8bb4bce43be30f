"""A batch of the queue to entries of the log; or, invoked directly, rows in and positions out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lancelsm.common.clock import SystemClock
from lancelsm.stack.delivery import events
from lancelsm.stack.delivery.queue import SqsQueue
from lancelsm.stack.delivery.request import Op, stored_rows, write
from lancelsm.stack.delivery.table_cache import Inbox, Tables
from lancelsm.stack.function import Document, FunctionCall, function, parsed, settings

SETTINGS = settings("LANCELSM_TABLES", "LANCELSM_WORK", "LANCELSM_QUEUE_URL", "LANCELSM_DEAD_LETTER_URL")
TABLES = Tables(SETTINGS["LANCELSM_TABLES"])
INBOX = Inbox.below(SETTINGS["LANCELSM_WORK"])
QUEUE = SqsQueue(SETTINGS["LANCELSM_QUEUE_URL"], clock=SystemClock())
DEAD_LETTERS = SqsQueue(SETTINGS["LANCELSM_DEAD_LETTER_URL"], clock=SystemClock())


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Rows for one table, as for `ingest`, that are durable and visible when the answer comes.

    Output: {"rows", "entries": [{"region", "position", "rows"}]}.

    An SQS event is input too: {"Records": [...]}. Its output is {"batchItemFailures": [{"itemIdentifier"}]}, the
    messages that have to come again.
    """

    table: str
    upserts: list[dict[str, Any]] | None = None
    deletes: list[dict[str, Any]] | None = None
    arrow: str | None = None
    object: str | None = None
    op: Op = "upsert"


@function
def handler(event: Document, call: FunctionCall) -> Document:
    if events.is_batch(event):
        return events.answer(event, call, tables=TABLES, inbox=INBOX, queue=QUEUE, dead_letters=DEAD_LETTERS)
    given = parsed(Input, event)
    handle = TABLES.open(given.table)
    rows = stored_rows(given, handle=handle, inbox=INBOX)
    return write(rows, handle=handle, seconds=call.seconds)
