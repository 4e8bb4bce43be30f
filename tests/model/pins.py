"""Pin an object while collectors work: docs/concepts/pins.md, "The protocol".

The state before a round needs the object, the state after it does not. A holder records a pin of the state that it saw,
reads the committed floor and confirms the pin. After the pin has expired, the holder renews it before it relies on it
again. Several collectors mark, commit, read all pins, and delete. Any process may stop at any line and continue much
later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation


class Guard(Enum):
    RECORD_FIRST = "the pin's record is written before the floors are read"
    FLOOR = "a pin is confirmed only if no committed floor has passed it"
    SWEEP_READS_PINS = "pins are read again after the commit"
    UNCONFIRMED_COUNT = "a pin counts from its record on"
    EXPIRED_REMOVED = "an expired record is removed before it stops counting"
    REMOVED_AS_JUDGED = "an expired record is removed only if it is still the record that was judged"
    CONFIRM_AS_WRITTEN = "a pin is confirmed only while its record exists and is as it was written"
    RENEW_AS_READ = "a pin is renewed only while its record exists"


class Record(NamedTuple):
    version: int = 1
    expired: bool = False
    confirmed: bool = False


class Holder(NamedTuple):
    call: str = "look"
    relies: bool = False  # its pin is confirmed and has not expired by its own clock
    renewals: int = 0


class Collector(NamedTuple):
    call: str = "mark"
    judged: int = 0  # version of the expired record that it will remove next
    then: str = ""


class State(NamedTuple):
    stored: bool
    dropped: bool  # the committed manifest no longer names it, and the floor has passed it
    record: Record | None
    holder: Holder
    collectors: tuple[Collector, ...]


@dataclass(frozen=True, slots=True)
class Pins:
    without: Guard | None = None
    collectors: int = 2
    renewals: int = 2

    def initial(self) -> State:
        return State(True, False, None, Holder(), (Collector(),) * self.collectors)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        yield from self._hold(state)
        for index in range(self.collectors):
            for action, outcome, after in self._collect(state, index):
                yield Step(f"collector {index}", action, outcome), after
        if state.record is not None and not state.record.expired:
            expired = state._replace(record=state.record._replace(expired=True))
            yield Step("time", "the pin expires"), expired._replace(holder=state.holder._replace(relies=False))

    def violation(self, state: State) -> Violation | None:
        if state.holder.relies and not state.stored:
            return Violation("pinned object missing", f"{state.record}, {state.holder}")
        return None

    def _hold(self, state: State) -> Iterator[tuple[Step, State]]:
        holder, record = state.holder, state.record

        def go(call: str, after: State = state, **changes: object) -> State:
            return after._replace(holder=holder._replace(call=call, **changes))  # type: ignore[arg-type]

        late = self.without is Guard.RECORD_FIRST
        match holder.call:
            case "look":
                if not state.dropped:
                    yield Step("holder", "read what to pin"), go("check" if late else "write")
            case "write":
                yield (
                    Step("holder", "write record"),
                    go("confirm" if late else "check", state._replace(record=Record())),
                )
            case "check":
                passed = not state.stored if self.without is Guard.FLOOR else state.dropped
                following = "failed" if passed else "write" if late else "confirm"
                yield Step("holder", "read floors", "passed" if passed else "not passed"), go(following)
            case "confirm":
                blind = self.without is Guard.CONFIRM_AS_WRITTEN
                if blind or (record is not None and record.version == 1):
                    confirmed = (record or Record())._replace(confirmed=True, version=2)
                    yield (
                        Step("holder", "confirm", "applied"),
                        go("held", state._replace(record=confirmed), relies=not confirmed.expired),
                    )
                else:
                    yield Step("holder", "confirm", "lost"), go("failed")
            case "held":
                if holder.renewals == self.renewals:
                    return
                if record is not None or self.without is Guard.RENEW_AS_READ:
                    renewed = Record((record or Record()).version + 1, expired=False, confirmed=True)
                    yield (
                        Step("holder", "renew", "applied"),
                        go("held", state._replace(record=renewed), relies=True, renewals=holder.renewals + 1),
                    )
                else:
                    yield Step("holder", "renew", "gone"), go("failed", relies=False)

    def _collect(self, state: State, index: int) -> Iterator[tuple[str, str, State]]:
        me, record = state.collectors[index], state.record

        def go(call: str, after: State = state, **changes: object) -> State:
            collectors = list(after.collectors)
            collectors[index] = Collector(call, **changes)  # type: ignore[arg-type]
            return after._replace(collectors=tuple(collectors))

        counts = record is not None and (record.confirmed or self.without is not Guard.UNCONFIRMED_COUNT)
        match me.call:
            case "mark" | "sweep":
                following = "commit" if me.call == "mark" else "delete"
                if record is None or not counts:
                    yield "read pins", "none", go(following)
                elif record.expired and self.without is Guard.EXPIRED_REMOVED:
                    yield "read pins", "expired", go(following)
                elif record.expired:
                    yield "read pins", "expired", go("remove", judged=record.version, then=following)
            case "remove":
                as_judged = record is not None and record.version == me.judged
                if record is not None and (as_judged or self.without is Guard.REMOVED_AS_JUDGED):
                    yield "remove record", "applied", go(me.then, state._replace(record=None))
                elif record is None:
                    yield "remove record", "gone", go(me.then)
                else:
                    yield "remove record", "changed", go("sweep" if me.then == "delete" else "mark")
            case "commit":
                skips = self.without is Guard.SWEEP_READS_PINS
                yield "commit", "", go("delete" if skips else "sweep", state._replace(dropped=True))
            case "delete":
                yield "delete", "", go("done", state._replace(stored=False))
