"""Who copies the table and who scrubs it, beside those of `actors`; whatever else goes on, copies are whole."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.admin.drop import drop_table
from lancelsm.backup import back_up, restore
from lancelsm.errors import Invalid
from lancelsm.table import Table
from tests.stress.actors import PASSING, Part
from tests.stress.stream import Expected


def scrub(part: Part) -> None:
    """Nothing is damaged, so nothing is wrong."""
    table = part.open()
    while not part.over:
        with suppress(*PASSING):
            found = table.scrub().problems
            assert not found, found
            part.count()
        time.sleep(0.5)


def copy(part: Part) -> None:
    """Clone a snapshot, or back it up and restore that, each time to a new place, and drop what is there by then."""
    table, places, name = part.open(), part.place.parent / "copies", part.name.replace(" ", "-")
    places.mkdir(exist_ok=True)
    while not part.over:
        for left in sorted({file.parent.parent for file in places.glob("table-*/_lancelsm/*.json")}):
            with suppress(*PASSING):
                drop_table(left)
        with suppress(*PASSING, Invalid):  # of a life that was killed
            table.drop_snapshot(name)
        with suppress(*PASSING):
            table.snapshot(name, ttl="1h")
            made = _copied(part, table.at(name), name, places / f"table-{time.time_ns()}")
            held = table.at(name).scan().to_arrow()
            found = made.scan().to_arrow()
            assert found.sort_by("id") == held.sort_by("id"), f"{made.uri} is not what snapshot {name} is"
            Expected(part.seed).check(found)
            part.count()


def _copied(part: Part, held: Table, name: str, place: Path) -> Table:
    if part.done % 2:
        clone_snapshot(held._opened, name, place)
    else:
        back_up(held, place.with_name(place.name.replace("table", "backup")))
        restore(place.with_name(place.name.replace("table", "backup")), place)
    return lancelsm.open(place)
