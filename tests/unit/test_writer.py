"""A writer groups many small writes into few entries, keeps their order, and answers every caller."""

from __future__ import annotations

import _thread
import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import lancelsm
from lancelsm.common.clock import SystemClock
from lancelsm.common.write_result import Committed
from lancelsm.errors import Ambiguous, Fenced, Invalid, Unavailable
from lancelsm.region.handle import Ports
from lancelsm.table import Table
from lancelsm.wal.writer import Writer
from tests.interrupts import interrupted
from tests.simulation.faults import FAIL_BEFORE, Call, FakeClock, Fault, FaultPlan
from tests.unit.tables import Gate, create, faulty, positions, row, rows_of
from tests.unit.writer_scenarios import (
    exclusive_writer_loses_its_region,
    exclusive_writer_releases_its_regions,
)

LONG_INTERVAL = {"group_commit_milliseconds": 10_000_000}  # only a full group is written
BUSY = 8


def gated(path: Path, **settings: object) -> tuple[Table, Gate]:
    create(path, settings={"group_commit_milliseconds": 1, **settings})
    gate = Gate(path / "table")
    return lancelsm.open.on(Ports(store=lambda uri, options: gate))(path / "table"), gate


def entries(outcomes: list[Committed]) -> set[tuple[str, int]]:
    return {(entry.region, entry.position) for one in outcomes for entry in one.entries}


# Group commit


def test_rows_that_wait_while_an_entry_is_written_go_into_the_next_one(tmp_path: Path) -> None:
    table, gate = gated(tmp_path)
    with table.writer() as writer:
        futures = [writer.submit([row(key)]) for key in range(100)]
        gate.opened.set()
        outcomes = [future.result() for future in futures]

    assert len(entries(outcomes)) <= 2
    assert set(positions(table).values()) == {1 + len(entries(outcomes))}
    assert all(one.rows == 1 for one in outcomes)
    assert rows_of(table) == [row(key) for key in range(100)]


def test_a_full_group_is_written_without_waiting_for_the_interval(tmp_path: Path) -> None:
    table = create(tmp_path, settings={**LONG_INTERVAL, "group_commit_bytes": 1000})
    with table.writer() as writer:
        first = writer.submit([row(1, "x" * 600)])
        assert not first.done()
        second = writer.submit([row(2, "x" * 600)])
        assert first.result().entries[0].position == 1
        writer.submit([row(3, "x" * 1001)])
        assert second.result().entries[0].position == 2


def test_a_batch_larger_than_a_group_is_one_entry(tmp_path: Path) -> None:
    table = create(tmp_path, settings={"group_commit_bytes": 10})
    with table.writer() as writer:
        assert len(writer.upsert([row(key) for key in range(100)]).entries) == 1


def test_a_batch_of_several_regions_is_acknowledged_once_all_have_committed_it(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 4)")
    with table.writer() as writer:
        done = writer.upsert([row(key) for key in range(50)])

    assert (done.rows, len(done.entries), len(positions(table))) == (50, 4, 4)
    assert sum(entry.rows for entry in done.entries) == 50


# Order


@pytest.mark.rest
def test_writes_of_one_key_keep_the_order_of_submission(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)", settings={"group_commit_milliseconds": 1})
    with table.writer() as writer:
        written = [writer.submit([row(key, f"{n}") for key in (1, 2, 3)]) for n in range(200)]
        writer.delete([2])
        written[-1].result()
        assert rows_of(table) == [row(1, "199"), row(3, "199")]
        writer.upsert([row(2, "again")])

    assert rows_of(table) == [row(1, "199"), row(2, "again"), row(3, "199")]


def test_many_threads_share_entries_and_each_keeps_its_own_order(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 3)", settings={"group_commit_milliseconds": 1})

    def work(writer: Writer, thread: int) -> list[Committed]:
        return [f.result() for f in [writer.submit([row(thread, f"{n}"), row(1000 + thread)]) for n in range(30)]]

    with table.writer() as writer, ThreadPoolExecutor(BUSY) as pool:
        outcomes = [one for done in pool.map(lambda thread: work(writer, thread), range(BUSY)) for one in done]

    assert len(outcomes) == BUSY * 30
    assert sum(region.next_position - 1 for region in table.status().regions) == len(entries(outcomes))
    assert rows_of(table) == [row(n, "29") for n in range(BUSY)] + [row(1000 + n) for n in range(BUSY)]


@pytest.mark.rest
def test_many_threads_upsert_through_one_table(tmp_path: Path) -> None:
    table = create(tmp_path, regions="identity(id)")

    with ThreadPoolExecutor(BUSY) as pool:
        list(pool.map(lambda n: table.upsert([row(n % 3, f"{n}"), row(n)]), range(40)))

    assert [found["id"] for found in rows_of(table)] == list(range(40))
    assert len(table.list_regions()) == 40


def test_submit_async_returns_once_the_rows_are_visible(tmp_path: Path) -> None:
    table = create(tmp_path)

    async def main() -> list[Committed]:
        with table.writer() as writer:
            done = await asyncio.gather(*(writer.submit_async([row(key)]) for key in range(20)))
            assert len(rows_of(table)) == 20
            return list(done)

    outcomes = asyncio.run(main())

    assert len(entries(outcomes)) < 20
    with pytest.raises(Invalid):
        asyncio.run(submit_null_key(table))


async def submit_null_key(table: Table) -> None:
    with table.writer() as writer:
        await writer.submit_async([{"id": None, "v": "a"}])


def test_a_cancelled_caller_does_not_abort_the_others(tmp_path: Path) -> None:
    table, gate = gated(tmp_path)

    async def main() -> None:
        with table.writer() as writer:
            one, other = (asyncio.ensure_future(writer.submit_async([row(key)])) for key in (1, 2))
            await asyncio.sleep(0)
            one.cancel()
            gate.opened.set()
            assert (await other).rows == 1
            with pytest.raises(asyncio.CancelledError):
                await one

    asyncio.run(main())
    assert row(2) in rows_of(table)


def test_a_cancelled_future_does_not_stop_the_writes_of_its_region(tmp_path: Path) -> None:
    table, gate = gated(tmp_path)
    with table.writer() as writer:
        first, second = writer.submit([row(1)]), writer.submit([row(2)])
        first.cancel()
        gate.opened.set()
        assert second.result().rows == 1
        assert writer.upsert([row(3)]).rows == 1


# Closing


def test_leaving_the_block_waits_for_all_rows_and_does_not_flush(tmp_path: Path) -> None:
    table = create(tmp_path)
    with table.writer() as writer:
        futures = [writer.submit([row(key)]) for key in range(10)]

    assert all(future.done() for future in futures)
    assert len(rows_of(table)) == 10
    assert [(region.generations, region.wal_rows) for region in table.status().regions] == [(0, 10)]


def test_leaving_the_block_raises_the_first_failure_and_every_future_has_its_own(tmp_path: Path) -> None:
    table = create(tmp_path, regions="identity(id)")
    table.upsert([row(1), row(2)])
    for region in table.list_regions():
        table.claim(region, owner="another")
    futures: list[Future[Committed]] = []

    def write() -> None:
        with table.writer() as writer:
            futures.extend(writer.submit([row(key)]) for key in (1, 3, 2))

    with pytest.raises(Fenced, match="held by 'another'"):
        write()

    assert isinstance(futures[0].exception(), Fenced)
    assert isinstance(futures[2].exception(), Fenced)
    assert futures[1].result().rows == 1
    assert rows_of(table) == [row(1), row(2), row(3)]


def test_an_error_in_the_block_is_raised_instead_of_failed_writes(tmp_path: Path) -> None:
    table = create(tmp_path)
    (region,) = table.list_regions()
    table.seal(region)

    def write() -> None:
        with table.writer() as writer:
            writer.submit([row(1)])
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        write()


def test_an_invalid_batch_is_refused_at_once_and_the_others_are_written(tmp_path: Path) -> None:
    table = create(tmp_path)
    with table.writer() as writer:
        writer.submit([row(1)])
        with pytest.raises(Invalid) as raised:
            writer.submit([{"id": "x", "v": "a"}])
        writer.submit([row(2)])

    assert raised.value.where["table"] == table.uri
    assert rows_of(table) == [row(1), row(2)]


def test_a_closed_writer_refuses_every_write(tmp_path: Path) -> None:
    table = create(tmp_path)
    with table.writer() as writer:
        writer.submit([row(1)])
    writer.close()

    for call in (lambda: writer.submit([row(2)]), lambda: writer.upsert([row(2)]), lambda: writer.delete([1])):
        with pytest.raises(Invalid, match="the writer is closed"):
            call()
    assert rows_of(table) == [row(1)]


def test_an_empty_batch_is_acknowledged_without_an_entry(tmp_path: Path) -> None:
    table = create(tmp_path)
    with table.writer() as writer:
        assert writer.submit([]).result() == Committed(rows=0, entries=())
        assert writer.delete([]) == Committed(rows=0, entries=())
    assert set(positions(table).values()) == {1}


# Backpressure


def test_a_full_buffer_refuses_until_earlier_rows_are_acknowledged(tmp_path: Path) -> None:
    table, gate = gated(tmp_path, buffer_bytes=2000)
    with table.writer() as writer:
        first = writer.submit([row(1, "x" * 1500)])
        with pytest.raises(Unavailable, match="not acknowledged yet"):
            writer.submit([row(2, "x" * 1500)])
        small = writer.submit([row(3)])
        gate.opened.set()
        first.result()
        small.result()
        writer.upsert([row(2, "x" * 1500)])
        writer.upsert([row(4, "x" * 5000)])  # larger than the buffer, but nothing else waits

    assert [found["id"] for found in rows_of(table)] == [1, 2, 3, 4]


def table_with_pending_generations(path: Path, clock: FakeClock, *, generations: int, slow: int, stop: int) -> Table:
    settings = {"pending_generations_slow": slow, "pending_generations_stop": stop}
    create(path, settings=settings)
    table = lancelsm.open.on(Ports(clock=clock, threads=1))(path / "table")
    for key in range(generations):
        table.upsert([row(key)])
        table.flush()
    return table


def test_appends_slow_down_and_then_stop_while_generations_wait_to_be_merged(tmp_path: Path) -> None:
    clock = FakeClock()
    table = table_with_pending_generations(tmp_path, clock, generations=4, slow=2, stop=4)
    waited = clock.monotonic()
    assert waited == 1.0  # the fourth append waited; the third still knew only one generation

    with pytest.raises(Unavailable, match="4 generations wait to be merged") as raised:
        table.upsert([row(9)])
    assert "lancelsm merge" in raised.value.remedy
    assert [found["id"] for found in rows_of(table)] == [0, 1, 2, 3]

    lancelsm.open(table.uri).merge(engine="inprocess")
    table.upsert([row(9)])
    assert clock.monotonic() == waited
    assert row(9) in rows_of(table)


def test_a_writer_with_a_stale_head_is_also_stopped_by_pending_generations(tmp_path: Path) -> None:
    table = table_with_pending_generations(tmp_path, FakeClock(), generations=0, slow=1, stop=2)
    table.upsert([row(1)])
    other = lancelsm.open(table.uri)
    other.flush()
    table.upsert([row(2)])
    other.flush()

    with pytest.raises(Unavailable, match="wait to be merged"):
        table.upsert([row(3)])


# Exclusive writers


def test_a_writer_that_was_idle_during_a_collection_writes_on(tmp_path: Path) -> None:
    clock = FakeClock()
    uri = create(tmp_path, settings={"collect_interval_seconds": 100}).uri
    idle, busy = (lancelsm.open.on(faulty(FaultPlan(), clock=clock))(uri) for _ in range(2))
    idle.upsert([row(1)])
    busy.upsert([row(2)])
    busy.run(engine="inprocess")
    for _ in range(2):  # the entry at the position where the idle writer would append is gone
        busy.collect(yes=True)
        clock.advance(101)
        busy.collect(yes=True)

    assert idle.upsert([row(1, "b")]).rows == 1


def test_an_exclusive_writer_fences_others_and_releases_its_regions(tmp_path: Path) -> None:
    exclusive_writer_releases_its_regions(tmp_path)


def test_after_the_crash_of_an_exclusive_writer_others_are_fenced_until_they_claim(tmp_path: Path) -> None:
    table = create(tmp_path)
    crashed = table.writer(exclusive=True)
    crashed.upsert([row(1)])
    crashed._pool.finish()

    with pytest.raises(Fenced, match="lancelsm region claim"):
        table.upsert([row(2)])
    table.claim(table.list_regions()[0])
    table.upsert([row(2)])

    assert rows_of(table) == [row(1), row(2)]


def test_an_exclusive_writer_that_lost_its_region_does_not_claim_it_again(tmp_path: Path) -> None:
    exclusive_writer_loses_its_region(tmp_path)


# Owners and failures


def fault_at(method: str, part: str, fault: Fault) -> Callable[[Call], Fault | None]:
    return lambda call: fault if call.method == method and part in call.key else None


def test_a_writer_of_a_table_opened_with_its_own_owner_writes_as_this_owner(tmp_path: Path) -> None:
    table = create(tmp_path)
    loader = lancelsm.open(table.uri, owner="loader-2")

    with loader.writer() as writer:
        writer.upsert([row(1)])
    loader.upsert([row(2)])
    with loader.writer(exclusive=True) as exclusive_writer:
        exclusive_writer.upsert([row(3)])
        with pytest.raises(Fenced, match="held by 'loader-2-"):
            loader.upsert([row(4)])

    loader.upsert([row(5)])
    with pytest.raises(Fenced, match="held by 'loader-2'"):
        table.upsert([row(6)])
    assert rows_of(table) == [row(key) for key in (1, 2, 3, 5)]


def test_a_pipelined_writer_with_its_own_owner_claims_regions_of_the_table_owner(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])

    with lancelsm.open(table.uri, owner="loader-2").writer(pipeline_depth=2) as writer:
        writer.upsert([row(2)])

    assert [region.owner for region in table.status().regions] == ["loader-2"]


def test_a_writer_goes_on_after_a_failure(tmp_path: Path) -> None:
    create(tmp_path)
    down = FaultPlan(fault_at("create", "/wal/", FAIL_BEFORE))
    table = lancelsm.open.on(faulty(down, process="w"))(tmp_path / "table")

    with pytest.raises((Unavailable, Ambiguous)):
        table.upsert([row(1)])
    down.stop()
    table.upsert([row(2)])

    assert row(2) in rows_of(table)


def test_two_processes_share_a_region_without_claiming_it(tmp_path: Path) -> None:
    table, other = create(tmp_path), lancelsm.open(tmp_path / "table")
    for n in range(5):
        table.upsert([row(1, f"ours {n}"), row(2)])
        other.upsert([row(1, f"theirs {n}"), row(3)])

    assert rows_of(table) == [row(1, "theirs 4"), row(2), row(3)]
    assert [(region.epoch, region.next_position) for region in table.status().regions] == [(1, 11)]


def test_a_writer_uses_the_system_clock_by_default() -> None:
    assert isinstance(Ports().clock, SystemClock)


# The end of a writer


def test_a_writer_that_nobody_closes_leaves_no_thread(tmp_path: Path) -> None:
    table = create(tmp_path)
    before = _thread._count()
    writer = table.writer()
    writer.upsert([row(1)])
    assert _thread._count() > before

    del writer
    for _ in range(500):
        gc.collect()
        if _thread._count() <= before:
            break
        time.sleep(0.01)

    assert _thread._count() <= before


@pytest.mark.rest
def test_what_was_submitted_is_written_before_the_process_ends(tmp_path: Path) -> None:
    table = create(tmp_path)
    script = f"import lancelsm; writer = lancelsm.open({table.uri!r}).writer(); writer.submit({row(1)!r})"

    subprocess.run([sys.executable, "-c", script], check=True)

    assert rows_of(table) == [row(1)]


@pytest.mark.rest
def test_a_forked_child_neither_uses_nor_closes_the_writer_of_its_parent(tmp_path: Path) -> None:
    table = create(tmp_path)
    script = f"""
import os, signal, sys, lancelsm
with lancelsm.open({table.uri!r}).writer(exclusive=True) as writer:
    writer.upsert({row(1)!r})
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            writer.upsert({row(2)!r})
        except lancelsm.errors.Invalid as refused:
            print(refused, flush=True)
        sys.exit(0)
    print(os.waitpid(child, 0)[1], writer.upsert({row(3)!r}).rows)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    refused, after = ran.stdout.splitlines()
    assert "before this process was forked" in refused
    assert after == "0 1"
    assert rows_of(table) == [row(1), row(3)]


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_call_lets_a_writer_close(tmp_path: Path) -> None:
    table = create(tmp_path)

    def work() -> None:
        with table.writer() as writer:
            for number in range(3):
                writer.submit(row(number))

    total = interrupted(work, 0)
    for at in range(1, total, 7):
        interrupted(work, at)

    assert table.upsert([row(9)]).rows == 1
