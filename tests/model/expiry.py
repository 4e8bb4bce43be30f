"""Rows that expire while they are flushed, merged and removed: docs/concepts/merge.md, "Rows that expire".

One key has an old row in the base that never expires, then newer rows, of which the first one expires. A flush moves
rows from the log to the pending ones. A merge plans, writes, and commits; after a conflict it commits the same rows on
the newest base. A removal hides what has expired in the base. Another process changes the time to live by a commit of
the base. The clocks of processes differ: that of flushes, merges and removals is ahead of that of readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

SKEW = 1
NEVER = 9
EXPIRES = {0: NEVER, 1: 1, 2: NEVER}  # by the number of a row: the newest row has the highest


class Guard(Enum):
    AS_TOMBSTONE = "an expired row that a merge leaves out hides older rows of its key"
    KEPT = "a flush keeps an expired row"
    SKEW = "a merge or a removal leaves out what has expired by the slowest clock"
    TTL_UNMOVED = "written rows are committed only if the time to live has not changed since they were planned"
    CONFLICT = "a removal commits only on the base version that it read"


class Base(NamedTuple):
    version: int = 1
    expires: bool = True  # whether there is a time to live
    merged: int = 0  # how many rows that were flushed it has merged
    row: int | None = 0


class Merger(NamedTuple):
    call: str = "plan"
    planned: Base | None = None
    through: int = 0
    row: int | None = None  # what it writes; None for a tombstone
    base: Base | None = None  # the version that it commits on


class State(NamedTuple):
    now: int
    base: Base
    log: tuple[int, ...]
    flushed: tuple[int, ...]
    newest: int | None  # what a reader may see: the newest row that was written, unless it was removed rightly
    may_be_gone: bool
    merger: Merger
    removal: Base | None
    changes: int  # remaining changes of the time to live


@dataclass(frozen=True, slots=True)
class Expiry:
    without: Guard | None = None
    ticks: int = 2

    def initial(self) -> State:
        return State(0, Base(), (), (), 0, False, Merger(), None, 2)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        if state.now < self.ticks:
            yield Step("clock", "tick"), state._replace(now=state.now + 1)
        if state.newest != max(EXPIRES):
            row = 1 + len(state.log) + len(state.flushed)
            if row in EXPIRES:
                yield Step("writer", f"put {row}"), state._replace(log=(*state.log, row), newest=row, may_be_gone=False)
        if state.log:
            dropped = self.without is Guard.KEPT and self._has_expired(state.log[0], state, state.base)
            flushed = state.flushed if dropped else (*state.flushed, state.log[0])
            yield Step("flush", f"row {state.log[0]}"), state._replace(log=state.log[1:], flushed=flushed)
        if state.changes:
            changed = state.base._replace(version=state.base.version + 1, expires=not state.base.expires)
            yield Step("set_ttl", str(changed.expires)), state._replace(base=changed, changes=state.changes - 1)
        yield from self._merge(state)
        yield from self._remove(state)

    def violation(self, state: State) -> Violation | None:
        above = [*state.flushed[state.base.merged :], *state.log]
        found = above[-1] if above else state.base.row
        if found == state.newest or (found is None and state.may_be_gone):
            return None
        kind = "row lost" if found is None else "older row reappears"
        return Violation(kind, f"{found} is the newest one, not {state.newest}")

    def _has_expired(self, row: int | None, state: State, base: Base) -> bool:
        """By the clock of a flush, a merge or a removal, which is ahead of the slowest one by less than the skew."""
        clock = state.now + SKEW - (0 if self.without is Guard.SKEW else SKEW)
        return row is not None and base.expires and EXPIRES[row] <= clock

    def _removed(self, state: State, row: int | None) -> State:
        """A commit without a row. That is right if it is the newest one, and has expired for every reader."""
        right = row == state.newest and row is not None and state.base.expires and EXPIRES[row] <= state.now
        return state._replace(may_be_gone=state.may_be_gone or right)

    def _merge(self, state: State) -> Iterator[tuple[Step, State]]:
        merger, base = state.merger, state.base
        match merger.call:
            case "plan" if base.merged < len(state.flushed):
                row = state.flushed[-1]
                dead = self._has_expired(row, state, base)
                planned = Merger("commit", base, len(state.flushed), None if dead else row, base)
                yield Step("merger", "plan", "tombstone" if dead else "row"), state._replace(merger=planned)
            case "commit" if merger.base.version != base.version:
                same = self.without is Guard.TTL_UNMOVED or base.expires == merger.planned.expires
                again = merger._replace(base=base) if same and base.merged == merger.planned.merged else Merger()
                yield Step("merger", "commit", "conflict"), state._replace(merger=again)
            case "commit":
                newest = state.flushed[merger.through - 1]
                row = merger.row
                if row is None and self.without is Guard.AS_TOMBSTONE:
                    row = base.row
                after = state if merger.row is not None else self._removed(state, newest)
                merged = base._replace(version=base.version + 1, merged=merger.through, row=row)
                yield Step("merger", "commit", "applied"), after._replace(base=merged, merger=Merger())

    def _remove(self, state: State) -> Iterator[tuple[Step, State]]:
        base, read = state.base, state.removal
        if read is None:
            if self._has_expired(base.row, state, base):
                yield Step("removal", "read"), state._replace(removal=base)
        elif read.version != base.version and self.without is not Guard.CONFLICT:
            yield Step("removal", "commit", "conflict"), state._replace(removal=None)
        else:
            after = self._removed(state, base.row)
            removed = base._replace(version=base.version + 1, row=None)
            yield Step("removal", "commit", "applied"), after._replace(base=removed, removal=None)
