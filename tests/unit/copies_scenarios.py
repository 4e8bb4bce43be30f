"""A table with a snapshot, its clones, and races between clones, drops and collections."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.admin import clone, drop
from lancelsm.admin.clone import clone_snapshot
from lancelsm.common.layout import pin_key, snapshots
from lancelsm.errors import Contended, Invalid
from lancelsm.region.catalog import TableContext
from lancelsm.region.handle import Ports, open_table
from lancelsm.registry import SwapLost
from lancelsm.table import Table
from tests.simulation.faults import FakeClock

NEWEST = {0: 2, 1: 1, 2: 1}


def create_source(location: Path) -> Path:
    """Create a table with a snapshot `monday`, whose rows are `NEWEST`, and one newer row."""
    table = lancelsm.create(
        location,
        [{"id": n, "v": 0} for n in range(4)],
        primary_key="id",
        regions="bucket(id, 2)",
        settings={"flush_rows": 7},
    )
    table.upsert([{"id": n, "v": 1} for n in range(3)])
    table.flush()
    table.upsert([{"id": 0, "v": 2}])
    table.delete([3])
    table.snapshot("monday", "never")
    table.upsert([{"id": 5, "v": 5}])
    return location


def values_by_id(table: Table) -> dict[int, int]:
    """Map each `id` to its `v`, in key order."""
    rows = table.scan().to_arrow()
    return dict(sorted(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)))


def cloned(source: Table, location: Path, *, at: str = "monday", ports: Ports | None = None) -> Table:
    """Clone a snapshot of the source and open the clone."""
    done = clone_snapshot(open_table(source.uri), at, location, ports=ports)
    assert done.rows == len(values_by_id(source.at(at)))
    return lancelsm.open(location)


def snapshot_judged_before_its_clone_was_pinned_stays(source: Table, directory: Path) -> None:
    """A collector read an expired snapshot before a clone pinned it; its deletion of the snapshot is refused."""
    context = open_table(source.uri).context
    key = pin_key(snapshots(context.table), "monday")
    judged = context.registry.read(key)
    cloned(source, directory / "clone")

    witness = {"version": judged["version"], "nonce": judged["nonce"]}
    assert isinstance(context.registry.delete(key, expect=witness), SwapLost)


def stalled_clone_adds_no_older_row(
    source: Table, directory: Path, monkeypatch: pytest.MonkeyPatch, *, stalls_at: int
) -> None:
    """A clone stalls before its n-th append; another process finishes the clone and writes newer rows, which stay."""
    location, draft, calls = directory / "clone", clone.draft, list[object]()

    def stalls(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == stalls_at:
            cloned(source, location).upsert([{"id": n, "v": 9} for n in range(-4, 4)])
        return draft(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(clone, "draft", stalls)
        with pytest.raises(Invalid, match="a table already exists at this location"):
            cloned(source, location)

    assert len(calls) > stalls_at, "the stalled clone had nothing left to append"
    assert values_by_id(lancelsm.open(location)) == NEWEST | dict.fromkeys(range(-4, 4), 9)


def finished_drop_leaves_a_new_table_alone(source: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process finishes a stalled drop, and a new table is created there; the stalled drop deletes nothing."""
    location, finished = Path(source.uri), []

    def overtaken(context: TableContext) -> int:
        monkeypatch.undo()
        later = replace(Ports(), clock=FakeClock(context.clock.now() + 120))  # the lease of the first drop has expired
        finished.append(lancelsm.drop.on(later)(location))
        lancelsm.create(location, [{"id": 1, "v": 1}], primary_key="id").upsert([{"id": 2, "v": 2}])
        return drop.delete_objects(context)

    monkeypatch.setattr(drop, "delete_objects", overtaken)
    with pytest.raises(Contended, match="another process has finished the drop"):
        lancelsm.drop(location)

    assert finished[0] > 10
    assert values_by_id(lancelsm.open(location)) == {1: 1, 2: 2}
