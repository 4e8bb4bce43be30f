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

from lancelsm.common.layout import Position, round_prefix, wal_entry
from lancelsm.errors import Ambiguous, Contended, Invalid, Unavailable
from lancelsm.gc import collect as collection
from lancelsm.region.compare_and_swap import newest
from lancelsm.wal.claim import claim, seal
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
from tests.simulation.schedule import Schedule
from tests.simulation.situations import noted
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
