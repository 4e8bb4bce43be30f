"""Explore every interleaving of a protocol, breadth first.

A model has an initial state, the steps that lead out of a state, and a check of a state. Every promise of a protocol
is a property of a single state. So the state also holds the facts that the check needs, such as what was acknowledged
and what was committed. States are hashable values. A state that is reached twice is explored once, and the first trace
that is found is a shortest one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class Step(NamedTuple):
    """One atomic step: the actor, its action, and the answer of the environment."""

    actor: str
    action: str
    outcome: str = ""

    def __str__(self) -> str:
        return f"{self.actor}: {self.action}" + (f" -> {self.outcome}" if self.outcome else "")


class Violation(NamedTuple):
    """A promise that a state breaks. Tests compare `kind`; `detail` is for the reader of a failed test."""

    kind: str
    detail: str


class Model(Protocol[S]):
    def initial(self) -> S: ...

    def steps(self, state: S) -> Iterable[tuple[Step, S]]:
        """Every step that is possible in `state`, with the state after it."""
        ...

    def violation(self, state: S) -> Violation | None: ...


class TooManyStatesError(Exception):
    """The model has more states than allowed: it is unbounded or has grown. Nothing is proven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """The result of an exploration: all states without a violation, or the shortest trace to one."""

    states: int
    violation: Violation | None
    trace: tuple[Step, ...]

    def __str__(self) -> str:
        if self.violation is None:
            return f"{self.states} states, no violation"
        steps = "\n".join(f"  {number:2} {step}" for number, step in enumerate(self.trace, 1))
        return f"{self.violation.kind}: {self.violation.detail}, after {self.states} states\n{steps}"


class Edge(NamedTuple, Generic[S]):
    before: S
    step: Step
    after: S


Path = tuple[Edge[S], ...]
Origins = dict[S, Edge[S] | None]  # how each state was reached first; None for the initial state


def explore(model: Model[S], *, most: int = 2_000_000) -> Explored:
    """Visit every reachable state; stop at the first one that breaks a promise.

    Raises:
        TooManyStatesError: there are more than `most` states.
    """
    origins: Origins[S] = {}
    for edge in _breadth_first(model, origins, most):
        broken = model.violation(edge.after)
        if broken is not None:
            trace = tuple(step for _, step, _ in _path(origins, edge))
            return Explored(states=len(origins), violation=broken, trace=trace)
    return Explored(states=len(origins), violation=None, trace=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph(Generic[S]):
    """The complete state graph of a model without violations."""

    origins: Origins[S]
    edges: tuple[Edge[S], ...]

    def path(self, edge: Edge[S]) -> Path[S]:
        """A shortest path from the initial state that ends with `edge`."""
        return _path(self.origins, edge)

    def covering_paths(self) -> Iterator[Path[S]]:
        """Paths that together take every edge. No path is the beginning of another one."""
        first = set(map(id, self.origins.values()))
        continued = {edge.before for edge in self.edges}
        for edge in self.edges:
            if id(edge) not in first or edge.after not in continued:
                yield self.path(edge)

    def stuck(self, *, goals: Iterable[S]) -> set[S]:
        """Return the states from which no goal can be reached."""
        into: dict[S, list[S]] = {}
        for before, _, after in self.edges:
            into.setdefault(after, []).append(before)
        reaching = set(goals)
        todo = list(reaching)
        while todo:
            for before in into.get(todo.pop(), ()):
                if before not in reaching:
                    reaching.add(before)
                    todo.append(before)
        return set(self.origins) - reaching


def graph(model: Model[S], *, most: int = 200_000) -> Graph[S]:
    """Explore the whole model: all states and labelled edges.

    Raises:
        ValueError: a state breaks a promise.
        TooManyStatesError: there are more than `most` states.
    """
    origins: Origins[S] = {}
    edges = []
    for edge in _breadth_first(model, origins, most, every_edge=True):
        broken = model.violation(edge.after)
        if broken is not None:
            raise ValueError(f"{broken.kind}: {broken.detail}")
        edges.append(edge)
    return Graph(origins=origins, edges=tuple(edges))


def _breadth_first(model: Model[S], origins: Origins[S], most: int, *, every_edge: bool = False) -> Iterator[Edge[S]]:
    """Yield edges in order of discovery: all edges, or only those to a new state. Fill `origins` on the way."""
    state = model.initial()
    origins[state] = None
    waiting = deque((state,))
    while waiting:
        before = waiting.popleft()
        for step, after in model.steps(before):
            if after not in origins:
                edge = Edge(before, step, after)
                origins[after] = edge
                waiting.append(after)
                if len(origins) > most:
                    raise TooManyStatesError(f"more than {most} states")
                yield edge
            elif every_edge:
                yield Edge(before, step, after)


def _path(origins: Origins[S], last: Edge[S]) -> Path[S]:
    path: list[Edge[S]] = []
    edge: Edge[S] | None = last
    while edge is not None:
        path.append(edge)
        edge = origins[edge.before]
    return tuple(reversed(path))
