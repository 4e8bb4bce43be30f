"""Messages that wait for a region that a reshard seals are applied once, in order, in the new regions of their keys."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.moved_scenarios import (
    collected_log_behind_a_moved_message,
    collected_log_of_a_new_region,
    messages_during_a_reshard,
    newer_row_in_a_new_region,
    region_that_was_never_created,
    sender_with_an_old_configuration,
    waiting_messages,
)

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
