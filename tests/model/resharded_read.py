"""Read and change a row by an open table that two threads share, while another process reshards it.

The row is in the old region "a", and under the new spec in the region "n". A thread chooses the region of the key by
the spec that the open table knows, reads the head of that region with its rows, then the base, which says which spec
the table has. It appends the next number to the region that the open table knows then, if nobody else has appended
since the head. A thread that meets the new spec lets the open table know it, so the other thread meets it at any
moment. A writer in another process knows the new spec at once, and appends the next number, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

OLD, NEW = 0, 1
NOT_READ = -1
THREADS = 2


class Guard(Enum):
    OWN_SPEC = "the spec of the base is compared with the one by which the read chose its region"
    ALL_REGIONS = "a read that meets another spec reads all regions"
    READ_AGAIN = "rows that were read by another spec than that of the write are read again"


class Thread(NamedTuple):
    call: str = "choose"
    spec: int = OLD
    acknowledged: int = 0  # when the read began
    ends: tuple[int, int] = (NOT_READ, NOT_READ)  # of the logs of the old and the new region
    value: int = 0


class State(NamedTuple):
    logs: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    base: int = 0
    spec: int = OLD
    sealed: bool = False
    merged: bool = False
    known: int = OLD  # the spec that the open table knows
    acknowledged: int = 0
    threads: tuple[Thread, ...] = (Thread(),) * THREADS

    def newest(self) -> int:
        return next((log[-1] for log in reversed(self.logs) if log), self.base)


@dataclass(frozen=True, slots=True)
class ReshardedRead:
    without: Guard | None = None
    writes: int = 3

    def initial(self) -> State:
        return State()

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        if not state.sealed:
            yield Step("reshard", "seal"), state._replace(sealed=True)
        elif not state.merged:
            yield Step("reshard", "merge"), state._replace(merged=True, base=state.newest())
        elif state.spec == OLD:
            yield Step("reshard", "commit the spec"), state._replace(spec=NEW)
        elif state.acknowledged < self.writes:
            yield Step("writer", "append"), _appended(state, NEW, state.newest() + 1)
        for number, mine in enumerate(state.threads):
            for action, thread, after in self._thread(state, mine):
                threads = (*state.threads[:number], thread, *state.threads[number + 1 :])
                yield Step(f"thread {number}", action), after._replace(threads=threads)

    def _thread(self, state: State, mine: Thread) -> Iterator[tuple[str, Thread, State]]:
        match mine.call:
            case "choose":
                if state.acknowledged < self.writes:
                    yield "choose", Thread("head", state.known, state.acknowledged), state
            case "head":
                log = state.logs[mine.spec]
                ends = (len(log), NOT_READ) if mine.spec == OLD else (NOT_READ, len(log))
                yield "read the head", mine._replace(call="base", ends=ends, value=log[-1] if log else NOT_READ), state
            case "base":
                value = state.base if mine.value == NOT_READ else mine.value
                own = state.known if self.without is Guard.OWN_SPEC else mine.spec
                if state.spec == own or self.without is Guard.ALL_REGIONS:
                    yield "read the base", mine._replace(call="append", value=value), state
                else:
                    yield "meet the spec", mine._replace(call="all", spec=NEW), state._replace(known=NEW)
            case "all":
                ends = (len(state.logs[OLD]), len(state.logs[NEW]))
                yield "read all regions", mine._replace(call="append", ends=ends, value=state.newest()), state
            case _:
                yield from self._append(state, mine)

    def _append(self, state: State, mine: Thread) -> Iterator[tuple[str, Thread, State]]:
        region, log = state.known, state.logs[state.known]
        if state.known != mine.spec and self.without is not Guard.READ_AGAIN:
            yield "read again", Thread(), state
        elif region == OLD and state.sealed:
            if state.spec == NEW:
                yield "find it sealed", Thread(), state._replace(known=NEW)
        elif mine.ends[region] not in (NOT_READ, len(log)):
            yield "be overtaken", Thread(), state
        elif state.acknowledged < self.writes:
            yield "append", Thread(), _appended(state, region, mine.value + 1)

    def violation(self, state: State) -> Violation | None:
        for mine in state.threads:
            if mine.call == "append" and mine.value < mine.acknowledged:
                return Violation("older row", f"a read that began after {mine.acknowledged} saw {mine.value}")
        if state.newest() != state.acknowledged:
            return Violation("lost update", f"{state.acknowledged} additions made {state.newest()}")
        return None


def _appended(state: State, region: int, value: int) -> State:
    old, new = state.logs
    logs = ((*old, value), new) if region == OLD else (old, (*new, value))
    return state._replace(logs=logs, acknowledged=state.acknowledged + 1)
