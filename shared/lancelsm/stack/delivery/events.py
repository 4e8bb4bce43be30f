"""Apply a batch that Lambda received from the queue. Return the ids of messages that must be delivered again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lancelsm.common.clock import Ids
from lancelsm.errors import Invalid, LsmError
from lancelsm.stack.delivery.apply import BatchPorts, MessageResult, apply
from lancelsm.stack.delivery.queue import Delivery, Queue, delivery, pause
from lancelsm.stack.delivery.table_cache import Inbox, Tables
from lancelsm.stack.function import Document, FunctionCall


def is_batch(event: object) -> bool:
    return isinstance(event, Mapping) and "Records" in event


def answer(
    event: Document, call: FunctionCall, *, tables: Tables, inbox: Inbox, queue: Queue, dead_letters: Queue
) -> Document:
    """Apply an SQS event with `apply.apply`, and postpone the messages that failed.

    Returns:
        {"batchItemFailures": [{"itemIdentifier": message id}]}: the messages that Lambda leaves on the queue. It
        deletes the others.

    Raises:
        LsmError: the identity of the queue could not be read. The whole batch is delivered again.
        Invalid: the event is not a batch of the queue.
    """
    deliveries = _deliveries(event["Records"])
    started = tables.ports.clock.monotonic()
    ports = BatchPorts(tables=tables, inbox=inbox, dead_letters=dead_letters, source=queue.identity())
    applied = apply(deliveries, ports=ports, seconds=call.seconds - (tables.ports.clock.monotonic() - started))
    for one in applied.entries:
        entry = one.entry
        where = {"region": entry.region, "position": entry.position, "rows": entry.rows}
        call.telemetry.log("appended", table=one.table, **where, requests=list(one.requests))
        call.telemetry.measure("rows", entry.rows, table=one.table)
    for outcome in applied.outcomes:
        _report(outcome, call)
    failed = [outcome for outcome in applied.outcomes if outcome.retry is not None]
    try:
        postpone([outcome.delivery for outcome in failed], queue=queue, ids=tables.ports.ids)
    except LsmError as error:  # then messages are delivered again after their visibility timeout
        call.telemetry.log("messages could not be postponed", reason=error.redacted)
    return {"batchItemFailures": [{"itemIdentifier": outcome.delivery.id} for outcome in failed]}


def _deliveries(records: Any) -> list[Delivery]:
    """Decode the records of an event.

    Own code instead of the event source data classes of Powertools: these import 50 modules in 30 ms at each cold
    start, and don't check that a field is there. The batch processors of Powertools apply one record after another;
    here all messages of a region become one entry.
    """
    try:
        return [
            delivery(record["messageId"], record["receiptHandle"], record["body"], record["attributes"])
            for record in records
        ]
    except (KeyError, TypeError, ValueError) as error:
        remedy = "Only the queue of the deployment sends batches; give a table and rows"
        raise Invalid("the event is not a batch of a FIFO queue", remedy=remedy, field="Records") from error


def _report(outcome: MessageResult, call: FunctionCall) -> None:
    """Log names only, since the text of an error may quote a row."""
    if outcome.bug is not None:
        call.telemetry.bug(outcome.bug, table=outcome.table, message_id=outcome.delivery.id)
    facts = {"table": outcome.table, "message_id": outcome.delivery.id, "request": outcome.request}
    if outcome.retry is not None:
        call.telemetry.failed(outcome.retry)
    elif outcome.rejection is not None:
        call.telemetry.log("rows were quarantined", **facts, field=outcome.rejection.where.get("field", ""))
        call.telemetry.measure("quarantined", 1, table=outcome.table)
    elif outcome.repeated:
        call.telemetry.log("applied by an earlier delivery", **facts)


def postpone(deliveries: Sequence[Delivery], *, queue: Queue, ids: Ids) -> None:
    """Delay the next delivery of messages.

    Messages of one group get the same delay: the first blocks the others anyway.
    """
    delays: dict[str, int] = {}
    receipts: dict[int, list[str]] = {}
    for one in sorted(deliveries, key=lambda one: one.sequence):
        if one.group not in delays:
            delays[one.group] = delay(one.receives, chance=ids.uniform())
        receipts.setdefault(delays[one.group], []).append(one.receipt)
    for seconds, some in receipts.items():
        queue.postpone(some, seconds=seconds)


def delay(receives: int, *, chance: float) -> int:
    """Return the seconds until a message is delivered again: the pause, plus up to a quarter at random."""
    return round(pause(receives) * (1 + chance / 4))
