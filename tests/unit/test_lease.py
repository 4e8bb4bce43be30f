"""An advisory lock: it keeps others away, ends by itself, and nothing rests on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lancelsm.common.clock import SeededIds
from lancelsm.common.layout import TableId, lease_key
from lancelsm.errors import Contended
from lancelsm.region.catalog import TableContext
from lancelsm.region.lease import LEASE_SECONDS, lease
from tests.simulation.faults import (
    FAIL_AFTER,
    FAIL_BEFORE,
    FakeClock,
    FaultPlan,
    FaultyRegistry,
    MemoryRegistry,
    MemoryStore,
)

TABLE = TableId("55fdc1f0-cea9-499a-8354-c74dee3f45b4")


class Place:
    """One registry and clock, seen by several processes."""

    def __init__(self) -> None:
        self.registry = MemoryRegistry()
        self.clock = FakeClock()

    def process(self, name: str, plan: FaultPlan | None = None) -> TableContext:
        return TableContext(
            uri="memory://t",
            table=TABLE,
            objects=MemoryStore(),
            registry=FaultyRegistry(self.registry, plan or FaultPlan(), process=name),
            clock=self.clock,
            ids=SeededIds(name),
            budget_seconds=5.0,
            parallel=1,
        )

    @property
    def holder(self) -> str:
        record = self.registry.read(lease_key(TABLE, "base"))
        return str(record["holder"]) if record else ""


def test_it_keeps_others_away_for_as_long_as_it_is_held() -> None:
    place = Place()
    with lease(place.process("a"), "base"):
        with (
            pytest.raises(Contended, match="another process holds the lease 'base'") as raised,
            lease(place.process("b"), "base"),
        ):
            pass
        assert "60 s" in raised.value.remedy
        with lease(place.process("b"), "another name"):
            pass
    with lease(place.process("b"), "base"):
        assert place.holder
    assert place.holder == ""


def test_it_is_given_back_after_a_failure() -> None:
    place = Place()
    with pytest.raises(KeyError), lease(place.process("a"), "base"):
        raise KeyError
    assert place.holder == ""


def test_after_a_crash_of_its_holder_it_ends_by_itself() -> None:
    place = Place()
    crashed = lease(place.process("a"), "base")
    crashed.__enter__()

    place.clock.advance(LEASE_SECONDS - 1)
    with pytest.raises(Contended), lease(place.process("b"), "base"):
        pass
    place.clock.advance(1)
    with lease(place.process("b"), "base"):
        assert place.holder


def test_a_holder_that_was_overtaken_does_not_take_the_lease_from_its_successor() -> None:
    place = Place()
    with lease(place.process("a"), "base"):
        place.clock.advance(LEASE_SECONDS)
        successor = lease(place.process("b"), "base")
        successor.__enter__()
        held = place.holder
    assert place.holder == held
    successor.__exit__(None, None, None)
    assert place.holder == ""


@pytest.mark.parametrize("fault", [FAIL_BEFORE, FAIL_AFTER])
def test_a_lost_reply_of_taking_or_giving_back_does_no_harm(fault: object) -> None:
    place = Place()
    calls = FaultPlan()
    with lease(place.process("a", calls), "base"):
        pass
    for call in calls.calls:
        if call.method != "swap":
            continue
        other = Place()
        with lease(other.process("a", FaultPlan.at(call.index, fault)), "base"):  # type: ignore[arg-type]
            assert other.holder
        other.clock.advance(LEASE_SECONDS)
        with lease(other.process("b"), "base"):
            assert other.holder


def test_a_lease_by_a_clock_that_was_far_ahead_keeps_nobody_away_for_long() -> None:
    place = Place()
    ahead = replace(place.process("a"), clock=FakeClock(place.clock.now() + 1e8))
    crashed = lease(ahead, "base")
    crashed.__enter__()
    assert place.holder

    with lease(place.process("b"), "base"):
        assert place.holder
