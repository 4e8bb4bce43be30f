"""Explore every interleaving of a protocol, breadth first.

A model is an initial state, the steps that lead out of a state, and the verdict on a state. Whatever a protocol
promises is a property of single states: a model carries what it needs to judge (what was acknowledged, what was
committed) in the state. States are hashable values, so a state that is reached twice is explored once, and the first
trace found is a shortest one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class Step(NamedTuple):
    """One atomic step: who does what, and how the environment answers."""

    actor: str
    action: str
    outcome: str = ""

    def __str__(self) -> str:
        return f"{self.actor}: {self.action}" + (f" -> {self.outcome}" if self.outcome else "")


class Violation(NamedTuple):
    """A promise that a state breaks. Tests compare `kind`; `detail` is for people."""

    kind: str
    detail: str


class Model(Protocol[S]):
    def initial(self) -> S: ...

    def steps(self, state: S) -> Iterable[tuple[Step, S]]:
        """Every step that is possible in `state`, with the state after it."""
        ...

    def violation(self, state: S) -> Violation | None: ...


class TooManyStatesError(Exception):
    """The bound was reached, so nothing is proven: the model is unbounded or has grown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """What an exploration saw: everything, or the shortest way to a violation."""

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
    """Visit every reachable state, or stop at the first that breaks a promise.

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
        """Paths that together take every edge, none of them the beginning of another."""
        first = set(map(id, self.origins.values()))
        continued = {edge.before for edge in self.edges}
        for edge in self.edges:
            if id(edge) not in first or edge.after not in continued:
                yield self.path(edge)

    def stuck(self, *, short_of: Iterable[S]) -> set[S]:
        """The states from which none of the states `short_of` can be reached any more."""
        into: dict[S, list[S]] = {}
        for before, _, after in self.edges:
            into.setdefault(after, []).append(before)
        reaching = set(short_of)
        todo = list(reaching)
        while todo:
            for before in into.get(todo.pop(), ()):
                if before not in reaching:
                    reaching.add(before)
                    todo.append(before)
        return set(self.origins) - reaching


def graph(model: Model[S], *, most: int = 200_000) -> Graph[S]:
    """All states and labelled edges.

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
    """Edges in order of discovery: those that lead to a new state, or all. Fills `origins` as it goes."""
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
