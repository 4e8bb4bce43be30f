"""Set a cursor to another position while collectors and its consumer work: docs/concepts/pins.md, "Cursors".

There is one entry. A cursor that is set `back` needs the entry at its new position, and at its old position until its
consumer saves past it. A cursor that is set forward needs it at its old position only. The setter announces the new
position in the cursor's own record; from then on both positions count. It reads the old position, then the floor. Then
it arrives by a swap of that record, which may land late; or it withdraws the announcement and may try again. A
collector withdraws an expired announcement in the same way. Any process may stop at any line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation


class Guard(Enum):
    NEW_COUNTS = "the new position counts from its announcement on"
    OLD_COUNTS = "the old position counts until the cursor has arrived"
    KEPT = "a cursor arrives only where no floor has passed, or where the old position kept everything"
    FLOOR_AFTER = "the floor is read after the announcement"
    OLD_AFTER = "the old position is read after the announcement"
    ARRIVES_AS_ANNOUNCED = "a cursor arrives only while that position is announced"
    EXPIRED_WITHDRAWN = "an announcement that has expired is withdrawn before it stops to count"
    WITHDRAWN_AS_JUDGED = "it is withdrawn only if the cursor has not arrived"
    HELD = "a save counts only if the cursor is found unmoved after it"


class Setter(NamedTuple):
    call: str = "look"
    attempt: int = 1  # its announcement; each has a nonce of its own
    kept: bool = True  # the old position keeps the entry, as last read
    passed: bool = False  # the floor has passed the entry, as last read


class State(NamedTuple):
    kept: bool  # the old position needs the entry
    stored: bool = True
    passed: bool = False
    arrived: bool = False
    announced: int = 0
    expired: bool = False
    late: int = 0  # the arrival that is in flight
    setter: Setter = Setter()
    collectors: tuple[tuple[str, int], ...] = ()  # its call, and the announcement that it judged
    consumer: str = "save"


@dataclass(frozen=True, slots=True)
class CursorSet:
    without: Guard | None = None
    back: bool = True
    collectors: int = 2
    attempts: int = 2

    def initial(self) -> State:
        return State(kept=True, collectors=(("commit", 0),) * self.collectors)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        for action, outcome, after in self._set(state):
            yield Step("setter", action, outcome), after
        for index, (call, judged) in enumerate(state.collectors):
            for action, outcome, mine, after in self._collect(state, call, judged):
                others = (*state.collectors[:index], mine, *state.collectors[index + 1 :])
                yield Step(f"collector {index}", action, outcome), after._replace(collectors=others)
        if self.back:
            yield from self._save(state)
        if state.announced and not state.expired:
            yield Step("time", "the announcement expires"), state._replace(expired=True)
        if state.late:
            landed = self._arrive(state, state.late) or state
            yield Step("late", "arrive", "applied" if landed.arrived else "lost"), landed._replace(late=0)

    def violation(self, state: State) -> Violation | None:
        if not state.stored and (self.back if state.arrived else state.kept):
            return Violation("kept entry missing", "of the new position" if state.arrived else "of the old position")
        if state.arrived and state.setter.call == "refused":
            return Violation("false report", "the setter was refused, but the cursor has moved")
        if state.consumer == "saved elsewhere":
            return Violation("false report", "the save was acknowledged, but the cursor has moved")
        return None

    def _set(self, state: State) -> Iterator[tuple[str, str, State]]:
        me = state.setter

        def go(call: str, after: State = state, **seen: object) -> State:
            return after._replace(setter=me._replace(call=call, **seen))  # type: ignore[arg-type]

        def again(after: State = state) -> State:
            """The announcement is over: try again, or give up."""
            more = me.attempt < self.attempts
            return go("look", after, attempt=me.attempt + 1) if more else go("given up", after)

        match me.call:
            case "look" if not state.arrived:
                refused = self.back and state.passed and not state.kept
                seen = {"kept": state.kept, "passed": state.passed}
                yield "look", "", go("refused") if refused else go("announce", **seen)
            case "announce" if not state.arrived:
                announced = state._replace(announced=me.attempt, expired=False)
                yield "announce", "", go("read old", announced)
            case "read old":
                kept = me.kept if self.without is Guard.OLD_AFTER else state.kept
                yield "read old position", "keeps" if kept else "passed", go("read floor", kept=kept)
            case "read floor":
                passed = me.passed if self.without is Guard.FLOOR_AFTER else state.passed
                kept = not self.back or not passed or me.kept or self.without is Guard.KEPT
                yield "read floor", "passed" if passed else "not passed", go("arrive" if kept else "withdraw")
            case "arrive":
                arrived = state if state.arrived else self._arrive(state, me.attempt)
                yield "arrive", "lost" if arrived is None else "applied", go("done", arrived) if arrived else again()
                if state.late:
                    yield "give up", "", go("withdraw")
                else:
                    yield "arrive", "no answer", go("arrive", state._replace(late=me.attempt))
            case "withdraw":
                withdrawn = self._withdraw(state, me.attempt)
                yield "withdraw", "applied" if withdrawn else "lost", again(withdrawn or state)

    def _arrive(self, state: State, announcement: int) -> State | None:
        if state.announced != announcement and self.without is not Guard.ARRIVES_AS_ANNOUNCED:
            return None
        return state._replace(arrived=True, announced=0)

    def _withdraw(self, state: State, announcement: int) -> State | None:
        if state.announced == announcement:
            return state._replace(announced=0)
        blind = self.without is Guard.WITHDRAWN_AS_JUDGED and state.arrived
        return state._replace(arrived=False) if blind else None

    def _collect(self, state: State, call: str, judged: int) -> Iterator[tuple[str, str, tuple[str, int], State]]:
        hidden = state.announced and self.without is Guard.OLD_COUNTS
        old = state.kept and not state.arrived and not hidden
        new = self.back and (state.arrived or (state.announced and self.without is not Guard.NEW_COUNTS))
        match call:
            case "commit":
                yield "commit floor", "", ("pins", 0), state._replace(passed=True)
            case "pins" if state.announced and state.expired:
                following = "pins" if old else "delete"
                if self.without is not Guard.EXPIRED_WITHDRAWN:
                    following = f"withdraw, {following}"
                yield "read pins", "expired", (following, state.announced), state
            case "pins" if not old and not new:
                yield "read pins", "none", ("delete", 0), state
            case "withdraw, pins" | "withdraw, delete":
                withdrawn = self._withdraw(state, judged)
                following = call.removeprefix("withdraw, ") if withdrawn else "pins"
                yield "withdraw", "applied" if withdrawn else "lost", (following, 0), withdrawn or state
            case "delete":
                yield "delete", "", ("done", 0), state._replace(stored=False)

    def _save(self, state: State) -> Iterator[tuple[Step, State]]:
        outcome = "saved elsewhere" if state.arrived else "saved"
        match state.consumer:
            case "save":
                following = outcome if self.without is Guard.HELD else "look"
                yield Step("consumer", "save"), state._replace(kept=False, consumer=following)
            case "look":
                following = "refused" if state.arrived else "saved"
                yield Step("consumer", "read cursor", following), state._replace(consumer=following)
