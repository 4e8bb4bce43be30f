"""Read with a cursor while a collector works: docs/concepts/pins.md, "Change stream".

There is one committed entry that the cursor has not passed. A round that read the pins before the cursor was created
may commit its floor later. So the floor may pass an entry that the cursor keeps: the entry stays and must be readable.
Once the cursor is dropped, the slot is swept, and a stalled writer may put an object there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation


class Guard(Enum):
    HEAD_AFTER_ENTRY = "the head that proves an entry is read after it"
    CURSOR_AFTER_ENTRY = "the cursor that proves an entry below the floor is read after it"
    CURSOR_BELOW_FLOOR = "below the floor an entry counts only while the cursor is there"
    KEPT_IS_READ = "an entry that a cursor keeps is read below the floor, too"


class State(NamedTuple):
    slot: str = "committed"
    passed: bool = False  # the floor is past the entry
    cursor: bool = True
    call: str = "entry"
    seen: str = ""
    floor_seen: bool = False
    cursor_seen: bool = True
    collector: str = "commit"
    result: str = ""


@dataclass(frozen=True, slots=True)
class CursorRead:
    without: Guard | None = None

    def initial(self) -> State:
        first = {Guard.HEAD_AFTER_ENTRY: "head", Guard.CURSOR_AFTER_ENTRY: "cursor"}
        return State(call=first.get(self.without, "entry"))

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        yield from self._read(state)
        match state.collector:
            case "commit":
                yield Step("collector", "commit floor"), state._replace(passed=True, collector="sweep")
            case "sweep" if not state.cursor:
                yield Step("collector", "read pins", "none"), state._replace(collector="delete")
            case "delete":
                yield Step("collector", "delete"), state._replace(slot="gone", collector="done")
        if state.cursor:
            yield Step("holder", "drop cursor"), state._replace(cursor=False)
        if state.slot == "gone":
            yield Step("zombie", "put"), state._replace(slot="zombie")

    def violation(self, state: State) -> Violation | None:
        if state.result in ("gone", "zombie"):
            return Violation("uncommitted change read", state.result)
        if state.result == "refused" and state.cursor:
            return Violation("kept change refused", "the cursor is there")
        return None

    def _read(self, state: State) -> Iterator[tuple[Step, State]]:
        match state.call:
            case "entry":
                early = self.without is Guard.HEAD_AFTER_ENTRY
                after = state._replace(seen=state.slot, call="judge" if early else "head")
                yield Step("reader", "read entry", state.slot), after
            case "head":
                early = self.without is Guard.HEAD_AFTER_ENTRY
                after = state._replace(floor_seen=state.passed, call="entry" if early else "judge")
                yield Step("reader", "read head", "passed" if state.passed else "not passed"), after
            case "judge":
                yield Step("reader", "judge"), self._judged(state)
            case "cursor":
                early = self.without is Guard.CURSOR_AFTER_ENTRY
                after = state._replace(cursor_seen=state.cursor, call="entry" if early else "end")
                yield Step("reader", "read cursor", "there" if state.cursor else "gone"), after
            case "end":
                yield Step("reader", "end"), self._ended(state, kept=state.cursor_seen)

    def _judged(self, state: State) -> State:
        if not state.floor_seen:
            return self._ended(state, kept=True)
        match self.without:
            case Guard.CURSOR_AFTER_ENTRY:
                return state._replace(call="end")
            case Guard.CURSOR_BELOW_FLOOR:
                return self._ended(state, kept=True)
            case Guard.KEPT_IS_READ:
                return self._ended(state, kept=False)
        return state._replace(call="cursor")

    def _ended(self, state: State, *, kept: bool) -> State:
        return state._replace(call="done", result=state.seen if kept else "refused")
