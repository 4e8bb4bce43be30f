"""Deliver a group of a FIFO queue again in other batches, redrive its dead letters: docs/concepts/aws.md, "Delivery".

A container receives the visible messages of one group, from the first one on, unless messages of the group are in
flight. A container whose time ran out continues while another one has the same messages. Each container decides under a
head which messages are new, writes dead letters for rejected rows, appends, and reports which messages it applied. A
container that takes no more steps has crashed. An append is one step that succeeds if its head is still current
(tests/model/append.py has its parts); its reply may be lost. At any time the redriver looks for newer rows from the
position on that a dead letter names.

All messages write one key. A bad message has a row of this key that is rejected. Unless all of it is bad, it also has a
row of another key that is valid. In the log, `n` is the valid part of message n, and `-n` is its redriven bad row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation


class Guard(Enum):
    APPLIED_DROPPED = "a message that is applied according to the head is dropped"
    EVERY_HEAD = "which messages are applied is decided again for each head"
    ONE_SWAP = "an entry and its highest sequence are committed by one swap"
    LATER_WAIT = "no message of a group is applied after one that failed"
    DEAD_LETTER_FIRST = "a dead letter is written before the valid rows of its message are appended"
    IN_TURN = "a dead letter is written only when all messages before its message are applied"
    NEWER_WINS = "a row is redriven only if no newer row has its key"
    UNDER_THAT_HEAD = "newer rows are looked for under the head that the append follows"
    MARKED = "an older row that was redriven does not count as a newer one"
    SETTLED = "a row is redriven only if all valid rows of its message are applied"
    RAISES_SEQUENCE = "the swap of a redriven row raises the applied sequence to that of its message"


class DeadLetter(NamedTuple):
    message: int
    position: int


class Container(NamedTuple):
    call: str = "receive"
    batch: tuple[int, ...] = ()  # as delivered
    left: tuple[int, ...] = ()  # messages that are neither applied nor dropped yet
    rejected: tuple[int, ...] = ()  # messages for which this container wrote a dead letter
    rows: tuple[int, ...] = ()  # rows of the draft
    head: int = 0  # position of the draft
    failed: tuple[int, ...] = ()


class State(NamedTuple):
    queue: tuple[int, ...]
    holder: int  # the container whose receipts count
    log: tuple[tuple[int, ...], ...]
    applied: int  # highest applied sequence in the head
    dead_letters: frozenset[DeadLetter]
    ever_rejected: frozenset[int]
    containers: tuple[Container, ...]
    deliveries: int  # remaining deliveries
    redriving: tuple[DeadLetter, int] | None  # the dead letter, and the position of its draft
    wrongly_dropped: DeadLetter | None = None


NOBODY = -1


@dataclass(frozen=True, slots=True)
class Redelivery:
    without: Guard | None = None
    messages: int = 3
    bad: frozenset[int] = frozenset({2})
    all_bad: frozenset[int] = frozenset()  # bad messages without a valid row
    deliveries: int = 3

    def initial(self) -> State:
        queue = tuple(range(1, self.messages + 1))
        return State(queue, NOBODY, (), 0, frozenset(), frozenset(), (Container(),) * 2, self.deliveries, None)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        for index, mine in enumerate(state.containers):
            for step, new, after in self._container(state, index, mine):
                containers = (*after.containers[:index], new, *after.containers[index + 1 :])
                yield Step(f"container {index}", *step), after._replace(containers=containers)
        if state.holder != NOBODY:
            yield Step("queue", "the visibility timeout ends"), state._replace(holder=NOBODY)
        yield from self._redriver(state)

    def _container(
        self, state: State, index: int, mine: Container
    ) -> Iterator[tuple[tuple[str, str], Container, State]]:
        match mine.call:
            case "receive":
                if state.holder == NOBODY and state.deliveries:
                    out = state._replace(holder=index, deliveries=state.deliveries - 1)
                    for most in range(1, len(state.queue) + 1):
                        batch = state.queue[:most]
                        yield ("receive", f"{batch}"), Container("decide", batch=batch, left=batch), out
            case "decide":
                yield ("read the head", ""), self._decided(state, mine), state
            case "write dead letter":
                dead_letter = DeadLetter(self._next_bad(mine), mine.head)
                after = state._replace(
                    dead_letters=state.dead_letters | {dead_letter},
                    ever_rejected=state.ever_rejected | {dead_letter.message},
                )
                done = self.without is Guard.DEAD_LETTER_FIRST  # then its message was appended before
                new = mine._replace(call="decide", rejected=(*mine.rejected, dead_letter.message))
                yield ("write dead letter", f"{dead_letter}"), new._replace(left=mine.left[1:]) if done else new, after
            case "append":
                yield from self._append(state, mine)
            case "swap the sequence":
                yield ("swap the sequence", ""), self._appended(mine), self._with_applied(state, mine.rows)
            case "report":
                if state.holder == index:
                    kept = (*mine.failed, *mine.left, *state.queue[len(mine.batch) :])
                    after = state._replace(queue=kept, holder=NOBODY)
                    yield ("report", f"{kept} stay"), Container(), after
                else:
                    yield ("report", "too late"), Container(), state

    def _decided(self, state: State, mine: Container) -> Container:
        """Choose the next call for the remaining messages under the current head."""
        applied = 0 if self.without is Guard.APPLIED_DROPPED else state.applied
        left = tuple(message for message in mine.left if message > applied)
        mine = mine._replace(left=left, head=len(state.log) + 1)
        if not left:
            return mine._replace(call="report")
        if left[0] in self.all_bad and left[0] in mine.rejected:
            return self._decided(state, mine._replace(left=left[1:]))
        due = [message for message in left if message in self.bad and message not in mine.rejected]
        if self.without is Guard.DEAD_LETTER_FIRST:
            due = []
        elif self.without is Guard.IN_TURN:
            due, left = due[:1], left if not due else left[:1]
        if due and (due[0] == left[0] or self.without is Guard.IN_TURN):
            return mine._replace(call="write dead letter")
        rows = left[: left.index(due[0])] if due else left
        return mine._replace(call="append", rows=rows)

    def _next_bad(self, mine: Container) -> int:
        return next(message for message in mine.left if message in self.bad and message not in mine.rejected)

    def _append(self, state: State, mine: Container) -> Iterator[tuple[tuple[str, str], Container, State]]:
        failed = mine._replace(call="report")
        if self.without is Guard.LATER_WAIT:  # the others continue without the first
            failed = mine._replace(call="decide", left=mine.left[1:], failed=(*mine.failed, mine.left[0]))
        yield ("append", "refused"), failed, state
        if mine.head != len(state.log) + 1:
            if self.without is Guard.EVERY_HEAD:
                yield (
                    ("append", "another writer was first: append the same draft again"),
                    mine._replace(head=len(state.log) + 1),
                    state,
                )
            else:
                yield ("append", "another writer was first"), mine._replace(call="decide"), state
            return
        after = state._replace(log=(*state.log, mine.rows))
        if self.without is Guard.ONE_SWAP:
            yield ("append", "without its sequence"), mine._replace(call="swap the sequence"), after
            return
        after = self._with_applied(after, mine.rows)
        yield ("append", "committed"), self._appended(mine), after
        yield ("append", "committed, reply lost"), mine._replace(call="report"), after

    def _with_applied(self, state: State, rows: tuple[int, ...]) -> State:
        return state._replace(applied=max(state.applied, *rows))

    def _appended(self, mine: Container) -> Container:
        left = mine.left[len(mine.rows) :]
        if self.without is Guard.DEAD_LETTER_FIRST and mine.rows[-1] in self.bad:
            return mine._replace(
                call="write dead letter", left=mine.left[len(mine.rows) - 1 :], rows=(), head=mine.head + 1
            )
        return mine._replace(call="decide", left=left, rows=())

    def _redriver(self, state: State) -> Iterator[tuple[Step, State]]:
        here = len(state.log) + 1
        if state.redriving is None:
            for dead_letter in sorted(state.dead_letters):
                settled = dead_letter.message <= state.applied or dead_letter.message in self.all_bad
                if not settled and self.without is not Guard.SETTLED:
                    continue
                yield Step("redriver", f"read {dead_letter}"), state._replace(redriving=(dead_letter, here))
            return
        dead_letter, head = state.redriving
        if head != here and self.without is not Guard.UNDER_THAT_HEAD:
            yield Step("redriver", "append", "another writer was first"), state._replace(redriving=(dead_letter, here))
            return
        since = [row for entry in state.log[dead_letter.position - 1 : head - 1] for row in entry if self._has_key(row)]
        if self.without is not Guard.MARKED:
            since = [row for row in since if row > 0 or -row >= dead_letter.message]
        after = state._replace(dead_letters=state.dead_letters - {dead_letter}, redriving=None)
        if since and self.without is not Guard.NEWER_WINS:
            newer = any(abs(row) >= dead_letter.message for row in since)
            yield (
                Step("redriver", f"drop {dead_letter}"),
                after._replace(wrongly_dropped=None if newer else dead_letter),
            )
            return
        after = after._replace(log=(*state.log, (-dead_letter.message,)))
        if self.without is not Guard.RAISES_SEQUENCE:
            after = self._with_applied(after, (dead_letter.message,))
        yield Step("redriver", f"append {dead_letter}"), after

    def _has_key(self, row: int) -> bool:
        """Return False for the valid part of a bad message: it has another key."""
        return row not in self.bad

    def violation(self, state: State) -> Violation | None:
        applied = [row for entry in state.log for row in entry]
        if len(set(applied)) < len(applied):
            return Violation("applied twice", f"{state.log}")
        ours = [abs(row) for row in applied if self._has_key(row)]
        if ours != sorted(ours):
            return Violation("an older row wins", f"{state.log}")
        if state.wrongly_dropped is not None:
            return Violation("dropped for an older row", f"{state.wrongly_dropped}: {state.log}")
        for message in set(range(1, self.messages + 1)) - set(state.queue):
            if message not in applied and message not in self.all_bad:
                return Violation("row lost", f"{message}: {state.log}, queue {state.queue}")
            if message in self.bad and message not in state.ever_rejected:
                return Violation("row lost", f"the bad row of {message}: {state.log}, queue {state.queue}")
        return None
