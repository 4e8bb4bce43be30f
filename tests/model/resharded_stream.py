"""Follow a table across a reshard: a change stream reads old regions to their end before a new one.

A writer appends the rows 1, 2, ... of one key: to the old region while that is open, then to the new one. The stream
lists the catalog, then reads the head of the old region, its entries, then the head and the entries of the new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

ROWS = 3
AT_ONCE = 1


class Guard(Enum):
    OLD_FIRST = "a new region is read only if the old ones were read to their end"
    CATALOG_FIRST = "the heads of old regions are read after the catalog that lists the new region"


class Stream(NamedTuple):
    call: str = "list"
    has_new: bool = False
    end: int = 0  # of the old region
    read: tuple[int, int] = (0, 0)  # entries of the old and of the new region
    yielded: tuple[int, ...] = ()


class State(NamedTuple):
    old: int = 0
    sealed: bool = False
    opened: bool = False
    new: int = 0
    stream: Stream = Stream()


@dataclass(frozen=True, slots=True)
class ReshardedStream:
    without: Guard | None = None

    def initial(self) -> State:
        return State()

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        if not state.sealed:
            yield Step("reshard", "seal"), state._replace(sealed=True)
        elif not state.opened:
            yield Step("reshard", "open"), state._replace(opened=True)
        if state.old + state.new < ROWS:
            if not state.sealed:
                yield Step("writer", "append to old"), state._replace(old=state.old + 1)
            if state.opened:
                yield Step("writer", "append to new"), state._replace(new=state.new + 1)
        action, after = self._stream(state, state.stream)
        yield Step("stream", action), state._replace(stream=after)

    def _stream(self, state: State, mine: Stream) -> tuple[str, Stream]:
        late = self.without is Guard.CATALOG_FIRST
        old, new = mine.read
        match mine.call:
            case "list":
                has_new = mine.has_new or state.opened
                return "list", mine._replace(call="read old" if late else "head", has_new=has_new)
            case "head":
                return "read the head", mine._replace(call="list" if late else "read old", end=state.old)
            case "read old":
                some = range(old, min(mine.end, old + AT_ONCE))
                values = tuple(number + 1 for number in some)
                done = old + len(some) == mine.end or self.without is Guard.OLD_FIRST
                call = "read new" if mine.has_new and done else "head" if late else "list"
                read = (old + len(some), new)
                return "read old", mine._replace(call=call, read=read, yielded=(*mine.yielded, *values))
            case _:
                some = range(new, min(state.new, new + AT_ONCE))
                values = tuple(state.old + number + 1 for number in some)
                call = "head" if late else "list"
                return "read new", mine._replace(
                    call=call, read=(old, new + len(some)), yielded=(*mine.yielded, *values)
                )

    def violation(self, state: State) -> Violation | None:
        yielded = list(state.stream.yielded)
        if yielded != sorted(yielded):
            return Violation("out of order", f"{yielded}")
        return None
