"""Remember producers in a head, with the time of their last append: docs/concepts/head-and-manifest.md, "Producers".

A producer sends numbered messages. A message may be delivered again for `RETENTION` ticks after it was sent, and for so
long a writer may decide about it. A writer decides under a head: it drops a message that the head says is applied, and
refuses one of a new producer if there is no room. Else it drafts an entry with the time of its clock, and appends. An
append succeeds if its head is still current (tests/model/append.py has its parts); its reply may be lost, and a writer
may stall at any point. A writer that takes no more steps has crashed. What the head remembers follows from the log
alone, so a rebuild derives the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

MOST = 2
RETENTION = 1
SKEW = 1  # the clock of the second writer is ahead by this
IDLE = RETENTION + SKEW
LAST_TICK = 4


class Guard(Enum):
    ROOM = "a message of a new producer is refused if no producer is idle"
    EVERY_HEAD = "whether there is room is decided again for each head"
    LONGEST_IDLE = "the producer that is idle for longest is forgotten, not the one with the lowest sequence"
    LAST_TIME = "the time is that of the last append of a producer, not of its first one"
    ABOVE_RETENTION = "a producer is idle only when none of its messages can be delivered again"
    SKEW = "the allowed difference between two clocks is added to that time"
    ONE_SWAP = "an entry and what the head remembers are committed by one swap"


class Message(NamedTuple):
    producer: str
    sequence: int


class Remembered(NamedTuple):
    producer: str
    sequence: int
    at: int


class Writer(NamedTuple):
    call: str = "receive"
    message: Message | None = None
    head: int = 0
    at: int = 0


class State(NamedTuple):
    now: int
    sent: tuple[tuple[Message, int], ...]
    log: tuple[Message, ...]
    memory: tuple[Remembered, ...]
    writers: tuple[Writer, ...]


FIRST = (Message("a", 1), Message("b", 9))  # appended at the first tick
MESSAGES = (*FIRST, Message("a", 2), Message("c", 5))


@dataclass(frozen=True, slots=True)
class Producers:
    without: Guard | None = None

    def initial(self) -> State:
        sent = tuple((message, 0) for message in FIRST)
        return State(0, sent, FIRST, tuple(Remembered(*message, 0) for message in FIRST), (Writer(), Writer()))

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        if state.now < LAST_TICK:
            yield Step("clock", "tick"), state._replace(now=state.now + 1)
        for index, mine in enumerate(state.writers):
            for (action, outcome), new, after in self._writer(state, index, mine):
                writers = (*after.writers[:index], new, *after.writers[index + 1 :])
                yield Step(f"writer {index}", action, outcome), after._replace(writers=writers)

    def _writer(self, state: State, index: int, mine: Writer) -> Iterator[tuple[tuple[str, str], Writer, State]]:
        match mine.call:
            case "receive":
                yield from self._received(state)
            case "decide":
                yield self._decided(state, index, mine)
            case "append":
                yield self._appended(state, mine)
            case "remember":
                yield ("remember", ""), Writer(), state._replace(memory=self._after(state.memory, mine))

    def _received(self, state: State) -> Iterator[tuple[tuple[str, str], Writer, State]]:
        sent = dict(state.sent)
        for message in MESSAGES:
            before = Message(message.producer, message.sequence - 1)
            if before in MESSAGES and before not in state.log:
                continue  # a producer sends its messages in order
            if message not in sent:
                times = tuple(sorted({**sent, message: state.now}.items()))
                yield ("receive", f"{message}"), Writer("decide", message), state._replace(sent=times)
            elif state.now <= sent[message] + RETENTION:
                yield ("receive again", f"{message}"), Writer("decide", message), state

    def _decided(self, state: State, index: int, mine: Writer) -> tuple[tuple[str, str], Writer, State]:
        assert mine.message is not None
        at = state.now + SKEW * index
        known = {one.producer: one for one in state.memory}
        if state.now > dict(state.sent)[mine.message] + RETENTION:
            return ("give up", ""), Writer(), state
        if mine.message.producer in known and known[mine.message.producer].sequence >= mine.message.sequence:
            return ("drop", ""), Writer(), state
        if not self._has_room(state, mine.message, at):
            return ("refuse", ""), Writer(), state
        return ("draft", ""), mine._replace(call="append", head=len(state.log), at=at), state

    def _appended(self, state: State, mine: Writer) -> tuple[tuple[str, str], Writer, State]:
        assert mine.message is not None
        if mine.head != len(state.log) and self.without is not Guard.EVERY_HEAD:
            return ("append", "another writer was first"), mine._replace(call="decide"), state
        after = state._replace(log=(*state.log, mine.message))
        if self.without is Guard.ONE_SWAP:
            return ("append", "without its sequence"), mine._replace(call="remember"), after
        return ("append", ""), Writer(), after._replace(memory=self._after(state.memory, mine))

    def _has_room(self, state: State, message: Message, at: int) -> bool:
        if len(state.memory) < MOST or any(one.producer == message.producer for one in state.memory):
            return True
        idle = {Guard.ABOVE_RETENTION: 0, Guard.SKEW: RETENTION}.get(self.without, IDLE) if self.without else IDLE
        return self.without is Guard.ROOM or at - min(one.at for one in state.memory) > idle

    def _forgotten(self, memory: tuple[Remembered, ...]) -> Remembered:
        lowest = self.without is Guard.LONGEST_IDLE
        return min(memory, key=lambda one: (one.sequence if lowest else one.at, one.producer))

    def _after(self, memory: tuple[Remembered, ...], mine: Writer) -> tuple[Remembered, ...]:
        assert mine.message is not None
        (producer, sequence), at = mine.message, mine.at
        known = {one.producer: one for one in memory}
        if producer in known:
            sequence = max(sequence, known[producer].sequence)
            at = known[producer].at if self.without is Guard.LAST_TIME else max(at, known[producer].at)
        elif len(known) >= MOST:
            del known[self._forgotten(memory).producer]
        known[producer] = Remembered(producer, sequence, at)
        return tuple(sorted(known.values()))

    def violation(self, state: State) -> Violation | None:
        if len(set(state.log)) < len(state.log):
            return Violation("applied twice", f"{state.log}")
        return None
