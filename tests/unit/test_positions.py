"""Where a change stream or a cursor may start: earliest, latest, a position, a time, or positions of a consumer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.common.clock import SystemClock
from lancelsm.common.layout import Position, RegionId, region_key
from lancelsm.errors import Invalid
from lancelsm.history.changes import Changes
from lancelsm.region.catalog import regions
from lancelsm.region.handle import TableHandle, open_table
from lancelsm.table import Table
from tests.simulation.faults import FakeClock, FaultPlan
from tests.unit.streams import append_fences, create_table, first_position, flush_merge_collect, values_in, write
from tests.unit.tables import faulty

pytestmark = pytest.mark.rest


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return create_table(tmp_path / "t")


@pytest.fixture
def handle(table: Table) -> TableHandle:
    return open_table(table.uri)


@pytest.fixture
def by_id(tmp_path: Path) -> Table:
    """A table with a region for each key."""
    return create_table(tmp_path / "t", regions="identity(id)")


def test_a_stream_from_the_earliest_begins_at_the_floor_of_the_log_when_it_is_read(table, handle, monkeypatch):
    write(table, 0, 1, 2)
    inner, raced = Changes._first, []

    def first(self, region, head, ends):
        found = inner(self, region, head, ends)
        if not raced:
            raced.append(flush_merge_collect(table))
            write(table, 3)
        return found

    monkeypatch.setattr(Changes, "_first", first)
    assert values_in(table.changes()) == [3]


@pytest.mark.rest
@pytest.mark.parametrize("fences", [1, 3])
def test_positions_of_a_consumer_stay_valid_after_a_save_if_only_fences_follow(table, fences):
    """A collection that races the save deletes no entry at which the consumer may still start."""
    kept: dict[Any, Position] = {}
    read: list[int] = []
    for step in range(4):
        write(table, 2 * step, 2 * step + 1)
        for _ in range(fences):
            append_fences(table)
        changes = table.changes(cursor="sink", start=kept or "earliest")
        for change in changes:
            read += [row["v"] for row in change.rows.to_pylist()]
            kept = changes.positions
        flush_merge_collect(table)
        changes.save()
        flush_merge_collect(table)

    assert read == list(range(8))
    assert first_position(table) == min(kept.values()) > 1


def test_a_save_past_fences_lets_collection_delete_them_and_earlier_positions_are_refused(table):
    write(table, 0)
    append_fences(table)
    changes = table.changes(cursor="sink")
    assert values_in(changes) == [0]
    kept = changes.positions
    changes.save(fences=True)
    flush_merge_collect(table)

    assert first_position(table) == 4
    assert values_in(table.changes(cursor="sink")) == []
    with pytest.raises(Invalid, match="collected below position 4"):
        values_in(table.changes(cursor="sink", start=kept))


def test_a_position_past_the_end_is_refused_and_the_error_names_region_and_next_position(by_id):
    for value in range(3):
        by_id.upsert([{"id": 1, "v": value}])
    by_id.upsert([{"id": 2, "v": 0}])
    ends = {region.id: region.head().next_position for region in by_id.list_regions()}
    (short,) = (region for region, end in ends.items() if end == 2)
    by_id.set_cursor("sink", start=ends)
    before = by_id.cursors()

    for wrong in (3, ends | {short: Position(3)}):
        with pytest.raises(Invalid, match="past the end of the log: the next position is 2") as caught:
            by_id.set_cursor("sink", start=wrong)
        assert caught.value.where["region"] == short
    assert by_id.cursors() == before


def test_a_stream_from_one_position_starts_at_the_end_of_regions_that_are_shorter(by_id):
    for value in range(3):
        by_id.upsert([{"id": 1, "v": value}])
    by_id.upsert([{"id": 2, "v": 5}])

    assert sorted(values_in(by_id.changes(start=2))) == [1, 2]
    assert values_in(by_id.changes(start=3)) == [2]
    assert values_in(by_id.changes(start=4)) == []
    with pytest.raises(Invalid, match="past the end"):
        values_in(by_id.changes(start=5))
    with pytest.raises(Invalid, match="past the end"):
        values_in(by_id.changes(start=dict.fromkeys((one.id for one in by_id.list_regions()), Position(3))))


@pytest.mark.one_case
@pytest.mark.parametrize("start", ["earliest", "latest", "now", {}])
def test_a_region_created_after_a_stream_began_is_streamed_from_its_first_entry(by_id, start):
    by_id.upsert([{"id": 1, "v": 1}])
    changes = by_id.changes(start=SystemClock().now() if start == "now" else start)
    values_in(changes)
    by_id.upsert([{"id": 2, "v": 2}])
    by_id.upsert([{"id": 2, "v": 3}])
    assert values_in(changes) == [2, 3]

    by_id.upsert([{"id": 3, "v": 4}])
    flush_merge_collect(by_id)
    with pytest.raises(Invalid, match="collected below position 2"):
        values_in(changes)


def test_a_region_that_the_positions_of_a_consumer_do_not_name_is_streamed_from_its_first_entry(by_id):
    by_id.upsert([{"id": 1, "v": 1}])
    first = by_id.changes()
    assert values_in(first) == [1]
    by_id.upsert([{"id": 2, "v": 2}])

    assert values_in(by_id.changes(start=first.positions)) == [2]


def test_positions_of_a_dropped_table_are_refused_by_the_table_that_replaced_it(tmp_path):
    location = tmp_path / "t"
    table = create_table(location)
    write(table, 1)
    before = table.changes()
    assert values_in(before) == [1]
    lancelsm.drop(location)
    again = create_table(location)
    write(again, 2)
    (mine,) = (region.id for region in again.list_regions())

    for theirs in (before.positions, before.positions | {mine: Position(1)}, {"nope": Position(1)}):
        for refused in (
            lambda start=theirs: values_in(again.changes(start=start)),
            lambda start=theirs: values_in(again.changes(start=start, cursor="sink")),
            lambda start=theirs: again.set_cursor("sink", start=start),
        ):
            with pytest.raises(Invalid, match="region that the table does not have") as caught:
                refused()
            assert caught.value.where["region"] in theirs.keys() - {mine}
            assert "For a restored table start at earliest" in caught.value.remedy
    assert again.cursors() == [], "no cursor was created"
    assert values_in(again.changes(start={mine: Position(1)})) == [2]


def test_a_position_of_a_region_whose_creation_is_not_finished_is_accepted(table, handle):
    write(table, 1)
    unfinished = RegionId("00000000-0000-4000-8000-000000000000")
    record = dict(handle.context.registry.list(region_key(handle.context.table, RegionId("")).partition)[0][1])
    handle.context.registry.swap(region_key(handle.context.table, unfinished), expect=None, change=record)
    positions = {region.id: Position(1) for region in regions(handle.context)}

    assert unfinished in positions
    assert values_in(table.changes(start=positions)) == [1]


@pytest.mark.parametrize("wrong", [0, -3, True, 2.0, "latest", None])
def test_a_value_that_is_not_a_position_is_refused_in_the_positions_of_a_consumer(table, wrong):
    write(table, 1)
    (region,) = (one.id for one in table.list_regions())

    for refused in (lambda: table.changes(start={region: wrong}), lambda: table.set_cursor("s", start={region: wrong})):
        with pytest.raises(Invalid, match="can't start at") as caught:
            refused()
        assert caught.value.where["region"] == region
    assert table.cursors() == []


def test_positions_name_every_region_before_the_first_change_is_read(tmp_path):
    table = create_table(tmp_path / "t", regions="bucket(id, 4)")
    table.upsert([{"id": n, "v": n} for n in range(20)])
    changes = table.changes()
    first = next(iter(changes))

    assert changes.positions == {region.id: 1 + (region.id == first.region) for region in table.list_regions()}


def test_a_start_time_is_refused_if_the_log_since_then_was_collected(table):
    clock, moments = FakeClock(), []
    table = lancelsm.open.on(faulty(FaultPlan(), clock=clock))(table.uri)
    for value in range(1, 4):
        moments.append(clock.now())
        write(table, value)
        clock.advance(1)
    assert [values_in(table.changes(start=moment)) for moment in (1.0, *moments)] == [[1, 2, 3], [1, 2, 3], [2, 3], [3]]
    flush_merge_collect(table)
    after = clock.now()

    for late in ((), (4, 5)):
        write(table, *late)
        for moment in (1.0, *moments):
            with pytest.raises(Invalid, match="since that time may have been collected"):
                table.changes(start=moment).__iter__().__next__()
            with pytest.raises(Invalid, match="since that time may have been collected"):
                table.set_cursor("sink", start=moment)
        assert values_in(table.changes(start=after)) == list(late)
        assert values_in(table.changes(start="earliest")) == list(late)
    assert table.cursors() == []
