"""Append slowly among fast appends of one owner: `wal.waiting`.

One tick is one call. A slow append needs `needs` ticks from the head to its swap, and loses if another append lands in
between. A fast writer appends every `gap` ticks. The slow writer leaves a note when it loses its third
position, and may die at any time. A slow append that loses more than `losses` times is starved. So is a fast writer
that holds back more than once for a dead writer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

PATIENCE = 2


class Guard(Enum):
    NOTE = "a writer that loses its position leaves a note"
    HOLD_BACK = "a writer that finds a note holds back before its next append"
    LONG_ENOUGH = "a writer is asked to hold back for longer than the slow append takes"
    REMOVED = "an append after a pause removes the note"


class Slow(NamedTuple):
    ticks: int = 0  # since the head was read
    disturbed: bool = False
    lost: int = 0
    call: str = "tries"  # or "done", "dead"


class Fast(NamedTuple):
    since: int = 0  # ticks since the last append
    pause: int = 0  # ticks to hold back
    removes: bool = False
    for_dead: int = 0  # pauses that began after the slow writer died


class State(NamedTuple):
    slow: Slow
    fast: Fast
    note: bool


@dataclass(frozen=True, slots=True)
class WaitingNote:
    without: Guard | None = None
    gap: int = 2
    needs: int = 4
    losses: int = 4

    def initial(self) -> State:
        return State(Slow(), Fast(), False)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        if state.slow.call == "tries":
            yield Step("slow", "dies"), state._replace(slow=state.slow._replace(call="dead"))
        for late in (False, True):
            fast, note, lands = self._fast(state, late=late)
            slow, note = self._slow(state.slow, note, lands)
            yield Step("tick", "append" if lands else "quiet"), State(slow, fast, note)

    def violation(self, state: State) -> Violation | None:
        if state.slow.call == "tries" and state.slow.lost > self.losses:
            return Violation("starved", f"the slow append has lost {state.slow.lost} times")
        if state.fast.for_dead > 1:
            return Violation("held back", "a writer holds back again and again for a dead one")
        return None

    def _fast(self, state: State, *, late: bool) -> tuple[Fast, bool, bool]:
        """Return the fast writer and the note after a tick, and whether an append landed in it."""
        fast, note = state.fast, state.note
        if fast.pause:
            return fast._replace(pause=fast.pause - 1), note, False
        if fast.since + 1 < self.gap + late:
            return fast._replace(since=min(fast.since + 1, self.gap)), note, False
        if fast.removes and self.without is not Guard.REMOVED:
            note = False
        if not note or self.without is Guard.HOLD_BACK:
            return Fast(for_dead=fast.for_dead), note, True
        pause = self.needs - 2 if self.without is Guard.LONG_ENOUGH else 2 * self.needs
        for_dead = fast.for_dead + (state.slow.call == "dead")
        return Fast(pause=pause, removes=True, for_dead=min(for_dead, 2)), note, True

    def _slow(self, slow: Slow, note: bool, lands: bool) -> tuple[Slow, bool]:
        if slow.call != "tries":
            return slow, note
        disturbed = slow.disturbed or lands
        if slow.ticks + 1 < self.needs:
            return slow._replace(ticks=slow.ticks + 1, disturbed=disturbed), note
        if not disturbed:
            return slow._replace(call="done"), False
        lost = min(slow.lost + 1, self.losses + 1)
        return Slow(lost=lost), note or (lost > PATIENCE and self.without is not Guard.NOTE)
