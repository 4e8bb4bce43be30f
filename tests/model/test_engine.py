"""The engine explores every state of a model, finds shortest traces, and covers every edge."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.engine import Step, TooManyStatesError, Violation, explore, graph


class Counter:
    """Count to `end` in steps of one or two. With `trap`, the counter may fall into a trap at 1."""

    def __init__(self, *, end: int, forbidden: int | None = None, trap: bool = False) -> None:
        self.end, self.forbidden, self.trap = end, forbidden, trap

    def initial(self) -> int:
        return 0

    def steps(self, state: int) -> Iterator[tuple[Step, int]]:
        for by in (1, 2):
            if 0 <= state <= self.end - by:
                yield Step("counter", f"add {by}"), state + by
        if self.trap and state == 1:
            yield Step("counter", "fall"), -1

    def violation(self, state: int) -> Violation | None:
        return Violation("forbidden", str(state)) if state == self.forbidden else None


def test_an_exploration_visits_every_state_once() -> None:
    assert explore(Counter(end=10)).states == 11


def test_the_trace_of_a_violation_is_one_of_the_shortest() -> None:
    explored = explore(Counter(end=10, forbidden=5))

    assert explored.violation == Violation("forbidden", "5")
    assert len(explored.trace) == 3


def test_a_model_with_too_many_states_raises() -> None:
    with pytest.raises(TooManyStatesError):
        explore(Counter(end=10), most=5)


def test_a_graph_has_every_edge_and_a_path_to_each_edge() -> None:
    counter = graph(Counter(end=3))

    edges = [(edge.before, edge.after) for edge in counter.edges]
    assert sorted(edges) == [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]
    for edge in counter.edges:
        path = counter.path(edge)
        assert path[0].before == 0
        assert path[-1] == edge
    assert {edge for path in counter.covering_paths() for edge in path} == set(counter.edges)


def test_states_that_cannot_reach_a_goal_are_stuck() -> None:
    assert graph(Counter(end=3)).stuck(goals={3}) == set()
    assert graph(Counter(end=3, trap=True)).stuck(goals={3}) == {-1}
