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
from tests.simulation.collecting import TTL, TableEnv, filled
from tests.simulation.environment import OWNER, PASSING, Environment, a_nonce, raised, row
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

SITUATIONS: dict[str, Callable[[], TableEnv]] = {
    "merged generations": lambda: small(merged=1),
    "the log alone": lambda: small(merged=0),
    "a pin": lambda: _pinned(small()),
    "an expired pin": lambda: expired(small()),
    "orphans": lambda: _orphaned(small()),
    "a round before": lambda: _collected_once(small()),
}


def _pinned(table_env: TableEnv) -> TableEnv:
    table_env.pin("held")
    table_env.merge()
    return table_env


def _orphaned(table_env: TableEnv) -> TableEnv:
    store = table_env.environment.store
    store.create(f"_mem_wal/{table_env.environment.id}/00000000_gen_2/data/a.lance", b"a crashed flush")
    store.create(f"{round_prefix(table_env.environment.id)}1-{'0' * 32}.binpb", b"a collector that crashed")
    return table_env


def _collected_once(table_env: TableEnv) -> TableEnv:
    table_env.collect("earlier")
    table_env.merge()
    table_env.write(100, 101)
    table_env.flush()
    return table_env


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_fault_at_any_call_leaves_what_is_needed_and_a_second_collector_finishes(situation: str) -> None:
    make = SITUATIONS[situation]
    for call in collected_by(make()):
        for fault in (*EVERY_FAULT, stall(LONG)) if call.writes else (FAIL_BEFORE, CRASH_BEFORE, stall(LONG)):
            with noted(situation, call, fault):
                table_env = make()
                heard = run(table_env, FaultPlan.at(call.index, fault, clock=table_env.environment.schedule.clock))
                assert heard is None or isinstance(heard, (Crash, Unavailable, Ambiguous, Contended)), heard


OTHERS: dict[str, Callable[[TableEnv], object]] = {
    "collects": lambda table_env: table_env.collect("other"),
    "commits a round": lambda table_env: table_env.collect("other", interval=TTL),
    "appends": lambda table_env: table_env.write(200),
    "appends, flushes": lambda table_env: (table_env.write(200, 201), table_env.flush()),
    "appends, flushes, merges": lambda table_env: (table_env.write(200, 201), table_env.flush(), table_env.merge()),
    "merges": lambda table_env: table_env.merge(),
    "takes a snapshot": lambda table_env: table_env.pin("other"),
    "merges, takes a snapshot": lambda table_env: (table_env.merge(), table_env.pin("other")),
    "begins a snapshot and dies": lambda table_env: table_env.begin_pin("other"),
    "claims": lambda table_env: claim(table_env.region("other"), owner=OWNER),
    "seals": lambda table_env: seal(table_env.region("other")),
    "collects, merges, collects": lambda table_env: (
        table_env.collect("other"),
        table_env.merge(),
        table_env.collect("another"),
    ),
    "collects, appends, flushes, merges, collects": lambda table_env: (
        table_env.collect("other"),
        table_env.write(200, 201),
        table_env.flush(),
        table_env.merge(),
        table_env.collect("another"),
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_operation_before_any_call_costs_nobody_anything(other: str) -> None:
    calls = collected_by(small())
    for before, call in zip([None, *calls], calls, strict=False):
        for fault in (None, FAIL_AFTER, late(2)) if before is not None and before.writes else (None,):
            with noted(other, call, fault):
                table_env = small()

                def decide(
                    now: Call, table_env: TableEnv = table_env, call: Call = call, fault: Fault | None = fault
                ) -> Fault | None:
                    if now.index == call.index:
                        assert raised(lambda: OTHERS[other](table_env)) is None
                        table_env.audit()
                    return fault if now.index == call.index - 1 and now.writes else None

                heard = run(table_env, FaultPlan(decide))
                assert heard is None or isinstance(heard, (Unavailable, Ambiguous, Contended)), heard


def test_slatedb_352_and_1622_a_stalled_writer_is_never_acknowledged_into_a_slot_that_was_swept() -> None:
    table_env = filled(tail_rows=0)

    def everything_goes(call: Call) -> Fault | None:
        if call.process == "stalled" and call.method == "create" and "/wal/" in call.key:
            table_env.write(300)
            table_env.flush(rows_max=100)
            table_env.merge()
            table_env.collect()
            assert table_env.environment.store.get(call.key) is None, "the slot is free again"
        return None

    table_env.environment.plan = FaultPlan(everything_goes)
    error = raised(lambda: table_env.environment.write(table_env.environment.region("stalled"), 400))

    assert isinstance(error, Ambiguous)
    assert 400 not in table_env.environment.acknowledged
    finish(table_env)


def test_slatedb_1682_what_a_zombie_puts_below_the_floor_is_no_part_of_the_log_and_goes_with_the_next_round() -> None:
    table_env = filled()
    table_env.collect()
    zombie = encode(row(400), position=Position(3), epoch=1, nonce=a_nonce(400))
    table_env.environment.store.create(wal_entry(table_env.environment.id, Position(3)), zombie.body)

    table_env.audit()
    assert wal_entry(table_env.environment.id, Position(3)) in [one.path for one in table_env.look().candidates]
    table_env.collect()

    assert table_env.environment.store.get(wal_entry(table_env.environment.id, Position(3))) is None


@pytest.mark.parametrize("at", ["first write", "read back", "commit"])
def test_slatedb_604_a_stalled_flush_whose_files_were_swept_is_dead_and_says_nothing_else(at: str) -> None:
    table_env = filled(flushed=2, merged=0)
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
            assert table_env.flush(rows_max=100) is not None
            table_env.merge()
            table_env.collect()
        return None

    table_env.environment.plan = FaultPlan(the_generation_is_taken)
    assert table_env.flush(table_env.environment.region("stalled")) is None
    assert seen
    finish(table_env)
    assert [key for key in table_env.stored() if "_gen_" in key] == []


def test_slatedb_1392_and_1025_a_reader_whose_log_was_swept_is_told_to_look_again() -> None:
    table_env = filled()
    region = table_env.region("reader")
    head, manifest = newest(region, region.head())
    table_env.flush(rows_max=100)
    table_env.merge()
    table_env.collect()

    assert tail(region, head, manifest) is None


def test_slatedb_1641_a_listing_that_fails_in_the_middle_every_time_stops_no_collection() -> None:
    table_env = filled()
    prefix = f"_mem_wal/{table_env.environment.id}/"
    leftovers = [f"{prefix}manifest/staged/1-{number:032x}.binpb" for number in range(1_300)]
    for key in leftovers:
        table_env.environment.store.create(key, b"never named")
    handle = table_env.handle("collector", faulty=False)
    torn = replace(handle.context, objects=TornListings(handle.context.objects, after=700))
    handle.context = torn

    with table_env.collecting():
        for _ in range(4):
            collection.collect(handle, yes=True, interval_seconds=0)
            table_env.audit()

    left = set(leftovers) & {line.key for line in table_env.environment.store.list(prefix)}
    assert left == set()


def test_chroma_4972_nothing_is_deleted_for_a_round_that_was_not_committed() -> None:
    table_env = filled()
    handle = table_env.handle("collector", faulty=False)
    with table_env.collecting():
        marked = collection.mark(handle)
        before = table_env.stored()
        with pytest.raises(Invalid, match="not committed"):
            collection.sweep(handle, marked.rounds)

    assert table_env.stored() == before


def test_chroma_4972_a_round_that_lost_to_another_deletes_nothing() -> None:
    table_env = filled()
    handle = table_env.handle("slow", faulty=False)
    with table_env.collecting():
        slow = collection.mark(handle)
        collection.verify(handle, slow.rounds)
        table_env.collect("fast", interval=TTL)
        before = table_env.stored()

        assert collection.commit(handle, slow.rounds).rounds == ()
        assert collection.sweep(handle, slow.rounds).deleted == 0

    assert table_env.stored() == before
    finish(table_env)
    table_env.flush(rows_max=100)
    table_env.collect()
    assert table_env.environment.store.get(slow.rounds[0]) is None, "its list goes with the next round"


def test_chroma_5153_a_manifest_that_changed_between_mark_and_commit_keeps_what_it_gained() -> None:
    table_env = filled()
    handle = table_env.handle("collector", faulty=False)
    with table_env.collecting():
        marked = collection.mark(handle)
        table_env.flush(rows_max=100)
        claim(table_env.region("claimer"), owner=OWNER)
        collection.verify(handle, marked.rounds)
        collection.commit(handle, marked.rounds)
        table_env.write(300)
        collection.sweep(handle, marked.rounds)

    head = table_env.audit()
    assert [g.generation for g in newest(table_env.region("reader"), head)[1].generations] == [3, 4, 5]


def test_chroma_5191_and_5207_every_step_repeated_changes_nothing() -> None:
    table_env = filled()
    handle = table_env.handle("collector", faulty=False)
    with table_env.collecting():
        marked = collection.mark(handle)
        for step in (collection.verify, collection.commit, collection.verify, collection.commit, collection.sweep):
            step(handle, marked.rounds)
            first = (table_env.stored(), table_env.region("reader").head())
            step(handle, marked.rounds)
            assert (table_env.stored(), table_env.region("reader").head()) == first
            table_env.audit()


def test_chroma_4834_two_collectors_step_by_step_leave_what_one_leaves() -> None:
    alone = filled()
    alone.collect()
    alone.collect()
    left = [key for key in alone.stored() if "_gen_" in key or "wal/" in key]
    for seed in range(60):
        with noted(seed):
            schedule = Schedule(seed)
            table_env = filled(table_env=TableEnv(environment=Environment(schedule=schedule)))
            acts = {name: partial(table_env.collect, name, faulty=True) for name in ("one", "two")}
            with table_env.collecting():
                outcomes = schedule.run(acts).values()
            heard = [outcome.error for outcome in outcomes if outcome.error is not None]
            assert all(isinstance(error, (Contended, Ambiguous)) for error in heard), heard
            table_env.audit()
            table_env.collect("last")
            table_env.audit()
            now = [key for key in table_env.stored() if "_gen_" in key or "wal/" in key]
            assert sorted(key.partition("_")[2] for key in now) == sorted(key.partition("_")[2] for key in left)
            assert len(table_env.stored()) <= len(alone.stored()) + 3


def actors(seed: int) -> None:
    """Everybody at once, under faults; then all is well."""
    schedule = Schedule(seed)
    environment = Environment(schedule=schedule, budget_seconds=5.0)
    table_env = filled(flushed=2, merged=1, table_env=TableEnv(environment=environment))
    rates = {FAIL_AFTER: 0.03, FAIL_BEFORE: 0.03, late(3): 0.02, late(1_000): 0.01, stall(LONG): 0.01}

    def often(times: int, act: Callable[[int], object]) -> Callable[[], None]:
        def body() -> None:
            for number in range(times):
                with contextlib.suppress(*PASSING):
                    act(number)

        return body

    with contextlib.redirect_stdout(io.StringIO()), noted(seed), table_env.collecting():
        environment.plan = FaultPlan.seeded(seed, rates, clock=schedule.clock)
        outcomes = schedule.run(
            {
                "collector": often(4, lambda _: table_env.collect("collector", faulty=True)),
                "rival": often(4, lambda _: table_env.collect("rival", faulty=True)),
                "writer": often(12, lambda n: environment.write(environment.region("writer"), 1_000 + n)),
                "stalled": often(3, lambda n: environment.write(environment.region("stalled"), 2_000 + n)),
                "flusher": often(5, lambda _: table_env.flush(environment.region("flusher"), rows_max=3)),
                "merger": often(4, lambda _: table_env.merge()),
                "holder": often(3, lambda n: table_env.end_pin(table_env.begin_pin(f"s{n}"))),
            }
        )
        assert {name: one.error for name, one in outcomes.items() if one.error} == {}
        environment._audit_writers()
        finish(table_env)


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_a_crowd_of_everybody_keeps_what_anybody_needs(first: int) -> None:
    for seed in range(first, first + 50):
        actors(seed)
