"""The queue port and its SQS adapter. One call is one attempt; errors of AWS are translated here."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from lancelsm.common import aws
from lancelsm.common.clock import Clock
from lancelsm.errors import Invalid, LsmError, Unavailable

BATCH = 10  # messages per call
_OUT_SECONDS = 900  # visibility timeout of received messages: long enough to read a region's log for each message
_PAUSE_MAX = 60
# The queue moves a message to the dead-letter queue at its 1,000th receive. With a minute between receives this would
# happen long before the 14 days that the queue keeps a message, so later receives are further apart.
_RECEIVES_SOON = 500
_PAUSE_LATE = 2500
_IDENTITY_SECONDS = 50.0  # SQS allows a new queue with a deleted queue's name after 60 seconds
_CALLER_ERRORS = ("AccessDenied", "NonExistentQueue", "QueueDoesNotExist", "InvalidClientTokenId", "InvalidAddress")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to send."""

    body: str
    group: str
    dedup: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The id and sequence that the queue gave to a message."""

    id: str
    sequence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One delivery of a message. A message may be delivered again, with another receipt, until it is deleted."""

    id: str
    receipt: str
    body: str
    group: str
    sequence: int  # increases within a group; 20 digits
    receives: int = 1  # number of deliveries, including this one


class Queue(Protocol):
    """A FIFO queue. Messages of a group are delivered in order, and none while an earlier one is in flight."""

    def identity(self) -> str:
        """Return the queue's identity. A queue that was deleted and created again under its name has a new identity."""
        ...

    def send(self, messages: Sequence[Outgoing]) -> list[Sent | LsmError]:
        """Send messages in one call and return the result of each. A message sent twice within 5 minutes is stored
        once.

        Raises:
            Unavailable: no reply; each message may have been stored.
            Invalid: the queue denies access.
        """
        ...

    def receive(self) -> list[Delivery]:
        """Receive some messages or none. They are in flight until they are deleted or their visibility timeout ends."""
        ...

    def delete(self, receipt: str) -> None: ...

    def postpone(self, receipts: Collection[str], *, seconds: int) -> None:
        """Deliver messages in flight again after this many seconds."""
        ...


class SqsQueue:
    """An SQS FIFO queue, given by its URL."""

    def __init__(self, url: str, *, clock: Clock, client: Any = None) -> None:
        self._url = url
        self._clock = clock
        self._client = client
        self._identity: tuple[str, float] | None = None

    def identity(self) -> str:
        now = self._clock.monotonic()
        if self._identity is None or now - self._identity[1] > _IDENTITY_SECONDS:
            answer = self._call("get_queue_attributes", AttributeNames=["QueueArn", "CreatedTimestamp"])
            self._identity = identity(answer["Attributes"]), now
        return self._identity[0]

    def send(self, messages: Sequence[Outgoing]) -> list[Sent | LsmError]:
        entries = [
            {"Id": str(n), "MessageBody": one.body, "MessageGroupId": one.group, "MessageDeduplicationId": one.dedup}
            for n, one in enumerate(messages)
        ]
        answer = self._call("send_message_batch", Entries=entries)
        sent: dict[str, Sent | LsmError] = {
            one["Id"]: Sent(id=one["MessageId"], sequence=one["SequenceNumber"]) for one in answer.get("Successful", [])
        }
        for one in answer.get("Failed", []):
            kind = Invalid if one.get("SenderFault") else Unavailable
            sent[one["Id"]] = kind(f"the queue refused a message: {one.get('Code')}", queue=self._url)
        return [sent.get(str(n)) or Unavailable("the queue gave no result for a message") for n in range(len(messages))]

    def receive(self) -> list[Delivery]:
        answer = self._call(
            "receive_message",
            MaxNumberOfMessages=BATCH,
            VisibilityTimeout=_OUT_SECONDS,
            WaitTimeSeconds=1,
            MessageSystemAttributeNames=["All"],
        )
        return [
            delivery(one["MessageId"], one["ReceiptHandle"], one["Body"], one["Attributes"])
            for one in answer.get("Messages", [])
        ]

    def delete(self, receipt: str) -> None:
        self._call("delete_message", ReceiptHandle=receipt)

    def postpone(self, receipts: Collection[str], *, seconds: int) -> None:
        handles = list(receipts)
        for start in range(0, len(handles), BATCH):
            entries = [
                {"Id": str(n), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
                for n, handle in enumerate(handles[start : start + BATCH])
            ]
            self._call("change_message_visibility_batch", Entries=entries)

    def _call(self, operation: str, **arguments: Any) -> Any:
        client = self._client or aws.client("sqs")
        with _translate_errors(self._url):
            return getattr(client, operation)(QueueUrl=self._url, **arguments)


def identity(attributes: Mapping[str, str]) -> str:
    """Return a queue's identity from its attributes. The name is not enough: a later queue may have the same name."""
    text = attributes["QueueArn"] + str(attributes["CreatedTimestamp"])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def delivery(message: str, receipt: str, body: str, attributes: Mapping[str, Any]) -> Delivery:
    """Build a delivery from the fields of SQS."""
    return Delivery(
        id=message,
        receipt=receipt,
        body=body,
        group=attributes["MessageGroupId"],
        sequence=int(attributes["SequenceNumber"]),
        receives=int(attributes.get("ApproximateReceiveCount", 1)),
    )


def pause(receives: int) -> int:
    """Return the seconds between this delivery of a message that failed and the next one.

    The pause doubles each time, up to a minute. After half a day of deliveries it is longer, so that the message still
    waits after 14 days.
    """
    return min(_PAUSE_MAX, 1 << min(receives, 16)) if receives <= _RECEIVES_SOON else _PAUSE_LATE


def queue_by_name(name: str, *, clock: Clock) -> SqsQueue:
    """Return the queue with this name in the account and region. Raises `Invalid` if there is none."""
    client = aws.client("sqs")
    with _translate_errors(name):
        return SqsQueue(client.get_queue_url(QueueName=name)["QueueUrl"], clock=clock)


@contextmanager
def _translate_errors(queue: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - optional dependency

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if any(name in code for name in _CALLER_ERRORS):
            raise Invalid(
                f"the queue denies access: {code}", remedy="Check its URL and the role", queue=queue
            ) from error
        raise Unavailable(f"the queue failed: {code}", queue=queue) from error
    except BotoCoreError as error:
        raise Unavailable(f"the queue gave no reply: {type(error).__name__}", queue=queue) from error
