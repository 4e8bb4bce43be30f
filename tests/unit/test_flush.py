"""The fold of the log into generations: what one takes, what it proves, and what it leaves."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pytest

import lancelsm
from lancelsm.common.setsum import Setsum
from lancelsm.compaction import flush as flushing
from lancelsm.compaction import maintenance
from lancelsm.errors import Corrupt
from lancelsm.record.rowsum import row_setsum
from lancelsm.region.compare_and_swap import newest
from lancelsm.table import Table
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, Crash, FaultPlan
from tests.unit.tables import create, faulty, generation_paths, merged, row, rows_of


def manifest_of(table: Table) -> Any:
    (region,) = table.regions()
    return newest(region, region.head())[1]


def test_a_generation_takes_whole_entries_up_to_a_size(tmp_path: Path) -> None:
    table = create(tmp_path, settings={"flush_rows": 4})
    for rows in ([1, 2], [3, 4], [5], [6, 7, 8, 9, 10, 11], [12]):
        table.upsert([row(key) for key in rows])

    made = table.flush()

    assert [(one.generation, one.rows, one.through) for one in made] == [(1, 4, 2), (2, 1, 3), (3, 6, 4), (4, 1, 5)]
    assert [one.rows for one in table.flush()] == []
    assert [found["id"] for found in rows_of(table)] == list(range(1, 13))


def test_a_generation_ends_before_it_outgrows_its_bytes(tmp_path: Path) -> None:
    table = create(tmp_path, settings={"flush_bytes": 50_000})
    for key in range(5):
        table.upsert([row(key, "x" * 20_000)])

    assert [one.rows for one in table.flush()] == [2, 2, 1]
    assert len(rows_of(table)) == 5


def test_the_newest_row_of_a_key_is_kept_and_tombstones_stay(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1), row(2)])
    table.upsert([row(1, "b")])
    table.delete([2, 3])

    (made,) = table.flush()

    stored = {found["id"]: found for found in lance.dataset(f"{table.uri}/{made.path}").to_table().to_pylist()}
    assert made.rows == 3
    assert {key: (found["v"], found["_tombstone"]) for key, found in stored.items()} == {
        1: ("b", False),
        2: (None, True),
        3: (None, True),
    }


def test_sums_balance_from_log_to_generation(tmp_path: Path) -> None:
    table = create(tmp_path)
    for value in "abc":
        table.upsert([row(1, value), row(2, value)])
        table.flush()
    (region,) = table.regions()
    head, manifest = region.head(), manifest_of(table)

    folded = [generation.folded for generation in manifest.generations]
    assert sum((one.entry_setsum for one in folded), start=Setsum()) == head.entry_setsum == manifest.entry_setsum
    assert [(one.first, one.last) for one in folded] == [(1, 1), (2, 2), (3, 3)]
    assert (manifest.wal_rows, manifest.wal_bytes) == (head.wal_rows, head.wal_bytes)


def test_fences_alone_wait_for_the_next_rows(tmp_path: Path) -> None:
    table = create(tmp_path)
    (region,) = table.regions()
    table.claim(region)
    table.claim(region)

    assert table.flush() == []
    table.upsert([row(1)])
    table.claim(region)
    (made,) = table.flush()
    assert (made.rows, made.through) == (1, 4)
    assert table.flush() == []


def test_rows_that_change_on_the_way_are_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generation is read back against the sum of what was folded."""
    table = create(tmp_path)
    table.upsert([row(1), row(2)])
    write = maintenance.write_generation

    def truncated(*, rows: Any, **how: Any) -> Any:
        return write(rows=rows.slice(0, 1), **how)

    monkeypatch.setattr(maintenance, "write_generation", truncated)
    with pytest.raises(Corrupt, match="1 rows, 2 were written"):
        table.flush()

    monkeypatch.undo()
    assert manifest_of(table).generations == ()
    assert rows_of(table) == [row(1), row(2)]
    assert [one.generation for one in table.flush()] == [1]


def test_rows_that_don_t_add_up_to_their_entries_are_not_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(tmp_path)
    table.upsert([row(1), row(2)])
    table.upsert([row(2, "b")])
    monkeypatch.setattr(flushing, "row_setsum", lambda rows: row_setsum(rows.slice(0, 1)))

    with pytest.raises(Corrupt, match="don't add up to what its entries declare"):
        table.flush()

    monkeypatch.undo()
    assert generation_paths(tmp_path) == []
    assert rows_of(table) == [row(1), row(2, "b")]


def test_two_that_flush_at_once_make_one_generation_of_each_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(tmp_path)
    table.upsert([row(1), row(2)])
    both = threading.Barrier(2)
    write = maintenance.write_generation

    def together(**how: Any) -> Any:
        both.wait()
        return write(**how)

    monkeypatch.setattr(maintenance, "write_generation", together)
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda _: lancelsm.open(table.uri).flush(), range(2)))

    assert sorted(len(one) for one in made) == [0, 1]
    assert len(generation_paths(tmp_path)) == 2, "the loser's directory is an orphan"
    assert [generation.rows for generation in manifest_of(table).generations] == [2]
    assert rows_of(table) == [row(1), row(2)]


def test_appends_go_on_while_a_flush_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    write = maintenance.write_generation

    def slowly(**how: Any) -> Any:
        lancelsm.open(table.uri).upsert([row(1, "meanwhile"), row(2)])
        return write(**how)

    monkeypatch.setattr(maintenance, "write_generation", slowly)
    (made,) = table.flush()
    monkeypatch.undo()

    assert made.through == 1
    assert rows_of(table) == [row(1, "meanwhile"), row(2)]
    assert [one.rows for one in table.flush()] == [2]


def test_a_flush_that_crashes_at_any_call_is_done_by_the_next_one(tmp_path: Path) -> None:
    table = create(tmp_path)
    written = [row(0)]
    table.upsert(written)
    plan = FaultPlan()
    lancelsm.open(table.uri, ports=faulty(plan)).flush()
    made = 1
    for call in plan.calls:
        if call.index == 0:
            continue  # opening
        print(call)
        written += [row(call.index % 3, f"{call.index}"), row(call.index)]
        table.upsert(written[-2:])
        fault = CRASH_AFTER if call.writes else CRASH_BEFORE
        crashing = lancelsm.open(table.uri, ports=faulty(FaultPlan.at(call.index, fault), process=f"{call.index}"))
        with pytest.raises(Crash):
            crashing.flush()
        assert rows_of(table) == merged(written)
        table.flush()
        made += 1
        assert rows_of(table) == merged(written)
        assert [generation.generation for generation in manifest_of(table).generations] == list(range(1, made + 1))
