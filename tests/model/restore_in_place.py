"""Restore the rows of an earlier state in place: docs/concepts/pins.md, "Restore in place".

There are two keys, which both differ from the state to restore. A restore compares the rows at a snapshot, which keeps
the log after it, then appends an entry for each key. One call may crash or stall at any step, and a second call begins
at any time. Another writer writes both keys. Collections delete entries that no snapshot keeps. How a snapshot and a
collection see each other is in tests/model/pins.py, and how one entry is appended in tests/model/transactions.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

KEYS = "ab"


class Guard(Enum):
    FILTER = "a key that was written since the comparison is left out"
    NEWEST = "what was written is read up to the head that the entry follows"
    GONE = "a call stops if the log after the comparison is gone"
    KEPT = "the snapshot keeps the log after it"
    CONTINUE = "a call goes on with the snapshot of one that did not finish"


class Entry(NamedTuple):
    key: str
    compared: int | None  # the length of the log at the comparison of its restore; None: the other writer


class Snapshot(NamedTuple):
    number: int
    length: int  # of the log


class Call(NamedTuple):
    step: str = "begin"
    snapshot: Snapshot | None = None
    length: int = 0  # of the log, as far as it was read
    written: frozenset[str] = frozenset()  # since the comparison
    left: str = KEYS


class State(NamedTuple):
    log: tuple[Entry, ...] = ()
    floor: int = 0  # how many entries are deleted
    snapshot: Snapshot | None = None
    snapshots: int = 0
    calls: tuple[Call, ...] = (Call(), Call())
    writes: int = 2
    collections: int = 2
    crashes: int = 1


@dataclass(frozen=True, slots=True)
class RestoreInPlace:
    without: Guard | None = None

    def initial(self) -> State:
        return State()

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        for number, call in enumerate(state.calls):
            if call.step in ("done", "stopped", "overtaken", "crashed"):
                continue
            name = f"call {number}"
            for step, after, changed in self._call(state, name, call):
                calls = (*after.calls[:number], changed, *after.calls[number + 1 :])
                yield step, after._replace(calls=calls)
            if state.crashes:
                calls = (*state.calls[:number], Call(step="crashed"), *state.calls[number + 1 :])
                yield Step(name, "crash"), state._replace(calls=calls, crashes=state.crashes - 1)
        if state.writes:
            for key in KEYS:
                written = state._replace(log=(*state.log, Entry(key, None)), writes=state.writes - 1)
                yield Step("writer", f"write {key}"), written
        keeps = state.snapshot is not None and self.without is not Guard.KEPT
        most = state.snapshot.length if keeps and state.snapshot is not None else len(state.log)
        if state.collections and state.floor < most:
            yield (
                Step("collector", f"delete below {most}"),
                state._replace(floor=most, collections=state.collections - 1),
            )

    def violation(self, state: State) -> Violation | None:
        for position, entry in enumerate(state.log):
            newer = () if entry.compared is None else state.log[entry.compared : position]
            if any(one.key == entry.key and one.compared is None for one in newer):
                return Violation("newer row lost", f"entry {position} of {state.log}")
        for call in state.calls:
            if call.step == "done" and call.snapshot is not None:
                since = {one.key for one in state.log[call.snapshot.length :]}
                if since < set(KEYS):
                    return Violation("not restored", f"{call} with {state.log}")
            if call.step == "overtaken":
                return Violation("stopped without need", f"{call} with {state.log}")
        return None

    def _call(self, state: State, name: str, call: Call) -> Iterator[tuple[Step, State, Call]]:
        match call.step:
            case "begin":
                yield self._begin(state, name)
            case "read":
                yield self._read(state, name, call)
            case "append":
                yield self._append(state, name, call)
            case "finish":
                after = state._replace(snapshot=None) if state.snapshot == call.snapshot else state
                yield Step(name, "drop the snapshot"), after, call._replace(step="done")

    def _begin(self, state: State, name: str) -> tuple[Step, State, Call]:
        found = state.snapshot
        if found is not None:
            length = len(state.log) if self.without is Guard.CONTINUE else found.length
            return Step(name, f"continue from {length}"), state, Call(step="read", snapshot=found, length=length)
        made = Snapshot(state.snapshots, len(state.log))
        after = state._replace(snapshot=made, snapshots=state.snapshots + 1)
        return Step(name, f"compare at {made.length}"), after, Call(step="read", snapshot=made, length=made.length)

    def _read(self, state: State, name: str, call: Call) -> tuple[Step, State, Call]:
        """Read the head, and the keys that the log got up to it."""
        if state.floor > call.length and self.without is not Guard.GONE:
            is_needless = state.snapshot == call.snapshot
            return Step(name, "read", "collected"), state, call._replace(step="overtaken" if is_needless else "stopped")
        new = {entry.key for entry in state.log[max(call.length, state.floor) :]}
        written = frozenset() if self.without is Guard.FILTER else call.written | new
        left = call.left if not call.left or call.left[0] not in written else call.left[1:]
        changed = call._replace(length=len(state.log), written=written, left=left)
        step = "finish" if not left else "append" if left == call.left else "read"
        return Step(name, f"read up to {len(state.log)}"), state, changed._replace(step=step)

    def _append(self, state: State, name: str, call: Call) -> tuple[Step, State, Call]:
        assert call.snapshot is not None
        if call.length != len(state.log) and self.without is not Guard.NEWEST:
            return Step(name, "append", "lost"), state, call._replace(step="read")
        entry = Entry(call.left[0], call.snapshot.length)
        left = call.left[1:]
        after = state._replace(log=(*state.log, entry))
        return Step(name, f"append {entry.key}"), after, call._replace(step="read" if left else "finish", left=left)
