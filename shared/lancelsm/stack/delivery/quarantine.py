"""What lies on the dead-letter queue: rows that will never fit, why, and where their region's log stood then.

{"format", "reason": the error document, "queue", "id", "sequence": of the delivery, and then either "table", "region",
"position", "entry_setsum", "whole": whether these are all rows of the message, and "message": as on the write queue,
with these rows alone ("inbox": where its object is); or "body": the text of a message of which no more is known, or
"object" and "inbox": where that text is if it is too large}. What the log holds from `position` on is newer than the
rows; `entry_setsum` sums what was committed before, so that a redrive can prove that it saw everything after.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lancelsm.common.layout import Nonce, Position
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Invalid, LsmError
from lancelsm.region.head import Head
from lancelsm.stack.delivery.message import (
    BYTES_MAX,
    SPARE,
    Message,
    decode,
    digest,
    encode,
    fits,
    packed,
    read_document,
)
from lancelsm.stack.delivery.queue import Delivery, Outgoing, Queue
from lancelsm.stack.delivery.table_cache import Inbox

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Rows that were set aside, and where they belong in their region's log."""

    reason: str
    queue: str
    id: str
    sequence: int
    whole: bool  # nothing else of its message is still to be applied
    message: Message
    inbox: str  # the URI of the inbox that holds the message's object
    position: Position
    entry_setsum: Setsum


def quarantine(
    delivery: Delivery, error: LsmError, *, nonce: Nonce, source: str, inbox: Inbox, dead_letters: Queue
) -> None:
    """Set a message aside of which nothing is known but its text; else as `quarantine_rows`."""
    dead_letter = {"body": delivery.body}
    if len(json.dumps(delivery.body)) > BYTES_MAX - SPARE:  # as a text within a text it is larger than it was
        key = f"quarantine/{nonce}.json"
        inbox.put(key, delivery.body.encode())
        dead_letter = {"inbox": inbox.uri, "object": key}
    _put(dead_letter, delivery, error, contents=delivery.body, source=source, dead_letters=dead_letters)


def quarantine_rows(
    rows: pa.Table,
    message: Message,
    delivery: Delivery,
    error: LsmError,
    *,
    head: Head,
    whole: bool,
    nonce: Nonce,
    source: str,
    inbox: Inbox,
    dead_letters: Queue,
) -> None:
    """Set rows of a message aside. Returns once the dead-letter queue holds them.

    Whoever is delivered the message again sets the same rows aside again: the queue takes that for the same letter for
    5 minutes, then they lie there twice.

    Args:
        head: one under which everything before the message is applied and the message itself is not.
        whole: no other row of the message is to be applied.
        nonce: names the object, if one is needed: one that an earlier attempt left would expire before the letter.

    Raises:
        Unavailable, Invalid: the queue or the inbox did not take them.
    """
    stream = packed(rows)
    alone = replace(message, rows=stream, object=None)
    if not fits(alone, stream):
        alone = replace(message, rows=None, object=f"quarantine/{nonce}.arrow")
        inbox.put(alone.object or "", stream)
    dead_letter = {
        "table": message.table,
        "region": message.region,
        "position": head.next_position,
        "entry_setsum": head.entry_setsum.hex(),
        "whole": whole,
        "inbox": inbox.uri,
        "message": json.loads(encode(alone)),
    }
    _put(dead_letter, delivery, error, contents=stream.hex(), source=source, dead_letters=dead_letters)


def read_dead_letter(body: str) -> DeadLetter:
    """Read what `quarantine_rows` wrote.

    Raises:
        Invalid: it holds another thing: where that belongs in the log is not known.
        Unavailable: a newer release wrote it.
    """
    document = read_document(body, what="letter", newest=FORMAT)
    if "position" not in document:
        raise Invalid("it is not known where in the log it belongs", remedy="Write its rows again, or drop it")
    try:
        return DeadLetter(
            reason=str(document["reason"]["message"]),
            queue=str(document["queue"]),
            id=str(document["id"]),
            sequence=int(document["sequence"]),
            whole=bool(document["whole"]),
            message=decode(json.dumps(document["message"])),
            inbox=str(document["inbox"]),
            position=Position(int(document["position"])),
            entry_setsum=Setsum.from_hex(document["entry_setsum"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(f"the letter can't be read: {error!r:.200}") from error


def described(body: str) -> tuple[str, str]:
    """The id of a letter's message, and why it was set aside, also of one that `read_dead_letter` refuses.

    Both are empty where it does not say: the queue itself puts what was received too often there, as it is.
    """
    try:
        document = json.loads(body)
        return str(document["id"]), str(document["reason"]["message"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return "", ""


def _put(
    dead_letter: Mapping[str, Any],
    delivery: Delivery,
    error: LsmError,
    *,
    contents: str,
    source: str,
    dead_letters: Queue,
) -> None:
    """Each letter is a group of its own: none waits for another. The same contents of a message are the same letter."""
    document = {
        "format": FORMAT,
        "reason": error.document()["error"],
        "queue": source,
        "id": delivery.id,
        "sequence": str(delivery.sequence),
        **dead_letter,
    }
    name = digest((source, str(delivery.sequence), contents))
    body = json.dumps(document, separators=(",", ":"), default=str)
    (outcome,) = dead_letters.send([Outgoing(body=body, group=name, dedup=name)])
    if isinstance(outcome, LsmError):
        raise outcome
