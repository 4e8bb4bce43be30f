"""Read while appends, flushes, merges, collections and a late put happen: docs/concepts/reads.md, "The view".

There is one key; the entry at position p sets its value to p. A read must return the value at the end of the log that
the head of its view shows. This log must include every entry that was acknowledged before the read began.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

GARBAGE = -1  # an entry that was never committed


class Guard(Enum):
    HEAD_BEFORE_BASE = "heads are read before the base"
    WHOLE_VIEW = "a view whose base is ahead of its head is discarded as a whole, base included"
    TAIL_SUM = "after the last object was read, the sum of the tail must be that of the head minus that of the manifest"
    RETRY_IF_GONE = "if an object is missing, a new view is taken"


class Head(NamedTuple):
    next: int = 1
    replayed: int = 0
    newest: int = 0  # generation
    generations: tuple[tuple[int, int], ...] = ()  # (number, last position)
    first: int = 1


class Base(NamedTuple):
    value: int = 0
    counter: int = 0


class Reader(NamedTuple):
    call: str = "head"
    head: Head | None = None
    base: Base | None = None
    began: int = 0  # next position when the read began; 0: not begun yet
    views: int = 0
    value: int | None = None


class State(NamedTuple):
    head: Head
    base: Base
    objects: tuple[tuple[int, int], ...]
    kept: tuple[int, ...]  # generations in storage
    reader: Reader


@dataclass(frozen=True, slots=True)
class ReaderView:
    without: Guard | None = None
    entries: int = 2
    views: int = 0  # how many more views are taken before missing generations count as corruption

    def initial(self) -> State:
        return State(Head(), Base(), (), (), Reader())

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        yield from self._write(state)
        yield from self._collect(state)
        yield from self._read(state)

    def violation(self, state: State) -> Violation | None:
        reader = state.reader
        if reader.call == "corrupt":
            return Violation("false alarm", "generations between the counter and the newest one are missing")
        if reader.value is None:
            return None
        if reader.value == GARBAGE:
            return Violation("uncommitted row read", "a late put refilled a swept slot")
        if reader.value < reader.began - 1:
            return Violation("stale read", f"{reader.value}, {reader.began - 1} was acknowledged before it began")
        if reader.value != reader.head.next - 1:
            return Violation("not the view's prefix", f"{reader.value}, the view ends at {reader.head.next - 1}")
        return None

    def _write(self, state: State) -> Iterator[tuple[Step, State]]:
        head, base = state.head, state.base
        if head.next <= self.entries:
            objects = tuple(sorted({**dict(state.objects), head.next: head.next}.items()))
            appended = state._replace(head=head._replace(next=head.next + 1), objects=objects)
            yield Step("environment", f"append {head.next}"), appended
        for last in range(head.replayed + 1, head.next):
            number = head.newest + 1
            flushed = head._replace(replayed=last, newest=number, generations=(*head.generations, (number, last)))
            yield Step("environment", f"flush to {last}"), state._replace(head=flushed, kept=(*state.kept, number))
        for number, last in head.generations:
            if number == base.counter + 1 or (number > base.counter and number == head.newest):
                yield Step("environment", f"merge to generation {number}"), state._replace(base=Base(last, number))

    def _collect(self, state: State) -> Iterator[tuple[Step, State]]:
        head, counter = state.head, state.base.counter
        if any(number <= counter for number, _ in head.generations):
            left = tuple(item for item in head.generations if item[0] > counter)
            collected = head._replace(generations=left, first=head.replayed + 1)
            yield Step("environment", "collect"), state._replace(head=collected)
        stored = dict(state.objects)
        for position in range(1, head.first):
            if position not in stored:
                refilled = tuple(sorted({**stored, position: GARBAGE}.items()))
                yield Step("environment", f"late put at {position}"), state._replace(objects=refilled)
            elif stored[position] != GARBAGE:
                swept = tuple(item for item in state.objects if item[0] != position)
                yield Step("environment", f"sweep {position}"), state._replace(objects=swept)
        named = {number for number, _ in head.generations}
        for number in state.kept:
            if number not in named and number <= counter:
                kept = tuple(other for other in state.kept if other != number)
                yield Step("environment", f"sweep generation {number}"), state._replace(kept=kept)

    def _read(self, state: State) -> Iterator[tuple[Step, State]]:
        reader = state.reader
        began = reader.began or state.head.next
        base_first = self.without is Guard.HEAD_BEFORE_BASE
        if reader.call == "head":
            seen = reader._replace(head=state.head, base=state.base if base_first else reader.base, began=began)
            if base_first:
                seen = seen._replace(head=None)
            if reader.base is not None and not base_first:
                yield Step("R", "read head"), state._replace(reader=seen._replace(call="levels"))
            else:
                yield (
                    Step("R", "read base" if base_first else "read head"),
                    state._replace(reader=seen._replace(call="base")),
                )
        elif reader.call == "base":
            if base_first:
                seen = reader._replace(head=state.head, call="levels")
                yield Step("R", "read head"), state._replace(reader=seen)
            elif state.base.counter > reader.head.newest:
                kept = state.base if self.without is Guard.WHOLE_VIEW else None
                again = reader._replace(call="head", head=None, base=kept)
                yield Step("R", "read base", "ahead of the head"), state._replace(reader=again)
            else:
                yield Step("R", "read base"), state._replace(reader=reader._replace(base=state.base, call="levels"))
        elif reader.call == "levels":
            yield self._levels(state)

    def _levels(self, state: State) -> tuple[Step, State]:
        """Read all generations and the tail in one step: only changes since the reads of head and base matter."""
        reader, head, base = state.reader, state.reader.head, state.reader.base
        step = Step("R", "read generations and tail")
        pending = [item for item in head.generations if item[0] > base.counter]
        if [number for number, _ in pending] != list(range(base.counter + 1, head.newest + 1)):
            return self._again(state, step, "generations missing", corrupt=reader.views == self.views)
        value, missing = base.value, False
        for number, last in pending:
            missing |= number not in state.kept
            value = last
        stored = dict(state.objects)
        tail = [stored.get(position) for position in range(head.replayed + 1, head.next)]
        missing |= None in tail
        if tail and tail[-1] is not None:
            value = tail[-1]
        if missing and self.without is not Guard.RETRY_IF_GONE:
            return self._again(state, step, "an object is missing")
        if tail and GARBAGE in tail and self.without is not Guard.TAIL_SUM:
            return self._again(state, step, "the tail's sum differs")
        return step._replace(outcome=f"value {value}"), state._replace(reader=reader._replace(call="done", value=value))

    def _again(self, state: State, step: Step, why: str, *, corrupt: bool = False) -> tuple[Step, State]:
        reader = state.reader
        call = "corrupt" if corrupt else "failed" if reader.views == self.views else "head"
        return step._replace(outcome=why), state._replace(
            reader=Reader(call, began=reader.began, views=min(reader.views + 1, self.views))
        )
