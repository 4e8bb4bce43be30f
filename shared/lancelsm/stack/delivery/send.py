"""Send rows to the queue: check that their regions accept writes, route the rows, and send them in messages that are
safe to repeat.

A request has each key once, so its messages share no keys and their order does not matter: a message that was refused
is sent again alone. Requests of one producer stay in order if it waits for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from lancelsm.common.clock import Budget
from lancelsm.common.layout import RegionId, region_id
from lancelsm.errors import Invalid, LsmError, Unavailable, error_context
from lancelsm.region.catalog import SealedRegion, check_not_stopped, check_takes_plain_writes, check_writable
from lancelsm.region.handle import TableHandle, WriteTarget
from lancelsm.region.resharding import newer_target
from lancelsm.routing.route import Routed, route
from lancelsm.stack.delivery.message import BYTES_MAX, Message, dedup_id, encode, fits, group_id, split
from lancelsm.stack.delivery.queue import BATCH, Outgoing, Queue, Sent
from lancelsm.stack.delivery.stopped import stopped_refusal
from lancelsm.stack.delivery.table_cache import Inbox

_SECONDS_MAX = 240.0  # the queue recognises a message for 5 minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPart:
    """A message that the queue has stored."""

    region: RegionId
    id: str
    sequence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    region: RegionId
    rows: int
    outgoing: Outgoing


def send(
    rows: pa.Table,
    *,
    handle: TableHandle,
    queue: Queue,
    inbox: Inbox,
    producer: str,
    sequence: int,
    by_reference: bool = False,
    seconds: float,
    request: str = "",
) -> list[SentPart]:
    """Send rows to the queue in as few messages as possible.

    Args:
        rows: in stored form, each key once.
        producer, sequence: identify the request: the same pair within 5 minutes is the same request.
        by_reference: put rows that don't fit a message into the inbox.
        seconds: the time for the whole call.
        request: the id of this call, for the log of the function that appends the rows.

    Returns:
        The messages, once the queue has all of them. Readers do not see the rows yet.

    Raises:
        Invalid: a region was sealed by hand, or a single row is too big for a message. Nothing was sent.
        Contended: the table is being resharded. Nothing was sent.
        Unavailable: a region has too many unmerged generations, or its messages have failed for 10 minutes (then
            nothing was sent); or the queue or a store failed. `rows_sent` is the
            number of rows on the queue; if it is missing, there are none.

    A crash at any line leaves some of the messages sent. The same request again sends the rest.
    """
    with error_context(table=handle.context.uri):
        target, routed = _routed(rows, handle.target(), seconds=seconds)
        parts = [
            part
            for one in routed
            for part in _parts(one, rows, target, inbox, producer, sequence, by_reference=by_reference, request=request)
        ]
        budget = Budget(clock=target.context.clock, ids=target.context.ids, seconds=min(seconds, _SECONDS_MAX))
        return _send(parts, queue=queue, budget=budget)


def _routed(rows: pa.Table, target: WriteTarget, *, seconds: float) -> tuple[WriteTarget, list[Routed]]:
    """Split rows by region, under the newest region spec if a region is sealed. Wait for a reshard that is running.

    Raises: why a region takes no rows now.
    """
    context = target.context
    target = replace(target, context=replace(context, budget_seconds=min(seconds, context.budget_seconds)))
    try:
        while True:
            routed = route(rows, target.regions)
            refusals = target.context.each(partial(_refusal, target), routed)
            refusal = next((one for one in refusals if one is not None), None)
            if refusal is None:
                return target, routed
            if not isinstance(refusal, SealedRegion):  # guard: sender routes again after a reshard
                raise refusal
            target = newer_target(target, refusal)
    except LsmError as error:
        error.remedy = f"{error.remedy}. Nothing was sent"
        raise


def _refusal(target: WriteTarget, part: Routed) -> LsmError | None:
    """Return why a region takes no rows now. A region that does not exist takes rows: the writer creates it."""
    try:
        check_takes_plain_writes({"table": target.context.uri}, ordered=target.context.ordered)
        region = target.directory.find(part.values)
        head = None if region is None else region.find_head()
        if region is None or head is None:
            return None
        check_writable(region, head, owner=head.owner)
        check_not_stopped(region, head)
        check_takes_plain_writes(region.where, ordered=head.ordered)
        if (stopped := stopped_refusal(region)) is not None:
            return stopped
        if head.pending_generations >= target.settings.pending_generations_stop:
            return Unavailable(
                f"{head.pending_generations} generations wait to be merged",
                remedy=f"Merge them with lancelsm merge {target.context.uri}, then send again",
                **region.where,
            )
    except LsmError as error:
        return error
    return None


def _parts(
    routed: Routed,
    rows: pa.Table,
    target: WriteTarget,
    inbox: Inbox,
    producer: str,
    sequence: int,
    *,
    by_reference: bool,
    request: str,
) -> Iterator[_Part]:
    """Yield the messages of one region. The same request gives the same messages."""
    region = region_id(table=target.context.table, spec_id=target.regions.spec_id, values=routed.values)
    frame = Message(
        table=target.context.uri, region=region, values=routed.values, producer=producer, sequence=sequence, object=""
    )
    first = 0
    for some, stream in split(routed.rows, frame=frame):
        # The id depends on the row range, since another release or schema may split the same request differently.
        held = range(first, first + some.num_rows)
        first = held.stop
        dedup = dedup_id(producer=producer, sequence=sequence, region=region, rows=held)
        packed_rows: bytes | None = stream
        key: str | None = None
        if not fits(frame, stream):
            if not by_reference:
                raise Invalid(
                    f"a single row is too big for a message of {BYTES_MAX} bytes; rows that a later row with the same "
                    "key replaces are not numbered",
                    remedy=f"Send it by reference: put the rows below {inbox.uri}/ and give the object's key",
                    row=_row_index(some, rows),
                )
            # The nonce makes the name unique: after 5 minutes the same producer and sequence may mean other rows.
            packed_rows, key = None, f"parts/{dedup}-{target.context.ids.nonce()}.arrow"
            inbox.put(key, stream)
        message = Message(
            table=target.context.uri,
            region=region,
            values=routed.values,
            producer=producer,
            sequence=sequence,
            rows=packed_rows,
            object=key,
            request=request,
        )
        outgoing = Outgoing(body=encode(message), group=group_id(target.context.table, region), dedup=dedup)
        yield _Part(region=region, rows=some.num_rows, outgoing=outgoing)


def _row_index(row: pa.Table, rows: pa.Table) -> int:
    return next(n for n in range(rows.num_rows) if rows.slice(n, 1).equals(row))


def _send(parts: Sequence[_Part], *, queue: Queue, budget: Budget) -> list[SentPart]:
    """Send all parts; repeat those that failed until the budget is spent."""
    sent: dict[int, Sent] = {}
    failure: LsmError | None = None
    for _ in budget.attempts():
        for call in _calls([n for n in range(len(parts)) if n not in sent], parts):
            try:
                outcomes = queue.send([parts[n].outgoing for n in call])
            except LsmError as error:
                outcomes = [error]
            for n, outcome in zip(call, outcomes, strict=False):
                if isinstance(outcome, Sent):
                    sent[n] = outcome
                else:
                    failure = outcome
        if len(sent) == len(parts):
            return [
                SentPart(region=part.region, id=sent[n].id, sequence=sent[n].sequence) for n, part in enumerate(parts)
            ]
        if isinstance(failure, Invalid):
            break
    assert failure is not None
    failure.remedy = "Send the same request again, with the same producer and sequence, within 5 minutes"
    failure.where |= {"rows_sent": rows} if (rows := sum(parts[n].rows for n in sent)) else {}
    raise failure


def _calls(waiting: Sequence[int], parts: Sequence[_Part]) -> Iterator[list[int]]:
    """Group waiting parts into calls within the limits of the queue."""
    call: list[int] = []
    size = 0
    for n in waiting:
        more = len(parts[n].outgoing.body.encode())
        if call and (len(call) == BATCH or size + more > BYTES_MAX):
            yield call
            call, size = [], 0
        call.append(n)
        size += more
    if call:
        yield call
