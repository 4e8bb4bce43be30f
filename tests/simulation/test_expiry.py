"""A snapshot is readable until it may have expired for its holder, whatever the collector's clock shows.

After that, a read of the snapshot raises `Invalid`, not `Corrupt`: nothing is damaged.
"""

from __future__ import annotations

import pytest

from tests.simulation import pin_scenarios


@pytest.mark.parametrize("clock", ["right", "fast", "slow"])
def test_a_snapshot_that_is_about_to_expire_is_kept_by_every_clock_within_the_allowance(clock: str) -> None:
    pin_scenarios.collected_shortly_before_expiry(clock)


def test_a_read_of_a_snapshot_that_expires_meanwhile_raises_invalid() -> None:
    pin_scenarios.expires_before_any_call_of_a_read()
