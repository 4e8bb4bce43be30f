"""Messages that wait for a region that a reshard seals are applied once, in order, in the new regions of their keys."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from lancelsm.stack.delivery.table_cache import Tables
from tests.simulation.deployment import Deployment
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, FAIL_AFTER, FAIL_BEFORE, Crash, FaultPlan
from tests.unit.moved_scenarios import (
    collected_log_behind_a_moved_message,
    collected_log_of_a_new_region,
    messages_during_a_reshard,
    newer_row_in_a_new_region,
    region_that_was_never_created,
    sender_with_an_old_configuration,
    waiting_messages,
)

FAULTS = [CRASH_AFTER, CRASH_BEFORE, FAIL_AFTER, FAIL_BEFORE]
SCENARIOS = (
    collected_log_behind_a_moved_message,
    collected_log_of_a_new_region,
    messages_during_a_reshard,
    newer_row_in_a_new_region,
    region_that_was_never_created,
    sender_with_an_old_configuration,
)


@pytest.mark.parametrize("container", ["old", "new"])
def test_messages_that_wait_for_a_region_are_applied_once_after_a_reshard(container: str) -> None:
    waiting_messages(container)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_messages_meet_a_reshard(scenario: Callable[[], None]) -> None:
    scenario()


@pytest.mark.rest
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind)
def test_messages_that_meet_a_fault_are_moved_once(fault: Any) -> None:
    """A container dies, or a call fails, while it moves messages. Another container gets them again."""

    def prepared() -> Deployment:
        deployment = Deployment(buckets=2)
        for number, keys in enumerate(((1, 2, 3, 4), (2, 3), (1, 4)), 1):
            deployment.send([(key, number) for key in keys], sequence=number)
        deployment.apply(deployment.queue.receive(1))
        deployment.reshard(3)
        deployment.clock.sleep(61)
        return deployment

    def delivered(deployment: Deployment, tables: Tables) -> None:
        with suppress(Crash):
            deployment.deliver(tables=tables)

    def contents(deployment: Deployment) -> dict[int, list[int | None]]:
        """Return the values of each key, first those in regions of the old spec."""
        found = sorted((one for one in deployment.list_regions() if one.find_head()), key=lambda one: one.number)
        rows = [row for region in found for entry in deployment.entries(region) for row in entry]
        return {key: [value for one, value in rows if one == key] for key in range(1, 5)}

    first = prepared()
    delivered(first, first.container("dying"))
    for call in first.plan.calls[FAULTS.index(fault) :: 3]:
        deployment = prepared()
        deployment.plan = FaultPlan.at(call.index, fault)
        delivered(deployment, deployment.container("dying"))
        for _ in range(3):
            deployment.clock.sleep(70)
            delivered(deployment, deployment.container("next", faulty=False))

        assert contents(deployment) == {1: [1, 3], 2: [1, 2], 3: [1, 2], 4: [1, 3]}, call
        assert deployment.dead_letters.bodies == []
        assert deployment.queue.held == []
