"""Collections of a region against everything that can happen meanwhile: nothing that anybody needs is deleted.

Bugs that others had are tests by name; the numbers are those of their issues.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from lancelsm import pins
from lancelsm.claim import claim, seal
from lancelsm.commit import commit, newest
from lancelsm.errors import Ambiguous, Contended, Corrupt, Invalid, Unavailable
from lancelsm.gc import collect as collection
from lancelsm.gc.sweep import sweep_leftovers
from lancelsm.layout import Position, round_prefix, snapshots, wal_entry
from lancelsm.pins import Pin, RegionPin, pins_of
from lancelsm.settings import Settings
from lancelsm.wal.entry import encode
from lancelsm.wal.replay import tail
from tests.simulation.collected import LONG, TornListings, collected_by, expired, finish, run, small
from tests.simulation.collecting import TTL, Lake, filled
from tests.simulation.faults import (
    CRASH_BEFORE,
    EVERY_FAULT,
    FAIL_AFTER,
    FAIL_BEFORE,
    Call,
    Crash,
    Fault,
    FaultPlan,
    late,
    stall,
)
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.schedule import Schedule
from tests.simulation.situations import noted
from tests.simulation.whole_lake import SkewedClock, WholeLake
from tests.simulation.world import OWNER, PASSING, World, a_nonce, row, told

SITUATIONS: dict[str, Callable[[], Lake]] = {
    "merged generations": lambda: small(merged=1),
    "the log alone": lambda: small(merged=0),
    "a pin": lambda: _pinned(small()),
    "an expired pin": lambda: expired(small()),
    "orphans": lambda: _orphaned(small()),
    "a round before": lambda: _collected_once(small()),
}


def _pinned(lake: Lake) -> Lake:
    lake.pin("held")
    lake.merge()
    return lake


def _orphaned(lake: Lake) -> Lake:
    store = lake.world.store
    store.create(f"_mem_wal/{lake.world.id}/00000000_gen_2/data/a.lance", b"a crashed flush")
    store.create(f"{round_prefix(lake.world.id)}1-{'0' * 32}.binpb", b"a collector that crashed")
    return lake


def _collected_once(lake: Lake) -> Lake:
    lake.collect("earlier")
    lake.merge()
    lake.write(100, 101)
    lake.flush()
    return lake


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_fault_at_any_call_leaves_what_is_needed_and_a_second_collector_finishes(situation: str) -> None:
    make = SITUATIONS[situation]
    for call in collected_by(make()):
        for fault in (*EVERY_FAULT, stall(LONG)) if call.writes else (FAIL_BEFORE, CRASH_BEFORE, stall(LONG)):
            with noted(situation, call, fault):
                lake = make()
                heard = run(lake, FaultPlan.at(call.index, fault, clock=lake.world.schedule.clock))
                assert heard is None or isinstance(heard, (Crash, Unavailable, Ambiguous, Contended)), heard


OTHERS: dict[str, Callable[[Lake], object]] = {
    "collects": lambda lake: lake.collect("other"),
    "commits a round": lambda lake: lake.collect("other", interval=TTL),
    "appends": lambda lake: lake.write(200),
    "appends, flushes": lambda lake: (lake.write(200, 201), lake.flush()),
    "appends, flushes, merges": lambda lake: (lake.write(200, 201), lake.flush(), lake.merge()),
    "merges": lambda lake: lake.merge(),
    "takes a snapshot": lambda lake: lake.pin("other"),
    "merges, takes a snapshot": lambda lake: (lake.merge(), lake.pin("other")),
    "begins a snapshot and dies": lambda lake: lake.begin_pin("other"),
    "claims": lambda lake: claim(lake.region("other"), owner=OWNER),
    "seals": lambda lake: seal(lake.region("other")),
    "collects, merges, collects": lambda lake: (lake.collect("other"), lake.merge(), lake.collect("another")),
    "collects, appends, flushes, merges, collects": lambda lake: (
        lake.collect("other"),
        lake.write(200, 201),
        lake.flush(),
        lake.merge(),
        lake.collect("another"),
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_operation_before_any_call_costs_nobody_anything(other: str) -> None:
    calls = collected_by(small())
    for before, call in zip([None, *calls], calls, strict=False):
        for fault in (None, FAIL_AFTER, late(2)) if before is not None and before.writes else (None,):
            with noted(other, call, fault):
                lake = small()

                def decide(
                    now: Call, lake: Lake = lake, call: Call = call, fault: Fault | None = fault
                ) -> Fault | None:
                    if now.index == call.index:
                        assert told(lambda: OTHERS[other](lake)) is None
                        lake.audit()
                    return fault if now.index == call.index - 1 and now.writes else None

                heard = run(lake, FaultPlan(decide))
                assert heard is None or isinstance(heard, (Unavailable, Ambiguous, Contended)), heard


def test_slatedb_352_and_1622_a_stalled_writer_is_never_acknowledged_into_a_slot_that_was_swept() -> None:
    lake = filled(tail_rows=0)

    def everything_goes(call: Call) -> Fault | None:
        if call.process == "stalled" and call.method == "create" and "/wal/" in call.key:
            lake.write(300)
            lake.flush(rows_max=100)
            lake.merge()
            lake.collect()
            assert lake.world.store.get(call.key) is None, "the slot is free again"
        return None

    lake.world.plan = FaultPlan(everything_goes)
    error = told(lambda: lake.world.write(lake.world.region("stalled"), 400))

    assert isinstance(error, Ambiguous)
    assert 400 not in lake.world.acknowledged
    finish(lake)


def test_slatedb_1682_what_a_zombie_puts_below_the_floor_is_no_part_of_the_log_and_goes_with_the_next_round() -> None:
    lake = filled()
    lake.collect()
    zombie = encode(row(400), position=Position(3), epoch=1, nonce=a_nonce(400))
    lake.world.store.create(wal_entry(lake.world.id, Position(3)), zombie.body)

    lake.audit()
    assert wal_entry(lake.world.id, Position(3)) in [one.path for one in lake.look().candidates]
    lake.collect()

    assert lake.world.store.get(wal_entry(lake.world.id, Position(3))) is None


@pytest.mark.parametrize("at", ["first write", "read back", "commit"])
def test_slatedb_604_a_stalled_flush_whose_files_were_swept_is_dead_and_says_nothing_else(at: str) -> None:
    lake = filled(flushed=2, merged=0)
    seen = []

    def the_generation_is_taken(call: Call) -> Fault | None:
        if call.process != "stalled":
            return None
        inside = "_gen_3/" in call.key
        here = {
            "first write": inside and call.method == "create",
            "read back": inside and call.method == "get",
            "commit": call.method == "swap",
        }[at]
        if here and not seen:
            seen.append(call)
            assert lake.flush(rows_max=100) is not None
            lake.merge()
            lake.collect()
        return None

    lake.world.plan = FaultPlan(the_generation_is_taken)
    assert lake.flush(lake.world.region("stalled")) is None
    assert seen
    finish(lake)
    assert [key for key in lake.stored() if "_gen_" in key] == []


def test_slatedb_1392_and_1025_a_reader_whose_log_was_swept_is_told_to_look_again() -> None:
    lake = filled()
    region = lake.region("reader")
    head, manifest = newest(region, region.head())
    lake.flush(rows_max=100)
    lake.merge()
    lake.collect()

    assert tail(region, head, manifest) is None


def test_slatedb_1641_a_listing_that_fails_in_the_middle_every_time_stops_no_collection() -> None:
    lake = filled()
    prefix = f"_mem_wal/{lake.world.id}/"
    leftovers = [f"{prefix}manifest/staged/1-{number:032x}.binpb" for number in range(1_300)]
    for key in leftovers:
        lake.world.store.create(key, b"never named")
    opened = lake.opened("collector", faulty=False)
    torn = replace(opened.storage, objects=TornListings(opened.storage.objects, after=700))
    opened.storage = torn

    with lake.collecting():
        for _ in range(4):
            collection.collect(opened, yes=True, interval_seconds=0)
            lake.audit()

    left = set(leftovers) & {line.key for line in lake.world.store.list(prefix)}
    assert left == set()


def test_a_pin_that_expires_before_the_sweep_and_is_renewed_while_that_judges_it_counts() -> None:
    lake = small()
    needed = lake.needs(lake.region("holder"))
    lake.merge()
    storage = lake.region("holder").storage
    renewed = []

    def made_then_renewed(call: Call) -> None:
        if call.process != "victim":
            return
        if call.method == "create" and "/manifest/staged/" in call.key and not lake.pinned:
            assert lake.end_pin(lake.begin_pin("held", needed))  # verified without it, committed with it
            lake.world.schedule.clock.advance(LONG)
        if call.port == "registry" and call.method == "delete" and lake.pinned and not renewed:
            pin = lake.pinned.pop()
            renewed.append(pins.step(storage, replace(pin, expires=storage.clock.now() + TTL)))
            lake.pinned += renewed

    run(lake, FaultPlan(made_then_renewed))
    assert renewed


def test_a_snapshot_whose_maker_looked_before_the_round_is_confirmed_and_kept_or_neither() -> None:
    kept = 0

    def looked_at() -> tuple[Lake, RegionPin]:
        lake = small()
        needed = lake.needs(lake.region("maker"))
        lake.merge()
        return lake, needed

    for call in collected_by(looked_at()[0]):
        lake, needed = looked_at()

        def pins_late(now: Call, lake: Lake = lake, needed: RegionPin = needed, at: int = call.index) -> None:
            if now.index == at:
                lake.end_pin(lake.begin_pin("late", needed))

        with noted(call):
            run(lake, FaultPlan(pins_late))
        kept += len(lake.pinned)
    assert 0 < kept < call.index


def _collected_before_it_expires(lake: Lake, *, skew: float) -> list[Pin]:
    """What stands of the pins when a collector whose clock is wrong by `skew` came a minute before they expire."""
    lake.merge()
    lake.world.schedule.clock.advance(TTL - 60)
    opened = lake.opened("collector", faulty=False)
    opened.storage = replace(opened.storage, clock=SkewedClock(opened.storage.clock, skew))
    with lake.collecting():
        collection.collect(opened, yes=True, interval_seconds=0)
    storage = lake.region("holder").storage
    return pins_of(storage.registry.list(snapshots(storage.table)))


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_a_clock_that_is_an_hour_off_costs_a_pin_its_life_at_most_and_its_holder_is_told(skew: float) -> None:
    lake = filled()
    pin = lake.pin("held")

    left = _collected_before_it_expires(lake, skew=skew)

    if skew < 0:
        assert len(left) == 1
    else:
        assert left == []
        lake.pinned.clear()
        storage = lake.region("holder").storage
        with pytest.raises(Contended, match="changed or removed"):
            pins.step(storage, replace(pin, expires=storage.clock.now() + TTL))
    lake.audit()


def test_a_clock_that_is_ahead_by_less_than_the_allowance_costs_no_pin_its_life() -> None:
    lake = small()
    lake.pin("held")

    assert len(_collected_before_it_expires(lake, skew=120.0)) == 1
    lake.audit()


def test_chroma_4972_nothing_is_deleted_for_a_round_that_was_not_committed() -> None:
    lake = filled()
    opened = lake.opened("collector", faulty=False)
    with lake.collecting():
        marked = collection.mark(opened)
        before = lake.stored()
        with pytest.raises(Invalid, match="not committed"):
            collection.sweep(opened, marked.rounds)

    assert lake.stored() == before


def test_chroma_4972_a_round_that_lost_to_another_deletes_nothing() -> None:
    lake = filled()
    opened = lake.opened("slow", faulty=False)
    with lake.collecting():
        slow = collection.mark(opened)
        collection.verify(opened, slow.rounds)
        lake.collect("fast", interval=TTL)
        before = lake.stored()

        assert collection.commit(opened, slow.rounds).rounds == ()
        assert collection.sweep(opened, slow.rounds).deleted == 0

    assert lake.stored() == before
    finish(lake)
    lake.flush(rows_max=100)
    lake.collect()
    assert lake.world.store.get(slow.rounds[0]) is None, "its list goes with the next round"


def test_chroma_5153_a_manifest_that_changed_between_mark_and_commit_keeps_what_it_gained() -> None:
    lake = filled()
    opened = lake.opened("collector", faulty=False)
    with lake.collecting():
        marked = collection.mark(opened)
        lake.flush(rows_max=100)
        claim(lake.region("claimer"), owner=OWNER)
        collection.verify(opened, marked.rounds)
        collection.commit(opened, marked.rounds)
        lake.write(300)
        collection.sweep(opened, marked.rounds)

    head = lake.audit()
    assert [g.generation for g in newest(lake.region("reader"), head)[1].generations] == [3, 4, 5]


def test_chroma_5191_and_5207_every_step_repeated_changes_nothing() -> None:
    lake = filled()
    opened = lake.opened("collector", faulty=False)
    with lake.collecting():
        marked = collection.mark(opened)
        for step in (collection.verify, collection.commit, collection.verify, collection.commit, collection.sweep):
            step(opened, marked.rounds)
            first = (lake.stored(), lake.region("reader").head())
            step(opened, marked.rounds)
            assert (lake.stored(), lake.region("reader").head()) == first
            lake.audit()


def test_chroma_4834_two_collectors_step_by_step_leave_what_one_leaves() -> None:
    alone = filled()
    alone.collect()
    alone.collect()
    left = [key for key in alone.stored() if "_gen_" in key or "wal/" in key]
    for seed in range(60):
        with noted(seed):
            schedule = Schedule(seed)
            lake = filled(lake=Lake(world=World(schedule=schedule)))
            acts = {name: partial(lake.collect, name, faulty=True) for name in ("one", "two")}
            with lake.collecting():
                outcomes = schedule.run(acts).values()
            heard = [outcome.error for outcome in outcomes if outcome.error is not None]
            assert all(isinstance(error, (Contended, Ambiguous)) for error in heard), heard
            lake.audit()
            lake.collect("last")
            lake.audit()
            now = [key for key in lake.stored() if "_gen_" in key or "wal/" in key]
            assert sorted(key.partition("_")[2] for key in now) == sorted(key.partition("_")[2] for key in left)
            assert len(lake.stored()) <= len(alone.stored()) + 3


def crowd(seed: int) -> None:
    """Everybody at once, under faults; then all is well."""
    schedule = Schedule(seed)
    world = World(schedule=schedule, budget_seconds=5.0)
    lake = filled(flushed=2, merged=1, lake=Lake(world=world))
    rates = {FAIL_AFTER: 0.03, FAIL_BEFORE: 0.03, late(3): 0.02, late(1_000): 0.01, stall(LONG): 0.01}

    def often(times: int, act: Callable[[int], object]) -> Callable[[], None]:
        def body() -> None:
            for number in range(times):
                with contextlib.suppress(*PASSING):
                    act(number)

        return body

    with contextlib.redirect_stdout(io.StringIO()), noted(seed), lake.collecting():
        world.plan = FaultPlan.seeded(seed, rates, clock=schedule.clock)
        outcomes = schedule.run(
            {
                "collector": often(4, lambda _: lake.collect("collector", faulty=True)),
                "rival": often(4, lambda _: lake.collect("rival", faulty=True)),
                "writer": often(12, lambda n: world.write(world.region("writer"), 1_000 + n)),
                "stalled": often(3, lambda n: world.write(world.region("stalled"), 2_000 + n)),
                "flusher": often(5, lambda _: lake.flush(world.region("flusher"), rows_max=3)),
                "merger": often(4, lambda _: lake.merge()),
                "holder": often(3, lambda n: lake.end_pin(lake.begin_pin(f"s{n}"))),
            }
        )
        assert {name: one.error for name, one in outcomes.items() if one.error} == {}
        world._audit_writers()
        finish(lake)


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_a_crowd_of_everybody_keeps_what_anybody_needs(first: int) -> None:
    for seed in range(first, first + 50):
        crowd(seed)


def test_a_pin_that_is_begun_while_leftovers_are_listed_keeps_its_records() -> None:
    lake = filled()
    storage = lake.region("holder").storage

    class Torn:
        """A listing in two pages, between which a pin is begun."""

        def __init__(self, inner) -> None:
            self._inner = inner

        def __getattr__(self, name: str):
            return getattr(self._inner, name)

        def list(self, partition: str):
            first = self._inner.list(partition)
            if partition == snapshots(storage.table) and not first:
                lake.begin_pin("begun")
                return [line for line in self._inner.list(partition) if "#" in line[0].sort]
            return first

    assert sweep_leftovers(replace(storage, registry=Torn(storage.registry))) == 0
    assert [len(pin.regions) for pin in pins_of(storage.registry.list(snapshots(storage.table)))] == [1]


def test_within_the_interval_a_round_waits_and_after_it_the_next_call_sweeps() -> None:
    lake = filled()
    before = len(lake.stored())
    committed = lake.collect(interval=TTL)
    assert (committed.phase, committed.deleted) == ("committed", 0)
    assert len(lake.stored()) == before + 3, "its list, its manifest, published too"

    waiting = lake.collect(interval=TTL)
    assert (waiting.phase, waiting.rounds, waiting.deleted) == ("committed", committed.rounds, 0)
    lake.world.schedule.clock.advance(TTL + 1)
    swept = lake.collect(interval=TTL)

    assert swept.deleted == len(committed.candidates)
    lake.audit()


def test_the_interval_runs_from_the_commit_not_from_the_mark() -> None:
    lake = filled()
    opened, clock = lake.opened("collector", faulty=False), lake.world.schedule.clock
    with lake.collecting():
        marked = collection.mark(opened)
        clock.advance(50 * 60)
        collection.verify(opened, marked.rounds)
        collection.commit(opened, marked.rounds)
    clock.advance(15 * 60)

    assert lake.collect(interval=TTL).deleted == 0, "readers of the manifest before began 15 minutes ago"
    clock.advance(45 * 60)
    assert lake.collect(interval=TTL).deleted == len(marked.candidates)


def test_the_interval_of_a_round_whose_commit_was_not_noted_runs_from_its_mark() -> None:
    lake = filled()
    committed = lake.collect(interval=TTL)
    commit(lake.region("older"), lambda manifest: replace(manifest, collector_committed=0.0))
    lake.world.schedule.clock.advance(TTL - 1)

    assert lake.collect(interval=TTL).deleted == 0
    lake.world.schedule.clock.advance(1)
    assert lake.collect(interval=TTL).deleted == len(committed.candidates)


def test_the_interval_of_a_round_of_the_base_runs_from_its_commit() -> None:
    lake = WholeLake(settings=Settings(keep_versions_seconds=0))
    clock = lake.world.schedule.clock
    with in_place_of_lance(lake.base), lake.collecting():
        for _ in range(3):
            lake.optimize(lake.region("merger"))
        clock.advance(1)
        opened = lake.opened("collector", faulty=False)
        marked = collection.mark(opened)
        clock.advance(50 * 60)
        collection.verify(opened, marked.rounds)
        collection.commit(opened, marked.rounds)
        before = len(lake.base.versions)
        clock.advance(15 * 60)

        collection.collect(opened, yes=True, interval_seconds=TTL)
        assert len(lake.base.versions) == before
        clock.advance(45 * 60)
        collection.collect(opened, yes=True, interval_seconds=TTL)
        assert len(lake.base.versions) < before


def test_a_list_that_is_not_the_committed_one_deletes_nothing() -> None:
    lake = filled()
    key = lake.collect(interval=TTL).rounds[0]
    storage = lake.region("x").storage
    found = lake.world.store.get(key)
    lake.world.store.remove(key)
    lake.world.store.create(key, found.body + b"\0")

    with pytest.raises(Corrupt, match="not the one that was committed") as error:
        lake.sweep(key)
    assert error.value.where["object"] == key
    assert storage.objects.get(key) is not None
