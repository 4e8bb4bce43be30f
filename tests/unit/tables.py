"""Small tables at a path, for tests of the public object."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

import lancelsm
from lancelsm.common.clock import Clock, SeededIds
from lancelsm.common.layout import Position
from lancelsm.objects import Body, ObjectStore, PreconditionFailed, WriteUnknown, Written
from lancelsm.objects.filesystem import LocalStore
from lancelsm.region.catalog import Region
from lancelsm.region.handle import Ports
from lancelsm.region.head import Head
from lancelsm.registry.open import open_registry
from lancelsm.table import Table
from tests.simulation.faults import FakeClock, FaultPlan, FaultyRegistry, FaultyStore

COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])

Row = dict[str, Any]

NOW = {0: 2, 1: 1, 2: 1}  # what `three_levels` shows


def create(path: Path, columns: Any = COLUMNS, *, primary_key: Any = "id", **options: Any) -> Table:
    return lancelsm.create(path / "table", columns, primary_key=primary_key, **options)


def three_levels(place: Path, **options: Any) -> Table:
    """Rows of two regions in the base, a generation and the log; the newest of each key is in any of them."""
    table = lancelsm.create(
        place, [{"id": n, "v": 0} for n in range(4)], primary_key="id", regions="bucket(id, 2)", **options
    )
    table.upsert([{"id": n, "v": 1} for n in range(3)])
    table.flush()
    table.upsert([{"id": 0, "v": 2}])
    table.delete([3])
    return table


def by_key(rows: pa.Table) -> dict[int, Any]:
    """The `v` of each `id`, in key order."""
    return dict(sorted(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)))


def from_start(region: Region, head: Head) -> Position:
    """Where a cursor starts that misses nothing."""
    return head.first_position


def row(key: int, value: str | None = "a") -> Row:
    return {"id": key, "v": value}


def rows_of(table: Table, **how: Any) -> list[Row]:
    """What a scan returns, in key order."""
    return in_key_order(table, table.scan(**how).to_arrow())


def in_key_order(table: Table, rows: pa.Table) -> list[Row]:
    key = table.config.schema.primary_key
    return sorted(rows.to_pylist(), key=lambda row: tuple(row[name] for name in key))


def positions(table: Table) -> dict[str, int]:
    """How far each region's log goes: what a refused write must not move."""
    return {region.region: region.next_position for region in table.status().regions}


def levels(table: Table) -> Iterator[str]:
    """Take what is in the log through the generations into the base, stopping at each level."""
    yield "tail"
    table.flush()
    yield "generation"
    table.merge(engine="inprocess")
    yield "base"


def faulty(plan: FaultPlan, *, process: str = "", clock: Clock | None = None) -> Ports:
    """Ports at a path whose every call passes the plan, one after the other."""

    def store(uri: str, storage_options: Mapping[str, str] | None) -> ObjectStore:
        return FaultyStore(LocalStore(Path(uri)), plan, process=process)

    def registry(kind: str, *, store: FaultyStore, **options: Any) -> FaultyRegistry:
        return FaultyRegistry(open_registry(kind, store=store.inner, **options), plan, process=process)

    return Ports(store=store, registry=registry, clock=clock or FakeClock(), ids=SeededIds(process), parallel=1)


def generation_paths(path: Path) -> list[Path]:
    return sorted((path / "table" / "_mem_wal").glob("*/*_gen_*"))


def merged(rows: Iterable[Row], *, key: str = "id") -> list[Row]:
    """The last row of each key, in key order."""
    return [found for _, found in sorted({row[key]: row for row in rows}.items())]


class Gate(LocalStore):
    """A store that holds back entries until it is opened."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.handle = threading.Event()

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        if "/wal/" in key:
            self.handle.wait()
        return super().create(key, body)
