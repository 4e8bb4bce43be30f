"""Rows to the queue: routed, refused where a region takes none, and sent in messages that may be sent again.

A request names each key once, so its messages share no key and their order among themselves doesn't matter: one that
was refused alone is sent again alone. Requests of one producer keep their order if it waits for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from lancelsm.common.clock import Budget
from lancelsm.common.layout import RegionId, region_id
from lancelsm.errors import Invalid, LsmError, Unavailable, error_context
from lancelsm.region.catalog import check_writable
from lancelsm.region.handle import TableHandle, WriteTarget
from lancelsm.routing.route import Routed, route
from lancelsm.stack.delivery.message import BYTES_MAX, Message, dedup_id, encode, fits, group_id, split
from lancelsm.stack.delivery.queue import BATCH, Outgoing, Queue, Sent
from lancelsm.stack.delivery.table_cache import Inbox

_SECONDS_MAX = 240.0  # the queue knows a message again for 5 minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPart:
    """A message that the queue holds."""

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
) -> list[SentPart]:
    """Send rows to the queue, as few messages as they fit in.

    Args:
        rows: in stored form, each key once.
        producer, sequence: name the request; the same pair within 5 minutes is the same request.
        by_reference: what doesn't fit a message travels beside it, in the inbox.
        seconds: for everything.

    Returns:
        The messages, once the queue holds all of them. They are not visible to readers yet.

    Raises:
        Invalid: a region is sealed, or a row alone is too big for a message. Nothing was sent.
        Unavailable: a region has too many generations that the base lacks, or the queue or a store failed. `rows_sent`
            says how many rows the queue holds nevertheless; without it none.

    A crash at any line leaves some of the messages sent; the same request again completes them.
    """
    with error_context(table=handle.context.uri):
        target = handle.target()
        routed = route(rows, target.regions)
        for refusal in target.context.each(partial(_refusal, target), routed):
            if refusal is not None:
                refusal.remedy = f"{refusal.remedy}. Nothing was sent"
                raise refusal
        parts = [
            part
            for one in routed
            for part in _parts(one, rows, target, inbox, producer, sequence, by_reference=by_reference)
        ]
        budget = Budget(clock=target.context.clock, ids=target.context.ids, seconds=min(seconds, _SECONDS_MAX))
        return _send(parts, queue=queue, budget=budget)


def _refusal(target: WriteTarget, part: Routed) -> LsmError | None:
    """Why a region takes no rows now. One that doesn't exist yet takes them: the writer makes it."""
    try:
        region = target.directory.find(part.values)
        head = None if region is None else region.find_head()
        if region is None or head is None:
            return None
        check_writable(region, head, owner=head.owner)
        if head.pending_generations >= target.settings.pending_generations_stop:
            return Unavailable(
                f"{head.pending_generations} generations wait to be merged",
                remedy=f"Merge them: lancelsm merge {target.context.uri}, then send again",
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
) -> Iterator[_Part]:
    """The messages of one region: the same request gives the same ones."""
    region = region_id(table=target.context.table, spec_id=target.regions.spec_id, values=routed.values)
    frame = Message(
        table=target.context.uri, region=region, values=routed.values, producer=producer, sequence=sequence, object=""
    )
    first = 0
    for some, stream in split(routed.rows, frame=frame):
        # By their rows, since another release, or another schema, may split the same request elsewhere.
        held = range(first, first + some.num_rows)
        first = held.stop
        dedup = dedup_id(producer=producer, sequence=sequence, region=region, rows=held)
        packed_rows: bytes | None = stream
        key: str | None = None
        if not fits(frame, stream):
            if not by_reference:
                raise Invalid(
                    f"a row alone is too big for a message of {BYTES_MAX} bytes; counted without rows that a later row "
                    "of the same key replaces",
                    remedy=f"Pass it by reference: put the rows below {inbox.uri}/ and name the object",
                    row=_place(some, rows),
                )
            # A name of its own: after 5 minutes the same producer and sequence may stand for other rows.
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
        )
        outgoing = Outgoing(body=encode(message), group=group_id(target.context.table, region), dedup=dedup)
        yield _Part(region=region, rows=some.num_rows, outgoing=outgoing)


def _place(row: pa.Table, rows: pa.Table) -> int:
    return next(n for n in range(rows.num_rows) if rows.slice(n, 1).equals(row))


def _send(parts: Sequence[_Part], *, queue: Queue, budget: Budget) -> list[SentPart]:
    """All parts, those that failed again until the budget is spent."""
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
    """The parts that wait, in calls of as many as the queue takes at once."""
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
