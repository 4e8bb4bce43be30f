"""No plain write follows an ordered change event: docs/concepts/path-of-a-row.md, "Change events".

Two writers opened the table before its events had an order. They append plain rows, and may hold a head for as long as
they want. Two consumers append events, which they compare with all rows before them: the first one marks the head of
the region. One consumer may crash at any step. How one entry is appended is in tests/model/append.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation


class Guard(Enum):
    MARK_FIRST = "the region is marked before its first event is appended"
    CHECKED = "a plain write looks at the mark of the head that it follows"
    POSITION = "an entry is appended at the position of the head that was read"


class Head(NamedTuple):
    length: int
    marked: bool


class Writer(NamedTuple):
    held: Head | None = None
    left: int = 2
    refused: bool = False


class Consumer(NamedTuple):
    step: str = "read"
    held: Head | None = None


class State(NamedTuple):
    log: str = ""  # p: a plain row, e: an event
    marked: bool = False
    writers: tuple[Writer, ...] = (Writer(), Writer())
    consumers: tuple[Consumer, ...] = (Consumer(), Consumer())
    crashes: int = 1

    @property
    def head(self) -> Head:
        return Head(len(self.log), self.marked)


@dataclass(frozen=True, slots=True)
class OrderedRegion:
    without: Guard | None = None

    def initial(self) -> State:
        return State()

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        for number, writer in enumerate(state.writers):
            if writer.left and not writer.refused:
                step, after, changed = self._write(state, f"writer {number}", writer)
                yield step, after._replace(writers=_with(after.writers, number, changed))
        for number, consumer in enumerate(state.consumers):
            if consumer.step in ("done", "crashed"):
                continue
            name = f"consumer {number}"
            step, after, moved = self._consume(state, name, consumer)
            yield step, after._replace(consumers=_with(after.consumers, number, moved))
            if state.crashes:
                crashed = _with(state.consumers, number, Consumer(step="crashed"))
                yield Step(name, "crash"), state._replace(consumers=crashed, crashes=state.crashes - 1)

    def violation(self, state: State) -> Violation | None:
        first = state.log.find("e")
        if first >= 0 and "p" in state.log[first:]:
            return Violation("plain row after an event", state.log)
        return None

    def _write(self, state: State, name: str, writer: Writer) -> tuple[Step, State, Writer]:
        held = writer.held
        if held is None:
            return Step(name, "read the head"), state, writer._replace(held=state.head)
        if held.marked and self.without is not Guard.CHECKED:
            return Step(name, "append", "refused"), state, writer._replace(refused=True)
        if held.length != len(state.log) and self.without is not Guard.POSITION:
            return Step(name, "append", "lost"), state, writer._replace(held=state.head)
        after = state._replace(log=f"{state.log}p")
        return Step(name, "append"), after, writer._replace(held=after.head, left=writer.left - 1)

    def _consume(self, state: State, name: str, consumer: Consumer) -> tuple[Step, State, Consumer]:
        is_late = self.without is Guard.MARK_FIRST
        held = consumer.held
        if consumer.step == "mark":
            after = state._replace(marked=True)
            return Step(name, "mark the region"), after, Consumer("done") if is_late else Consumer(held=after.head)
        if held is None:
            return Step(name, "read the head"), state, Consumer(held=state.head)
        if not held.marked and not is_late:
            return Step(name, "find no mark"), state, Consumer("mark")
        if held.length != len(state.log):
            return Step(name, "append", "lost"), state, Consumer(held=state.head)
        after = state._replace(log=f"{state.log}e")
        return Step(name, "append an event"), after, Consumer("mark" if is_late else "done")


def _with(actors: tuple, number: int, changed: object) -> tuple:  # type: ignore[type-arg]
    return (*actors[:number], changed, *actors[number + 1 :])
