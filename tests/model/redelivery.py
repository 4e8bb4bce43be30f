"""A group of a FIFO queue delivered again in other batches, and what was set aside driven back: docs/design.md, "AWS".

Containers take what is visible of one group, from its first message on, as long as nothing of it is out; one whose time
ran out works on while another has the same messages. Each decides under a head which messages are new, sets aside what
never fits, appends, and reports what it got done; one that takes no more steps has crashed. An append is one step that
lands if its head is still the head (tests/model/append.py has its parts); its reply may be lost. The redriver looks for
newer rows from the position on that a letter names, at any time.

All messages write one key. A bad one has a row of it that never fits; unless it is bad as a whole it has another row
that does. In the log, `n` is what fitted of message n, `-n` its bad row, driven back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation


class Guard(Enum):
    SOURCE = "what the head says is applied is dropped"
    EVERY_HEAD = "which messages those are is decided anew for each head"
    ONE_SWAP = "an entry and its highest sequence are committed by one swap"
    LATER_WAIT = "behind a message that failed nothing of its group is applied"
    ASIDE_FIRST = "what never fits is set aside before the rest of its message is appended"
    IN_TURN = "and only when everything before its message is applied"
    NEWER_WINS = "a row is driven back only if nothing newer has its key"
    UNDER_THAT_HEAD = "what is newer is decided under the head that the append follows"
    MARKED = "an older row that was driven back is not taken for a newer one"
    SETTLED = "a row is driven back only if nothing of its message is still to be applied"
    MOVES_SOURCE = "and tells so: the same swap moves the highest sequence to its message's"


class Letter(NamedTuple):
    message: int
    position: int


class Container(NamedTuple):
    call: str = "receive"
    batch: tuple[int, ...] = ()  # as delivered
    left: tuple[int, ...] = ()  # not settled yet
    aside: tuple[int, ...] = ()  # set aside by this one
    rows: tuple[int, ...] = ()  # of the draft
    head: int = 0  # the position that it is for
    failed: tuple[int, ...] = ()


class State(NamedTuple):
    queue: tuple[int, ...]
    holder: int  # the container whose receipts count
    log: tuple[tuple[int, ...], ...]
    source: int
    dead_letters: frozenset[Letter]
    ever_aside: frozenset[int]
    containers: tuple[Container, ...]
    deliveries: int  # still to come
    redriving: tuple[Letter, int] | None  # the letter, and the position that its draft is for
    wrongly_dropped: Letter | None = None


NOBODY = -1


@dataclass(frozen=True, slots=True)
class Redelivery:
    without: Guard | None = None
    messages: int = 3
    bad: frozenset[int] = frozenset({2})
    whole: frozenset[int] = frozenset()  # of them, those without another row
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
            yield Step("queue", "the time of what is out is over"), state._replace(holder=NOBODY)
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
            case "set aside":
                dead_letter = Letter(self._next_bad(mine), mine.head)
                after = state._replace(
                    dead_letters=state.dead_letters | {dead_letter}, ever_aside=state.ever_aside | {dead_letter.message}
                )
                done = self.without is Guard.ASIDE_FIRST  # then its message was appended before
                new = mine._replace(call="decide", aside=(*mine.aside, dead_letter.message))
                yield ("set aside", f"{dead_letter}"), new._replace(left=mine.left[1:]) if done else new, after
            case "append":
                yield from self._append(state, mine)
            case "swap the sequence":
                yield ("swap the sequence", ""), self._appended(mine), self._with_source(state, mine.rows)
            case "report":
                if state.holder == index:
                    kept = (*mine.failed, *mine.left, *state.queue[len(mine.batch) :])
                    after = state._replace(queue=kept, holder=NOBODY)
                    yield ("report", f"{kept} stay"), Container(), after
                else:
                    yield ("report", "too late"), Container(), state

    def _decided(self, state: State, mine: Container) -> Container:
        """What comes next for the messages that are left, under the head as of now."""
        applied = 0 if self.without is Guard.SOURCE else state.source
        left = tuple(message for message in mine.left if message > applied)
        mine = mine._replace(left=left, head=len(state.log) + 1)
        if not left:
            return mine._replace(call="report")
        if left[0] in self.whole and left[0] in mine.aside:
            return self._decided(state, mine._replace(left=left[1:]))
        due = [message for message in left if message in self.bad and message not in mine.aside]
        if self.without is Guard.ASIDE_FIRST:
            due = []
        elif self.without is Guard.IN_TURN:
            due, left = due[:1], left if not due else left[:1]
        if due and (due[0] == left[0] or self.without is Guard.IN_TURN):
            return mine._replace(call="set aside")
        rows = left[: left.index(due[0])] if due else left
        return mine._replace(call="append", rows=rows)

    def _next_bad(self, mine: Container) -> int:
        return next(message for message in mine.left if message in self.bad and message not in mine.aside)

    def _append(self, state: State, mine: Container) -> Iterator[tuple[tuple[str, str], Container, State]]:
        failed = mine._replace(call="report")
        if self.without is Guard.LATER_WAIT:  # the others go on without the first
            failed = mine._replace(call="decide", left=mine.left[1:], failed=(*mine.failed, mine.left[0]))
        yield ("append", "refused"), failed, state
        if mine.head != len(state.log) + 1:
            if self.without is Guard.EVERY_HEAD:
                yield ("append", "another was first: the same again"), mine._replace(head=len(state.log) + 1), state
            else:
                yield ("append", "another was first"), mine._replace(call="decide"), state
            return
        after = state._replace(log=(*state.log, mine.rows))
        if self.without is Guard.ONE_SWAP:
            yield ("append", "without its sequence"), mine._replace(call="swap the sequence"), after
            return
        after = self._with_source(after, mine.rows)
        yield ("append", "committed"), self._appended(mine), after
        yield ("append", "committed, reply lost"), mine._replace(call="report"), after

    def _with_source(self, state: State, rows: tuple[int, ...]) -> State:
        return state._replace(source=max(state.source, *rows))

    def _appended(self, mine: Container) -> Container:
        left = mine.left[len(mine.rows) :]
        if self.without is Guard.ASIDE_FIRST and mine.rows[-1] in self.bad:
            return mine._replace(call="set aside", left=mine.left[len(mine.rows) - 1 :], rows=(), head=mine.head + 1)
        return mine._replace(call="decide", left=left, rows=())

    def _redriver(self, state: State) -> Iterator[tuple[Step, State]]:
        here = len(state.log) + 1
        if state.redriving is None:
            for dead_letter in sorted(state.dead_letters):
                settled = dead_letter.message <= state.source or dead_letter.message in self.whole
                if not settled and self.without is not Guard.SETTLED:
                    continue
                yield Step("redriver", f"look at {dead_letter}"), state._replace(redriving=(dead_letter, here))
            return
        dead_letter, head = state.redriving
        if head != here and self.without is not Guard.UNDER_THAT_HEAD:
            yield Step("redriver", "append", "another was first"), state._replace(redriving=(dead_letter, here))
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
        if self.without is not Guard.MOVES_SOURCE:
            after = self._with_source(after, (dead_letter.message,))
        yield Step("redriver", f"append {dead_letter}"), after

    def _has_key(self, row: int) -> bool:
        """What fitted of a bad message has another key."""
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
            if message not in applied and message not in self.whole:
                return Violation("row lost", f"{message}: {state.log}, queue {state.queue}")
            if message in self.bad and message not in state.ever_aside:
                return Violation("row lost", f"the bad one of {message}: {state.log}, queue {state.queue}")
        return None
