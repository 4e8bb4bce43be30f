"""Collections of a region under faults and beside other operations delete nothing that is needed.

Tests that begin with the name of another project show that its bug can't happen here. The numbers are its issues.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from functools import partial

import pytest

from lancelsm.common.layout import Position, round_prefix, wal_entry
from lancelsm.errors import Ambiguous, Contended, Unavailable
from lancelsm.gc import collect as collection
from lancelsm.region.compare_and_swap import newest
from lancelsm.wal.claim import claim
from lancelsm.wal.entry import encode
from lancelsm.wal.replay import tail
from tests.simulation import collection_scenarios
from tests.simulation.collecting import TTL, TableEnv, filled
from tests.simulation.collection_faults import LONG, calls_of_collection, finish, run, small, with_expired_pin
from tests.simulation.collection_scenarios import OTHERS
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
from tests.simulation.situations import note_on_failure

SITUATIONS: dict[str, Callable[[], TableEnv]] = {
    "merged generations": lambda: small(merged=1),
    "only the log": lambda: small(merged=0),
    "a pin": lambda: _pinned(small()),
    "an expired pin": lambda: with_expired_pin(small()),
    "orphans": lambda: _orphaned(small()),
    "an earlier round": lambda: _collected_once(small()),
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


@pytest.mark.rest
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_fault_at_any_call_loses_nothing_that_is_needed_and_a_second_collector_finishes(situation: str) -> None:
    make = SITUATIONS[situation]
    for call in calls_of_collection(make()):
        for fault in (*EVERY_FAULT, stall(LONG)) if call.writes else (FAIL_BEFORE, CRASH_BEFORE, stall(LONG)):
            with note_on_failure(situation, call, fault):
                table_env = make()
                error = run(table_env, FaultPlan.at(call.index, fault, clock=table_env.environment.schedule.clock))
                assert error is None or isinstance(error, (Crash, Unavailable, Ambiguous, Contended)), error


@pytest.mark.one_case
@pytest.mark.parametrize("other", OTHERS)
def test_another_operation_before_any_call_loses_nothing(other: str) -> None:
    collection_scenarios.another_operation_before_any_call(other)


def test_slatedb_352_and_1622_a_stalled_writer_is_never_acknowledged_in_a_swept_slot() -> None:
    table_env = filled(tail_rows=0)

    def everything_is_collected(call: Call) -> Fault | None:
        if call.process == "stalled" and call.method == "create" and "/wal/" in call.key:
            table_env.write(300)
            table_env.flush(rows_max=100)
            table_env.merge()
            table_env.collect()
            assert table_env.environment.store.get(call.key) is None, "the slot is not free"
        return None

    table_env.environment.plan = FaultPlan(everything_is_collected)
    error = raised(lambda: table_env.environment.write(table_env.environment.region("stalled"), 400))

    assert isinstance(error, Ambiguous)
    assert 400 not in table_env.environment.acknowledged
    finish(table_env)


def test_slatedb_1682_an_entry_of_a_zombie_below_the_floor_is_not_in_the_log_and_the_next_round_deletes_it() -> None:
    table_env = filled()
    table_env.collect()
    zombie = encode(row(400), position=Position(3), epoch=1, nonce=a_nonce(400))
    table_env.environment.store.create(wal_entry(table_env.environment.id, Position(3)), zombie.body)

    table_env.audit()
    assert wal_entry(table_env.environment.id, Position(3)) in [one.path for one in table_env.dry_run().candidates]
    table_env.collect()

    assert table_env.environment.store.get(wal_entry(table_env.environment.id, Position(3))) is None


@pytest.mark.parametrize("at", ["first write", "read back", "commit"])
def test_slatedb_604_a_stalled_flush_whose_files_were_swept_is_superseded_without_an_error(at: str) -> None:
    collection_scenarios.superseded_flush(at)


def test_slatedb_1392_and_1025_a_reader_whose_log_was_swept_takes_a_new_view() -> None:
    table_env = filled()
    region = table_env.region("reader")
    head, manifest = newest(region, region.head())
    table_env.flush(rows_max=100)
    table_env.merge()
    table_env.collect()

    assert tail(region, head, manifest) is None


def test_slatedb_1641_collections_delete_all_leftovers_though_every_listing_fails_in_the_middle() -> None:
    collection_scenarios.failing_listings()


def test_chroma_4972_a_round_that_is_not_committed_deletes_nothing() -> None:
    collection_scenarios.round_that_is_not_committed()


def test_chroma_4972_a_round_that_lost_its_race_deletes_nothing() -> None:
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
    assert table_env.environment.store.get(slow.rounds[0]) is None, "the next round did not delete its list"


def test_chroma_5153_a_manifest_that_changed_between_mark_and_commit_keeps_its_new_generations() -> None:
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


def test_chroma_5191_and_5207_repeating_any_step_changes_nothing() -> None:
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


@pytest.mark.rest
def test_chroma_4834_two_concurrent_collectors_leave_the_same_objects_as_one() -> None:
    alone = filled()
    alone.collect()
    alone.collect()
    left = [key for key in alone.stored() if "_gen_" in key or "wal/" in key]
    for seed in range(60):
        with note_on_failure(seed):
            schedule = Schedule(seed)
            table_env = filled(table_env=TableEnv(environment=Environment(schedule=schedule)))
            acts = {name: partial(table_env.collect, name, faulty=True) for name in ("one", "two")}
            with table_env.collecting():
                outcomes = schedule.run(acts).values()
            errors = [outcome.error for outcome in outcomes if outcome.error is not None]
            assert all(isinstance(error, (Contended, Ambiguous)) for error in errors), errors
            table_env.audit()
            table_env.collect("last")
            table_env.audit()
            now = [key for key in table_env.stored() if "_gen_" in key or "wal/" in key]
            assert sorted(key.partition("_")[2] for key in now) == sorted(key.partition("_")[2] for key in left)
            assert len(table_env.stored()) <= len(alone.stored()) + 3


def run_collection_actors(seed: int) -> None:
    """Run collectors, writers, a flusher, a merger and a holder of snapshots under faults, then finish and audit."""
    schedule = Schedule(seed)
    environment = Environment(schedule=schedule, budget_seconds=5.0)
    table_env = filled(flushed=2, merged=1, table_env=TableEnv(environment=environment))
    rates = {FAIL_AFTER: 0.03, FAIL_BEFORE: 0.03, late(3): 0.02, late(1_000): 0.01, stall(LONG): 0.01}

    def repeat(times: int, act: Callable[[int], object]) -> Callable[[], None]:
        def body() -> None:
            for number in range(times):
                with contextlib.suppress(*PASSING):
                    act(number)

        return body

    with contextlib.redirect_stdout(io.StringIO()), note_on_failure(seed), table_env.collecting():
        environment.plan = FaultPlan.seeded(seed, rates, clock=schedule.clock)
        outcomes = schedule.run(
            {
                "collector": repeat(4, lambda _: table_env.collect("collector", faulty=True)),
                "rival": repeat(4, lambda _: table_env.collect("rival", faulty=True)),
                "writer": repeat(12, lambda n: environment.write(environment.region("writer"), 1_000 + n)),
                "stalled": repeat(3, lambda n: environment.write(environment.region("stalled"), 2_000 + n)),
                "flusher": repeat(5, lambda _: table_env.flush(environment.region("flusher"), rows_max=3)),
                "merger": repeat(4, lambda _: table_env.merge()),
                "holder": repeat(3, lambda n: table_env.confirm_pin(table_env.begin_pin(f"s{n}"))),
            }
        )
        assert {name: one.error for name, one in outcomes.items() if one.error} == {}
        environment._audit_writers()
        finish(table_env)


@pytest.mark.one_case
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_concurrent_actors_under_faults_lose_nothing_that_is_needed(first: int) -> None:
    for seed in range(first, first + 50):
        run_collection_actors(seed)
