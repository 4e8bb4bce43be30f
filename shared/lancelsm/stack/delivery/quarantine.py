"""Dead letters: rows that can never be applied, the reason, and where the region's log was when they were quarantined.

A dead letter is {"format", "reason": the error document, "queue", "id", "sequence": of the delivery} and one of these:

* "table", "region", "position", "entry_setsum", "whole": whether these are all rows of the message, "message": a
  message of the write queue with only these rows, and "inbox": the inbox with the object of that message;
* "body": the text of a message that can't be decoded;
* "object" and "inbox": the object with that text, if the text is too large.

Entries from `position` on are newer than the rows. `entry_setsum` is the sum of the entries before `position`; with it
a redrive proves that it read every newer entry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lancelsm.common.formats import check_format
from lancelsm.common.json_text import parse_json
from lancelsm.common.layout import Nonce, Position
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Invalid, LsmError
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
from lancelsm.wal.replay import LogEnd

FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Quarantined rows and the position in their region's log at that time."""

    reason: str
    queue: str
    id: str
    sequence: int
    whole: bool  # True: these are all rows of its message
    message: Message
    inbox: str  # the URI of the inbox that holds the message's object
    position: Position
    entry_setsum: Setsum


def quarantine(
    delivery: Delivery, error: LsmError, *, nonce: Nonce, source: str, inbox: Inbox, dead_letters: Queue
) -> None:
    """Quarantine a message of which only the text is known. See `quarantine_rows`."""
    dead_letter = {"body": delivery.body}
    if len(json.dumps(delivery.body)) > BYTES_MAX - SPARE:  # JSON within JSON is larger than the text itself
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
    head: LogEnd,
    whole: bool,
    nonce: Nonce,
    source: str,
    inbox: Inbox,
    dead_letters: Queue,
) -> None:
    """Quarantine rows of a message. Return when the dead-letter queue has them.

    If the message is delivered again, the same rows are quarantined again. Within 5 minutes the queue drops the
    duplicate; later the rows are on the queue twice.

    Args:
        head: a head under which everything before the message is applied and the message itself is not.
        whole: no other row of the message is to be applied.
        nonce: names the object, if one is needed. An object of an earlier attempt would expire before the dead letter.

    Raises:
        Unavailable, Invalid: the queue or the inbox did not accept the rows.
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
        "message": parse_json(encode(alone)),
    }
    _put(dead_letter, delivery, error, contents=stream.hex(), source=source, dead_letters=dead_letters)


def read_dead_letter(body: str) -> DeadLetter:
    """Decode a dead letter of `quarantine_rows`.

    Raises:
        Invalid: it is another form, whose position in the log is unknown, or its sums are SHA3-256.
        Unavailable: a newer release wrote it.
    """
    document = read_document(body, what="dead letter", newest=FORMAT)
    remedy = "Write its rows again, or delete it"
    check_format(document["format"], newest=FORMAT, what="dead letter", remedy=remedy)
    if "position" not in document:
        raise Invalid("its position in the log is unknown", remedy=remedy)
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
        raise Invalid(f"the dead letter can't be read: {error!r:.200}") from error


def describe_dead_letter(body: str) -> tuple[str, str]:
    """Return the message id of a dead letter and why it was quarantined, also if `read_dead_letter` refuses it.

    Both are empty if it has none: the queue itself moves messages there unchanged after too many receives.
    """
    try:
        document = parse_json(body)
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
    """Send a dead letter in its own group, so that none waits for another. The same rows of a message are sent once."""
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
