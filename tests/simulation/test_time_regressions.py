"""Bugs of other projects with snapshots, collections, cursors and background work, tried on a whole table.

Names have the numbers of issues of SlateDB, of Chroma's wal3 and of Lance. More are in test_lost_write_regressions,
test_collection*, tests/unit/test_snapshot (slatedb 1750) and tests/conformance (409 and 412).

Two bugs can't happen here in the same way. These tests try the closest thing:
slatedb 1769: a resumed merge can't lose merge operands here, since there are none. It might lose rows of its plan.
chroma 4903, 4920, 4871: no position is derived from the remaining log here. Heads and manifests must still count on.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

import lancelsm
from lancelsm.common.layout import Position, wal_entry
from lancelsm.dataset.base_table import open_base
from lancelsm.dataset.cleanup import named_files, stored_versions
from lancelsm.errors import Ambiguous, Contended, Fenced, Invalid, Unavailable
from lancelsm.gc import base
from lancelsm.gc import collect as collection
from lancelsm.gc.collect import Collected
from lancelsm.history.changes import Changes
from lancelsm.region.handle import Ports, open_table
from lancelsm.region.lease import LEASE_SECONDS
from lancelsm.table import Table
from lancelsm.wal.claim import claim
from tests.simulation.actors import RIVAL
from tests.simulation.collection_faults import BrokenListings
from tests.simulation.environment import OWNER, raised
from tests.simulation.faults import DENY, FaultPlan
from tests.simulation.table_environment import TableEnvironment, lease
from tests.simulation.table_events import (
    KEYS,
    calls_method,
    manifest,
    puts_entry,
    ranges,
    region,
    swaps_head,
    when,
)
from tests.simulation.table_log import rows_of
from tests.unit.tables import Gate, create, row
from tests.unit.tables import rows_of as sorted_rows

pytestmark = pytest.mark.rest

DAY = 86_400.0
EAGER = {"keep_versions_seconds": 0.001, "collect_floor_bytes": 1 << 30}


@contextmanager
def eager(path: Path, **settings: object) -> Iterator[TableEnvironment]:
    """Create a table with two rows in its base. Its collections delete everything that is not needed."""
    with (
        mock.patch.object(base, "_VERSIONS_MIN", 1),
        TableEnvironment(path / "table", settings={**EAGER, **settings}) as environment,
    ):
        environment.create("creator", loaded=KEYS[:2])
        yield environment
        environment.plan.stop()
        for _ in range(2):
            environment.schedule.clock.advance(LEASE_SECONDS + 1)
            assert environment.read(environment.table("last")) == environment.truth
            flush_and_merge(environment, "last")
            collect(environment, "last")
        assert environment.read(environment.table("last")) == environment.truth


def collect(environment: TableEnvironment, process: str = "collector") -> Collected:
    environment.schedule.clock.advance(1.0)
    with environment.at(process):
        return environment.table(process).collect(yes=True, interval_seconds=0)


def flush_and_merge(environment: TableEnvironment, process: str = "folder") -> None:
    environment.flush(process)
    environment.merge(process)


def scan(table: Table) -> dict[int, int]:
    return rows_of(table.scan().to_arrow())


def stored_positions(environment: TableEnvironment) -> list[int]:
    """Return the positions with an object in the log."""
    of = region(environment)
    return [n for n in range(1, 20) if environment.store.get(wal_entry(of.id, Position(n))) is not None]


# Snapshots


def test_slatedb_976_each_snapshot_keeps_the_newest_row_of_its_own_time(tmp_path: Path) -> None:
    with eager(tmp_path) as environment:
        table = environment.table("holder")
        environment.write("writer", upsert=KEYS[:1])
        table.snapshot("one", ttl="never")
        environment.write("writer", upsert=KEYS[:1])
        environment.write("writer", upsert=KEYS[:1])
        table.snapshot("two", ttl="never")
        for number in range(3):
            environment.write("writer", **{"delete" if number == 1 else "upsert": KEYS[:2]})  # type: ignore[arg-type]
            flush_and_merge(environment)
            collect(environment)

            assert scan(table.at("one")) == {KEYS[0]: 1, KEYS[1]: 0}
            assert scan(table.at("two")) == {KEYS[0]: 3, KEYS[1]: 0}
        assert scan(table) == {KEYS[0]: 6, KEYS[1]: 6}


def test_slatedb_1888_a_reader_of_a_snapshot_that_expired_in_an_outage_gets_invalid_and_can_go_on(
    tmp_path: Path,
) -> None:
    with eager(tmp_path) as environment, environment.at("victim"):
        environment.write("writer", upsert=KEYS[:2])
        outage: list[bool] = []
        environment.plan = FaultPlan(lambda call: DENY if outage and call.process == "victim" else None)
        table = environment.table("victim")
        table.snapshot("job", ttl=60)
        old = table.at("job")
        assert scan(old) == {KEYS[0]: 1, KEYS[1]: 1}
        changes = table.changes(cursor="feed")
        outage.append(True)
        for act in (
            lambda: scan(old),
            lambda: table.refresh_snapshot("job", 60),
            lambda: scan(table),
            lambda: list(changes),
        ):
            assert isinstance(raised(act), Unavailable)
        _go_on_without(environment)
        outage.clear()

        assert scan(table) == environment.truth, "reads of the table depend on no snapshot"
        for act in (lambda: scan(old), lambda: table.refresh_snapshot("job", 60), lambda: table.at("job")):
            with pytest.raises(Invalid, match="dropped or have expired"):
                act()
        table.snapshot("job", ttl=60)
        assert scan(table.at("job")) == environment.truth
        assert [change.position for change in changes] == [1, 2]
        changes.save()
        assert list(table.changes(cursor="feed")) == []


def _go_on_without(environment: TableEnvironment) -> None:
    """Other processes write, flush, merge and collect until a snapshot with a time to live of a minute is deleted."""
    environment.schedule.clock.advance(DAY)
    with environment.at("others"):
        environment.write("others", upsert=KEYS[:1])
        flush_and_merge(environment, "others")
        for _ in range(2):
            collect(environment, "others")


# Collections


def test_slatedb_984_and_1028_a_collection_deletes_no_file_of_a_running_merge(tmp_path: Path) -> None:
    with eager(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])
        environment.table("holder").snapshot("s", ttl="never")
        flush_and_merge(environment)
        environment.write("writer", upsert=KEYS[1:4])
        environment.flush("flusher")

        def collects() -> None:
            with environment.at("other"):
                environment.table("other").drop_snapshot("s")
                kinds = {one.kind for one in collect(environment, "other").candidates}
                assert {"base_version", "base_file"} <= kinds, kinds

        with lease(held=False), when(environment, calls_method("base_rows.commit"), collects):
            environment.merge("victim")

        uri = str(environment.path)
        assert open_base(uri=uri).counters[region(environment).id] == 2
        for one in stored_versions(uri=uri):
            assert all(environment.store.get(key) is not None for key in named_files(uri=uri, version=one.version))


def test_slatedb_1769_a_merge_during_which_a_snapshot_is_dropped_plans_its_rows_again(tmp_path: Path) -> None:
    with eager(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])
        table = environment.table("holder")
        table.snapshot("s", ttl="never")
        environment.write("writer", delete=KEYS[:1])
        environment.flush("flusher")

        def drops_and_collects() -> None:
            with environment.at("other"):
                table.drop_snapshot("s")
                environment.write("other", upsert=KEYS[:1])
                environment.flush("other")
                environment.merge("other")
                collect(environment, "other")

        with lease(held=False), when(environment, calls_method("base_rows.commit"), drops_and_collects):
            environment.merge("victim")

        assert environment.read(environment.table("reader")) == {KEYS[0]: 3, KEYS[1]: 1}


def test_slatedb_1029_a_generation_that_is_written_but_not_named_yet_is_kept(tmp_path: Path) -> None:
    with eager(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])
        flush_and_merge(environment)
        environment.write("writer", upsert=KEYS[:2])

        with when(environment, swaps_head, lambda: _check_swept(collect(environment, "other"))):
            environment.flush("victim")

        assert ranges(environment)[-1] == (2, 2)
        assert environment.read(environment.table("reader")) == environment.truth


def _check_swept(done: Collected) -> None:
    assert {"generation", "entry"} <= {one.kind for one in done.candidates}


def test_slatedb_1641_collections_of_the_base_delete_all_leftovers_though_every_listing_fails(
    tmp_path: Path,
) -> None:
    with eager(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])
        flush_and_merge(environment)
        crashed = [f"data/{number:04}.lance" for number in range(1_300)]  # files of merges that crashed
        for key in crashed:
            (environment.path / key).write_bytes(b"x")
        handle = open_table(environment.path, ports=environment.ports("collector"))
        torn = replace(handle.context, objects=BrokenListings(handle.context.objects, after=700))
        deleted = []
        for _ in range(3):
            environment.schedule.clock.advance(1.0)
            done = collection.collect(replace(handle, context=torn), yes=True, interval_seconds=0)
            deleted.append(done.deleted)
            assert environment.read(environment.table("reader")) == environment.truth

        assert [key for key in crashed if (environment.path / key).exists()] == [], deleted
        uri = str(environment.path)
        for one in stored_versions(uri=uri):
            assert all(environment.store.get(key) is not None for key in named_files(uri=uri, version=one.version))


@pytest.mark.parametrize("gap", ["before verify", "before commit", "before sweep"])
def test_chroma_5157_a_flush_and_a_merge_between_the_steps_of_a_round_lose_nothing(gap: str, tmp_path: Path) -> None:
    with eager(tmp_path) as environment:
        for _ in range(2):
            environment.write("writer", upsert=KEYS[:2])
            flush_and_merge(environment)
        environment.write("writer", upsert=KEYS[:3])
        handle = open_table(environment.path, ports=environment.ports("collector"))
        rounds = collection.mark(handle).rounds
        assert rounds
        steps: list[tuple[str, Callable[[], object]]] = [
            ("before verify", lambda: collection.verify(handle, rounds)),
            ("before commit", lambda: collection.commit(handle, rounds)),
            ("before sweep", lambda: collection.sweep(handle, rounds)),
        ]
        for name, step in steps:
            if name == gap:
                with lease(held=False):
                    environment.write("other", delete=KEYS[:1])
                    flush_and_merge(environment, "other")
            error = raised(step)
            assert error is None or isinstance(error, (Contended, Invalid)), error
            assert environment.read(environment.table("reader")) == environment.truth


def test_chroma_4903_and_4920_and_4871_positions_go_on_after_the_whole_log_was_collected(
    tmp_path: Path,
) -> None:
    with eager(tmp_path) as environment:
        for position in range(1, 5):
            environment.write("writer", upsert=KEYS[:2])
            assert stored_positions(environment) == [position]
            flush_and_merge(environment)
            collect(environment)

            assert stored_positions(environment) == []
            head, named = region(environment).head(), manifest(environment)
            assert (head.first_position, head.next_position) == (position + 1, position + 1)
            assert (named.generations, named.current_generation) == ((), position + 1)
            reopened = environment.table(f"opened {position}")
            assert scan(reopened) == environment.truth
            assert list(reopened.changes()) == []
        assert [entry.summary.position for entry in environment.logs[0].entries] == [1, 2, 3, 4]


@pytest.mark.parametrize("first", range(1, 6))
def test_chroma_4276_and_4689_and_4750_and_4938_a_stream_is_right_at_each_boundary_of_a_log(
    first: int, tmp_path: Path
) -> None:
    table = create(tmp_path, settings=EAGER)
    for key in range(1, 5):
        table.upsert([row(key)])
    table.set_cursor("feed", start=Position(first))

    def positions(start: int | str) -> list[int]:
        return [change.position for change in Changes(table._context, table._schema, start=start)]  # type: ignore[arg-type]

    assert positions(first) == list(range(first, 5))
    with pytest.raises(Invalid, match="past the end"):
        positions(6)
    table.flush()
    table.merge(engine="inprocess")
    for _ in range(2):
        table.collect(yes=True, interval_seconds=0)

    assert positions("earliest") == positions(first) == list(range(first, 5))
    assert [change.position for change in table.changes(cursor="feed")] == list(range(first, 5))
    if first > 1:
        with pytest.raises(Invalid, match="collected"):
            positions(first - 1)


# Writers


def test_lance_6699_a_fenced_writer_that_stalled_until_its_slot_was_swept_is_not_acknowledged(tmp_path: Path) -> None:
    with eager(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])

        def swept() -> None:
            environment.write("other", upsert=KEYS[:3])
            claim(region(environment), owner=RIVAL)
            claim(region(environment), owner=OWNER)
            for _ in range(2):
                environment.write("other", upsert=KEYS[:3])
                flush_and_merge(environment, "other")
                collect(environment, "other")

        with when(environment, puts_entry, swept):
            error = raised(lambda: environment.write("victim", upsert=KEYS[:1]))

        assert isinstance(error, (Fenced, Ambiguous)), error
        assert environment.read(environment.table("reader")) == environment.truth
        assert environment.truth[KEYS[0]] == environment.truth[KEYS[2]], "the last write of the others is lost"


def test_chroma_6658_two_handles_that_create_the_same_region_both_succeed(tmp_path: Path) -> None:
    create(tmp_path, regions="identity(id)")
    one, two = (lancelsm.open(tmp_path / "table") for _ in range(2))
    assert one.list_regions() == two.list_regions() == []
    for table in (one, two):
        table.scan().to_arrow()  # each handle has read that there is no region

    one.upsert([row(1, "one")])
    two.upsert([row(1, "two")])

    (created,) = one.list_regions()
    assert [region.id for region in two.list_regions()] == [created.id]
    assert created.head().next_position == 3
    assert sorted_rows(one) == sorted_rows(two) == [row(1, "two")]


# Threads and tasks


@pytest.mark.rest
def test_chroma_4936_every_thread_ends_with_the_object_that_started_it(tmp_path: Path) -> None:
    create(tmp_path, regions="bucket(id, 4)")
    _use(tmp_path / "table", 0)  # the first use starts threads of Lance itself
    before = _running_threads()

    for number in range(1, 11):
        _use(tmp_path / "table", number)

    deadline = time.monotonic() + 5
    while not _running_threads() <= before and time.monotonic() < deadline:
        time.sleep(0.01)  # a thread that gave back its last lock is about to end
    assert _running_threads() <= before


def _running_threads() -> set[threading.Thread]:
    """Return the threads that run. Python also lists those that it did not start itself, long after they ended."""
    return {one for one in threading.enumerate() if Path(f"/proc/self/task/{one.native_id}").exists()}


def _use(path: Path, number: int) -> None:
    """Use everything that starts threads, with and without an error."""
    table = lancelsm.open(path)
    with table.writer() as writer:
        writer.upsert([row(key) for key in range(8)])
    with table.writer(pipeline_depth=4) as writer:
        writer.upsert([row(key) for key in range(8)])
    with table.holding_snapshot(f"s{number}", 60) as held:
        held.scan().to_arrow()
    with pytest.raises(KeyError), table.holding_snapshot(f"s{number}", 60):
        raise KeyError(number)
    with pytest.raises(KeyError), table.writer():
        raise KeyError(number)
    list(table.changes(limit=3))
    table.flush()
    table.collect(yes=True, interval_seconds=0)


def test_chroma_4959_cancelling_one_caller_does_not_lose_the_rows_of_others(tmp_path: Path) -> None:
    create(tmp_path, settings={"group_commit_milliseconds": 1})
    gate = Gate(tmp_path / "table")
    table = lancelsm.open.on(Ports(store=lambda uri, options: gate))(tmp_path / "table")

    async def run() -> list[object]:
        with table.writer() as writer:
            tasks = [asyncio.ensure_future(writer.submit_async([row(key)])) for key in range(3)]
            await asyncio.sleep(0)
            tasks[1].cancel()
            await asyncio.sleep(0)
            gate.opened.set()
            return await asyncio.gather(*tasks, return_exceptions=True)

    first, second, third = asyncio.run(run())

    assert isinstance(second, asyncio.CancelledError)
    assert not isinstance(first, BaseException)
    assert not isinstance(third, BaseException)
    assert sorted_rows(table) == [row(key) for key in range(3)]
