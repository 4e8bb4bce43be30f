"""A view has heads and a base that belong together. Otherwise it is discarded and taken again."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common.layout import Position, wal_entry
from lancelsm.dataset.base_table import BaseTable, open_base
from lancelsm.errors import Corrupt, Unavailable
from lancelsm.read.view import View, take_view
from lancelsm.region.catalog import regions
from lancelsm.region.handle import TableHandle, open_table
from lancelsm.table import Table
from tests.simulation.faults import FAIL_BEFORE, FakeClock, FaultPlan
from tests.unit.tables import create, faulty, row, rows_of


def view_of(handle: TableHandle, read_base: Callable[[], BaseTable] | None = None) -> View:
    return take_view(handle.context, lambda: regions(handle.context), read_base or handle.read_base)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with a row in the base, one in a generation, and one in the tail."""
    table = create(tmp_path)
    table.upsert([row(1)])
    table.flush()
    table.merge(engine="inprocess")
    table.upsert([row(2)])
    table.flush()
    table.upsert([row(3), row(2, "b")])
    table.upsert([row(3, "b")])
    return table


def test_a_view_contains_what_is_newer_than_the_base(table: Table) -> None:
    (region,) = view_of(open_table(table.uri)).regions

    assert (region.counter, [g.generation for g in region.generations]) == (1, [2])
    assert [(found["id"], found["v"]) for rows in region.tail.in_order() for found in rows.to_pylist()] == [
        (2, "b"),
        (3, "b"),
    ]


def test_a_merge_between_the_reads_of_heads_and_base_is_no_contradiction(table: Table) -> None:
    """The counter is then at least as new as the generations of the manifest that was read."""
    handle = open_table(table.uri)

    def merge_then_read() -> BaseTable:
        table.merge(engine="inprocess")
        return handle.read_base()

    view = view_of(handle, merge_then_read)

    (region,) = view.regions
    assert (region.counter, region.generations) == (2, [])
    assert view.base.rows == 2


def test_a_flush_and_a_merge_between_the_reads_of_heads_and_base_make_a_view_start_again(table: Table) -> None:
    handle = open_table(table.uri)
    reads = []

    def flush_and_merge_then_read() -> BaseTable:
        if not reads:
            table.flush()
            table.merge(engine="inprocess")
        reads.append(handle.read_base())
        return reads[-1]

    view = view_of(handle, flush_and_merge_then_read)

    assert len(reads) == 2
    (region,) = view.regions
    assert (region.counter, region.tail.num_rows, view.base.rows) == (3, 0, 3)


def test_a_counter_that_stays_ahead_is_corrupt_after_bounded_attempts(table: Table) -> None:
    handle = open_table(table.uri, ports=faulty(FaultPlan()))
    (region,) = regions(handle.context)
    lance.dataset(table.uri).update_schema_metadata({f"lancelsm.merged.{region.id}": "9"})
    reads = []

    def read_and_count() -> BaseTable:
        reads.append(handle.read_base())
        return reads[-1]

    with pytest.raises(Corrupt, match="through generation 9, but its manifest lists") as error:
        view_of(handle, read_and_count)

    assert 2 <= len(reads) <= 10
    assert "registry rebuild" in error.value.remedy
    assert "restore the base" in error.value.remedy


def test_a_base_of_another_table_is_never_read(tmp_path: Path, table: Table) -> None:
    other = create(tmp_path / "other", [row(66)])
    handle = open_table(table.uri, ports=faulty(FaultPlan(), clock=FakeClock()))

    with pytest.raises(Corrupt, match="another tool has overwritten it"):
        view_of(handle, lambda: open_base(uri=other.uri))


def test_an_entry_copied_to_another_position_is_corrupt(table: Table) -> None:
    """The object at one position is overwritten with the entry of another position."""
    other = lancelsm.open(table.uri)
    (region,) = other.list_regions()
    first, second = (Path(table.uri) / wal_entry(region.id, Position(position)) for position in (3, 4))
    shutil.copy(second, first)

    with pytest.raises(Corrupt, match="a committed entry is damaged"):
        table.scan()
    with pytest.raises(Corrupt, match="a committed entry is damaged"):
        table.flush()


def test_a_flipped_bit_in_an_entry_is_found(table: Table) -> None:
    (region,) = table.list_regions()
    path = Path(table.uri) / wal_entry(region.id, Position(4))
    body = bytearray(path.read_bytes())
    body[-40] ^= 1
    path.write_bytes(bytes(body))

    with pytest.raises(Corrupt) as error:
        table.scan()

    assert error.value.where["position"] == 4


def test_one_failed_read_of_any_kind_raises_unavailable(table: Table) -> None:
    plan = FaultPlan()
    expected = rows_of(Table(open_table(table.uri, ports=faulty(plan))))
    assert [found["id"] for found in expected] == [1, 2, 3]
    for call in plan.calls:
        if call.key.endswith("config.json") or call.key.startswith("_versions/"):
            continue  # of `open`; without an answer about the manifest it asks Lance
        reading = Table(open_table(table.uri, ports=faulty(FaultPlan.at(call.index, FAIL_BEFORE))))
        with pytest.raises(Unavailable):
            reading.scan()
        assert rows_of(reading) == expected


def test_get_reads_only_the_regions_of_its_keys(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 4)")
    table.upsert([row(key) for key in range(20)])
    plan = FaultPlan()
    reading = lancelsm.open.on(faulty(plan))(table.uri)
    reading.get([3])
    plan.calls.clear()

    assert reading.get([0]).to_pylist() == [row(0)]

    assert [(call.port, call.method) for call in plan.calls] == [
        ("registry", "read"),
        ("objects", "get"),
        ("objects", "get"),
    ], "a head, its manifest, one entry"


def test_keys_of_regions_that_do_not_exist_cost_one_listing_together(tmp_path: Path) -> None:
    table = create(tmp_path, regions="identity(id)")
    table.upsert([row(1)])
    plan = FaultPlan()
    reading = lancelsm.open.on(faulty(plan))(table.uri)

    for read in (lambda: reading.get([1, 2, 3, 4, 5]), lambda: reading.scan(where="id in (1, 2, 3, 4, 5)").to_arrow()):
        plan.calls.clear()
        assert read().to_pylist() == [row(1)]
        assert Counter(call.method for call in plan.calls if call.port == "registry")["list"] == 1


def test_a_scan_of_a_merged_table_reads_no_entry(tmp_path: Path) -> None:
    table = create(tmp_path)
    for key in range(3):
        table.upsert([row(key)])
    table.flush()
    table.merge(engine="inprocess")
    plan = FaultPlan()
    reading = lancelsm.open.on(faulty(plan))(table.uri)
    plan.calls.clear()

    assert rows_of(reading) == [row(0), row(1), row(2)]

    assert [(call.port, call.method) for call in plan.calls] == [
        ("registry", "list"),
        ("registry", "read"),
        ("objects", "get"),
    ]


def test_a_column_that_another_tool_added_is_null_above_the_base(table: Table) -> None:
    lance.dataset(table.uri).add_columns(pa.field("x", pa.int64()))

    found: list[dict[str, Any]] = rows_of(table)

    assert found == [{**row(1), "x": None}, {**row(2, "b"), "x": None}, {**row(3, "b"), "x": None}]
