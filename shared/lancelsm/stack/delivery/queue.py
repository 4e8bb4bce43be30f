"""The queue as its users see it, and SQS behind it. One call is one attempt, wrapped into our errors at this seam."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from lancelsm.common import aws
from lancelsm.common.clock import Clock
from lancelsm.errors import Invalid, LsmError, Unavailable

BATCH = 10  # messages of one call
_OUT_SECONDS = 900  # for what is received here: time enough to read a region's log for each of a batch
_IDENTITY_SECONDS = 50.0  # no queue is made again under its name sooner than 60 seconds after it was deleted
_OURS = ("AccessDenied", "NonExistentQueue", "QueueDoesNotExist", "InvalidClientTokenId", "InvalidAddress")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to send."""

    body: str
    group: str
    dedup: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What the queue says of a message that it holds."""

    id: str
    sequence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One delivery of a message; the same message may come again, with another receipt, until it is deleted."""

    id: str
    receipt: str
    body: str
    group: str
    sequence: int  # grows within a group; 20 digits
    receives: int = 1  # this one included


class Queue(Protocol):
    """A FIFO queue: messages of a group are delivered in order, and none while an earlier one is out."""

    def identity(self) -> str:
        """Another one for a queue that was deleted and made again under its name."""
        ...

    def send(self, messages: Sequence[Outgoing]) -> list[Sent | LsmError]:
        """One call: what became of each message. One that is sent again within 5 minutes is the same message.

        Raises:
            Unavailable: no answer; any may have been taken.
            Invalid: the queue refuses us.
        """
        ...

    def receive(self) -> list[Delivery]:
        """Some messages, or none. They are out until they are deleted or their time is over."""
        ...

    def delete(self, receipt: str) -> None: ...

    def postpone(self, receipts: Collection[str], *, seconds: int) -> None:
        """Let messages that are out come again after so many seconds."""
        ...


class SqsQueue:
    """An SQS FIFO queue by its URL."""

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
        return [sent.get(str(n)) or Unavailable("the queue said nothing of a message") for n in range(len(messages))]

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
        with _wrapped(self._url):
            return getattr(client, operation)(QueueUrl=self._url, **arguments)


def identity(attributes: Mapping[str, str]) -> str:
    """The id of a queue from its attributes: its name alone would also name one that was made later."""
    text = attributes["QueueArn"] + str(attributes["CreatedTimestamp"])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def delivery(message: str, receipt: str, body: str, attributes: Mapping[str, Any]) -> Delivery:
    """A delivery from what SQS says of it."""
    return Delivery(
        id=message,
        receipt=receipt,
        body=body,
        group=attributes["MessageGroupId"],
        sequence=int(attributes["SequenceNumber"]),
        receives=int(attributes.get("ApproximateReceiveCount", 1)),
    )


def named(name: str, *, clock: Clock) -> SqsQueue:
    """The queue with a name in this account and region; raises `Invalid` if there is none."""
    with _wrapped(name):
        return SqsQueue(aws.client("sqs").get_queue_url(QueueName=name)["QueueUrl"], clock=clock)


@contextmanager
def _wrapped(queue: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if any(name in code for name in _OURS):
            raise Invalid(f"the queue refuses: {code}", remedy="Check its URL and the role", queue=queue) from error
        raise Unavailable(f"the queue failed: {code}", queue=queue) from error
    except BotoCoreError as error:
        raise Unavailable(f"the queue gave no answer: {type(error).__name__}", queue=queue) from error
