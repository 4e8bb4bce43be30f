"""Logs of many entries, and logs that are larger than memory: what a read decodes, reads again and holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.read import tail as tails
from lancelsm.record import batches
from lancelsm.record.batches import gathered, resized
from lancelsm.region.handle import Ports, open_table
from lancelsm.table import Table
from tests.unit.peak import peak_megabytes
from tests.unit.read_scenarios import entries_replaced_before_they_are_read_again
from tests.unit.tables import CountingStore, create, row, rows_of, three_levels


@pytest.fixture
def keys_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "_HELD_BYTES", 0)


def watched(table: Table) -> tuple[Table, CountingStore]:
    store = CountingStore(Path(table.uri))
    return lancelsm.open.on(Ports(store=lambda *_: store, threads=1))(table.uri), store


def test_gathered_looks_at_each_batch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    combined: list[int] = []
    concat = batches.pa.concat_tables
    monkeypatch.setattr(batches.pa, "concat_tables", lambda parts: combined.append(len(parts)) or concat(parts))
    one = pa.table({"id": [1]})

    tables = list(gathered((one for _ in range(1000)), rows=300, size=1 << 40))

    assert [table.num_rows for table in tables] == [300, 300, 300, 100]
    assert combined == [300, 300, 300, 100]
    assert {table["id"].num_chunks for table in tables} == {1}, "small chunks are copied into one"


def test_gathered_ends_a_table_at_its_bytes() -> None:
    rows = pa.table({"v": ["x" * 1000] * 4})
    parts = [rows.slice(at, 1) for at in range(4)]

    assert [table.num_rows for table in gathered(parts, rows=100, size=1500)] == [2, 2]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (7,), (2, 6, 1), (3, 3), (0, 5), ()])
def test_resized_tables_have_the_same_rows_and_one_size(sizes: tuple[int, ...]) -> None:
    numbers = pa.table({"id": range(sum(sizes))}, pa.schema([("id", pa.int64())]))
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    parts = [numbers.slice(start, size) for start, size in zip(starts, sizes, strict=True)]

    tables = list(resized(parts, 3))

    assert [found for table in tables for found in table["id"].to_pylist()] == list(range(sum(sizes)))
    assert {table.num_rows for table in tables[:-1]} <= {3}
    assert all(0 < table.num_rows <= 3 for table in tables[-1:])


def test_a_log_of_many_small_entries_gives_few_batches(tmp_path: Path) -> None:
    table = create(tmp_path)
    for key in range(100):
        table.upsert([row(key)])

    found = list(table.scan().to_batches())

    assert [batch.num_rows for batch in found] == [100]


def answers(table: Table) -> list[Any]:
    """Everything that a reader can see of a table."""
    return [
        rows_of(table),
        rows_of(table, columns=["id"]),
        rows_of(table, where="v >= 1"),
        len(rows_of(table, limit=2)),
        sorted(table.get([0, 1, 3, 9])["id"].to_pylist()),
    ]


def test_a_large_tail_has_the_rows_of_a_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = three_levels(tmp_path / "table")
    table.upsert([{"id": 5, "v": 1}, {"id": 6, "v": 6}])
    table.delete([5, 77])
    table.upsert([{"id": 5, "v": 2}])
    table.snapshot("s", ttl="1h")
    held = answers(table), answers(table.at("s"))
    clone_snapshot(open_table(table.uri), "s", tmp_path / "one")

    monkeypatch.setattr(tails, "_HELD_BYTES", 0)

    assert (answers(lancelsm.open(table.uri)), answers(table.at("s"))) == held
    clone_snapshot(open_table(table.uri), "s", tmp_path / "two")
    assert rows_of(lancelsm.open(tmp_path / "two")) == rows_of(lancelsm.open(tmp_path / "one")) == held[0][0]
    table.delete(where="v = 6")
    assert rows_of(table) == [found for found in held[0][0] if found["v"] != 6]


@pytest.mark.usefixtures("keys_only")
def test_a_limit_over_a_large_tail_reads_only_the_newest_entries_again(tmp_path: Path) -> None:
    table, store = watched(create(tmp_path))
    for key in range(10):
        table.upsert([row(key)])
    before = len(store.entries)

    assert len(table.scan(limit=1).to_arrow()) == 1

    assert len(store.entries) - before == 10 + 1, "each entry is read once to prove the log, the newest one again"


@pytest.mark.usefixtures("keys_only")
def test_a_lookup_reads_no_entry_again_if_a_large_tail_lacks_the_keys(tmp_path: Path) -> None:
    table, store = watched(create(tmp_path))
    for key in range(5):
        table.upsert([row(key)])
    before = len(store.entries)

    assert table.get([77]).num_rows == 0

    assert len(store.entries) - before == 5


def test_an_entry_that_is_replaced_before_it_is_read_again_is_corrupt(tmp_path: Path) -> None:
    entries_replaced_before_they_are_read_again(tmp_path)


MANY_LARGE_ROWS = """
import sys, os
table = lancelsm.create(sys.argv[1], __import__("pyarrow").schema([("id", "int64"), ("v", "binary")]), primary_key="id")
for key in range(500):
    table.upsert([{"id": key, "v": os.urandom(1 << 20)}])
"""
ONE_ROW = "import sys; assert lancelsm.open(sys.argv[1]).scan(limit=1).to_arrow().num_rows == 1"
ALL_ROWS = """
import sys
assert sum(batch.num_rows for batch in lancelsm.open(sys.argv[1]).scan().to_batches()) == 500
"""


@pytest.mark.rest
def test_a_scan_of_large_rows_holds_few_of_them_at_each_level(tmp_path: Path) -> None:
    peak_megabytes(MANY_LARGE_ROWS, tmp_path / "t")
    table = lancelsm.open(tmp_path / "t")
    steps: list[Callable[[], object]] = [list, table.flush, lambda: table.merge(engine="inprocess")]
    for step in steps:
        step()
        assert peak_megabytes(ONE_ROW, tmp_path / "t") < 200
        assert peak_megabytes(ALL_ROWS, tmp_path / "t") < 400
