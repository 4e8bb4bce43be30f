"""The change stream next to collections, other consumers and crashes: each change once, in order, or an error."""

from __future__ import annotations

import random
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.common.layout import Position, cursors, head_key, wal_entry
from lancelsm.errors import Contended, Corrupt, Invalid, LsmError, Unavailable
from lancelsm.history import cursor
from lancelsm.history.changes import Changes
from lancelsm.history.cursor import create_cursor, find_cursor, save_cursor, set_cursor
from lancelsm.history.pins import read_pins
from lancelsm.history.stream_start import first_position as changes_first_position
from lancelsm.region.catalog import regions
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.handle import Ports, TableHandle, open_table
from lancelsm.table import Table
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, DENY, FAIL_AFTER, Crash, FakeClock, FaultPlan
from tests.unit.streams import create_table, first_position, flush_merge_collect, values_in, write
from tests.unit.tables import faulty, from_start


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return create_table(tmp_path / "t")


@pytest.fixture
def handle(table: Table) -> TableHandle:
    return open_table(table.uri)


@pytest.fixture
def region_per_key(tmp_path: Path) -> Table:
    """A table with one region per key."""
    return create_table(tmp_path / "t", regions="identity(id)")


@pytest.mark.rest
def test_a_cursor_reads_each_change_once_while_collections_run(table):
    read: list[int] = []
    for step in range(6):
        write(table, *range(10 * step, 10 * step + 10))
        changes = table.changes(cursor="sink", limit=7)
        read += values_in(changes)
        flush_merge_collect(table)  # between the read and the save
        changes.save()
    read += values_in(table.changes(cursor="sink"))

    assert read == list(range(60))
    assert 1 < first_position(table) <= 43


def test_a_stream_below_the_floor_is_refused_even_if_objects_stand_at_its_positions(table, handle):
    write(table, 1, 2, 3)
    region = table.list_regions()[0]
    keys = [wal_entry(region.id, Position(position)) for position in (1, 2, 3)]
    bodies = [handle.context.objects.get(key).body for key in keys]
    flush_merge_collect(table)
    assert first_position(table) == 4
    for key, body in zip(keys, [bodies[2], b"written by a stalled writer", bodies[0]], strict=True):
        assert handle.context.objects.get(key) is None
        handle.context.objects.create(key, body)

    for start in (1, 2, 3):
        with pytest.raises(Invalid, match="collected below position 4"):
            values_in(table.changes(start=start))
    write(table, 4)
    assert values_in(table.changes()) == [4]


def test_a_stream_overtaken_by_a_collection_raises_instead_of_leaving_a_gap(table):
    write(table, *range(20))
    changes = iter(table.changes())
    assert values_in([next(changes)]) == [0]
    write(table, *range(20, 40))
    flush_merge_collect(table)

    read = []
    with pytest.raises(Invalid, match="collected below position 41"):
        read.extend(row["v"] for change in changes for row in change.rows.to_pylist())
    assert read == list(range(1, 16))  # these were proven before the collection


def test_a_cursor_still_reads_entries_below_a_floor_that_passed_it(table, handle):
    """A round may read the pins before the cursor exists, and commit its floor after; its sweep spares the entries."""
    write(table, 0, 1, 2)
    table.set_cursor("sink")
    region = regions(handle.context)[0]
    handle.context.registry.swap(head_key(handle.context.table, region.id), expect={}, change={"first_position": 3})

    assert values_in(table.changes(cursor="sink")) == [0, 1, 2]
    with pytest.raises(Invalid, match="collected below position 3"):
        values_in(table.changes(start=1))


def test_a_reader_whose_cursor_was_dropped_does_not_read_below_the_floor(table):
    write(table, *range(20))
    changes = iter(table.changes(cursor="sink"))
    assert values_in([next(changes)]) == [0]
    table.drop_cursor("sink")
    flush_merge_collect(table)

    with pytest.raises(Invalid, match="collected below position 21"):
        list(changes)


@pytest.mark.rest
def test_a_consumer_that_commits_positions_with_its_rows_reads_each_change_once_despite_crashes(table, tmp_path):
    """The stream continues from the consumer's own positions; the cursor only keeps the entries it may still need."""
    seed = "exactly once"
    print(f"seed {seed!r}")
    chance = random.Random(seed)
    sink = sqlite3.connect(tmp_path / "sink.sqlite", isolation_level=None)
    sink.execute("CREATE TABLE rows (v INTEGER)")
    sink.execute("CREATE TABLE positions (region TEXT PRIMARY KEY, position INTEGER)")

    def consume() -> None:
        positions = {region: Position(at) for region, at in sink.execute("SELECT * FROM positions")}
        changes = table.changes(cursor="sink", start=positions or "earliest")
        for change in changes:
            sink.execute("BEGIN")
            sink.executemany("INSERT INTO rows VALUES (?)", [(row["v"],) for row in change.rows.to_pylist()])
            sink.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?)", list(changes.positions.items()))
            if chance.random() < 0.2:
                sink.execute("ROLLBACK")
                return  # a crash before the commit
            sink.execute("COMMIT")
            if chance.random() < 0.2:
                return  # a crash after the commit, before the save
            if chance.random() < 0.5:
                changes.save()

    total = 0
    for _ in range(12):
        write(table, *range(total, total + 5))
        total += 5
        consume()
        flush_merge_collect(table)
    while consume() or sink.execute("SELECT count(*) FROM rows").fetchone() < (total,):
        pass

    assert [v for (v,) in sink.execute("SELECT v FROM rows ORDER BY rowid")] == list(range(total))


def test_a_cursor_is_not_saved_past_an_unreadable_change(table, monkeypatch):
    write(table, 0, 1)
    changes = table.changes(cursor="sink")
    stream = iter(changes)
    assert values_in([next(stream)]) == [0]

    def unreadable(*_: object) -> None:
        raise Corrupt("unreadable rows")

    with monkeypatch.context() as patch:
        patch.setattr("lancelsm.history.changes.stored_rows", unreadable)
        with pytest.raises(Corrupt):
            next(stream)
    changes.save(fences=True)
    assert values_in(table.changes(cursor="sink")) == [1]


def test_a_sealed_region_is_read_to_its_end(table):
    write(table, 0, 1)
    table.seal(table.list_regions()[0])

    changes = table.changes(cursor="sink")
    assert values_in(changes) == [0, 1]
    changes.save()
    assert values_in(table.changes(cursor="sink")) == []


def test_a_following_stream_includes_regions_created_after_it_began(region_per_key):
    changes = iter(region_per_key.changes(cursor="sink", follow=True))
    for value in range(1, 4):
        region_per_key.upsert([{"id": value, "v": value}])
        assert values_in([next(changes)]) == [value]


def test_a_replaced_cursor_does_not_move_the_new_cursor_of_its_name(region_per_key):
    """This also holds in a region that neither cursor has a position for."""
    handle = open_table(region_per_key.uri)
    old = create_cursor(handle.context, "sink", start=from_start)
    new = set_cursor(handle.context, "sink", start=from_start)
    (entry,) = region_per_key.upsert([{"id": 5, "v": 1}]).entries

    with pytest.raises(Contended, match="moved or dropped"):
        save_cursor(handle.context, old, {entry.region: Position(2)})
    assert find_cursor(handle.context, "sink") == new
    assert values_in(region_per_key.changes(cursor="sink")) == [1]


def test_a_stalled_cursor_keeps_log_and_generations_until_it_is_dropped(table):
    table.set_cursor("sink")
    for value in range(3):
        write(table, value)
        flush_merge_collect(table)
    assert (first_position(table), generations(table)) == (1, 3)
    assert "its entries are still in the log, up to position 1" in {one.why for one in table.collect().kept}
    table.drop_cursor("sink")
    flush_merge_collect(table)
    assert (first_position(table), generations(table)) == (4, 0)


def generations(table: Table) -> int:
    region = table.list_regions()[0]
    return len(newest(region, region.head())[1].generations)


def test_a_cursor_can_be_set_back_only_as_far_as_the_log_is_kept(table, handle):
    write(table, 0, 1, 2)
    flush_merge_collect(table)
    write(table, 3, 4)
    pin = table.set_cursor("sink", start="latest")
    with pytest.raises(Invalid, match="collected below position 4"):
        table.set_cursor("sink", start=2)
    with pytest.raises(Invalid, match="is before the cursor"):
        save_cursor(handle.context, pin, dict.fromkeys(pin.regions, Position(4)))
    assert table.cursors() == [pin]

    table.set_cursor("sink", start=5)
    assert values_in(table.changes(cursor="sink")) == [4]


def test_a_save_that_failed_halfway_is_completed_by_the_next_save(tmp_path):
    table = create_table(tmp_path / "t", regions="bucket(id, 2)")
    plan = FaultPlan()
    reading = open_table(table.uri, ports=faulty(plan))
    table.upsert([{"id": n, "v": n} for n in range(8)])
    changes = Changes(reading.context, reading.config.schema, cursor="sink")
    assert len(values_in(changes)) == 8
    plan.meet(DENY, after=1)
    with pytest.raises(Unavailable):
        changes.save()
    table.upsert([{"id": n, "v": n} for n in range(8)])
    assert len(values_in(changes)) == 8
    changes.save()

    assert values_in(table.changes(cursor="sink")) == []


def test_a_committed_object_that_is_not_an_entry_is_corrupt_and_named(table, handle):
    write(table, 0)
    key = wal_entry(table.list_regions()[0].id, Position(1))
    handle.context.objects.delete([key])
    handle.context.objects.create(key, b"not an entry")

    with pytest.raises(Corrupt, match="not a WAL entry") as caught:
        values_in(table.changes())
    assert caught.value.where["object"] == key


def test_the_stream_reports_how_many_entries_it_has_read_ahead(table):
    write(table, *range(3))
    changes = table.changes()
    ahead: list[Any] = [changes.ahead for _ in changes]
    assert ahead == [2, 1, 0]


def test_many_fences_in_a_row_do_not_end_a_stream(table):
    write(table, 0)
    region = table.list_regions()[0]
    for _ in range(12):
        table.claim(region, owner="another")
        table.claim(region)
    write(table, 1)

    assert values_in(table.changes()) == [0, 1]


@pytest.mark.rest
@pytest.mark.parametrize("start", [2, "latest"])
def test_a_set_of_a_cursor_that_fails_at_any_call_leaves_the_old_or_the_new_position(tmp_path, start):
    source = create_table(tmp_path / "source")
    write(source, 1, 2, 3, 4, 5)
    source.set_cursor("sink", start=4)
    for number in range(100):
        copy = shutil.copytree(tmp_path / "source", tmp_path / f"{number}")
        plan = FaultPlan.at(number, (CRASH_BEFORE, CRASH_AFTER, FAIL_AFTER, DENY)[number % 4])
        try:
            setting = open_table(copy, ports=faulty(plan))
            set_cursor(setting.context, "sink", start=lambda *at: changes_first_position(*at, start))
        except (Crash, LsmError) as error:
            print(number, repr(error))
        table = lancelsm.open(copy)
        later = replace(Ports(), clock=FakeClock(FakeClock().now() + 7200))
        flush_merge_collect(lancelsm.open.on(later)(copy))
        assert [pin.name for pin in read_pins(table._context)] == ["sink"]
        assert values_in(table.changes(cursor="sink")) in [[4, 5], {2: [2, 3, 4, 5], "latest": []}[start]]
        keys = [key.sort for key, _ in table._context.registry.list(cursors(table.config.table))]
        assert len(keys) == 2, keys
        if not plan.injected:
            assert number > 5
            break
    else:
        raise AssertionError("the last call was not reached")


def test_the_announced_target_of_a_moving_cursor_is_kept(table):
    write(table, 1, 2, 3)
    table.set_cursor("sink", start="latest")
    pin = find_cursor(table._context, "sink")

    moving = cursor.start_move(table._context, pin)
    flush_merge_collect(table)
    assert first_position(table) == 1
    cursor.cancel_move(table._context, moving)
    flush_merge_collect(table)
    assert first_position(table) == 4


def test_setting_a_cursor_in_one_region_keeps_what_was_saved_in_another_meanwhile(region_per_key, monkeypatch):
    for value in range(3):
        region_per_key.upsert([{"id": 1, "v": value}])
        region_per_key.upsert([{"id": 2, "v": value}])
    one, two = (next(r.id for r in region_per_key.list_regions() if r.values[0][1][0] == n) for n in (1, 2))
    consumer = region_per_key.set_cursor("sink")
    announce = cursor.start_move

    def saved_first(context, pin):
        monkeypatch.undo()
        save_cursor(context, consumer, {two: Position(3)})
        return announce(context, pin)

    monkeypatch.setattr(cursor, "start_move", saved_first)
    set_cursor(region_per_key._context, "sink", start=lambda *_: Position(2), only=one)

    pin = find_cursor(region_per_key._context, "sink")
    assert (pin.of(one).first_position, pin.of(two).first_position) == (2, 3)
