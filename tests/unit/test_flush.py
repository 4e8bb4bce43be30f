"""The flush of the log into generations: its size limits, its checks, and crashes and races."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common.free_memory import release_free_memory
from lancelsm.common.memory_budget import MemoryBudget
from lancelsm.common.setsum import Setsum
from lancelsm.compaction import flush, fold, maintenance
from lancelsm.compaction.pace import Pace
from lancelsm.errors import Corrupt, Unavailable
from lancelsm.objects import Object
from lancelsm.record.rowsum import row_setsums
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.handle import Ports, open_table
from lancelsm.stack.flush_run import flush_in_time
from lancelsm.table import Table
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, Crash, FakeClock, FaultPlan
from tests.unit.peak import peak_megabytes
from tests.unit.tables import CountingStore, create, faulty, generation_paths, merged, row, rows_of


def manifest_of(table: Table) -> Any:
    (region,) = table.list_regions()
    return newest(region, region.head())[1]


def test_a_generation_takes_whole_entries_up_to_a_number_of_rows(tmp_path: Path) -> None:
    table = create(tmp_path, settings={"flush_rows": 4})
    for rows in ([1, 2], [3, 4], [5], [6, 7, 8, 9, 10, 11], [12]):
        table.upsert([row(key) for key in rows])

    flushed = table.flush()

    assert [(one.generation, one.rows, one.through) for one in flushed] == [(1, 4, 2), (2, 1, 3), (3, 6, 4), (4, 1, 5)]
    assert [one.rows for one in table.flush()] == []
    assert [found["id"] for found in rows_of(table)] == list(range(1, 13))


def test_a_generation_ends_before_it_exceeds_its_bytes(tmp_path: Path) -> None:
    table = create(tmp_path, settings={"flush_bytes": 50_000})
    for key in range(5):
        table.upsert([row(key, "x" * 20_000)])

    assert [one.rows for one in table.flush()] == [2, 2, 1]
    assert len(rows_of(table)) == 5


def test_a_generation_has_the_newest_row_of_each_key_and_its_tombstones(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1), row(2)])
    table.upsert([row(1, "b")])
    table.delete([2, 3])

    (flushed,) = table.flush()

    stored = {found["id"]: found for found in lance.dataset(f"{table.uri}/{flushed.path}").to_table().to_pylist()}
    assert flushed.rows == 3
    assert {key: (found["v"], found["_tombstone"]) for key, found in stored.items()} == {
        1: ("b", False),
        2: (None, True),
        3: (None, True),
    }


def test_sums_balance_between_log_and_generations(tmp_path: Path) -> None:
    table = create(tmp_path)
    for value in "abc":
        table.upsert([row(1, value), row(2, value)])
        table.flush()
    (region,) = table.list_regions()
    head, manifest = region.head(), manifest_of(table)

    log_ranges = [generation.folded for generation in manifest.generations]
    assert sum((one.entry_setsum for one in log_ranges), start=Setsum()) == head.entry_setsum == manifest.entry_setsum
    assert [(one.first, one.last) for one in log_ranges] == [(1, 1), (2, 2), (3, 3)]
    assert (manifest.wal_rows, manifest.wal_bytes) == (head.wal_rows, head.wal_bytes)


def test_fences_without_rows_are_flushed_with_the_next_rows(tmp_path: Path) -> None:
    table = create(tmp_path)
    (region,) = table.list_regions()
    table.claim(region)
    table.claim(region)

    assert table.flush() == []
    table.upsert([row(1)])
    table.claim(region)
    (flushed,) = table.flush()
    assert (flushed.rows, flushed.through) == (1, 4)
    assert table.flush() == []


def test_a_generation_that_lost_rows_while_written_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush reads the generation back and compares it with the sum of the flushed rows."""
    table = create(tmp_path)
    table.upsert([row(1), row(2)])
    write = maintenance.write_generation

    def truncated(*, rows: Any, **options: Any) -> Any:
        return write(rows=[next(iter(rows)).slice(0, 1)], **options)

    monkeypatch.setattr(maintenance, "write_generation", truncated)
    with pytest.raises(Corrupt, match="1 rows, but 2 were written"):
        table.flush()

    monkeypatch.undo()
    assert manifest_of(table).generations == ()
    assert rows_of(table) == [row(1), row(2)]
    assert [one.generation for one in table.flush()] == [1]


def test_rows_that_differ_from_the_sum_of_their_entries_are_not_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(tmp_path)
    table.upsert([row(1), row(2)])
    table.upsert([row(2, "b")])
    monkeypatch.setattr(fold, "row_setsums", lambda rows, wins: row_setsums(rows.slice(0, 1), wins.slice(0, 1)))

    with pytest.raises(Corrupt, match="don't have the sum that its entries declare"):
        table.flush()

    monkeypatch.undo()
    assert manifest_of(table).generations == ()
    assert rows_of(table) == [row(1), row(2, "b")]


def test_two_concurrent_flushes_make_one_generation_of_each_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(tmp_path)
    table.upsert([row(1), row(2)])
    barrier = threading.Barrier(2)
    write = maintenance.write_generation

    def write_simultaneously(**options: Any) -> Any:
        barrier.wait()
        return write(**options)

    monkeypatch.setattr(maintenance, "write_generation", write_simultaneously)
    with ThreadPoolExecutor(2) as pool:
        flushed = list(pool.map(lambda _: lancelsm.open(table.uri).flush(), range(2)))

    assert sorted(len(one) for one in flushed) == [0, 1]
    assert len(generation_paths(tmp_path)) == 2, "one of them is an orphan of the flush that lost"
    assert [generation.rows for generation in manifest_of(table).generations] == [2]
    assert rows_of(table) == [row(1), row(2)]


def test_appends_continue_while_a_flush_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    write = maintenance.write_generation

    def write_after_an_append(**options: Any) -> Any:
        lancelsm.open(table.uri).upsert([row(1, "meanwhile"), row(2)])
        return write(**options)

    monkeypatch.setattr(maintenance, "write_generation", write_after_an_append)
    (flushed,) = table.flush()
    monkeypatch.undo()

    assert flushed.through == 1
    assert rows_of(table) == [row(1, "meanwhile"), row(2)]
    assert [one.rows for one in table.flush()] == [2]


@pytest.mark.rest
def test_a_flush_that_crashes_at_any_call_is_done_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "_LARGE_BYTES", 0)
    table = create(tmp_path)
    written = [row(0)]
    table.upsert(written)
    plan = FaultPlan()
    opened = lancelsm.open.on(faulty(plan))(table.uri)
    first = len(plan.calls)
    opened.flush()
    flushes = 1
    for call in plan.calls[first:]:
        print(call)
        written += [row(call.index % 3, f"{call.index}"), row(call.index)]
        table.upsert(written[-2:])
        fault = CRASH_AFTER if call.writes else CRASH_BEFORE
        crashing = lancelsm.open.on(faulty(FaultPlan.at(call.index, fault), process=f"{call.index}"))(table.uri)
        with pytest.raises(Crash):
            crashing.flush()
        assert rows_of(table) == merged(written)
        table.flush()
        flushes += 1
        assert rows_of(table) == merged(written)
        assert [generation.generation for generation in manifest_of(table).generations] == list(range(1, flushes + 1))


def test_a_flush_reads_each_entry_once_and_holds_one_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(tmp_path, settings={"flush_rows": 2})
    for key in range(10):
        table.upsert([row(key)])
    store = CountingStore(Path(table.uri))
    held: list[int] = []
    write = maintenance.write_generation

    def counted(*, keys: Any, rows: Any, **options: Any) -> Any:
        batches = list(rows)
        held.append(sum(batch.num_rows for batch in batches))
        return write(keys=keys, rows=batches, **options)

    monkeypatch.setattr(maintenance, "write_generation", counted)
    flushed = lancelsm.open.on(Ports(store=lambda *_: store, threads=1))(table.uri).flush()

    assert [one.rows for one in flushed] == held == [2, 2, 2, 2, 2]
    assert sorted(store.entries) == sorted(set(store.entries)), "no entry is read twice"
    assert len(store.entries) == 10


def test_a_flush_holds_few_large_entries_at_a_time_and_reads_each_twice(tmp_path: Path) -> None:
    table = create(tmp_path)
    for key in range(8):
        table.upsert([row(key % 5, chr(97 + key) * (1 << 20))])
    alive, most = [0], [0]

    class Body(bytes):
        def __del__(self) -> None:
            alive[0] -= 1

    class BodiesStore(CountingStore):
        def get(self, key: str) -> Object | None:
            found = super().get(key)
            if found is None or "/wal/" not in key:
                return found
            alive[0] += 1
            most[0] = max(most[0], alive[0])
            return Object(body=Body(found.body), etag=found.etag)

    store = BodiesStore(Path(table.uri))
    (flushed,) = lancelsm.open.on(Ports(store=lambda *_: store))(table.uri).flush()

    assert flushed.rows == 5
    assert set(Counter(store.entries).values()) == {2}
    assert (alive, most[0] <= 5) == ([0], True), most
    assert "".join(found["v"][-1] for found in rows_of(table)) == "fghde"


def test_an_entry_that_changes_before_it_is_read_again_is_not_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, other = create(tmp_path), create(tmp_path / "other")
    table.upsert([row(1)])
    other.upsert([row(2), row(3)])
    (entry,), (replacement,) = (sorted(Path(one.uri).glob("_mem_wal/*/wal/*")) for one in (table, other))
    before, write = entry.read_bytes(), maintenance.write_generation
    monkeypatch.setattr(flush, "_LARGE_BYTES", 0)

    def write_what_changed(**options: Any) -> Any:
        entry.write_bytes(replacement.read_bytes())
        return write(**options)

    monkeypatch.setattr(maintenance, "write_generation", write_what_changed)
    with pytest.raises(Corrupt, match="an entry changed while it was flushed") as raised:
        table.flush()

    assert raised.value.where["position"] == 1
    entry.write_bytes(before)
    monkeypatch.undo()
    assert manifest_of(table).generations == ()
    assert [one.rows for one in table.flush()] == [1]


def test_a_lack_of_memory_while_rows_are_read_again_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    monkeypatch.setattr(flush, "_LARGE_BYTES", 0)
    monkeypatch.setattr(flush, "read_entry", Mock(side_effect=pa.ArrowMemoryError("malloc of size 64 failed")))

    with pytest.raises(MemoryError, match="malloc of size 64"):
        table.flush()


def test_a_flush_whose_entries_were_flushed_and_collected_meanwhile_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    write = maintenance.write_generation
    monkeypatch.setattr(flush, "_LARGE_BYTES", 0)

    def write_late(**options: Any) -> Any:
        monkeypatch.setattr(maintenance, "write_generation", write)
        assert [one.rows for one in lancelsm.open(table.uri).flush()] == [1]
        for entry in Path(table.uri).glob("_mem_wal/*/wal/*"):  # as a collection does
            entry.unlink()
        return write(**options)

    monkeypatch.setattr(maintenance, "write_generation", write_late)

    assert table.flush() == []
    assert rows_of(table) == [row(1)]


def test_generations_before_one_that_fails_are_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(tmp_path, settings={"flush_rows": 1})
    for key in range(4):
        table.upsert([row(key)])
    write, calls = maintenance.write_generation, iter(range(10))

    def fails_third(**options: Any) -> Any:
        if next(calls) == 2:
            raise Unavailable("the disk is full")
        return write(**options)

    monkeypatch.setattr(maintenance, "write_generation", fails_third)
    with pytest.raises(Unavailable, match="the disk is full"):
        table.flush()

    monkeypatch.undo()
    assert [one.rows for one in manifest_of(table).generations] == [1, 1]
    assert [one.generation for one in table.flush()] == [3, 4]
    assert rows_of(table) == [row(key) for key in range(4)]


def test_a_flush_without_time_commits_one_generation_of_each_region_and_the_next_one_goes_on(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)", settings={"flush_rows": 1})
    for key in range(8):
        table.upsert([row(key)])
    handle = open_table(table.uri)

    runs = [flush_in_time(handle, region=None, leased=None, seconds=0)]
    while runs[-1].left:
        runs.append(flush_in_time(handle, region=None, leased=None, seconds=0))

    assert all(max(Counter(one.region for one in run.flushed).values()) == 1 for run in runs)
    assert sum(len(run.flushed) for run in runs) == 8
    assert len(runs) == max(Counter(one.region for run in runs for one in run.flushed).values())
    assert table.status().regions[0].wal_rows == 0
    assert rows_of(table) == [row(key) for key in range(8)]


@pytest.mark.rest
@pytest.mark.parametrize("seconds", [0, 900], ids=["ends early", "has time"])
def test_a_flush_that_another_one_overtakes_at_any_generation_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    write = maintenance.write_generation
    for at in range(6):
        table = create(tmp_path / str(at), settings={"flush_rows": 1})
        for key in range(3):
            table.upsert([row(key)])
        calls = itertools.count()

        def overtaken(at: int = at, table: Table = table, calls: Any = calls, **options: Any) -> Any:
            number = next(calls)
            before, after = number == at // 2 and at % 2 == 0, number == at // 2 and at % 2 == 1
            if before:
                flush_in_time(open_table(table.uri), region=None, leased=None, seconds=seconds)
            made = write(**options)
            if after:
                flush_in_time(open_table(table.uri), region=None, leased=None, seconds=seconds)
            return made

        monkeypatch.setattr(maintenance, "write_generation", overtaken)
        first = flush_in_time(open_table(table.uri), region=None, leased=None, seconds=seconds)
        monkeypatch.setattr(maintenance, "write_generation", write)
        while flush_in_time(open_table(table.uri), region=None, leased=None, seconds=seconds).left:
            pass

        assert {one.path.rpartition("/")[2] for one in first.flushed} <= {
            one.path for one in manifest_of(table).generations
        }
        assert [(one.generation, one.rows) for one in manifest_of(table).generations] == [(1, 1), (2, 1), (3, 1)]
        assert rows_of(table) == [row(key) for key in range(3)]
        assert table.scrub().ok


def test_a_pace_keeps_time_for_two_generations_and_the_rest_of_the_log() -> None:
    clock = FakeClock()
    pace = Pace(clock=clock, seconds=100)

    def after(seconds: float, done: int, total: int) -> bool:
        clock.sleep(seconds)
        return pace.has_time(done, total)

    assert after(10, 10, 100), "90 s are left: 20 s for two generations, 30 s to read the rest"
    assert after(25, 50, 100), "65 s are left: 50 s and 12 s"
    assert not after(10, 60, 100), "55 s are left: 50 s and 10 s"
    assert pace.stopped


def test_regions_share_the_memory_of_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions whose logs fit together are flushed at the same time, others one after the other."""
    room = MemoryBudget(100)
    inside, most = [0], [0]
    lock = threading.Lock()

    def hold(size: int) -> None:
        with room.taken(size):
            with lock:
                inside[0] += size
                most[0] = max(most[0], inside[0])
            threading.Event().wait(0.01)
            with lock:
                inside[0] -= size

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(hold, [40, 50, 60, 30, 20, 90, 100, 10]))
    assert 0 < most[0] <= 100
    hold(1000)
    assert most[0] == 1000, "a larger share waits to be alone"


@pytest.mark.long
def test_a_log_ten_times_as_large_as_memory_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is what the process has after a small flush, plus a tenth of the log."""
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "system")  # others reserve much more than they use
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    small = create(tmp_path / "small")
    small.upsert([row(1)])
    peak_megabytes(LARGE_LOG, tmp_path / "t")
    table = lancelsm.open(tmp_path / "t")
    bytes_of_log = sum(one.wal_bytes for one in table.status().regions)
    assert bytes_of_log > 10 * MEMORY

    peak_megabytes(FLUSH_IN_LITTLE_MEMORY, tmp_path / "t", MEMORY, small.uri)

    assert sum(one.wal_rows for one in table.status().regions) == 0
    assert sum(one.rows or 0 for one in manifest_of(table).generations) == 620_000


MEMORY = 192 << 20
LARGE_LOG = """
import sys, os, pyarrow as pa
table = lancelsm.create(sys.argv[1], pa.schema([("id", pa.int64()), ("v", pa.binary())]), primary_key="id")
for part in range(620):
    ids = range(part * 1000, (part + 1) * 1000)
    table.upsert(pa.table({"id": pa.array(ids, pa.int64()), "v": [os.urandom(3400) for _ in ids]}))
"""
FLUSH_IN_LITTLE_MEMORY = """
import resource, sys
threading.stack_size(1 << 18)  # stacks count as data
from lancelsm.region.handle import open_table
from lancelsm.stack.flush_run import flush_in_time
lancelsm.open(sys.argv[3]).flush()
handle = open_table(sys.argv[1], settings={"flush_memory_bytes": 16 << 20})
with open("/proc/self/status") as lines:
    used = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + int(sys.argv[2]),) * 2)
assert not flush_in_time(handle, region=None, leased=None, seconds=900).left
"""


@pytest.mark.parametrize(("least", "expected"), [(0, ["released", "checked"]), (1 << 30, ["checked"])])
def test_memory_of_the_writer_of_a_large_generation_is_given_back(
    least: int, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lancelsm.create(tmp_path / "table", [{"id": 1}], primary_key="id")
    table.upsert([{"id": 2}])
    made: list[str] = []
    check = maintenance.check_generation
    monkeypatch.setattr(maintenance, "_LARGE_BYTES", least)
    monkeypatch.setattr(maintenance, "release_free_memory", lambda: made.append("released"))
    monkeypatch.setattr(maintenance, "check_generation", lambda **values: (made.append("checked"), check(**values)))

    table.flush()

    assert made == expected
    release_free_memory()
