"""Append what was computed from the rows at a head: docs/concepts/path-of-a-row.md, "Transactions".

There is one counter. Two transactions increment it, and another writer sets it to 10 without reading. A put or a swap
may lose its reply, a writer may crash, and collections delete the entries that are in the base. A view is read as a
whole here: tests/model/reader_view.py shows that it has exactly the entries up to its head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

RIVAL = 2  # the writer that does not read


class Guard(Enum):
    FOLLOW = "the entries between the view and the head are applied to the rows"
    NEW_VIEW = "if these entries were collected, the rows are read from a new view"
    COMPUTE_AGAIN = "the change is computed again for each newer head"
    POSITION = "the entry is committed only at the head that it was computed for"


class Entry(NamedTuple):
    writer: int
    value: int
    after: int | None  # the value that it was computed from; None: from none


class Writer(NamedTuple):
    call: str = "view"
    head: int = 1  # the next position, as the writer knows it; at first from an earlier append
    rows: tuple[int, int] = (0, 0)  # next position and value of what was read
    draft: Entry | None = None
    unknown: bool = False  # a put had no answer
    puts: int = 0


class State(NamedTuple):
    entries: tuple[Entry, ...] = ()  # committed, from position 1
    slot: Entry | None = None  # the object at the next position
    floor: int = 1
    writers: tuple[Writer, ...] = (Writer(), Writer(), Writer(call="put", draft=Entry(RIVAL, 10, None)))
    crashes: int = 1
    losses: int = 1
    collections: int = 2

    @property
    def next(self) -> int:
        return len(self.entries) + 1

    def value(self, position: int) -> int:
        """The value after the entries before a position."""
        return self.entries[position - 2].value if position > 1 else 0


@dataclass(frozen=True, slots=True)
class Transactions:
    without: Guard | None = None
    collections: int = 1

    def initial(self) -> State:
        return State(collections=self.collections)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        for number, writer in enumerate(state.writers):
            name = "rival" if number == RIVAL else f"transaction {number}"
            if writer.call in ("done", "ambiguous", "crashed"):
                continue
            for step, after, changed in self._write(state, name, number, writer):
                writers = (*after.writers[:number], changed, *after.writers[number + 1 :])
                yield step, after._replace(writers=writers)
            if state.crashes:
                writers = (*state.writers[:number], Writer(call="crashed"), *state.writers[number + 1 :])
                yield Step(name, "crash"), state._replace(writers=writers, crashes=state.crashes - 1)
        if state.collections and state.floor < state.next:
            after = state._replace(floor=state.next, collections=state.collections - 1)
            yield Step("collector", f"collect below {state.next}"), after

    def violation(self, state: State) -> Violation | None:
        for position, entry in enumerate(state.entries, 1):
            if entry.after is not None and entry.after != state.value(position):
                return Violation("lost update", f"entry {position} of {state.entries}")
        for number, writer in enumerate(state.writers):
            committed = sum(entry.writer == number for entry in state.entries)
            if committed > 1 or (writer.call == "done" and not committed):
                return Violation("not written once", f"writer {number} in {state.entries}")
        return None

    def _write(self, state: State, name: str, number: int, writer: Writer) -> Iterator[tuple[Step, State, Writer]]:
        match writer.call:
            case "view":
                rows = (state.next, state.value(state.next))
                yield Step(name, "read a view"), state, writer._replace(call="follow", rows=rows)
            case "follow":
                yield self._follow(state, name, number, writer)
            case "put":
                yield from self._put(state, name, writer)
            case "read slot":
                yield self._read_slot(state, name, number, writer)
            case "swap":
                yield from self._swap(state, name, writer)
            case "resolve":
                yield self._resolve(state, name, number, writer)

    def _follow(self, state: State, name: str, number: int, writer: Writer) -> tuple[Step, State, Writer]:
        """Bring the rows up to the head, and compute the change."""
        position, value = writer.rows
        if writer.head < position:
            return Step(name, "read the head"), state, writer._replace(head=state.next)
        if writer.head > position and state.floor > position and self.without is not Guard.NEW_VIEW:
            return Step(name, "read entries", "collected"), state, writer._replace(call="view")
        applied = self.without is not Guard.FOLLOW and state.floor <= position
        rows = (writer.head, state.value(writer.head) if applied or writer.head == position else value)
        draft = Entry(number, rows[1] + 1, rows[1])
        if writer.draft is not None and self.without is Guard.COMPUTE_AGAIN:
            draft = writer.draft
        changed = Writer(call="put", head=writer.head, rows=rows, draft=draft)
        return Step(name, f"compute {draft.value} at {writer.head}"), state, changed

    def _put(self, state: State, name: str, writer: Writer) -> Iterator[tuple[Step, State, Writer]]:
        """Create the object at the next position of the head. A put at a collected position fills it again."""
        again = writer._replace(puts=writer.puts + 1)
        if state.floor <= writer.head < state.next or (writer.head == state.next and state.slot is not None):
            yield Step(name, "put", "refused"), state, again._replace(call="read slot")
            return
        written = state._replace(slot=writer.draft) if writer.head == state.next else state
        yield Step(name, "put", "written"), written, again._replace(call="swap")
        if state.losses and writer.puts < 2:
            unknown = again._replace(call="read slot", unknown=True)
            yield Step(name, "put", "reply lost"), written._replace(losses=state.losses - 1), unknown
            yield Step(name, "put", "no effect"), state._replace(losses=state.losses - 1), unknown

    def _read_slot(self, state: State, name: str, number: int, writer: Writer) -> tuple[Step, State, Writer]:
        """After a put that was refused or had no answer: our object, none, or that of another writer."""
        if writer.head < state.next:
            if writer.unknown:
                return Step(name, "read the head", "passed"), state, writer._replace(call="resolve")
            return Step(name, "read the head", "passed"), state, self._start_again(state, writer)
        if state.slot is None:
            return Step(name, "read slot", "none"), state, writer._replace(call="put")
        if state.slot.writer == number:
            return Step(name, "read slot", "ours"), state, writer._replace(call="swap")
        committed = state._replace(entries=(*state.entries, state.slot), slot=None)
        if writer.unknown:
            return Step(name, "commit another entry"), committed, writer._replace(call="resolve")
        return Step(name, "commit another entry"), committed, self._start_again(committed, writer)

    def _swap(self, state: State, name: str, writer: Writer) -> Iterator[tuple[Step, State, Writer]]:
        assert writer.draft is not None
        if writer.head != state.next and self.without is not Guard.POSITION:
            yield Step(name, "swap", "lost"), state, writer._replace(call="resolve")
            return
        is_committed = any(entry.writer == writer.draft.writer for entry in state.entries)
        applied = state if is_committed else state._replace(entries=(*state.entries, writer.draft), slot=None)
        yield Step(name, "swap", "applied"), applied, writer._replace(call="done")
        if state.losses:
            after = applied._replace(losses=state.losses - 1)
            yield Step(name, "swap", "reply lost"), after, writer

    def _resolve(self, state: State, name: str, number: int, writer: Writer) -> tuple[Step, State, Writer]:
        """The head is past our position: find out whose entry was committed there."""
        if state.floor > writer.head:
            return Step(name, "read entry", "collected"), state, writer._replace(call="ambiguous")
        if state.entries[writer.head - 1].writer == number:
            return Step(name, "read entry", "ours"), state, writer._replace(call="done")
        return Step(name, "read entry", "of another"), state, self._start_again(state, writer)

    def _start_again(self, state: State, writer: Writer) -> Writer:
        if writer.draft is not None and writer.draft.after is None:
            return Writer(call="put", head=state.next, draft=writer.draft)
        return writer._replace(call="follow", head=state.next, unknown=False, puts=0)
