"""What a test holds the exploration of a model to."""

from __future__ import annotations

from enum import Enum

from tests.model.engine import Model, S, explore


def check_clean(model: Model[S], *, states: int) -> None:
    """No interleaving breaks a promise. A model that lost states would prove less: there are as many as ever."""
    explored = explore(model)

    assert explored.violation is None, explored
    assert explored.states == states, explored


def check_broken(model: Model[S], *, kind: str, guard: Enum) -> None:
    """Some interleaving breaks a promise of this kind, the model being without this guard."""
    explored = explore(model)

    assert explored.violation is not None, guard.value
    assert explored.violation.kind == kind, explored
