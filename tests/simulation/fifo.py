"""A FIFO queue in memory with the rules of SQS.

A group is locked while one of its messages is in flight. A message that is sent again within five minutes is dropped as
a duplicate. A message that is not deleted in time is delivered again.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lancelsm.common.clock import Clock
from lancelsm.errors import LsmError
from lancelsm.stack.delivery.queue import Delivery, Outgoing, Sent

DEDUP_SECONDS = 300.0
_FIRST_SEQUENCE = 18_849_496_460_467_696_128


@dataclass(slots=True)
class _Message:
    id: str
    sequence: int
    message: Outgoing
    receives: int = 0
    invisible_until: float = -1.0
    receipt: str = ""


class FifoQueue:
    """The port of the queue, with faults and state for tests. `clock` decides the time."""

    def __init__(self, clock: Clock, *, visibility: float = 60.0, name: str = "q") -> None:
        self.clock = clock
        self.visibility = visibility
        self.name = name
        self.held: list[_Message] = []
        self.refuse: list[int] = []  # numbers of messages to refuse once, counted from 0 over all sends
        self.failures: list[LsmError] = []  # errors that the next calls of `send` raise
        self.takes_before_failing = True  # a call that raises one of `failures` has taken its messages
        self.calls: list[list[Outgoing]] = []
        self.postponed: list[tuple[tuple[str, ...], int]] = []
        self._numbers = itertools.count()
        self._offered = itertools.count()
        self._known: dict[str, tuple[float, Sent]] = {}

    def identity(self) -> str:
        return self.name

    def send(self, messages: Sequence[Outgoing]) -> list[Sent | LsmError]:
        from lancelsm.errors import Unavailable

        assert len(messages) <= 10
        assert sum(len(one.body.encode()) for one in messages) <= 1 << 20
        self.calls.append(list(messages))
        failure = self.failures.pop(0) if self.failures else None
        answers: list[Sent | LsmError] = []
        for one in messages:
            if next(self._offered) in self.refuse:
                answers.append(Unavailable("refused by the test"))
            elif failure is None or self.takes_before_failing:
                answers.append(self._take(one))
        if failure is not None:
            raise failure
        return answers

    def _take(self, message: Outgoing) -> Sent:
        now = self.clock.monotonic()
        known = self._known.get(message.dedup)
        if known is not None and now - known[0] < DEDUP_SECONDS:
            return known[1]
        number = next(self._numbers)
        held = _Message(id=f"{self.name}-{number}", sequence=_FIRST_SEQUENCE + 256 * number, message=message)
        self.held.append(held)
        sent = Sent(id=held.id, sequence=str(held.sequence))
        self._known[message.dedup] = now, sent
        return sent

    def receive(self, most: int = 10) -> list[Delivery]:
        now = self.clock.monotonic()
        locked = {held.message.group for held in self.held if held.invisible_until > now}
        batch = [held for held in self.held if held.message.group not in locked][:most]
        for held in batch:
            held.receives += 1
            held.invisible_until = now + self.visibility
            held.receipt = f"{held.id}/{held.receives}"
        return [
            Delivery(
                id=held.id,
                receipt=held.receipt,
                body=held.message.body,
                group=held.message.group,
                sequence=held.sequence,
                receives=held.receives,
            )
            for held in batch
        ]

    def delete(self, receipt: str) -> None:
        """Delete a message. The receipt of an earlier delivery has no effect."""
        self.held = [held for held in self.held if held.receipt != receipt]

    def postpone(self, receipts: Collection[str], *, seconds: int) -> None:
        self.postponed.append((tuple(receipts), seconds))
        for held in self.held:
            if held.receipt in receipts:
                held.invisible_until = self.clock.monotonic() + seconds

    @property
    def bodies(self) -> list[str]:
        return [held.message.body for held in self.held]
