"""Read from an earlier view, or from the region snapshot of the base: docs/concepts/reads.md, "Eventual reads".

There is one key; the entry at position p sets its value to p. Time is a number of ticks. A collection commits, and its
sweep comes `INTERVAL` ticks later. A read from a view that is at most `STALENESS` ticks old must find each object of
the view, and must return a value that is not older than that. `optimize` reads a head and writes it into the base.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

INTERVAL = 2
STALENESS = 1


class Guard(Enum):
    BELOW_INTERVAL = "the staleness is below the interval of collections"
    AGE_FROM_BEGIN = "the age of a view counts from before its head was read"
    MATCH = "the head of a region snapshot is used only with a base that has merged nothing newer"


class Head(NamedTuple):
    next: int = 1
    replayed: int = 0
    newest: int = 0  # generation
    generations: tuple[tuple[int, int], ...] = ()  # (number, last position)


class Base(NamedTuple):
    value: int = 0
    counter: int = 0
    snapshot: tuple[int, Head] | None = None  # with its time


class Sweep(NamedTuple):
    committed: int  # tick
    through: int  # position
    generations: tuple[int, ...]


class View(NamedTuple):
    at: int  # tick
    head: Head
    base: Base


class Reader(NamedTuple):
    began: int | None = None
    head: Head | None = None
    view: View | None = None
    read: str = ""  # what the read found: a value, or "missing"


class State(NamedTuple):
    head: Head
    base: Base
    objects: tuple[int, ...]  # positions of entries in storage
    kept: tuple[int, ...]  # generations in storage
    starts: tuple[int, ...]  # the next position at the beginning of each tick so far
    sweep: Sweep | None
    optimizer: tuple[int, Head] | None
    reader: Reader

    @property
    def now(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True, slots=True)
class EventualView:
    without: Guard | None = None
    entries: int = 2
    ticks: int = 2

    def initial(self) -> State:
        return State(Head(), Base(), (), (), (1,), None, None, Reader())

    def violation(self, state: State) -> Violation | None:
        reader = state.reader
        if not reader.read or reader.view is None:
            return None
        if reader.read == "missing":
            return Violation("object missing", f"of the view of tick {reader.view.at}, at tick {state.now}")
        least = state.starts[max(0, state.now - self._staleness)] - 1
        if int(reader.read) < least:
            return Violation("stale read", f"{reader.read}, {least} was acknowledged {self._staleness} ticks ago")
        if int(reader.read) < reader.view.base.value:
            return Violation("older row wins", f"{reader.read}, the base has {reader.view.base.value}")
        return None

    @property
    def _staleness(self) -> int:
        return INTERVAL if self.without is Guard.BELOW_INTERVAL else STALENESS

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        if state.reader.read:
            return
        yield from self._write(state)
        yield from self._collect(state)
        yield from self._optimize(state)
        yield from self._read(state)

    def _write(self, state: State) -> Iterator[tuple[Step, State]]:
        head, base = state.head, state.base
        if state.now < self.ticks:
            yield Step("environment", "tick"), state._replace(starts=(*state.starts, head.next))
        if head.next <= self.entries:
            yield (
                Step("environment", f"append {head.next}"),
                state._replace(head=head._replace(next=head.next + 1), objects=(*state.objects, head.next)),
            )
        if head.replayed < head.next - 1:
            number, last = head.newest + 1, head.next - 1
            flushed = head._replace(replayed=last, newest=number, generations=(*head.generations, (number, last)))
            yield Step("environment", f"flush to {last}"), state._replace(head=flushed, kept=(*state.kept, number))
        if head.newest > base.counter:
            merged = base._replace(value=head.generations[-1][1], counter=head.newest)
            yield Step("environment", f"merge to generation {head.newest}"), state._replace(base=merged)

    def _collect(self, state: State) -> Iterator[tuple[Step, State]]:
        head, sweep = state.head, state.sweep
        leaving = tuple(number for number, _ in head.generations if number <= state.base.counter)
        if sweep is None and leaving:
            left = tuple(one for one in head.generations if one[0] not in leaving)
            through = max(last for number, last in head.generations if number in leaving)
            committed = Sweep(state.now, through, leaving)
            yield (
                Step("environment", f"commit a collection of {leaving}"),
                state._replace(head=head._replace(generations=left), sweep=committed),
            )
        if sweep is not None and state.now >= sweep.committed + INTERVAL:
            yield (
                Step("environment", "sweep"),
                state._replace(
                    sweep=None,
                    objects=tuple(one for one in state.objects if one > sweep.through),
                    kept=tuple(one for one in state.kept if one not in sweep.generations),
                ),
            )

    def _optimize(self, state: State) -> Iterator[tuple[Step, State]]:
        if state.optimizer is None:
            if state.base.snapshot is None:
                yield Step("optimize", "read the head"), state._replace(optimizer=(state.now, state.head))
            return
        at, head = state.optimizer
        if state.base.counter <= head.newest:
            at = state.now if self.without is Guard.AGE_FROM_BEGIN else at
            written = state.base._replace(snapshot=(at, head))
            yield Step("optimize", "write the snapshot"), state._replace(base=written, optimizer=None)

    def _read(self, state: State) -> Iterator[tuple[Step, State]]:
        reader = state.reader
        if reader.view is not None:
            if state.now - reader.view.at <= self._staleness:
                found = self._found(state, reader.view)
                yield Step("R", "read the view", found), state._replace(reader=reader._replace(read=found))
            return
        if reader.head is not None:
            if state.base.counter <= reader.head.newest:
                at = state.now if self.without is Guard.AGE_FROM_BEGIN else reader.began
                view = View(at or 0, reader.head, state.base._replace(snapshot=None))
                yield Step("R", "read the base"), state._replace(reader=Reader(view=view))
            return
        yield Step("R", "read the head"), state._replace(reader=Reader(began=state.now, head=state.head))
        if state.base.snapshot is not None:
            at, head = state.base.snapshot
            if state.base.counter <= head.newest or self.without is Guard.MATCH:
                view = View(at, head, state.base._replace(snapshot=None))
                yield Step("R", "read base and snapshot"), state._replace(reader=Reader(view=view))

    @staticmethod
    def _found(state: State, view: View) -> str:
        """Read all levels in one step: only what happened since the view matters."""
        value = view.base.value
        for number, last in view.head.generations:
            if number > view.base.counter:
                if number not in state.kept:
                    return "missing"
                value = last
        for position in range(view.head.replayed + 1, view.head.next):
            if position not in state.objects:
                return "missing"
            value = position
        return str(value)
