"""Each guard of cursors and of the streams that they keep carries weight: without it, a scenario ends badly."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from lancelsm import registry
from lancelsm.common.layout import Position, head_key, wal_entry
from lancelsm.errors import Contended, Invalid
from lancelsm.gc import collect as collection
from lancelsm.gc import sweep
from lancelsm.history import changes, cursor, pins
from lancelsm.history.pins import Pin, RegionPin
from lancelsm.region.catalog import TableContext
from lancelsm.region.handle import open_table
from tests.simulation.environment import TABLE
from tests.simulation.faults import Call, FaultPlan
from tests.simulation.removal import Edit, Scenario, with_and_without
from tests.simulation.test_guards_of_pins import LONG, of_two_regions
from tests.simulation.test_guards_of_reads import a_table_env, folded, late_entries, shown
from tests.simulation.whole_table_env import ROWS, WholeTableEnv
from tests.unit import cursor_scenarios, tables

# A cursor that stays where it is


def stream(table_env: WholeTableEnv, name: str = "consumer") -> changes.Changes:
    return changes.Changes(table_env.context(name, faulty=False), ROWS, cursor="sink")


def dropped_cursor(_: Path) -> None:
    with a_table_env() as table_env:
        mine = stream(table_env)
        cursor.drop_cursor(table_env.context("other"), "sink")
        folded(table_env)
        with pytest.raises(Invalid, match="collected"):
            shown(table_env, mine)


def moved_cursor(_: Path) -> None:
    """Another consumer of the cursor has read and saved everything."""
    with a_table_env() as table_env:
        mine, other = stream(table_env), stream(table_env, "other")
        shown(table_env, other)
        other.save()
        folded(table_env)
        with pytest.raises(Invalid, match="collected"):
            shown(table_env, mine)


def passed_cursor(_: Path) -> None:
    """A round that had read the pins before the cursor was made commits its floor after that."""
    with a_table_env() as table_env:
        mine = stream(table_env)
        key = head_key(TABLE, table_env.environment.id)
        table_env.context("collector").registry.swap(key, expect={}, change={"first_position": 3})
        shown(table_env, mine)


def dropped_before_the_entries_are_read(_: Path) -> None:
    """Below the floor an entry proves something only by a cursor that is read after it."""
    with a_table_env() as table_env:
        table_env.merge()
        mine = changes.Changes(table_env.context("consumer"), ROWS, cursor="sink")
        key = head_key(TABLE, table_env.environment.id)
        table_env.context("collector", faulty=False).registry.swap(key, expect={}, change={"first_position": 3})

        def dropped(call: Call) -> None:
            if call.method == "get" and "/wal/" in call.key and not seen:
                seen.append(call.index)
                cursor.drop_cursor(table_env.context("other", faulty=False), "sink")
                for position in table_env.environment.log:
                    table_env.environment.store.remove(wal_entry(table_env.environment.id, position))
                late_entries(table_env)

        seen: list[int] = []
        table_env.environment.plan = FaultPlan(dropped)
        mine._context = table_env.context("consumer")
        with pytest.raises(Invalid, match="collected"):
            shown(table_env, mine)
        assert seen


def cursor_set_back(_: Path) -> None:
    """One that has passed entries is not saved before them: they are collected."""
    with a_table_env() as table_env:
        mine = stream(table_env)
        shown(table_env, mine)
        mine.save()
        pin = cursor.find_cursor(table_env.context("consumer"), "sink")
        assert pin is not None
        folded(table_env)
        with contextlib.suppress(Invalid):
            cursor.save_cursor(table_env.context("consumer"), pin, {table_env.environment.id: Position(1)})
        with contextlib.suppress(Invalid):
            shown(table_env, stream(table_env))


def cursor_of_what_is_gone(_: Path) -> None:
    with a_table_env() as table_env:
        folded(table_env)
        with contextlib.suppress(Invalid, Contended):
            cursor.make_cursor(table_env.context("consumer"), "sink", start=lambda *_: Position(1))
        if cursor.find_cursor(table_env.context("consumer"), "sink"):
            shown(table_env, stream(table_env))


# A cursor that is moved


def moved_back(_: Path) -> None:
    """What it is to read again is kept before it is there."""
    with a_table_env() as table_env:
        mine, context = stream(table_env), table_env.context("mover", faulty=False)
        shown(table_env, mine)
        mine.save()
        moving = announced(context, Position(1))
        folded(table_env)
        cursor.arrive(context, moving)
        shown(table_env, stream(table_env))


def left_where_it_was(_: Path) -> None:
    """It is to be moved past what it has not read, and then it is not."""
    with a_table_env() as table_env:
        mine, context = stream(table_env), table_env.context("mover", faulty=False)
        moving = announced(context, Position(3))
        folded(table_env)
        cursor.withdraw(context, moving)
        shown(table_env, mine)


def announced(context: TableContext, position: Position) -> Pin:
    """The cursor's new place, recorded."""
    found = cursor.find_cursor(context, "sink")
    assert found is not None
    moving = cursor.announce(context, found)
    needs = {region: RegionPin(first_position=position) for region in found.regions}
    return replace(moving, regions=pins.pin_regions(context, moving, needs))


def arrives_too_late(_: Path) -> None:
    """Who moves it back stalls until a collector has given the new place up, and has collected what it kept."""
    with a_table_env() as table_env:
        mine, context = stream(table_env), table_env.context("mover", faulty=False)
        shown(table_env, mine)
        mine.save()
        moving = announced(context, Position(1))
        table_env.environment.schedule.clock.advance(LONG)
        folded(table_env)
        with contextlib.suppress(Contended):
            cursor.arrive(context, moving)
        shown(table_env, stream(table_env))


def arrives_while_it_is_judged(_: Path) -> None:
    """A collector has read the new place, which has expired; before it gives that up, the cursor is there."""
    with a_table_env() as table_env:
        mine, context = stream(table_env), table_env.context("mover", faulty=False)
        shown(table_env, mine)
        mine.save()
        table_env.merge()
        handle = table_env.handle("collector", faulty=False)
        rounds = collection.mark(handle).rounds
        collection.verify(handle, rounds)
        moving = announced(context, Position(1))
        collection.commit(handle, rounds)
        table_env.environment.schedule.clock.advance(LONG)
        read, arrived = sweep.read_pins, list[Pin]()

        def read_then_arrived(of: TableContext) -> list[Pin]:
            found = read(of)
            arrived.append(cursor.arrive(context, moving))
            return found

        with mock.patch.object(sweep, "read_pins", read_then_arrived):
            collection.sweep(handle, rounds)
        assert [cursor.find_cursor(context, "sink")] == arrived
        shown(table_env, stream(table_env))


def set_back_to_what_is_swept(_: Path) -> None:
    """A floor has passed it. Before its new place counts, its consumer saves, and what it kept until then is swept."""
    with a_table_env() as table_env:
        table_env.merge()
        handle, context = table_env.handle("collector", faulty=False), table_env.context("consumer", faulty=False)
        rounds = collection.mark(handle).rounds
        collection.verify(handle, rounds)
        read = cursor.make_cursor(context, "sink", start=lambda *_: Position(1))
        collection.commit(handle, rounds)
        announce = cursor.announce

        def saved_and_swept_first(context: TableContext, pin: Pin) -> Pin:
            if pin == read:
                cursor.save_cursor(context, read, {table_env.environment.id: Position(3)})
                collection.sweep(handle, rounds)
            return announce(context, pin)

        with mock.patch.object(cursor, "announce", saved_and_swept_first), contextlib.suppress(Invalid):
            cursor.set_cursor(context, "sink", start=lambda *_: Position(2))
        shown(table_env, stream(table_env))


def saved_before(step: str) -> Scenario:
    """A cursor is set in one region; before this step of it, a consumer saves it in another one."""
    scenario = cursor_scenarios.save_in_another_region_during_a_set_is_kept_or_refused
    return of_two_regions(scenario, of=cursor, step=step)


def saved_by_who_read_from_the_old_one(place: Path) -> None:
    """A cursor was made anew; then there is a region that neither has a record of."""
    made = tables.create(place, regions="identity(id)")
    context = open_table(made.uri).context
    old = cursor.make_cursor(context, "sink", start=lambda *_: Position(1))
    cursor.drop_cursor(context, "sink")
    cursor.make_cursor(context, "sink", start=lambda *_: Position(1))
    (entry,) = made.upsert([tables.row(5)]).entries
    with pytest.raises(Contended):
        cursor.save_cursor(context, old, {entry.region: Position(2)})


def region_that_is_made_later(place: Path) -> None:
    """A cursor that has no record of a region has everything of it to read."""
    made = tables.create(place, regions="identity(id)")
    made.set_cursor("sink")
    made.upsert([tables.row(5)])
    made.run()
    made.collect(yes=True, interval_seconds=0)
    assert [change.position for change in made.changes(cursor="sink")] == [1]


def region_that_is_made_after(place: Path) -> None:
    """A stream of what comes leaves nothing out of a region that comes."""
    made = tables.create(place, regions="identity(id)")
    found = made.changes(start="latest")
    assert list(found) == []
    made.upsert([tables.row(5)])
    assert [change.position for change in found] == [1]


GUARDS: dict[str, tuple[list[Edit], Scenario]] = {
    "a cursor that is confirmed though nobody was raised so stays": (
        [(pins._end, 'if record.get("confirmed") and not confirmed:', "if False:")],
        of_two_regions(cursor_scenarios.confirmed_cursor_stays_if_the_reply_was_lost),
    ),
    "who sets a cursor that another has just made sets that one": (
        [(cursor.set_cursor, 'if pins.named(context, "cursor", name) is None:', "if True:")],
        of_two_regions(cursor_scenarios.cursor_created_during_a_set_is_set_too),
    ),
    "a cursor that is gone keeps nothing": (
        [
            (
                cursor.keeps,
                "return needs is not None and needs.first_position <= position",
                "return needs is None or needs.first_position <= position",
            )
        ],
        dropped_cursor,
    ),
    "a cursor keeps the log from its position on": (
        [
            (
                cursor.keeps,
                "return needs is not None and needs.first_position <= position",
                "return needs is not None",
            )
        ],
        moved_cursor,
    ),
    "what a cursor keeps is read below the floor": ([(changes.committed, " and not kept():", ":")], passed_cursor),
    "a cursor is read after the entries that it keeps": (
        [
            (changes.committed, "    found = region", "    keeping = kept()\n    found = region"),
            (changes.committed, " and not kept():", " and not keeping:"),
        ],
        dropped_before_the_entries_are_read,
    ),
    "a cursor does not go back": (
        [
            (cursor.save_cursor, "if position < _position(pin, region):", "if False:"),
            (registry.apply_swap, "if isinstance(old, int) and (not isinstance(new, int) or new < old):", "if False:"),
        ],
        cursor_set_back,
    ),
    "a cursor does not begin before the log": (
        [
            (cursor._starts, "if position < head.first_position and", "if False and"),
            (pins.overtaken, "head.first_position > needs.first_position or bool(collected)", "bool(collected)"),
        ],
        cursor_of_what_is_gone,
    ),
    "the new place of a cursor that is moved counts": (
        [(pins.pins_of, "if record.get(NEXT):", "if False:")],
        moved_back,
    ),
    "the old place of a cursor that is moved counts": (
        [
            (
                pins.pins_of,
                "found.append(_pin(kind, name, record,",
                "record.get(NEXT) or found.append(_pin(kind, name, record,",
            )
        ],
        left_where_it_was,
    ),
    "a cursor does not arrive where it is not moved any more": (
        [(cursor.arrive, "expect=witness", "expect={}")],
        arrives_too_late,
    ),
    "a cursor that has arrived is not left where it was": (
        [(cursor.withdraw, "expect=witness", "expect={}")],
        arrives_while_it_is_judged,
    ),
    "the new place of a cursor is given up before it stops to count": (
        [
            (
                sweep.expire_pins,
                "except (Contended, Unavailable):\n                counting.append(pin)",
                "except (Contended, Unavailable):\n                pass",
            )
        ],
        arrives_while_it_is_judged,
    ),
    "a cursor that is set in one region is saved in no other meanwhile": (
        [(cursor._moved_to, "_hold(context, now, but=only)", "pass")],
        saved_before("arrive"),
    ),
    "a cursor arrives where nothing was collected": (
        [(cursor._is_kept, "return head is None or place >= min(head.first_position, old)", "return True")],
        set_back_to_what_is_swept,
    ),
    "what the old place of a cursor keeps is read after the new one is recorded": (
        [(cursor._moved_to, "_is_kept(context, moving, now, only)", "_is_kept(context, moving, before, only)")],
        set_back_to_what_is_swept,
    ),
    "where a cursor is not set it stays where it was read to": (
        [(cursor._is_kept, "if only not in (None, region.id):", "if False:")],
        saved_before("announce"),
    ),
    "a cursor is held after a save": (
        [(cursor.save_cursor, "if moved and not pins.held(context, pin):", "if False:")],
        saved_by_who_read_from_the_old_one,
    ),
    "a cursor keeps all of a region that it has no record of": (
        [
            (
                pins.Pin.of,
                'RegionPin(first_position=_START) if found is None and self.kind == "cursor" else found',
                "found",
            )
        ],
        region_that_is_made_later,
    ),
    "a stream reads all of a region that is made after it began": (
        [(changes.Changes._first, "if self._begun:", "if False:")],
        region_that_is_made_after,
    ),
}


OWN = (
    arrives_too_late,
    arrives_while_it_is_judged,
    cursor_of_what_is_gone,
    cursor_set_back,
    dropped_before_the_entries_are_read,
    dropped_cursor,
    left_where_it_was,
    moved_back,
    moved_cursor,
    passed_cursor,
    region_that_is_made_after,
    region_that_is_made_later,
    saved_by_who_read_from_the_old_one,
    set_back_to_what_is_swept,
)


test_with_all_guards_a_story_ends_well, test_without_the_guard_a_story_ends_badly = with_and_without(GUARDS, own=OWN)
