"""A batch as Lambda hands it over: deliveries in, the ids of those that have to come again out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lancelsm.common.clock import Ids
from lancelsm.errors import LsmError
from lancelsm.stack.delivery.apply import BatchPorts, MessageResult, apply
from lancelsm.stack.delivery.queue import Delivery, Queue, delivery
from lancelsm.stack.delivery.table_cache import Inbox, Tables
from lancelsm.stack.function import Document, FunctionCall

_SECONDS_MAX = 60
# The queue gives a message up at its 1,000th receive: with a minute each that came long before the 14 days it waits.
_RECEIVES_SOON = 500
_SECONDS_LATE = 2500


def is_batch(event: Mapping[str, Any]) -> bool:
    return "Records" in event


def answer(
    event: Document, call: FunctionCall, *, tables: Tables, inbox: Inbox, queue: Queue, dead_letters: Queue
) -> Document:
    """Apply an SQS event as `applying.apply`, and put off what failed.

    Returns:
        {"batchItemFailures": [{"itemIdentifier": message id}]}: what Lambda leaves on the queue. All else it deletes.

    Raises:
        LsmError: the queue doesn't say who it is. All of the batch comes again.
    """
    deliveries = [
        delivery(record["messageId"], record["receiptHandle"], record["body"], record["attributes"])
        for record in event["Records"]
    ]
    begun = tables.ports.clock.monotonic()
    ports = BatchPorts(tables=tables, inbox=inbox, dead_letters=dead_letters, source=queue.identity())
    applied = apply(deliveries, ports=ports, seconds=call.seconds - (tables.ports.clock.monotonic() - begun))
    for table, entry in applied.entries:
        call.telemetry.measure("rows", entry.rows, table=table)
    for outcome in applied.outcomes:
        _tell(outcome, call)
    failed = [outcome for outcome in applied.outcomes if outcome.again is not None]
    try:
        postpone([outcome.delivery for outcome in failed], queue=queue, ids=tables.ports.ids)
    except LsmError as error:  # then it comes again when its time on the queue is over
        call.telemetry.log("nothing was put off", reason=error.redacted)
    return {"batchItemFailures": [{"itemIdentifier": outcome.delivery.id} for outcome in failed]}


def _tell(outcome: MessageResult, call: FunctionCall) -> None:
    """Names only: what is wrong with a row may quote it."""
    if outcome.bug is not None:
        call.telemetry.bug(outcome.bug, table=outcome.table, message_id=outcome.delivery.id)
    if outcome.again is not None:
        call.telemetry.failed(outcome.again)
    elif outcome.rejection is not None:
        where = outcome.rejection.where
        facts = {"table": outcome.table, "message_id": outcome.delivery.id, "field": where.get("field", "")}
        call.telemetry.log("rows were set aside", **facts)
        call.telemetry.measure("quarantined", 1, table=outcome.table)


def postpone(deliveries: Sequence[Delivery], *, queue: Queue, ids: Ids) -> None:
    """Let messages come again, those of a group together: their first one holds the others back anyway."""
    delays: dict[str, int] = {}
    receipts: dict[int, list[str]] = {}
    for one in sorted(deliveries, key=lambda one: one.sequence):
        if one.group not in delays:
            delays[one.group] = delay(one.receives, chance=ids.uniform())
        receipts.setdefault(delays[one.group], []).append(one.receipt)
    for seconds, some in receipts.items():
        queue.postpone(some, seconds=seconds)


def delay(receives: int, *, chance: float) -> int:
    """Seconds until a message comes again: twice as many each time, up to a minute, and up to a quarter more. What has
    come back for half a day comes more rarely, so that it still waits when 14 days are over."""
    seconds: int = min(_SECONDS_MAX, 1 << min(receives, 16)) if receives <= _RECEIVES_SOON else _SECONDS_LATE
    return round(seconds * (1 + chance / 4))
