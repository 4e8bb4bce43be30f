"""The change stream and its cursors: where a stream starts, what it yields, and how cursors are saved."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

import pytest

import lancelsm
from lancelsm.common.layout import Position, cursors, head_key, wal_entry
from lancelsm.errors import Contended, Corrupt, Invalid
from lancelsm.history import cursor
from lancelsm.history.changes import Changes
from lancelsm.history.cursor import create_cursor, drop_cursor, find_cursor, list_cursors, save_cursor, set_cursor
from lancelsm.history.pins import read_pins
from lancelsm.region.catalog import regions
from lancelsm.region.handle import open_table
from tests.simulation.faults import FAIL_AFTER, FakeClock, FaultPlan
from tests.unit.tables import faulty, from_start


@pytest.fixture
def table(tmp_path):
    return lancelsm.create(tmp_path / "t", [{"id": 0, "v": 0}], primary_key="id", regions="bucket(id, 2)")


@pytest.fixture
def handle(table):
    return open_table(table.uri)


def stream(handle, **options):
    return Changes(handle.context, handle.config.schema, **options)


def rows_in(changes):
    return [(row["id"], row["v"], row["_op"]) for change in changes for row in change.rows.to_pylist()]


def test_upserts_and_deletes_are_streamed_in_commit_order(table, handle):
    table.upsert([{"id": 1, "v": 1}])
    table.delete([1])
    table.upsert([{"id": 1, "v": 2}])

    changes = list(stream(handle))

    assert rows_in(changes) == [(1, 1, "upsert"), (1, None, "delete"), (1, 2, "upsert")]
    assert [(change.position, change.epoch) for change in changes] == [(1, 1), (2, 1), (3, 1)]
    assert all(change.at is not None for change in changes)


def test_flushes_merges_and_fences_do_not_appear_in_the_stream(table, handle):
    table.upsert([{"id": 1, "v": 1}])
    for region in table.list_regions():
        table.claim(region, owner="another")
        table.claim(region)
    table.run()
    table.upsert([{"id": 1, "v": 2}])

    assert rows_in(stream(handle)) == [(1, 1, "upsert"), (1, 2, "upsert")]


def test_a_stream_starts_at_the_given_position_time_or_end(table, handle):
    clock, moments = FakeClock(), []
    table = lancelsm.open.on(faulty(FaultPlan(), clock=clock))(table.uri)
    for value in range(4):
        moments.append(clock.now())
        table.upsert([{"id": 1, "v": value}])
        clock.advance(1)
    (region,) = {change.region for change in stream(handle)}

    assert rows_in(stream(handle, start="latest")) == []
    assert [v for _, v, _ in rows_in(stream(handle, start=3))] == [2, 3]
    assert [v for _, v, _ in rows_in(stream(handle, start={region: Position(4)}))] == [3]
    assert [v for _, v, _ in rows_in(stream(handle, start=moments[1]))] == [1, 2, 3]
    assert rows_in(stream(handle, start=clock.now())) == []
    for wrong in ("soon", 0, -1, -1.0, float("nan"), True, False, None):
        with pytest.raises(Invalid, match="can't start at"):
            rows_in(stream(handle, start=wrong))


def test_a_time_is_found_between_fences(table, handle):
    (entry,) = table.upsert([{"id": 1, "v": 0}]).entries
    region = table.region(entry.region)
    for _ in range(3):
        table.claim(region, owner="another")
        table.claim(region)
    table.upsert([{"id": 1, "v": 1}])

    assert [v for _, v, _ in rows_in(stream(handle, start=1.0))] == [0, 1]


def test_a_limited_stream_can_be_continued_from_its_positions(table, handle):
    for value in range(5):
        table.upsert([{"id": 1, "v": value}])
    first = stream(handle, limit=2)

    assert [v for _, v, _ in rows_in(first)] == [0, 1]
    assert [v for _, v, _ in rows_in(stream(handle, start=first.positions))] == [2, 3, 4]


def test_a_stream_that_does_not_follow_ends_even_if_writes_continue(tmp_path):
    table = lancelsm.create(tmp_path / "t", [{"id": 0, "v": 0}], primary_key="id", regions="identity(id)")
    table.upsert([{"id": 1, "v": 1}, {"id": 2, "v": 2}])
    found = []

    for change in stream(open_table(table.uri)):
        found.extend(change.rows["v"].to_pylist())
        table.upsert([{"id": 1, "v": 3}, {"id": 2, "v": 4}, {"id": len(found) + 2, "v": 5}])

    assert (sorted(found)[:2], len(found)) == ([1, 2], 3)  # the second region is read after the first write


def test_a_following_stream_waits_for_new_changes(table, handle):
    changes = iter(stream(handle, follow=True))
    table.upsert([{"id": 1, "v": 1}])
    assert rows_in([next(changes)]) == [(1, 1, "upsert")]
    table.upsert([{"id": 2, "v": 2}])
    assert rows_in([next(changes)]) == [(2, 2, "upsert")]


def test_a_stream_reads_only_the_given_regions(table, handle):
    table.upsert([{"id": n, "v": n} for n in range(20)])
    one = regions(handle.context)[0].id

    assert {change.region for change in stream(handle, only=[one])} == {one}


def test_a_damaged_or_missing_entry_is_named_after_the_entries_before_it_were_read(table, handle):
    for value in range(3):
        table.upsert([{"id": 1, "v": value}])
    (entry,) = table.upsert([{"id": 1, "v": 3}]).entries
    store, key = handle.context.objects, wal_entry(entry.region, entry.position)
    body = bytearray(store.get(key).body)
    body[-20] ^= 1
    store.delete([key])
    with pytest.raises(Corrupt, match="a committed entry is gone"):
        rows_in(stream(handle))

    store.create(key, body)
    changes = stream(handle, cursor="sink")
    read = iter(changes)
    assert [next(read).position for _ in range(3)] == [1, 2, 3]
    changes.save()
    with pytest.raises(Corrupt, match="damaged") as caught:
        next(read)
    assert caught.value.where["object"] == key


def test_a_stream_below_the_floor_is_refused_and_earliest_starts_at_the_floor(table, handle):
    for value in range(3):
        (entry,) = table.upsert([{"id": 1, "v": value}]).entries
    table.flush()
    collect(handle, entry.region, 3)

    assert [v for _, v, _ in rows_in(stream(handle))] == [2]
    with pytest.raises(Invalid, match="collected below position 3"):
        rows_in(stream(handle, start=2))


def collect(handle, region, floor):
    key = head_key(handle.context.table, region)
    handle.context.registry.swap(key, expect={}, change={"first_position": floor})
    handle.context.objects.delete([wal_entry(region, Position(n)) for n in range(1, floor)])


def test_a_cursor_continues_after_the_last_save(table, handle):
    for value in range(4):
        table.upsert([{"id": 1, "v": value}])
    first = stream(handle, cursor="sink")
    assert rows_in(islice(first, 2)) == [(1, 0, "upsert"), (1, 1, "upsert")]
    first.save()
    assert [v for _, v, _ in rows_in(stream(handle, cursor="sink"))] == [2, 3]  # this read does not save

    again = stream(handle, cursor="sink")
    assert [v for _, v, _ in rows_in(again)] == [2, 3]
    again.save()
    assert rows_in(stream(handle, cursor="sink")) == []


def test_a_cursor_pins_unread_entries_and_all_of_any_region_created_later(table, handle):
    table.upsert([{"id": 1, "v": 1}])
    pin = create_cursor(handle.context, "sink", start=lambda region, head: head.next_position)

    assert read_pins(handle.context) == [pin]
    assert {pin.of(region.id).first_position for region in regions(handle.context)} == {1, 2}
    assert pin.of("a region created later").first_position == 1


def test_of_two_consumers_of_one_cursor_only_one_can_save(table, handle):
    table.upsert([{"id": 1, "v": 1}])
    one, other = stream(handle, cursor="sink"), stream(handle, cursor="sink")
    assert rows_in(one) == rows_in(other)
    one.save()

    with pytest.raises(Contended, match="another process has moved or dropped the cursor"):
        other.save()


def test_a_consumer_uses_a_cursor_that_another_consumer_created_first(table, handle, monkeypatch):
    table.upsert([{"id": 1, "v": 1}])
    make = cursor.create_cursor

    def late(context, name, *, start):
        make(context, name, start=from_start)
        return make(context, name, start=start)

    monkeypatch.setattr(cursor, "create_cursor", late)

    assert rows_in(stream(handle, cursor="mine")) == [(1, 1, "upsert")]


def test_a_save_whose_reply_was_lost_is_recognised(table, handle, tmp_path):
    table.upsert([{"id": 1, "v": 1}])
    plan = FaultPlan()
    reading = open_table(table.uri, ports=faulty(plan))
    changes = stream(reading, cursor="sink")
    assert rows_in(changes) == [(1, 1, "upsert")]
    plan.meet(FAIL_AFTER)
    changes.save()
    changes.save()

    assert rows_in(stream(handle, cursor="sink")) == []


def test_the_name_of_a_dropped_cursor_is_free_again(handle):
    create_cursor(handle.context, "sink", start=from_start)
    with pytest.raises(Invalid, match="a cursor of this name exists"):
        create_cursor(handle.context, "sink", start=from_start)

    drop_cursor(handle.context, "sink")

    assert handle.context.registry.list(cursors(handle.context.table)) == []
    assert find_cursor(handle.context, "sink") is None
    with pytest.raises(Invalid, match="cursor not found"):
        drop_cursor(handle.context, "sink")


def test_a_cursor_can_be_set_back(table, handle):
    table.upsert([{"id": 1, "v": 1}])
    changes = stream(handle, cursor="sink")
    rows_in(changes)
    changes.save()

    set_cursor(handle.context, "sink", start=from_start)

    assert rows_in(stream(handle, cursor="sink")) == [(1, 1, "upsert")]
    assert len(list_cursors(handle.context)) == 1


def test_a_consumer_of_a_replaced_cursor_cannot_move_the_new_one(table, handle):
    table.upsert([{"id": 1, "v": 1}])
    changes = stream(handle, cursor="sink")
    rows_in(changes)
    set_cursor(handle.context, "sink", start=from_start)

    with pytest.raises(Contended):
        changes.save()


def test_a_cursor_saves_positions_of_regions_created_after_it(tmp_path):
    table = lancelsm.create(tmp_path / "t", [{"id": 0, "v": 0}], primary_key="id", regions="identity(id)")
    handle = open_table(table.uri)
    pin = create_cursor(handle.context, "sink", start=from_start)
    (entry,) = table.upsert([{"id": 5, "v": 1}]).entries

    saved = save_cursor(handle.context, pin, {entry.region: Position(2)})

    assert find_cursor(handle.context, "sink") == saved
    assert rows_in(stream(handle, cursor="sink")) == []


def test_saving_needs_a_cursor(handle):
    with pytest.raises(Invalid, match="no cursor"):
        stream(handle).save()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused_and_creates_no_cursor(table, limit):
    with pytest.raises(Invalid, match=f"the limit is {limit}") as raised:
        table.changes(limit=limit, cursor="sink")

    assert (raised.value.where["field"], raised.value.remedy) == ("limit", "Give 1 or more")
    assert table.cursors() == []


@pytest.mark.parametrize("start", [datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00Z"])
def test_a_start_time_that_is_not_a_number_is_refused_with_the_accepted_forms(table, start):
    with pytest.raises(Invalid, match="can't start at") as raised:
        table.changes(start=start)

    remedy = "Give earliest, latest, a position of 1 or more, or a time in Unix seconds as a float of 0 or more"
    assert raised.value.remedy == remedy
