"""Each guard of pins and snapshots carries weight: without it, a story ends badly."""

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
from tests.simulation.faults import CRASH_BEFORE, FaultPlan
from tests.simulation.removal import Edit, Story, anywhere, with_and_without
from tests.simulation.test_expiry import read_while_it_goes
from tests.simulation.test_guards_of_reads import a_lake, held, overtaken
from tests.simulation.whole_lake import at_each_call
from tests.simulation.world import told
from tests.unit import tables, test_pin_protocol

LONG = 7200.0  # more than a maker has, and clocks may differ by


def removed_while_it_is_made(_: Path) -> None:
    """A collector has found it expired; nothing holds it any more, and its name is another's."""
    lake = filled()
    storage, pin = lake.region("holder").storage, lake.begin_pin("slow")
    pins.forget(storage, pin)
    lake.begin_pin("slow")
    with pytest.raises(Contended):
        pins.confirm(storage, pin, ttl_seconds=None)


def forgotten_late(_: Path) -> None:
    """The name is another's by now."""
    lake = filled()
    storage, pin = lake.region("holder").storage, lake.begin_pin("monday")
    pins.forget(storage, pin)
    other = lake.pin("monday")
    pins.forget(storage, pin)
    assert [one.nonce for one in pins.read_pins(storage)] == [other.nonce]


def dropped_by_halves(_: Path) -> None:
    """Who drops a snapshot crashes: it is gone, or whole."""
    at_each_call(_crashed_at)


def _crashed_at(at: int) -> FaultPlan:
    with a_lake() as lake:
        lake.hold("holder", "held", ttl_seconds=LONG)
        lake.world.plan = FaultPlan.at(at, CRASH_BEFORE)
        told(lambda: snapshot.drop_snapshot(lake.opened("dropper"), "held"))
        reader = lake.storage("reader", faulty=False)
        if snapshot.list_snapshots(reader):
            snapshot.find_snapshot(reader, "held")
    return lake.world.plan


def of_two_regions(story: Callable[..., None], **how: Any) -> Story:
    """A story of a table with two regions, of three entries each."""

    def told_of(place: Path) -> None:
        made = lancelsm.create(place / "table", tables.COLUMNS, primary_key="id", regions="bucket(id, 2)")
        for value in "abc":
            made.upsert([tables.row(key, value) for key in range(8)])
        with pytest.MonkeyPatch.context() as patch:
            story(open_table(made.uri), patch, **how)

    return told_of


NEWER_IF_GONE = """\
            try:
                return read(self._pinned)
            except Corrupt:
                return read(take_view(self._storage, listed, self._opened.read_base))
"""

GUARDS: dict[str, tuple[list[Edit], Story]] = {
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
            (snapshot._placed, "pins.pin_regions(storage, pin, needs)", "needs"),
            (
                pins.make,
                "return confirm(",
                "return pin_regions(storage, placed, placed.regions) and confirm(",
            ),
        ],
        anywhere(overtaken, held),
    ),
    "a pin that was overtaken is not confirmed": (
        [(pins.make, "placed is not None and not overtaken(storage, placed)", "placed is not None")],
        anywhere(overtaken, held),
    ),
    "a snapshot's base belongs to its heads": (
        [(snapshot._state, "if not problem:", "if True:")],
        anywhere(overtaken, held),
    ),
    "a snapshot that is gone is no damage": (
        [(snapshot.standing, "if not pins.held(storage, pin):", "if False:")],
        anywhere(read_while_it_goes),
    ),
    "a pin ends with its own record": (
        [
            (
                pins._end,
                "    key = pin_key(partition, pin.name)\n",
                "    key = pin_key(partition, pin.name)\n    discard_regions(storage, pin)\n",
            )
        ],
        dropped_by_halves,
    ),
    "a snapshot of which one listing lacks records is listed again": (
        [(snapshot.find_snapshot, "pin.nonce == lacking and ", "")],
        of_two_regions(test_pin_protocol.test_a_listing_that_saw_a_snapshot_half_made_is_no_view),
    ),
    "a snapshot that is gone lacks no records": (
        [(snapshot.find_snapshot, " and pins.held(storage, pin):", ":")],
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
