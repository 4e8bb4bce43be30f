"""Scenarios of an open table whose reads use parts of earlier views while others change the table."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common.layout import SQLITE
from lancelsm.compaction import snapshot_regions
from lancelsm.compaction.maintenance import optimize_table
from lancelsm.errors import Corrupt
from lancelsm.read import view_cache
from lancelsm.region.handle import Ports
from lancelsm.table import Table
from tests.simulation.faults import FakeClock, FaultPlan
from tests.unit.tables import by_key, faulty

INTERVAL = 3600.0  # collect_interval_seconds


class Held:
    """A table of two regions by parity, held open by a reader whose clock is `clock`. Region 1 has no row at first."""

    def __init__(self, path: Path) -> None:
        self.writing = lancelsm.create(path, [{"id": 0, "v": 0}], primary_key="id", regions="expr(id % 2)")
        self.writing.upsert([{"id": 0, "v": 1}])
        self.clock, self.plan = FakeClock(), FaultPlan()
        self.table: Table = lancelsm.open.on(faulty(self.plan, clock=self.clock))(self.writing.uri)
        self.scan()

    def scan(self, **options: Any) -> dict[int, Any]:
        return by_key(self.table.scan(**options).to_arrow())

    def get(self, key: int, **options: Any) -> dict[int, Any]:
        return by_key(self.table.get(key, **options))

    def list_catalog(self) -> None:
        """Let the catalog be one that was listed just now."""
        newest = self.table._views._newest
        assert newest.listing is not None
        newest.listing = replace(newest.listing, checked=self.clock.monotonic())

    def merge(self) -> None:
        self.writing.flush()
        self.writing.merge(engine="inprocess")


def changed_head(path: Path) -> None:
    """Rows are appended and flushed after a view."""
    held = Held(path)
    held.writing.upsert([{"id": 0, "v": 2}])
    held.writing.flush()
    assert held.scan() == {0: 2}


def changed_base(path: Path) -> None:
    """Another tool appends rows to the base after a view. No head changes."""
    held = Held(path)
    rows = pa.table([[7], [7]], schema=lance.dataset(held.writing.uri).schema)
    lance.write_dataset(rows, held.writing.uri, mode="append")
    assert held.scan() == {0: 1, 7: 7}


def merge_between_heads_and_base(path: Path) -> None:
    """A flush and a merge come between the reads of the heads and of the base. The next try reads the heads again."""
    held = Held(path)
    held.writing.flush()
    held.writing.upsert([{"id": 0, "v": 2}])
    newest_version = view_cache.newest_version
    merges: list[Callable[[], None]] = [held.merge]

    def merge_first(base: Any) -> int:
        if merges and held.plan.calls[-1].port == "objects":  # after the log was read
            merges.pop()()
        return newest_version(base)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view_cache, "newest_version", merge_first)
        assert held.scan() == {0: 2}
    assert not merges


def old_part_beside_a_recent_one(path: Path) -> None:
    """A recent read of one region says nothing about the age of another one."""
    held = Held(path)
    held.writing.upsert([{"id": 1, "v": 1}])
    held.scan()
    held.writing.upsert([{"id": 0, "v": 2}])
    held.clock.advance(100)
    held.get(1)
    held.list_catalog()
    eventual: dict[str, Any] = {"consistency": "eventual", "max_staleness": 50}
    assert held.get(0, **eventual) == {0: 2}


def old_base(path: Path) -> None:
    """A region with recent rows and a base that is too old are no recent view."""
    held = Held(path)
    held.clock.advance(100)
    newest = held.table._views._newest
    newest.base, kept = None, newest.base
    held.get(0)
    newest.base = kept
    held.list_catalog()
    rows = pa.table([[2], [7]], schema=lance.dataset(held.writing.uri).schema)
    lance.write_dataset(rows, held.writing.uri, mode="append")
    assert held.get(2, consistency="eventual", max_staleness=50) == {2: 7}


def old_catalog(path: Path) -> None:
    """A region was created after the catalog was listed, longer ago than an eventual read allows."""
    held = Held(path)
    held.writing.upsert([{"id": 1, "v": 1}])
    held.clock.advance(100)
    held.get(0)
    assert held.scan(consistency="eventual", max_staleness=50) == {0: 1, 1: 1}


# Region snapshots

EVENTUAL: dict[str, Any] = {"consistency": "eventual", "max_staleness": 60}


class Snapshotted:
    """A table of two regions with a region snapshot, from which processes read that have just started."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.uri = str(path)
        settings = {"skew_allowance_seconds": 10, "collect_interval_seconds": INTERVAL}
        self.writing = lancelsm.create.on(self.ports())(
            path, [{"id": 0, "v": 0}], primary_key="id", regions="bucket(id, 2)", settings=settings
        )
        self.writing.upsert([{"id": 0, "v": 1}])

    def ports(self) -> Ports:
        return faulty(FaultPlan(), process=self.uri, clock=self.clock)  # each table has an id of its own

    def optimize(self) -> None:
        optimize_table(self.writing._handle)

    def scan(self) -> dict[int, Any]:
        return by_key(lancelsm.open.on(self.ports())(self.uri).scan(**EVENTUAL).to_arrow())


def old_region_snapshot(path: Path) -> None:
    """Rows are written after the snapshot, and it is older than the read allows if the clocks differ."""
    table = Snapshotted(path)
    table.optimize()
    table.writing.upsert([{"id": 0, "v": 2}])
    assert table.scan() == {0: 1}
    table.clock.advance(51)
    assert table.scan() == {0: 2}


def base_ahead_of_the_region_snapshot(path: Path) -> None:
    """The base has a newer row of a key than the log of the snapshot."""
    table = Snapshotted(path)
    table.optimize()
    table.writing.upsert([{"id": 0, "v": 2}])
    table.writing.flush()
    table.writing.merge(engine="inprocess")
    assert table.scan() == {0: 2}


def base_of_another_table(path: Path) -> None:
    """The files of the base are replaced by those of another table, which has a region snapshot and no log."""
    table, other = Snapshotted(path / "one"), Snapshotted(path / "other")
    other.writing.flush()
    other.writing.merge(engine="inprocess")
    other.optimize()
    reading = lancelsm.open.on(table.ports())(table.uri)
    for directory in ("_versions", "data", "_deletions", "_indices", "_transactions"):
        shutil.rmtree(path / "one" / directory, ignore_errors=True)
        if (path / "other" / directory).exists():
            shutil.copytree(path / "other" / directory, path / "one" / directory)
    with pytest.raises(Corrupt, match="another tool has overwritten it"):
        reading.scan(**EVENTUAL)


def lost_head_of_a_region_in_the_snapshot(path: Path) -> None:
    """The registry loses the heads after a read of the region snapshot, which keeps parts of regions without a head."""
    table = Snapshotted(path)
    table.optimize()
    reading = lancelsm.open.on(table.ports())(table.uri)
    assert by_key(reading.scan(**EVENTUAL).to_arrow()) == {0: 1}
    with closing(sqlite3.connect(path / SQLITE)) as registry, registry:
        assert registry.execute("DELETE FROM records WHERE sort = 'head'").rowcount
    with pytest.raises(Corrupt, match="no head"):
        reading.scan()


def slow_optimize(path: Path) -> None:
    """Rows are written and time goes by after an optimize has read the heads."""
    table = Snapshotted(path)
    newest = snapshot_regions.newest
    begun: list[None] = []

    def read_slowly(*arguments: Any) -> Any:
        if not begun:
            begun.append(None)
            table.writing.upsert([{"id": 0, "v": 2}])
            table.clock.advance(100)
        return newest(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_regions, "newest", read_slowly)
        table.optimize()
    assert begun
    assert table.scan() == {0: 2}
