"""Leases are advisory: they keep others away and expire, and no guarantee depends on them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lancelsm.common.clock import SeededIds
from lancelsm.common.layout import TableId, lease_key
from lancelsm.errors import Contended
from lancelsm.region.catalog import TableContext
from lancelsm.region.lease import LEASE_SECONDS, lease
from tests.interrupts import interrupted
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


class Environment:
    """One registry and one clock that several processes share."""

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


def test_each_change_of_a_lease_raises_its_version() -> None:
    environment, versions = Environment(), []
    for name in ("a", "b"):
        with lease(environment.process(name), "base"):
            versions.append((environment.registry.read(lease_key(TABLE, "base")) or {})["version"])
        versions.append((environment.registry.read(lease_key(TABLE, "base")) or {})["version"])

    assert versions == [1, 2, 3, 4]


def test_a_held_lease_keeps_other_processes_away() -> None:
    environment = Environment()
    with lease(environment.process("a"), "base"):
        with (
            pytest.raises(Contended, match="another process holds the lease 'base'") as raised,
            lease(environment.process("b"), "base"),
        ):
            pass
        assert "60 s" in raised.value.remedy
        with lease(environment.process("b"), "another name"):
            pass
    with lease(environment.process("b"), "base"):
        assert environment.holder
    assert environment.holder == ""


def test_a_lease_is_released_after_a_failure() -> None:
    environment = Environment()
    with pytest.raises(KeyError), lease(environment.process("a"), "base"):
        raise KeyError
    assert environment.holder == ""


def test_a_lease_expires_after_its_holder_crashed() -> None:
    environment = Environment()
    crashed = lease(environment.process("a"), "base")
    crashed.__enter__()

    environment.clock.advance(LEASE_SECONDS - 1)
    with pytest.raises(Contended), lease(environment.process("b"), "base"):
        pass
    environment.clock.advance(1)
    with lease(environment.process("b"), "base"):
        assert environment.holder


def test_a_holder_whose_lease_expired_does_not_release_the_lease_of_its_successor() -> None:
    environment = Environment()
    with lease(environment.process("a"), "base"):
        environment.clock.advance(LEASE_SECONDS)
        successor = lease(environment.process("b"), "base")
        successor.__enter__()
        held = environment.holder
    assert environment.holder == held
    successor.__exit__(None, None, None)
    assert environment.holder == ""


@pytest.mark.parametrize("fault", [FAIL_BEFORE, FAIL_AFTER])
def test_a_lost_reply_while_taking_or_releasing_a_lease_does_no_harm(fault: object) -> None:
    environment = Environment()
    calls = FaultPlan()
    with lease(environment.process("a", calls), "base"):
        pass
    for call in calls.calls:
        if call.method != "swap":
            continue
        other = Environment()
        with lease(other.process("a", FaultPlan.at(call.index, fault)), "base"):  # type: ignore[arg-type]
            assert other.holder
        other.clock.advance(LEASE_SECONDS)
        with lease(other.process("b"), "base"):
            assert other.holder


def test_a_lease_of_a_clock_that_was_far_ahead_does_not_block_others() -> None:
    environment = Environment()
    ahead = replace(environment.process("a"), clock=FakeClock(environment.clock.now() + 1e8))
    crashed = lease(ahead, "base")
    crashed.__enter__()
    assert environment.holder

    with lease(environment.process("b"), "base"):
        assert environment.holder


# An interrupt in a finalizer can't be raised.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("parallel", [1, 2])
def test_an_interrupt_at_any_call_leaves_no_lease_behind(parallel: int) -> None:
    def work(environment: Environment) -> None:
        with lease(replace(environment.process("merger"), parallel=parallel), "base"):
            assert environment.holder

    total = interrupted(lambda: work(Environment()), 0)
    for at in range(1, total + 1):
        environment = Environment()
        interrupted(lambda: work(environment), at)  # noqa: B023

        assert environment.holder == "", at
    assert total > 50
