"""A snapshot stands for as long as its holder may take it to, whatever the collector's clock says; then it is gone.

What is read of one that is gone is not there any more, but nothing is damaged: who reads it is told that it is gone.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import pytest

from lancelsm.errors import Invalid
from tests.simulation.faults import Call, FaultPlan
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.situations import noted
from tests.simulation.whole_lake import WholeLake
from tests.simulation.world import told

TTL = 600.0
ALLOWED = 300.0  # what clocks may differ by


@contextlib.contextmanager
def outdated() -> Iterator[WholeLake]:
    """A lake with a snapshot of what was before a merge."""
    lake = WholeLake(skews={"fast": ALLOWED - 1.0, "slow": 1.0 - ALLOWED})
    with contextlib.redirect_stdout(io.StringIO()), in_place_of_lance(lake.base):
        lake.put("writer", {0: True, 1: True})
        lake.flush()
        lake.hold("holder", "held", ttl_seconds=TTL)
        lake.put("writer", {0: True, 1: False})
        lake.flush()
        lake.merge()
        yield lake


def judged_by(clock: str) -> None:
    """A collector collects when a snapshot is about to expire."""
    with outdated() as lake:
        lake.world.schedule.clock.advance(TTL - 1.0)
        lake.collect(clock)
        lake.read_held("holder", "held")


def read_while_it_goes() -> None:
    """A snapshot expires and is collected before any call of a read."""
    calls, heard = _read(before=None)
    assert heard is None
    for at in range(calls):
        with noted(at):
            _, heard = _read(before=at)
            assert isinstance(heard, Invalid), repr(heard)


def _read(*, before: int | None) -> tuple[int, BaseException | None]:
    """How many calls the read made, and what it was told."""
    with outdated() as lake:

        def goes(call: Call) -> None:
            if call.index == before:
                lake.world.plan = FaultPlan()
                lake.pinned.clear()
                lake.world.schedule.clock.advance(TTL + ALLOWED + 1.0)
                lake.collect("other")
                lake.world.plan = plan

        lake.world.plan = plan = FaultPlan(goes)
        heard = told(lambda: lake.read_held("victim", "held"))
    return len(plan.calls), heard


@pytest.mark.parametrize("clock", ["right", "fast", "slow"])
def test_a_snapshot_that_is_about_to_expire_stands_by_every_clock_that_is_allowed_for(clock: str) -> None:
    judged_by(clock)


def test_a_read_of_a_snapshot_that_goes_meanwhile_is_told_so() -> None:
    read_while_it_goes()
