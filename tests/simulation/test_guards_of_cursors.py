"""Each guard of cursors and of change streams with a cursor is needed: without it, its scenario fails."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from lancelsm.common.layout import Position, head_key, wal_entry
from lancelsm.errors import Contended, Invalid
from lancelsm.gc import collect as collection
from lancelsm.gc import sweep
from lancelsm.history import changes, cursor, pins
from lancelsm.history.pin_records import Pin, RegionPin
from lancelsm.region.catalog import TableContext
from lancelsm.region.handle import open_table
from tests.simulation.environment import TABLE
from tests.simulation.faults import Call, FaultPlan
from tests.simulation.marks import Edit, changed, moved, without
from tests.simulation.pin_scenarios import with_two_regions
from tests.simulation.read_scenarios import check_changes, merge_and_collect, put_late_entries, with_pending_generations
from tests.simulation.removal import Scenario, with_and_without
from tests.simulation.whole_table_env import ROWS, WholeTableEnv
from tests.unit import cursor_scenarios, tables

TWO_HOURS = 7200.0  # longer than it may take to set a cursor, and than clocks may differ

# A cursor that is not set


def open_stream(table_env: WholeTableEnv, name: str = "consumer") -> changes.Changes:
    return changes.Changes(table_env.context(name, faulty=False), ROWS, cursor="sink")


def dropped_cursor(_: Path) -> None:
    """The cursor of a stream is dropped, and its entries are collected."""
    with with_pending_generations() as table_env:
        stream = open_stream(table_env)
        cursor.drop_cursor(table_env.context("other"), "sink")
        merge_and_collect(table_env)
        with pytest.raises(Invalid, match="collected"):
            check_changes(table_env, stream)


def moved_cursor(_: Path) -> None:
    """Another consumer of the cursor reads and saves everything, and the entries are collected."""
    with with_pending_generations() as table_env:
        stream, other = open_stream(table_env), open_stream(table_env, "other")
        check_changes(table_env, other)
        other.save()
        merge_and_collect(table_env)
        with pytest.raises(Invalid, match="collected"):
            check_changes(table_env, stream)


def passed_cursor(_: Path) -> None:
    """A round that read the pins before the cursor was created commits its floor later."""
    with with_pending_generations() as table_env:
        stream = open_stream(table_env)
        key = head_key(TABLE, table_env.environment.id)
        table_env.context("collector").registry.swap(key, expect={}, change={"first_position": 3})
        check_changes(table_env, stream)


def dropped_before_the_entries_are_read(_: Path) -> None:
    """The cursor is dropped while entries below the floor are read. Only a cursor that is read later proves them."""
    with with_pending_generations() as table_env:
        table_env.merge()
        stream = changes.Changes(table_env.context("consumer"), ROWS, cursor="sink")
        key = head_key(TABLE, table_env.environment.id)
        table_env.context("collector", faulty=False).registry.swap(key, expect={}, change={"first_position": 3})

        def drops(call: Call) -> None:
            if call.method == "get" and "/wal/" in call.key and not seen:
                seen.append(call.index)
                cursor.drop_cursor(table_env.context("other", faulty=False), "sink")
                for position in table_env.environment.log:
                    table_env.environment.store.remove(wal_entry(table_env.environment.id, position))
                put_late_entries(table_env)

        seen: list[int] = []
        table_env.environment.plan = FaultPlan(drops)
        stream._context = table_env.context("consumer")
        with pytest.raises(Invalid, match="collected"):
            check_changes(table_env, stream)
        assert seen


def cursor_saved_back(_: Path) -> None:
    """A cursor that has passed collected entries is saved before them."""
    with with_pending_generations() as table_env:
        stream = open_stream(table_env)
        check_changes(table_env, stream)
        stream.save()
        pin = cursor.find_cursor(table_env.context("consumer"), "sink")
        assert pin is not None
        merge_and_collect(table_env)
        with contextlib.suppress(Invalid):
            cursor.save_cursor(table_env.context("consumer"), pin, {table_env.environment.id: Position(1)})
        with contextlib.suppress(Invalid):
            check_changes(table_env, open_stream(table_env))


def cursor_below_the_log(_: Path) -> None:
    """A cursor is created before entries that are collected."""
    with with_pending_generations() as table_env:
        merge_and_collect(table_env)
        with contextlib.suppress(Invalid, Contended):
            cursor.create_cursor(table_env.context("consumer"), "sink", start=lambda *_: Position(1))
        if cursor.find_cursor(table_env.context("consumer"), "sink"):
            check_changes(table_env, open_stream(table_env))


# A cursor that is set


def collected_before_it_arrives(_: Path) -> None:
    """A cursor is set back. Before it arrives, a collection must keep the entries that it will read again."""
    with with_pending_generations() as table_env:
        stream, context = open_stream(table_env), table_env.context("mover", faulty=False)
        check_changes(table_env, stream)
        stream.save()
        moving = announced(context, Position(1))
        merge_and_collect(table_env)
        cursor.finish_move(context, moving)
        check_changes(table_env, open_stream(table_env))


def withdrawn_announcement(_: Path) -> None:
    """A cursor is to be set past unread entries, but the announcement is withdrawn."""
    with with_pending_generations() as table_env:
        stream, context = open_stream(table_env), table_env.context("mover", faulty=False)
        moving = announced(context, Position(3))
        merge_and_collect(table_env)
        cursor.cancel_move(context, moving)
        check_changes(table_env, stream)


def announced(context: TableContext, position: Position) -> Pin:
    """Announce a new position of the cursor."""
    found = cursor.find_cursor(context, "sink")
    assert found is not None
    moving = cursor.start_move(context, found)
    needs = {region: RegionPin(first_position=position) for region in found.regions}
    return replace(moving, regions=pins.pin_regions(context, moving, needs))


def arrives_too_late(_: Path) -> None:
    """A setter stalls until a collector has withdrawn its announcement and collected the entries that it kept."""
    with with_pending_generations() as table_env:
        stream, context = open_stream(table_env), table_env.context("mover", faulty=False)
        check_changes(table_env, stream)
        stream.save()
        moving = announced(context, Position(1))
        table_env.environment.schedule.clock.advance(TWO_HOURS)
        merge_and_collect(table_env)
        with contextlib.suppress(Contended):
            cursor.finish_move(context, moving)
        check_changes(table_env, open_stream(table_env))


def arrives_before_it_is_withdrawn(_: Path) -> None:
    """A collector reads an expired announcement. Before it withdraws the announcement, the cursor arrives."""
    with with_pending_generations() as table_env:
        stream, context = open_stream(table_env), table_env.context("mover", faulty=False)
        check_changes(table_env, stream)
        stream.save()
        table_env.merge()
        handle = table_env.handle("collector", faulty=False)
        rounds = collection.mark(handle).rounds
        collection.verify(handle, rounds)
        moving = announced(context, Position(1))
        collection.commit(handle, rounds)
        table_env.environment.schedule.clock.advance(TWO_HOURS)
        read, arrived = sweep.read_pins, list[Pin]()

        def read_then_arrived(of: TableContext) -> list[Pin]:
            found = read(of)
            arrived.append(cursor.finish_move(context, moving))
            return found

        with mock.patch.object(sweep, "read_pins", read_then_arrived):
            collection.sweep(handle, rounds)
        assert [cursor.find_cursor(context, "sink")] == arrived
        check_changes(table_env, open_stream(table_env))


def set_back_to_swept_entries(_: Path) -> None:
    """A floor has passed the cursor. Before its new position counts, its consumer saves, and its entries are swept."""
    with with_pending_generations() as table_env:
        table_env.merge()
        handle, context = table_env.handle("collector", faulty=False), table_env.context("consumer", faulty=False)
        rounds = collection.mark(handle).rounds
        collection.verify(handle, rounds)
        read = cursor.create_cursor(context, "sink", start=lambda *_: Position(1))
        collection.commit(handle, rounds)
        announce = cursor.start_move

        def saved_and_swept_first(context: TableContext, pin: Pin) -> Pin:
            if pin == read:
                cursor.save_cursor(context, read, {table_env.environment.id: Position(3)})
                collection.sweep(handle, rounds)
            return announce(context, pin)

        with mock.patch.object(cursor, "start_move", saved_and_swept_first), contextlib.suppress(Invalid):
            cursor.set_cursor(context, "sink", start=lambda *_: Position(2))
        check_changes(table_env, open_stream(table_env))


def saved_before(step: str) -> Scenario:
    """A cursor is set in one region. Before this step, a consumer saves it in another region."""
    scenario = cursor_scenarios.save_in_another_region_during_a_set_is_kept_or_refused
    return with_two_regions(scenario, of=cursor, step=step)


def saved_by_a_reader_of_the_old_cursor(path: Path) -> None:
    """A cursor is dropped and created again. Then there is a region that neither of the two has a record of."""
    made = tables.create(path, regions="identity(id)")
    context = open_table(made.uri).context
    old = cursor.create_cursor(context, "sink", start=lambda *_: Position(1))
    cursor.drop_cursor(context, "sink")
    cursor.create_cursor(context, "sink", start=lambda *_: Position(1))
    (entry,) = made.upsert([tables.row(5)]).entries
    with pytest.raises(Contended):
        cursor.save_cursor(context, old, {entry.region: Position(2)})


def region_created_after_the_cursor(path: Path) -> None:
    """A cursor without a record of a region reads all entries of that region."""
    made = tables.create(path, regions="identity(id)")
    made.set_cursor("sink")
    made.upsert([tables.row(5)])
    made.run()
    made.collect(yes=True, interval_seconds=0)
    assert [change.position for change in made.changes(cursor="sink")] == [1]


def region_created_after_the_stream(path: Path) -> None:
    """A stream from the latest entry on reads all entries of a region that is created later."""
    made = tables.create(path, regions="identity(id)")
    found = made.changes(start="latest")
    assert list(found) == []
    made.upsert([tables.row(5)])
    assert [change.position for change in found] == [1]


GUARDS: dict[str, tuple[list[Edit], Scenario]] = {
    "a cursor that was confirmed without an answer stays": (
        [without("confirmed pin stays")],
        with_two_regions(cursor_scenarios.confirmed_cursor_stays_if_the_reply_was_lost),
    ),
    "a setter sets the cursor that another process has just created": (
        [without("cursor of another creator is set", instead=True)],
        with_two_regions(cursor_scenarios.cursor_created_during_a_set_is_set_too),
    ),
    "a dropped cursor keeps nothing": (
        [without("dropped cursor keeps nothing", instead=True)],
        dropped_cursor,
    ),
    "a cursor keeps the log from its position on": (
        [without("cursor keeps from its position on")],
        moved_cursor,
    ),
    "entries that a cursor keeps are read below the floor": (
        [without("kept entries are read below the floor")],
        passed_cursor,
    ),
    "a cursor is read after the entries that it keeps": (
        [moved("head and cursor are read after the entries", by=1)],
        dropped_before_the_entries_are_read,
    ),
    "a save never moves a cursor back": (
        [without("save never moves a cursor back"), without("floor never decreases")],
        cursor_saved_back,
    ),
    "a cursor does not begin before the log": (
        [without("cursor does not begin before the log"), without("cursor is confirmed against the floors")],
        cursor_below_the_log,
    ),
    "the new position of a cursor that is set counts": (
        [without("new position of a moved cursor counts")],
        collected_before_it_arrives,
    ),
    "the old position of a cursor that is set counts": (
        [
            changed(
                "old position of a moved cursor counts",
                "record.get(NEXT) or found.append("
                '_pin(kind, name, record, parts.get((name, str(record.get("nonce"))), {})))',
            )
        ],
        withdrawn_announcement,
    ),
    "a cursor does not arrive after its announcement was withdrawn": (
        [without("withdrawn announcement does not arrive", instead={})],
        arrives_too_late,
    ),
    "an announcement is not withdrawn after the cursor has arrived": (
        [without("announcement is not withdrawn after the arrival", instead={})],
        arrives_before_it_is_withdrawn,
    ),
    "an announcement is withdrawn before it stops counting": (
        [without("announcement counts until it is withdrawn")],
        arrives_before_it_is_withdrawn,
    ),
    "a cursor that is set in one region is not saved in another one meanwhile": (
        [without("saves fail while one region is set")],
        saved_before("finish_move"),
    ),
    "a cursor arrives only where nothing was collected": (
        [without("cursor arrives where nothing is collected", instead=True)],
        set_back_to_swept_entries,
    ),
    "the old position of a cursor is read after the new one is announced": (
        [moved("old position is read after the new one is announced", out=1, by=-2)],
        set_back_to_swept_entries,
    ),
    "a cursor keeps its position in regions where it is not set": (
        [without("cursor keeps its position where it is not set")],
        saved_before("start_move"),
    ),
    "a save checks that the cursor is still the same": (
        [without("saved cursor is the same")],
        saved_by_a_reader_of_the_old_cursor,
    ),
    "a cursor keeps all entries of a region that it has no record of": (
        [without("cursor keeps regions without a record")],
        region_created_after_the_cursor,
    ),
    "a stream reads all entries of a region that is created after its start": (
        [without("new region is read from its start")],
        region_created_after_the_stream,
    ),
}


OWN = (
    arrives_too_late,
    arrives_before_it_is_withdrawn,
    cursor_below_the_log,
    cursor_saved_back,
    dropped_before_the_entries_are_read,
    dropped_cursor,
    withdrawn_announcement,
    collected_before_it_arrives,
    moved_cursor,
    passed_cursor,
    region_created_after_the_stream,
    region_created_after_the_cursor,
    saved_by_a_reader_of_the_old_cursor,
    set_back_to_swept_entries,
)


test_a_scenario_passes_with_all_guards, test_the_scenario_fails_without_its_guard = with_and_without(GUARDS, own=OWN)
