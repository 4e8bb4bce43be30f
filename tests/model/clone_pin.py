"""Pin a clone that is made from a snapshot which may expire: docs/concepts/changes.md, "Clone, backup, restore, drop".

The snapshot keeps a version of the base. The clone's pin is recorded next to it. Then the snapshot's own record is
swapped under the version that was read, and then the pin is confirmed. A collector commits, reads all pins, removes an
expired snapshot under the version that it judged, and deletes everything that no pin holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation


class Guard(Enum):
    RECORD_FIRST = "the clone's pin is recorded before the snapshot is checked again"
    SWAPPED = "the snapshot's record is swapped, not only read"
    REMOVED_AS_JUDGED = "an expired snapshot is removed only if its record is still the one that was judged"


class State(NamedTuple):
    stored: bool = True
    snapshot: int = 1  # version of its record, which has expired; 0: removed
    recorded: bool = False
    call: str = "record"
    confirmed: bool = False
    collectors: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ClonePin:
    without: Guard | None = None
    collectors: int = 2

    def initial(self) -> State:
        first = "keep" if self.without is Guard.RECORD_FIRST else "record"
        return State(call=first, collectors=(("pins", 0),) * self.collectors)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        late = self.without is Guard.RECORD_FIRST
        match state.call:
            case "record":
                yield Step("clone", "record"), state._replace(recorded=True, call="confirm" if late else "keep")
            case "keep":
                following = "record" if late else "confirm"
                if not state.snapshot:
                    yield Step("clone", "keep snapshot", "gone"), state._replace(call="failed", recorded=False)
                elif self.without is Guard.SWAPPED:
                    yield Step("clone", "read snapshot"), state._replace(call=following)
                else:
                    swapped = state._replace(snapshot=state.snapshot + 1, call=following)
                    yield Step("clone", "keep snapshot", "applied"), swapped
            case "confirm":
                yield Step("clone", "confirm"), state._replace(confirmed=True, call="done")
        for index, (call, judged) in enumerate(state.collectors):
            for action, after, mine in self._collect(state, call, judged):
                others = (*state.collectors[:index], mine, *state.collectors[index + 1 :])
                yield Step(f"collector {index}", action), after._replace(collectors=others)

    def violation(self, state: State) -> Violation | None:
        if state.confirmed and not state.stored:
            return Violation("pinned object missing", "of a confirmed clone")
        return None

    def _collect(self, state: State, call: str, judged: int) -> Iterator[tuple[str, State, tuple[str, int]]]:
        match call:
            case "pins" if not state.recorded:
                yield "read pins", state, ("remove", state.snapshot) if state.snapshot else ("delete", 0)
            case "remove":
                blind = self.without is Guard.REMOVED_AS_JUDGED
                if state.snapshot in (0, judged) or blind:
                    yield "remove snapshot", state._replace(snapshot=0), ("delete", 0)
                else:
                    yield "remove snapshot: changed", state, ("done", 0)
            case "delete":
                yield "delete", state._replace(stored=False), ("done", 0)
