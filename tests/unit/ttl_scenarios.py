"""Tables whose rows expire, in situations that need several actors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import lancelsm
from lancelsm.compaction.maintenance import merge_table
from lancelsm.region.handle import Ports
from lancelsm.table import Table
from tests.simulation.faults import FakeClock
from tests.unit.merge_environment import Interrupted

COLUMNS = pa.schema([("id", pa.int64()), ("at", pa.timestamp("s")), ("v", pa.string())])
HOUR = 3600


def expiring(path: Path, clock: FakeClock, **options: Any) -> Table:
    """A table whose rows expire an hour after `at`."""
    return lancelsm.create.on(Ports(clock=clock, threads=1))(path, COLUMNS, primary_key="id", ttl="1h on at", **options)


def row(clock: FakeClock, key: int, hours: float | None, value: str = "a") -> dict[str, Any]:
    """A row with a time that lies this many hours from now."""
    return {"id": key, "at": None if hours is None else int(clock.now() + hours * HOUR), "v": value}


def upsert(table: Table, rows: list[dict[str, Any]]) -> None:
    at = pa.array([one["at"] for one in rows], pa.int64()).cast(pa.timestamp("s"))
    table.upsert(pa.table([[one["id"] for one in rows], at, [one["v"] for one in rows]], schema=COLUMNS))


def ids(table: Table) -> list[int]:
    return sorted(table.scan(columns=["id"]).to_arrow()["id"].to_pylist())


def ttl_is_removed_during_a_merge(directory: Path, step: int) -> None:
    """A merge that took rows for expired is planned again: they are visible again, and stay."""
    clock = FakeClock()
    table = expiring(directory / "t", clock)
    upsert(table, [row(clock, 1, 0), row(clock, 2, None)])
    table.flush()
    clock.advance(3 * HOUR)
    runner = Interrupted(step, lambda: table.set_ttl(None))

    merge_table(table._handle, runner=runner)

    assert table._handle.read_base().counters
    assert ids(table) == [1, 2]
