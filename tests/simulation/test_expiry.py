"""A snapshot stands for as long as its holder may take it to, whatever the collector's clock says; then it is gone.

What is read of one that is gone is not there any more, but nothing is damaged: who reads it is told that it is gone.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from types import NoneType

import pytest

from lancelsm.errors import Invalid
from tests.simulation.environment import raised
from tests.simulation.faults import FaultPlan
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.whole_table_env import WholeTableEnv, at_each_call

TTL = 600.0
ALLOWED = 300.0  # what clocks may differ by


@contextlib.contextmanager
def outdated() -> Iterator[WholeTableEnv]:
    """A table environment with a snapshot of what was before a merge."""
    table_env = WholeTableEnv(skews={"fast": ALLOWED - 1.0, "slow": 1.0 - ALLOWED})
    with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(table_env.base):
        table_env.put("writer", {0: True, 1: True})
        table_env.flush()
        table_env.hold("holder", "held", ttl_seconds=TTL)
        table_env.put("writer", {0: True, 1: False})
        table_env.flush()
        table_env.merge()
        yield table_env


def judged_by(clock: str) -> None:
    """A collector collects when a snapshot is about to expire."""
    with outdated() as table_env:
        table_env.environment.schedule.clock.advance(TTL - 1.0)
        table_env.collect(clock)
        table_env.read_held("holder", "held")


def read_while_it_goes() -> None:
    """A snapshot expires and is collected before any call of a read."""
    at_each_call(_read)


def _read(at: int) -> FaultPlan:
    with outdated() as table_env:

        def goes() -> None:
            table_env.pinned.clear()
            table_env.environment.schedule.clock.advance(TTL + ALLOWED + 1.0)
            table_env.collect("other")

        plan = table_env.interrupt(lambda call: call.index == at, goes)
        heard = raised(lambda: table_env.read_held("victim", "held"))
    assert type(heard) is (Invalid if at < len(plan.calls) else NoneType), repr(heard)
    return plan


@pytest.mark.parametrize("clock", ["right", "fast", "slow"])
def test_a_snapshot_that_is_about_to_expire_stands_by_every_clock_that_is_allowed_for(clock: str) -> None:
    judged_by(clock)


def test_a_read_of_a_snapshot_that_goes_meanwhile_is_told_so() -> None:
    read_while_it_goes()
