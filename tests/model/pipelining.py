"""Keep several appends of one writer in flight: docs/concepts/epochs-and-fences.md, "Pipelining".

A writer that holds its epoch alone has two creates in flight and advances the head past several positions at once. A
rival takes the region over, and a collector follows the head. Besides the promises of the model of append there is one
about order: entries of one writer are in the log in the order of their submission.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

DEPTH = 2


class Guard(Enum):
    FRESH_EPOCH = "when one entry is given up, all later ones fail, and the next put is made in a fresh epoch"
    ALL_OURS = "a swap over several positions is sent only when each of them holds our object"
    CONDITION = "a swap names the epoch and the next position that it relies on"


class Object(NamedTuple):
    entry: str
    epoch: int


class Flight(NamedTuple):
    entry: str
    position: int
    placed: bool  # we know that our object is there


class Writer(NamedTuple):
    todo: tuple[str, ...]
    epoch: int = 1
    flights: tuple[Flight, ...] = ()
    alive: bool = True


class Rival(NamedTuple):
    todo: tuple[str, ...]
    call: str = "claim"
    epoch: int = 0
    position: int = 0


class State(NamedTuple):
    epoch: int
    next: int
    first: int
    objects: tuple[tuple[int, Object], ...]
    late: tuple[tuple[int, Object], ...]
    log: tuple[str, ...]
    acknowledged: tuple[tuple[str, int], ...]
    writer: Writer
    rival: Rival | None


def with_object(state: State, position: int, new: Object) -> State:
    return state._replace(objects=tuple(sorted({**dict(state.objects), position: new}.items())))


@dataclass(frozen=True, slots=True)
class Pipelining:
    without: Guard | None = None
    rival: bool = True
    entries: tuple[str, ...] = ("1", "2", "3", "4")

    def initial(self) -> State:
        rival = Rival(("fence", "p")) if self.rival else None
        return State(1, 1, 1, (), (), (), (), Writer(self.entries), rival)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        yield from self._environment(state)
        if state.writer.alive:
            yield from self._put(state)
            yield from self._resolve(state)
            yield from self._swap(state)
        if state.rival is not None:
            yield from self._rival(state, state.rival)

    def violation(self, state: State) -> Violation | None:
        if len(set(state.log)) < len(state.log):
            return Violation("committed twice", f"{state.log}")
        for entry, position in state.acknowledged:
            if position > len(state.log) or state.log[position - 1] != entry:
                return Violation("acknowledged, not committed", f"{entry} at {position}: {state.log}")
        objects = dict(state.objects)
        for position in range(state.first, state.next):
            found = objects.get(position)
            if found is None or found.entry != state.log[position - 1]:
                return Violation("committed entry missing", f"{found} at {position}: {state.log}")
        written = [entry for entry in state.log if entry in self.entries]
        if written != sorted(written):
            return Violation("order", f"{state.log}, acknowledged {state.acknowledged}")
        return None

    def _environment(self, state: State) -> Iterator[tuple[Step, State]]:
        for index, (position, new) in enumerate(state.late):
            after = state._replace(late=state.late[:index] + state.late[index + 1 :])
            if position in dict(state.objects):
                yield Step("environment", f"late create {position} of {new.entry}", "refused"), after
            else:
                landed = with_object(after, position, new)
                yield Step("environment", f"late create {position} of {new.entry}", "written"), landed
        if state.first < state.next:
            kept = tuple(item for item in state.objects if item[0] >= state.next)
            yield Step("environment", "collect and sweep"), state._replace(first=state.next, objects=kept)

    def _put(self, state: State) -> Iterator[tuple[Step, State]]:
        writer = state.writer
        if not writer.todo or len(writer.flights) == DEPTH or writer.epoch != state.epoch:
            return
        entry, *rest = writer.todo
        n = writer.flights[-1].position + 1 if writer.flights else state.next
        step = Step("W", f"create {n} of {entry}")

        def in_flight(after: State, *, placed: bool) -> State:
            flights = (*writer.flights, Flight(entry, n, placed))
            return after._replace(writer=writer._replace(todo=tuple(rest), flights=flights))

        found = dict(state.objects).get(n)
        new = Object(entry, writer.epoch)
        if found is None:
            yield step._replace(outcome="written"), in_flight(with_object(state, n, new), placed=True)
            sent = state._replace(late=tuple(sorted((*state.late, (n, new)))))
            yield step._replace(outcome="in flight, no reply"), in_flight(sent, placed=False)
            yield step._replace(outcome="no effect, no reply"), in_flight(state, placed=False)
        elif found.epoch < writer.epoch:
            yield Step("W", f"replace {n} by {entry}"), in_flight(with_object(state, n, new), placed=True)
        elif n == state.next and not writer.flights:
            helped = state._replace(next=n + 1, log=(*state.log, found.entry))
            yield Step("W", f"help {found.entry}"), helped

    def _resolve(self, state: State) -> Iterator[tuple[Step, State]]:
        """Handle the first create without an answer: read its object, send it again, or give it up."""
        writer = state.writer
        index = next((i for i, flight in enumerate(writer.flights) if not flight.placed), None)
        if index is None:
            return
        entry, n, _ = writer.flights[index]
        flights = (*writer.flights[:index], Flight(entry, n, True), *writer.flights[index + 1 :])
        known = state._replace(writer=writer._replace(flights=flights))
        found = dict(state.objects).get(n)
        if found is None:
            yield Step("W", f"create {n} of {entry}", "written"), with_object(known, n, Object(entry, writer.epoch))
        elif found == Object(entry, writer.epoch):
            yield Step("W", f"get {n}", "ours"), known
        give_up = Step("W", f"give up {entry}")
        if self.without is Guard.FRESH_EPOCH:
            yield give_up, state._replace(writer=writer._replace(flights=writer.flights[:index]))
        elif writer.epoch == state.epoch:
            fresh = writer._replace(flights=(), epoch=state.epoch + 1)
            yield give_up, state._replace(epoch=state.epoch + 1, writer=fresh)
        else:
            yield give_up, state._replace(writer=writer._replace(alive=False, flights=()))

    def _swap(self, state: State) -> Iterator[tuple[Step, State]]:
        writer = state.writer
        if writer.flights and writer.epoch != state.epoch:
            yield Step("W", "read head", "fenced"), state._replace(writer=writer._replace(alive=False, flights=()))
        moves = writer.flights and (writer.epoch, writer.flights[0].position) == (state.epoch, state.next)
        if not moves and self.without is not Guard.CONDITION:
            return
        for count in range(1, len(writer.flights) + 1):
            flights = writer.flights[:count]
            if not flights[-1].placed and self.without is not Guard.ALL_OURS:
                return
            swapped = state._replace(
                next=flights[-1].position + 1,
                log=state.log[: flights[0].position - 1] + tuple(flight.entry for flight in flights),
                acknowledged=state.acknowledged + tuple((flight.entry, flight.position) for flight in flights),
                writer=writer._replace(flights=writer.flights[count:]),
            )
            yield Step("W", f"swap {[flight.entry for flight in flights]}"), swapped

    def _rival(self, state: State, rival: Rival) -> Iterator[tuple[Step, State]]:
        if rival.call == "claim":
            claimed = rival._replace(call="put", epoch=state.epoch + 1, position=state.next)
            yield Step("P", "claim"), state._replace(epoch=state.epoch + 1, rival=claimed)
        elif rival.epoch != state.epoch or not rival.todo:
            return
        elif rival.call == "put":
            found = dict(state.objects).get(rival.position)
            if found is None or found.epoch < rival.epoch:
                put = with_object(state, rival.position, Object(rival.todo[0], rival.epoch))
                yield Step("P", f"put {rival.todo[0]} over {found}"), put._replace(rival=rival._replace(call="swap"))
        else:
            entry, *rest = rival.todo
            swapped = state._replace(
                next=rival.position + 1,
                log=(*state.log, entry),
                acknowledged=(*state.acknowledged, (entry, rival.position)),
                rival=rival._replace(call="put", position=rival.position + 1, todo=tuple(rest)),
            )
            yield Step("P", f"swap {entry}"), swapped
