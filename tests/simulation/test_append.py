"""Append: with lost replies, crashes, stalls and late writes an entry is committed once or never, or is ambiguous."""

from __future__ import annotations

import pytest

from lancelsm.common.layout import Position, wal_entry
from lancelsm.errors import Ambiguous, Contended, Fenced, Invalid, Unavailable
from lancelsm.region.catalog import SealedRegion
from lancelsm.wal.claim import claim, seal
from tests.simulation import append_scenarios
from tests.simulation.actors import run_actors
from tests.simulation.append_scenarios import region_with_plan
from tests.simulation.environment import OWNER, Environment, collect, numbers_in, raised
from tests.simulation.faults import FAIL_AFTER, FAIL_BEFORE, Crash, FaultPlan, late
from tests.simulation.situations import APPENDS, calls, interruptions, one_fault_each, orphan, outages

situations = pytest.mark.parametrize("situation", APPENDS.values(), ids=list(APPENDS))


def test_an_append_takes_a_create_and_a_swap_and_without_a_held_head_also_a_read():
    held, fresh = calls(APPENDS["with a held head"]), calls(APPENDS["without a head"])
    assert [(call.port, call.method) for call in held] == [("objects", "create"), ("registry", "swap")]
    assert [(call.port, call.method) for call in fresh] == [("registry", "read"), *((c.port, c.method) for c in held)]


@pytest.mark.one_case
@situations
def test_one_fault_at_any_call_neither_loses_nor_duplicates_a_row(situation):
    kinds = {type(error) for _, error in one_fault_each(situation)}
    assert kinds <= {type(None), Crash, Unavailable, Ambiguous, Contended}  # a stall may use up the retry budget
    assert {type(None), Crash} <= kinds


@pytest.mark.one_case
@situations
def test_an_outage_from_any_call_on_raises_unavailable_or_ambiguous(situation):
    kinds = {type(error) for _, error in outages(situation)}
    assert kinds <= {type(None), Unavailable, Ambiguous}
    assert {Unavailable, Ambiguous} <= kinds


@pytest.mark.one_case
@situations
def test_another_operation_between_any_two_calls_neither_loses_nor_duplicates_a_row(situation):
    kinds = {type(error) for _, error in interruptions(situation)}
    assert kinds <= {type(None), Fenced, Invalid, SealedRegion, Ambiguous}
    assert {type(None), Fenced, SealedRegion} <= kinds


@pytest.mark.long
@situations
def test_another_operation_after_an_unanswered_write_neither_loses_nor_duplicates_a_row(situation):
    kinds = {type(error) for _, error in interruptions(situation, before=(FAIL_AFTER, FAIL_BEFORE, late(3), late(99)))}
    assert kinds <= {type(None), Fenced, Invalid, SealedRegion, Ambiguous}


@pytest.mark.one_case
@pytest.mark.parametrize("block", range(8))
def test_concurrent_actors_neither_lose_nor_duplicate_rows(block):
    for seed in range(block * 50, block * 50 + 50):
        run_actors(seed)


@pytest.mark.long
@pytest.mark.parametrize("block", range(8, 208))
def test_concurrent_actors_neither_lose_nor_duplicate_rows_in_many_more_seeds(block):
    for seed in range(block * 50, block * 50 + 50):
        run_actors(seed)


def test_the_seeds_cover_every_outcome():
    errors = [error for seed in range(60) for error in run_actors(seed).raised.values()]
    assert {type(error) for error in errors} == {Fenced, SealedRegion, Unavailable, Contended, Ambiguous, Crash}


def test_a_put_with_a_lost_reply_is_recognised_by_its_nonce():
    # slatedb 766: after a reset the retry found its own file, and the writer declared itself fenced.
    environment = Environment()
    environment.plan = FaultPlan.at(1, FAIL_AFTER)
    assert environment.write(environment.region("writer"), 1).summary.position == 1
    assert [call.method for call in environment.plan.calls] == ["read", "create", "get", "swap"]
    environment.audit()


def test_a_put_that_is_refused_because_of_its_own_first_attempt_is_recognised_by_its_nonce():
    # 409, then the first attempt lands, then 412.
    environment = Environment()
    environment.plan = FaultPlan.at(1, late(2))
    assert environment.write(environment.region("writer"), 1).summary.position == 1
    assert [call.method for call in environment.plan.calls] == ["read", "create", "get", "create", "get", "swap"]
    environment.audit()


def test_a_stalled_writer_is_not_acknowledged_after_its_position_was_collected():
    append_scenarios.stalled_writer()


def test_a_late_put_into_a_collected_slot_changes_nothing():
    environment = Environment()

    def sibling_appends_first(call):
        if call.index == 1:
            return late(1_000_000)
        if call.index == 2:
            environment.write(environment.region("sibling", faulty=False), 2)
        return None

    region = region_with_plan(environment, sibling_appends_first)
    assert environment.write(region, 1).summary.position == 2
    collect(environment, environment.region("collector", faulty=False))
    environment.plan.land()

    assert environment.store.get(wal_entry(environment.id, Position(1))) is not None
    assert environment.write(environment.region("next", faulty=False), 3).summary.position == 3
    environment.audit()


def test_a_late_put_that_refills_a_collected_slot_between_two_reads_proves_no_commit():
    append_scenarios.refilled_slot()


def test_the_next_writer_commits_the_entry_of_a_writer_that_crashed_between_put_and_swap():
    environment = Environment()
    head = environment.write(environment.region("writer"), 1).head
    orphan(environment, 2, position=head.next_position, epoch=head.epoch)

    assert environment.write(environment.region("next"), 3, held=head).summary.position == 3
    assert numbers_in(environment.log[Position(2)]) == [2]
    environment.audit()


def test_an_entry_that_a_claim_overtook_is_replaced_by_the_fence_and_appended_after_it():
    environment = Environment()
    held = environment.write(environment.region("slow"), 1).head

    def claims_before_the_swap(call):
        if call.method == "swap" and 3 not in environment.writers:
            claim(environment.region("claimer", faulty=False), owner=OWNER)
            environment.write(environment.region("sibling", faulty=False), 3)

    region = region_with_plan(environment, claims_before_the_swap)
    assert environment.write(region, 2, held=held).summary.position == 4
    assert [numbers_in(entry) for _, entry in sorted(environment.log.items())] == [[1], [], [3], [2]]
    environment.audit()


def test_a_foreign_or_damaged_entry_of_the_same_epoch_is_left_alone():
    append_scenarios.foreign_or_damaged_entry()


def test_an_append_to_a_sealed_region_or_under_another_owner_writes_nothing():
    environment = Environment()
    seal(environment.region("sealer"))
    assert isinstance(raised(lambda: environment.write(environment.region("writer"), 1)), Invalid)
    other = Environment()
    assert isinstance(raised(lambda: other.write(other.region("writer"), 1, owner="stranger")), Fenced)
    for each in (environment, other):
        assert not [call for call in each.plan.calls if call.process == "writer" and call.writes]


def test_an_applied_sequence_never_decreases_when_batches_are_committed_out_of_order():
    append_scenarios.batches_out_of_order()


def test_an_append_is_ambiguous_if_the_store_refuses_after_an_unanswered_put():
    append_scenarios.refusal_after_an_unanswered_put()
