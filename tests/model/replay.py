"""Take a path through a model's state graph with the real code, and compare after every step.

Each actor of a model is played by the function that it is a model of. It runs in a greenlet of its own and stops before
each call of a port; the model's step says who goes on and what becomes of the call. After the step, storage and what
the actors were told must be what the model says, and each actor must be about to make the call that the model has next
for it.

A model may take several calls as one step. A play says which calls those are; they are answered at once.
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
from tests.model.stage import Call, Stage

ENDED = "nothing more"
ANYTHING: frozenset[str] = frozenset()
REPLIES = {WRITTEN: Written, REFUSED: PreconditionFailed, APPLIED: SwapApplied, LOST: SwapLost}

P = TypeVar("P", bound=Hashable)


class Mismatch(AssertionError):
    """The code and the model went different ways."""


class Play(Protocol[P]):
    """How one model is played by the real code."""

    def stage(self) -> Stage:
        """Storage in the model's initial state."""
        ...

    def cast(self, stage: Stage) -> dict[str, Callable[[], object]]:
        """The actors by the name that steps give them."""
        ...

    def due(self, state: P) -> Mapping[str, frozenset[str]]:
        """The calls that each actor may be about to make; `ANYTHING` if the model stops to follow it."""
        ...

    def folded(self, call: Call, due: frozenset[str]) -> bool:
        """Whether a call is part of the step that came before it, when others are due."""
        ...

    def happen(self, stage: Stage, step: Step) -> None:
        """Do what no actor does."""
        ...

    def seen(self, stage: Stage) -> Hashable:
        """Storage and what actors were told, in the terms of the model."""
        ...

    def raised(self, state: P) -> Hashable:
        """What `seen` must be in this state."""
        ...


class _Script(Generic[P]):
    """One path, step by step."""

    def __init__(self, play: Play[P], path: Path[P]) -> None:
        self._play = play
        self._stage = play.stage()
        self._actors: dict[str, greenlet] = {}
        self._waiting: dict[str, Call | None] = {}
        for name, act in play.cast(self._stage).items():
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
            self._play.happen(self._stage, step)
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
                assert self._stage.late is None
                self._stage.late = call.act
            elif step.outcome == REPLY_LOST:
                expect(call.act(), (Written, SwapApplied), step)
            reply = call.unknown()
        else:
            reply = call.act()
            if step.outcome in REPLIES:
                expect(reply, REPLIES[step.outcome], step)
        self._waiting[step.actor] = self._actors[step.actor].switch(reply)

    def _go_on(self, name: str, state: P) -> None:
        """Up to the call that is due."""
        due = self._play.due(state)[name]
        for _ in range(100):
            call = self._waiting[name]
            if call is None or not due or call.name in due or not self._play.folded(call, due):
                return
            self._waiting[name] = self._actors[name].switch(call.act())
        raise Mismatch(f"{name} goes on and on, due is: {', '.join(due)}")

    def _compare(self, state: P) -> None:
        for name, due in self._play.due(state).items():
            call = self._waiting[name]
            does = ENDED if call is None else call.name
            if due and does not in due:
                raise Mismatch(f"{name} is about to: {does}; due is: {', '.join(sorted(due))}")
        seen, raised = self._play.seen(self._stage), self._play.raised(state)
        if seen != raised:
            raise Mismatch(f"storage and results differ\n  code:  {seen}\n  model: {raised}")


def replay(play: Play[P], path: Path[P]) -> None:
    """Take a path from the initial state.

    Raises:
        Mismatch: the code did something else than the model, at the last of the steps that are named.
    """
    taken: list[Step] = []
    script = None
    try:
        script = _Script(play, path)
        for edge in path:
            taken.append(edge.step)
            script.take(edge)
    except (LsmError, AssertionError) as error:
        steps = "\n".join(f"  {number:2} {step}" for number, step in enumerate(taken, 1))
        raise Mismatch(f"{error}\n{steps}") from error
    finally:
        if script is not None:
            script.close()


def expect(reply: object, kind: type | tuple[type, ...], step: Step) -> None:
    """Compare an answer with the one that a step names."""
    if not isinstance(reply, kind):
        raise Mismatch(f"{step}, but the answer is {reply}")


class Counted(NamedTuple, Generic[S]):
    state: S
    taken: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(Generic[S]):
    """A model without the paths on which something rare happens too often: (what is rare, how often it may happen)."""

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
    """Paths that together take every edge of the model that is left."""
    for path in graph(cut).covering_paths():
        yield tuple(Edge(before.state, step, after.state) for before, step, after in path)


def walk(model: Model[S], *, seed: int, most: int) -> Path[S]:
    """A random path that ends after `most` steps, or where the model does."""
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
