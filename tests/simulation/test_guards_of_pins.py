"""Each guard of pins and snapshots carries weight: without it, a scenario ends badly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm import table
from lancelsm.errors import Contended
from lancelsm.history import pins, snapshot
from lancelsm.region.handle import open_table
from tests.simulation.collecting import filled
from tests.simulation.environment import raised
from tests.simulation.faults import CRASH_BEFORE, FaultPlan
from tests.simulation.removal import Edit, Scenario, anywhere, with_and_without
from tests.simulation.test_expiry import read_while_it_goes
from tests.simulation.test_guards_of_reads import a_table_env, held, overtaken
from tests.simulation.whole_table_env import at_each_call
from tests.unit import tables, test_pin_protocol

LONG = 7200.0  # more than a maker has, and clocks may differ by


def removed_while_it_is_made(_: Path) -> None:
    """A collector has found it expired; nothing holds it any more, and its name is another's."""
    table_env = filled()
    context, pin = table_env.region("holder").context, table_env.begin_pin("slow")
    pins.forget(context, pin)
    table_env.begin_pin("slow")
    with pytest.raises(Contended):
        pins.confirm(context, pin, ttl_seconds=None)


def forgotten_late(_: Path) -> None:
    """The name is another's by now."""
    table_env = filled()
    context, pin = table_env.region("holder").context, table_env.begin_pin("monday")
    pins.forget(context, pin)
    other = table_env.pin("monday")
    pins.forget(context, pin)
    assert [one.nonce for one in pins.read_pins(context)] == [other.nonce]


def dropped_by_halves(_: Path) -> None:
    """Who drops a snapshot crashes: it is gone, or whole."""
    at_each_call(_crashed_at)


def _crashed_at(at: int) -> FaultPlan:
    with a_table_env() as table_env:
        table_env.hold("holder", "held", ttl_seconds=LONG)
        table_env.environment.plan = FaultPlan.at(at, CRASH_BEFORE)
        raised(lambda: snapshot.drop_snapshot(table_env.handle("dropper"), "held"))
        reader = table_env.context("reader", faulty=False)
        if snapshot.list_snapshots(reader):
            snapshot.find_snapshot(reader, "held")
    return table_env.environment.plan


def of_two_regions(scenario: Callable[..., None], **how: Any) -> Scenario:
    """A scenario of a table with two regions, of three entries each."""

    def raised_by(place: Path) -> None:
        made = lancelsm.create(place / "table", tables.COLUMNS, primary_key="id", regions="bucket(id, 2)")
        for value in "abc":
            made.upsert([tables.row(key, value) for key in range(8)])
        with pytest.MonkeyPatch.context() as patch:
            scenario(open_table(made.uri), patch, **how)

    return raised_by


NEWER_IF_GONE = """\
            try:
                return read(self._pinned)
            except Corrupt:
                return read(take_view(self._storage, listed, self._opened.read_base))
"""

GUARDS: dict[str, tuple[list[Edit], Scenario]] = {
    "a pin that was removed is not confirmed": (
        [(pins.step, '{"version": following.version, "nonce": pin.nonce}', "{}")],
        removed_while_it_is_made,
    ),
    "who forgets a pin leaves another of its name alone": (
        [
            (pins._end, "if record is None or _nonce(record) != pin.nonce:", "if record is None:"),
            (pins._end, ', "nonce": record.get("nonce")}', "}"),
        ],
        forgotten_late,
    ),
    "a snapshot is recorded before the floors are read": (
        [
            (snapshot._placed, "pins.pin_regions(context, pin, needs)", "needs"),
            (
                pins.make,
                "return confirm(",
                "return pin_regions(context, placed, placed.regions) and confirm(",
            ),
        ],
        anywhere(overtaken, held),
    ),
    "a pin that was overtaken is not confirmed": (
        [(pins.make, "placed is not None and not overtaken(context, placed)", "placed is not None")],
        anywhere(overtaken, held),
    ),
    "a snapshot's base belongs to its heads": (
        [(snapshot._state, "if not problem:", "if True:")],
        anywhere(overtaken, held),
    ),
    "a snapshot that is gone is no damage": (
        [(snapshot.standing, "if not pins.held(context, pin):", "if False:")],
        anywhere(read_while_it_goes),
    ),
    "a pin ends with its own record": (
        [
            (
                pins._end,
                "    key = pin_key(partition, pin.name)\n",
                "    key = pin_key(partition, pin.name)\n    discard_regions(context, pin)\n",
            )
        ],
        dropped_by_halves,
    ),
    "a snapshot of which one listing lacks records is listed again": (
        [(snapshot.find_snapshot, "pin.nonce == lacking and ", "")],
        of_two_regions(test_pin_protocol.test_a_listing_that_saw_a_snapshot_half_made_is_no_view),
    ),
    "a snapshot that is gone lacks no records": (
        [(snapshot.find_snapshot, " and pins.held(context, pin):", ":")],
        of_two_regions(
            test_pin_protocol.test_a_snapshot_that_listings_saw_half_made_and_then_half_dropped_is_gone_and_not_corrupt
        ),
    ),
    "a read of a snapshot is never one of a newer view": (
        [
            (
                table.Table._reading,
                "            return read(self._pinned)\n",
                NEWER_IF_GONE,
            )
        ],
        anywhere(read_while_it_goes),
    ),
}


OWN = (dropped_by_halves, forgotten_late, removed_while_it_is_made)


test_with_all_guards_a_story_ends_well, test_without_the_guard_a_story_ends_badly = with_and_without(GUARDS, own=OWN)
