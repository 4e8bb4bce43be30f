"""Each guard of pins and snapshots is needed: without it, its scenario fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from lancelsm.errors import Contended
from lancelsm.history import pins, snapshot
from tests.simulation.collecting import filled
from tests.simulation.environment import raised
from tests.simulation.faults import CRASH_BEFORE, FaultPlan
from tests.simulation.marks import Edit, changed, moved, without
from tests.simulation.pin_scenarios import expires_before_any_call_of_a_read, with_two_regions
from tests.simulation.read_scenarios import (
    create_and_read_snapshot,
    overtaken_before_any_call,
    with_pending_generations,
)
from tests.simulation.removal import Scenario, anywhere, with_and_without
from tests.simulation.whole_table_env import at_each_call
from tests.unit import pin_scenarios

TWO_HOURS = 7200.0  # longer than it may take to create a pin, and than clocks may differ


def removed_before_it_is_confirmed(_: Path) -> None:
    """A collector has removed an expired pin before it is confirmed, and another pin has its name."""
    table_env = filled()
    context, pin = table_env.region("holder").context, table_env.begin_pin("slow")
    pins.forget(context, pin)
    table_env.begin_pin("slow")
    with pytest.raises(Contended):
        pins.confirm(context, pin, ttl_seconds=None)


def removed_twice(_: Path) -> None:
    """A pin is removed twice. Before the second time, another pin takes its name."""
    table_env = filled()
    context, pin = table_env.region("holder").context, table_env.begin_pin("monday")
    pins.forget(context, pin)
    other = table_env.pin("monday")
    pins.forget(context, pin)
    assert [one.nonce for one in pins.read_pins(context)] == [other.nonce]


def crash_during_a_drop(_: Path) -> None:
    """A drop of a snapshot crashes at any call. The snapshot is complete or does not exist."""
    at_each_call(_crashed_at)


def _crashed_at(at: int) -> FaultPlan:
    with with_pending_generations() as table_env:
        table_env.hold("holder", "held", ttl_seconds=TWO_HOURS)
        table_env.environment.plan = FaultPlan.at(at, CRASH_BEFORE)
        raised(lambda: snapshot.drop_snapshot(table_env.handle("dropper"), "held"))
        reader = table_env.context("reader", faulty=False)
        if snapshot.list_snapshots(reader):
            snapshot.find_snapshot(reader, "held")
    return table_env.environment.plan


NEWER_IF_GONE = """\
try:
    return read(self._pinned)
except Corrupt:
    return read(self._views.take(list_regions))
"""

GUARDS: dict[str, tuple[list[Edit], Scenario]] = {
    "a removed pin is not confirmed": (
        [without("removed pin is not confirmed", instead={})],
        removed_before_it_is_confirmed,
    ),
    "removing a pin leaves another pin with its name alone": (
        [without("later pin of the name stays"), without("pin is deleted under its nonce")],
        removed_twice,
    ),
    "a snapshot is recorded before the floors are read": (
        [
            changed("needs are recorded before the floors are read", "needs"),
            changed(
                "confirmed needs have records",
                "pin_regions(context, recorded, recorded.regions)"
                " and confirm(context, recorded, ttl_seconds=ttl_seconds)",
            ),
        ],
        anywhere(overtaken_before_any_call, create_and_read_snapshot),
    ),
    "a pin that a floor has passed is not confirmed": (
        [without("overtaken pin is not confirmed")],
        anywhere(overtaken_before_any_call, create_and_read_snapshot),
    ),
    "the base of a snapshot matches its heads": (
        [without("base of a snapshot matches its heads", instead=True)],
        anywhere(overtaken_before_any_call, create_and_read_snapshot),
    ),
    "a missing snapshot is not reported as damage": (
        [without("missing snapshot is not damage")],
        anywhere(expires_before_any_call_of_a_read),
    ),
    "the own record of a pin is deleted first": (
        [moved("own record of a pin is deleted first", out=2, by=-1)],
        crash_during_a_drop,
    ),
    "a snapshot whose records are incomplete in one listing is listed again": (
        [without("incomplete snapshot is listed again")],
        with_two_regions(pin_scenarios.listing_lacks_records_of_a_snapshot),
    ),
    "a missing snapshot is not reported as incomplete": (
        [without("missing snapshot is not incomplete")],
        with_two_regions(pin_scenarios.snapshot_is_dropped_while_listings_lack_records),
    ),
    "a read of a snapshot never takes a newer view": (
        [changed("read of a snapshot takes no newer view", NEWER_IF_GONE)],
        anywhere(expires_before_any_call_of_a_read),
    ),
}


OWN = (crash_during_a_drop, removed_twice, removed_before_it_is_confirmed)


test_a_scenario_passes_with_all_guards, test_the_scenario_fails_without_its_guard = with_and_without(GUARDS, own=OWN)
