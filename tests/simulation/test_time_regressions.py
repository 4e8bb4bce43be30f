"""Scenarios that other systems had to tell of snapshots, collections, cursors and background work, each by name.

They are numbered as in the trackers of SlateDB, of Chroma's wal3 and of Lance. More of them are in
test_lost_write_regressions, test_collection*, tests/unit/test_snapshot (slatedb 1750) and tests/conformance (409 and
412).

Two can't happen here as they did there, and are told as what would be like them:
slatedb 1769: there are no merge operands that a resumed merge could lose; it might lose rows that it planned by.
chroma 4903, 4920, 4871: no position is derived from what is left of a log; but heads and manifests count on.
"""

from __future__ import annotations

import asyncio
import threading
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
from tests.simulation.collected import TornListings
from tests.simulation.environment import OWNER, raised
from tests.simulation.faults import DENY, FaultPlan
from tests.simulation.table_environment import TableEnvironment, lease
from tests.simulation.table_log import rows_of
from tests.simulation.test_lost_write_regressions import (
    KEYS,
    calls,
    manifest,
    puts_entry,
    ranges,
    region,
    swaps_head,
    when,
)
from tests.unit.tables import Gate, create, row
from tests.unit.tables import rows_of as sorted_rows

DAY = 86_400.0
EAGER = {"keep_versions_seconds": 0.001, "collect_floor_bytes": 1 << 30}


@contextmanager
def eager(place: Path, **settings: object) -> Iterator[TableEnvironment]:
    """A table whose collections leave nothing that is not needed, with two rows in its base."""
    with (
        mock.patch.object(base, "_VERSIONS_MIN", 1),
        TableEnvironment(place / "table", settings={**EAGER, **settings}) as environment,
    ):
        environment.create("creator", loaded=KEYS[:2])
        yield environment
        environment.plan.stop()
        for _ in range(2):
            environment.schedule.clock.advance(LEASE_SECONDS + 1)
            assert environment.read(environment.table("last")) == environment.truth
            fold(environment, "last")
            collect(environment, "last")
        assert environment.read(environment.table("last")) == environment.truth


def collect(environment: TableEnvironment, process: str = "collector") -> Collected:
    environment.schedule.clock.advance(1.0)
    with environment.at(process):
        return environment.table(process).collect(yes=True, interval_seconds=0)


def fold(environment: TableEnvironment, process: str = "folder") -> None:
    environment.flush(process)
    environment.merge(process)


def shown(table: Table) -> dict[int, int]:
    return rows_of(table.scan().to_arrow())


def logged(environment: TableEnvironment) -> list[int]:
    """The positions that have an object in the log."""
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
            fold(environment)
            collect(environment)

            assert shown(table.at("one")) == {KEYS[0]: 1, KEYS[1]: 0}
            assert shown(table.at("two")) == {KEYS[0]: 3, KEYS[1]: 0}
        assert shown(table) == {KEYS[0]: 6, KEYS[1]: 6}


def test_slatedb_1888_who_read_a_snapshot_that_lapsed_in_a_brownout_is_told_so_and_goes_on(tmp_path: Path) -> None:
    with eager(tmp_path) as environment, environment.at("victim"):
        environment.write("writer", upsert=KEYS[:2])
        brownout: list[bool] = []
        environment.plan = FaultPlan(lambda call: DENY if brownout and call.process == "victim" else None)
        table = environment.table("victim")
        table.snapshot("job", ttl=60)
        old = table.at("job")
        assert shown(old) == {KEYS[0]: 1, KEYS[1]: 1}
        changes = table.changes(cursor="feed")
        brownout.append(True)
        for act in (
            lambda: shown(old),
            lambda: table.refresh_snapshot("job", 60),
            lambda: shown(table),
            lambda: list(changes),
        ):
            assert isinstance(raised(act), Unavailable)
        _go_on_without(environment)
        brownout.clear()

        assert shown(table) == environment.truth, "who reads the table depends on no snapshot"
        for act in (lambda: shown(old), lambda: table.refresh_snapshot("job", 60), lambda: table.at("job")):
            with pytest.raises(Invalid, match="dropped or has expired"):
                act()
        table.snapshot("job", ttl=60)
        assert shown(table.at("job")) == environment.truth
        assert [change.position for change in changes] == [1, 2]
        changes.save()
        assert list(table.changes(cursor="feed")) == []


def _go_on_without(environment: TableEnvironment) -> None:
    """The rest of the environment writes, folds and collects until a snapshot of a minute is gone."""
    environment.schedule.clock.advance(DAY)
    with environment.at("others"):
        environment.write("others", upsert=KEYS[:1])
        fold(environment, "others")
        for _ in range(2):
            collect(environment, "others")


# Collections


def test_slatedb_984_and_1028_what_a_running_merge_has_written_is_not_taken_from_it(tmp_path: Path) -> None:
    with eager(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])
        environment.table("holder").snapshot("s", ttl="never")
        fold(environment)
        environment.write("writer", upsert=KEYS[1:4])
        environment.flush("flusher")

        def collects() -> None:
            with environment.at("other"):
                environment.table("other").drop_snapshot("s")
                kinds = {one.kind for one in collect(environment, "other").candidates}
                assert {"base_version", "base_file"} <= kinds, kinds

        with lease(held=False), when(environment, calls("base_rows.commit"), collects):
            environment.merge("victim")

        uri = str(environment.place)
        assert open_base(uri=uri).counters[region(environment).id] == 2
        for one in stored_versions(uri=uri):
            assert all(environment.store.get(key) is not None for key in named_files(uri=uri, version=one.version))


def test_slatedb_1769_a_merge_under_which_what_is_kept_changes_plans_its_rows_anew(tmp_path: Path) -> None:
    with eager(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])
        table = environment.table("holder")
        table.snapshot("s", ttl="never")
        environment.write("writer", delete=KEYS[:1])
        environment.flush("flusher")

        def lets_go() -> None:
            with environment.at("other"):
                table.drop_snapshot("s")
                environment.write("other", upsert=KEYS[:1])
                environment.flush("other")
                environment.merge("other")
                collect(environment, "other")

        with lease(held=False), when(environment, calls("base_rows.commit"), lets_go):
            environment.merge("victim")

        assert environment.read(environment.table("reader")) == {KEYS[0]: 3, KEYS[1]: 1}


def test_slatedb_1029_a_generation_that_is_written_and_not_named_yet_stays(tmp_path: Path) -> None:
    with eager(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])
        fold(environment)
        environment.write("writer", upsert=KEYS[:2])

        with when(environment, swaps_head, lambda: _swept(collect(environment, "other"))):
            environment.flush("victim")

        assert ranges(environment)[-1] == (2, 2)
        assert environment.read(environment.table("reader")) == environment.truth


def _swept(done: Collected) -> None:
    assert {"generation", "entry"} <= {one.kind for one in done.candidates}


def test_slatedb_1641_a_listing_of_the_base_s_files_that_breaks_off_every_time_stops_no_collection(
    tmp_path: Path,
) -> None:
    with eager(tmp_path) as environment:
        environment.write("writer", upsert=KEYS[:2])
        fold(environment)
        crashed = [f"data/{number:04}.lance" for number in range(1_300)]  # files of merges that crashed
        for key in crashed:
            (environment.place / key).write_bytes(b"x")
        handle = open_table(environment.place, ports=environment.ports("collector"))
        torn = replace(handle.context, objects=TornListings(handle.context.objects, after=700))
        deleted = []
        for _ in range(3):
            environment.schedule.clock.advance(1.0)
            done = collection.collect(replace(handle, context=torn), yes=True, interval_seconds=0)
            deleted.append(done.deleted)
            assert environment.read(environment.table("reader")) == environment.truth

        assert [key for key in crashed if (environment.place / key).exists()] == [], deleted
        uri = str(environment.place)
        for one in stored_versions(uri=uri):
            assert all(environment.store.get(key) is not None for key in named_files(uri=uri, version=one.version))


@pytest.mark.parametrize("gap", ["before verify", "before commit", "before sweep"])
def test_chroma_5157_what_is_flushed_and_merged_between_the_steps_of_a_round_is_not_taken(
    gap: str, tmp_path: Path
) -> None:
    with eager(tmp_path) as environment:
        for _ in range(2):
            environment.write("writer", upsert=KEYS[:2])
            fold(environment)
        environment.write("writer", upsert=KEYS[:3])
        handle = open_table(environment.place, ports=environment.ports("collector"))
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
                    fold(environment, "other")
            heard = raised(step)
            assert heard is None or isinstance(heard, (Contended, Invalid)), heard
            assert environment.read(environment.table("reader")) == environment.truth


def test_chroma_4903_and_4920_and_4871_a_log_of_which_nothing_is_left_goes_on_counting_when_reopened(
    tmp_path: Path,
) -> None:
    with eager(tmp_path) as environment:
        for position in range(1, 5):
            environment.write("writer", upsert=KEYS[:2])
            assert logged(environment) == [position]
            fold(environment)
            collect(environment)

            assert logged(environment) == []
            head, named = region(environment).head(), manifest(environment)
            assert (head.first_position, head.next_position) == (position + 1, position + 1)
            assert (named.generations, named.current_generation) == ((), position + 1)
            reopened = environment.table(f"opened {position}")
            assert shown(reopened) == environment.truth
            assert list(reopened.changes()) == []
        assert [entry.summary.position for entry in environment.logs[0].entries] == [1, 2, 3, 4]


@pytest.mark.parametrize("first", range(1, 6))
def test_chroma_4276_and_4689_and_4750_and_4938_each_boundary_of_a_log_is_where_it_is_said_to_be(
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
                fold(environment, "other")
                collect(environment, "other")

        with when(environment, puts_entry, swept):
            heard = raised(lambda: environment.write("victim", upsert=KEYS[:1]))

        assert isinstance(heard, (Fenced, Ambiguous)), heard
        assert environment.read(environment.table("reader")) == environment.truth
        assert environment.truth[KEYS[0]] == environment.truth[KEYS[2]], "what the others wrote last"


def test_chroma_6658_two_creators_of_one_region_are_both_told_that_it_is_there(tmp_path: Path) -> None:
    create(tmp_path, regions="identity(id)")
    one, two = (lancelsm.open(tmp_path / "table") for _ in range(2))
    assert one.regions() == two.regions() == []
    for table in (one, two):
        table.scan().to_arrow()  # each has seen that there is none

    one.upsert([row(1, "one")])
    two.upsert([row(1, "two")])

    (made,) = one.regions()
    assert [region.id for region in two.regions()] == [made.id]
    assert made.head().next_position == 3
    assert sorted_rows(one) == sorted_rows(two) == [row(1, "two")]


# What runs beside its caller


def test_chroma_4936_no_thread_outlives_what_started_it(tmp_path: Path) -> None:
    create(tmp_path, regions="bucket(id, 4)")
    _use(tmp_path / "table", 0)  # Lance starts threads of its own, once
    before = set(threading.enumerate())

    for number in range(1, 11):
        _use(tmp_path / "table", number)

    assert set(threading.enumerate()) <= before


def _use(place: Path, number: int) -> None:
    """Everything that starts threads, also where it ends by an error."""
    table = lancelsm.open(place)
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


def test_chroma_4959_a_caller_that_is_cancelled_takes_nobody_s_rows_with_it(tmp_path: Path) -> None:
    create(tmp_path, settings={"group_commit_milliseconds": 1})
    gate = Gate(tmp_path / "table")
    table = lancelsm.open(tmp_path / "table", ports=Ports(store=lambda uri, options: gate))

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
