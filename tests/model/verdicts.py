"""Check the exploration of a model: it breaks no promise, or it breaks the expected one."""

from __future__ import annotations

from enum import Enum

from tests.model.engine import Model, S, explore


def check_clean(model: Model[S], *, states: int) -> None:
    """No interleaving breaks a promise. The number of states must stay the same: with fewer, less would be proven."""
    explored = explore(model)

    assert explored.violation is None, explored
    assert explored.states == states, explored


def check_broken(model: Model[S], *, kind: str, guard: Enum) -> None:
    """Some interleaving of a model without this guard breaks a promise of this kind."""
    explored = explore(model)

    assert explored.violation is not None, guard.value
    assert explored.violation.kind == kind, explored
