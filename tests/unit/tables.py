"""Small tables in a directory, for tests of the public `Table` object."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

import lancelsm
from lancelsm.common.clock import Clock, SeededIds
from lancelsm.common.layout import Position
from lancelsm.objects import Body, Object, ObjectStore, PreconditionFailed, WriteUnknown, Written
from lancelsm.objects.filesystem import LocalStore
from lancelsm.region.catalog import Region
from lancelsm.region.handle import Ports
from lancelsm.region.head import Head
from lancelsm.registry.open import open_registry
from lancelsm.table import Table
from tests.simulation.faults import FakeClock, FaultPlan, FaultyRegistry, FaultyStore

COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])

Row = dict[str, Any]

NEWEST = {0: 2, 1: 1, 2: 1}  # the rows of `three_levels`, as `by_key` returns them


def create(
    path: Path, columns: Any = COLUMNS, *, primary_key: Any = "id", ports: Ports | None = None, **options: Any
) -> Table:
    return lancelsm.create.on(ports or Ports())(path / "table", columns, primary_key=primary_key, **options)


def three_levels(path: Path, *, ports: Ports | None = None, **options: Any) -> Table:
    """A table of two regions with rows in the base, a generation and the log; each level has some newest rows."""
    table = lancelsm.create.on(ports or Ports())(
        path, [{"id": n, "v": 0} for n in range(4)], primary_key="id", regions="bucket(id, 2)", **options
    )
    table.upsert([{"id": n, "v": 1} for n in range(3)])
    table.flush()
    table.upsert([{"id": 0, "v": 2}])
    table.delete([3])
    return table


ORDERS = [
    {"id": 1, "state": "new", "total": 2.5},
    {"id": 2, "state": "paid", "total": None},
    {"id": 3, "state": "new", "total": 9.0},
    {"id": 4, "state": "void", "total": 2.5},
]


def orders(path: Path) -> Table:
    """A table with two rows in the base and two in the log: those of `ORDERS`."""
    made = lancelsm.create(path / "orders", pa.Table.from_pylist(ORDERS[:2]), primary_key="id")
    made.upsert(ORDERS[2:])
    return made


def ids(rows: lancelsm.Rows) -> list[int]:
    """Read the rows of a scan, and return their `id` in order."""
    return list(rows.to_arrow()["id"].to_pylist())


def by_key(rows: pa.Table) -> dict[int, Any]:
    """Map each `id` to its `v`, in key order."""
    return dict(sorted(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)))


def from_start(region: Region, head: Head) -> Position:
    """The start of a cursor that misses no entry that is still kept."""
    return head.first_position


def row(key: int, value: str | None = "a") -> Row:
    return {"id": key, "v": value}


def rows_of(table: Table, **options: Any) -> list[Row]:
    """The rows that a scan returns, in key order."""
    return in_key_order(table, table.scan(**options).to_arrow())


def in_key_order(table: Table, rows: pa.Table) -> list[Row]:
    key = table.config.schema.primary_key
    return sorted(rows.to_pylist(), key=lambda row: tuple(row[name] for name in key))


def positions(table: Table) -> dict[str, int]:
    """The next position of each region's log, which a refused write must not move."""
    return {region.region: region.next_position for region in table.status().regions}


def levels(table: Table) -> Iterator[str]:
    """Move the rows from the log to a generation, then to the base; yield the name of each level they are in."""
    yield "tail"
    table.flush()
    yield "generation"
    table.merge(engine="inprocess")
    yield "base"


def faulty(plan: FaultPlan, *, process: str = "", clock: Clock | None = None) -> Ports:
    """Ports of a local table. Every call passes through the fault plan, and calls run one at a time."""

    def store(uri: str, storage_options: Mapping[str, str] | None) -> ObjectStore:
        return FaultyStore(LocalStore(Path(uri)), plan, process=process)

    def registry(kind: str, *, store: FaultyStore, **options: Any) -> FaultyRegistry:
        return FaultyRegistry(open_registry(kind, store=store.inner, **options), plan, process=process)

    return Ports(store=store, registry=registry, clock=clock or FakeClock(), ids=SeededIds(process), threads=1)


def generation_paths(path: Path) -> list[Path]:
    return sorted((path / "table" / "_mem_wal").glob("*/*_gen_*"))


def merged(rows: Iterable[Row], *, key: str = "id") -> list[Row]:
    """The last row of each key, in key order."""
    return [found for _, found in sorted({row[key]: row for row in rows}.items())]


class CountingStore(LocalStore):
    """A store that notes which entries of logs are read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.entries: list[str] = []

    def get(self, key: str) -> Object | None:
        if "/wal/" in key:
            self.entries.append(key)
        return super().get(key)


class Gate(LocalStore):
    """A store that blocks the write of entries until its gate is opened."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.opened = threading.Event()

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        if "/wal/" in key:
            self.opened.wait()
        return super().create(key, body)
