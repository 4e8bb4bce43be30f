"""A queue that accepts every message and keeps it, for measurements of what is sent and of what delivers it."""

from __future__ import annotations

from collections.abc import Sequence

from lancelsm.stack.delivery.queue import Delivery, Outgoing, Sent


class KeptQueue:
    """The write queue or its dead-letter queue."""

    def __init__(self) -> None:
        self._sent: list[Outgoing] = []

    def identity(self) -> str:
        return "q"

    def send(self, messages: Sequence[Outgoing]) -> list[Sent]:
        self._sent += messages
        return [Sent(id="m", sequence="1") for _ in messages]

    def deliveries(self) -> list[Delivery]:
        """Return the messages, as they are delivered for the first time."""
        return [
            Delivery(id=f"m{number}", receipt="r", body=one.body, group=one.group, sequence=number)
            for number, one in enumerate(self._sent, start=1)
        ]
