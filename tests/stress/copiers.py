"""Actors that copy and scrub the table while those of `actors` run. Copies must be complete."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.errors import Invalid
from lancelsm.table import Table
from tests.stress.actors import TRANSIENT, ActorContext
from tests.stress.stream import Expected


def scrub(context: ActorContext) -> None:
    """Scrub the table. Nothing is damaged, so it must find no problem."""
    table = context.open()
    while not context.over:
        with suppress(*TRANSIENT):
            found = table.scrub().problems
            assert not found, found
            context.count()
        time.sleep(0.5)


def copy(context: ActorContext) -> None:
    """Clone a snapshot, or back it up and restore the backup, each time to a new location. Drop earlier copies."""
    table, copies, name = context.open(), context.location.parent / "copies", context.name.replace(" ", "-")
    copies.mkdir(exist_ok=True)
    while not context.over:
        for earlier in sorted({file.parent.parent for file in copies.glob("table-*/_lancelsm/*.json")}):
            with suppress(*TRANSIENT):
                lancelsm.drop(earlier)
        with suppress(*TRANSIENT, Invalid):  # left by a process that was killed
            table.drop_snapshot(name)
        with suppress(*TRANSIENT):
            table.snapshot(name, ttl="1h")
            copied = _copy_snapshot(context, table.at(name), name, copies / f"table-{time.time_ns()}")
            held = table.at(name).scan().to_arrow()
            found = copied.scan().to_arrow()
            assert found.sort_by("id") == held.sort_by("id"), f"{copied.uri} differs from snapshot {name}"
            Expected(context.seed).check(found)
            context.count()


def _copy_snapshot(context: ActorContext, held: Table, name: str, location: Path) -> Table:
    if context.done % 2:
        clone_snapshot(held._handle, name, location)
    else:
        backup = location.with_name(location.name.replace("table", "backup"))
        lancelsm.backup(held, backup)
        lancelsm.restore(backup, location)
    return lancelsm.open(location)
