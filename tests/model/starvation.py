"""Append without pause while a claim and a flush try to commit: docs/concepts/head-and-manifest.md, "The commit loop".

One tick is one call. The appender's swap lands every `gap` ticks or one tick later. A flush and a claim read the head,
may prepare something, and swap. After a lost swap they start again with the read. A flush or claim that has lost more
than twice, to appends alone, is starved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation


class Guard(Enum):
    CLAIM_ON_EPOCH = "a claim is conditional on the epoch alone"
    FLUSH_ON_MANIFEST_VERSION = "a flush is conditional on the manifest's version alone"
    STAGED_ONCE = "a manifest is staged once, outside the loop that repeats its swap"


class Attempt(NamedTuple):
    ticks: int = 0  # since the head was read
    disturbed: bool = False  # an append landed after the head was read
    lost: int = 0
    done: bool = False


class State(NamedTuple):
    since_append: int
    claim: Attempt
    flush: Attempt


@dataclass(frozen=True, slots=True)
class Starvation:
    """Swap on a registry that can only compare whole records: its adapter reads, checks and puts, as `object` does.

    A claim or flush whose own condition is the whole record repeats all its steps, staging included.
    """

    without: Guard | None = None
    gap: int = 3
    staging: int = 3

    def initial(self) -> State:
        return State(0, Attempt(), Attempt())

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        """Advance time for all actors; the append may or may not land in this tick."""
        since = state.since_append + 1
        for lands in (True, False):
            if (lands and since < self.gap) or (not lands and since > self.gap):
                continue
            claim = self._tick(state.claim, lands, self._claim_window())
            flush = self._tick(state.flush, lands, self._flush_window())
            yield Step("tick", "append" if lands else "quiet"), State(0 if lands else since, claim, flush)

    def _claim_window(self) -> int:
        """Return the ticks between the read and the swap, which needs the record as it was read."""
        return self.gap + 1 if self.without is Guard.CLAIM_ON_EPOCH else 1

    def _flush_window(self) -> int:
        if self.without is Guard.STAGED_ONCE:
            return 1 + self.staging
        if self.without is Guard.FLUSH_ON_MANIFEST_VERSION:
            return self.gap + 1  # since the plan
        return 1

    def violation(self, state: State) -> Violation | None:
        for name, attempt in (("claim", state.claim), ("flush", state.flush)):
            if attempt.lost > 2:
                return Violation("starved", f"{name} has lost {attempt.lost} times to appends alone")
        return None

    def _tick(self, attempt: Attempt, lands: bool, window: int) -> Attempt:
        if attempt.done:
            return attempt
        disturbed = attempt.disturbed or (lands and attempt.ticks > 0)
        if attempt.ticks < window:
            return attempt._replace(ticks=attempt.ticks + 1, disturbed=disturbed)
        if disturbed:
            return Attempt(lost=attempt.lost + 1)
        return Attempt(lost=attempt.lost, done=True)
