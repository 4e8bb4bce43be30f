"""Replay a path through a model's state graph with the real code, and compare after every step.

For each actor of the model, the function that it models runs in a greenlet of its own. It stops before each call of a
port. The model's step decides which actor continues and how its call ends. After the step, storage and the results of
the actors must be the same as in the model, and the next call of each actor must be the next call in the model.

One step of a model may be several calls of the code. The driver knows which calls these are; they are answered at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from greenlet import greenlet

from lancelsm.errors import LsmError
from lancelsm.objects import PreconditionFailed, Written
from lancelsm.registry import SwapApplied, SwapLost
from tests.model.append import APPLIED, IN_FLIGHT, LOST, NO_EFFECT, REFUSED, REPLY_LOST, WRITTEN
from tests.model.engine import Edge, Model, Path, S, Step, Violation, graph
from tests.model.stepped_region import Call, SteppedRegion

ENDED = "no more calls"
ANYTHING: frozenset[str] = frozenset()
REPLIES = {WRITTEN: Written, REFUSED: PreconditionFailed, APPLIED: SwapApplied, LOST: SwapLost}

P = TypeVar("P", bound=Hashable)


class Mismatch(AssertionError):
    """The code and the model behave differently."""


class Driver(Protocol[P]):
    """Runs the real code for one model."""

    def storage(self) -> SteppedRegion:
        """Return storage in the model's initial state."""
        ...

    def actors(self, stepped: SteppedRegion) -> dict[str, Callable[[], object]]:
        """Return the actors, by their names in the steps of the model."""
        ...

    def expected_calls(self, state: P) -> Mapping[str, frozenset[str]]:
        """Return the possible next calls of each actor; `ANYTHING` if the model does not follow the actor further."""
        ...

    def continues_step(self, call: Call, expected: frozenset[str]) -> bool:
        """Return whether a call that is not expected is still part of the step before it."""
        ...

    def perform(self, stepped: SteppedRegion, step: Step) -> None:
        """Perform a step that belongs to no actor."""
        ...

    def observed(self, stepped: SteppedRegion) -> Hashable:
        """Return storage and the results of actors, as the model has them."""
        ...

    def expected(self, state: P) -> Hashable:
        """Return what `observed` must be in this state."""
        ...


class _Replay(Generic[P]):
    """Replays one path, step by step."""

    def __init__(self, driver: Driver[P], path: Path[P]) -> None:
        self._driver = driver
        self._stepped = driver.storage()
        self._actors: dict[str, greenlet] = {}
        self._waiting: dict[str, Call | None] = {}
        for name, act in driver.actors(self._stepped).items():
            actor = greenlet(lambda act=act: (act(), None)[1])
            self._actors[name] = actor
            self._waiting[name] = actor.switch()
            self._go_on(name, path[0].before)
        self._compare(path[0].before)

    def take(self, edge: Edge[P]) -> None:
        _, step, after = edge
        if step.actor in self._actors:
            self._answer(step)
            self._go_on(step.actor, after)
        else:
            self._driver.perform(self._stepped, step)
        self._compare(after)

    def close(self) -> None:
        for actor in self._actors.values():
            actor.throw()

    def _answer(self, step: Step) -> None:
        call = self._waiting[step.actor]
        if call is None:
            raise Mismatch(f"{step}, but the code has ended")
        if step.outcome in (NO_EFFECT, IN_FLIGHT, REPLY_LOST):
            if call.unknown is None:
                raise Mismatch(f"{step}, but the code does: {call.name}")
            if step.outcome == IN_FLIGHT:
                assert self._stepped.late is None
                self._stepped.late = call.act
            elif step.outcome == REPLY_LOST:
                expect(call.act(), (Written, SwapApplied), step)
            reply = call.unknown()
        else:
            reply = call.act()
            if step.outcome in REPLIES:
                expect(reply, REPLIES[step.outcome], step)
        self._waiting[step.actor] = self._actors[step.actor].switch(reply)

    def _go_on(self, name: str, state: P) -> None:
        """Go on until the next call is an expected one."""
        expected = self._driver.expected_calls(state)[name]
        for _ in range(100):
            call = self._waiting[name]
            if call is None or not expected or call.name in expected:
                return
            if not self._driver.continues_step(call, expected):
                return
            self._waiting[name] = self._actors[name].switch(call.act())
        raise Mismatch(f"{name} makes calls without end; expected: {', '.join(expected)}")

    def _compare(self, state: P) -> None:
        for name, calls in self._driver.expected_calls(state).items():
            call = self._waiting[name]
            following = ENDED if call is None else call.name
            if calls and following not in calls:
                raise Mismatch(f"next call of {name}: {following}; expected: {', '.join(sorted(calls))}")
        observed, expected = self._driver.observed(self._stepped), self._driver.expected(state)
        if observed != expected:
            raise Mismatch(f"storage and results differ\n  code:  {observed}\n  model: {expected}")


def replay(driver: Driver[P], path: Path[P]) -> None:
    """Replay a path from the initial state.

    Raises:
        Mismatch: the code did not do what the model does. The message lists the steps; the last one differs.
    """
    taken: list[Step] = []
    running = None
    try:
        running = _Replay(driver, path)
        for edge in path:
            taken.append(edge.step)
            running.take(edge)
    except (LsmError, AssertionError) as error:
        steps = "\n".join(f"  {number:2} {step}" for number, step in enumerate(taken, 1))
        raise Mismatch(f"{error}\n{steps}") from error
    finally:
        if running is not None:
            running.close()


def expect(reply: object, kind: type | tuple[type, ...], step: Step) -> None:
    """Compare an answer with the kind of answer that a step names."""
    if not isinstance(reply, kind):
        raise Mismatch(f"{step}, but the answer is {reply}")


class Counted(NamedTuple, Generic[S]):
    state: S
    taken: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(Generic[S]):
    """A model without the paths on which a rare kind of step is taken too often.

    `rare` has pairs of a condition that selects such steps, and the largest number of them on a path.
    """

    model: Model[S]
    rare: tuple[tuple[Callable[[Step], bool], int], ...] = field(default=())

    def initial(self) -> Counted[S]:
        return Counted(self.model.initial(), (0,) * len(self.rare))

    def steps(self, counted: Counted[S]) -> Iterator[tuple[Step, Counted[S]]]:
        for step, after in self.model.steps(counted.state):
            taken = tuple(n + is_rare(step) for n, (is_rare, _) in zip(counted.taken, self.rare, strict=True))
            if all(n <= most for n, (_, most) in zip(taken, self.rare, strict=True)):
                yield step, Counted(after, taken)

    def violation(self, counted: Counted[S]) -> Violation | None:
        return self.model.violation(counted.state)


def paths(cut: Cut[S]) -> Iterable[Path[S]]:
    """Yield paths that together take every remaining edge of the model."""
    for path in graph(cut).covering_paths():
        yield tuple(Edge(before.state, step, after.state) for before, step, after in path)


def walk(model: Model[S], *, seed: int, most: int) -> Path[S]:
    """Return a random path that ends after `most` steps or at the end of the model."""
    chance = random.Random(seed)
    edges: list[Edge[S]] = []
    state = model.initial()
    while len(edges) < most and (steps := list(model.steps(state))):
        step, after = chance.choice(steps)
        edges.append(Edge(state, step, after))
        state = after
    return tuple(edges)


def unanswered(step: Step) -> bool:
    return step.outcome in (NO_EFFECT, IN_FLIGHT, REPLY_LOST)
