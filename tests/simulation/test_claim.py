"""Claim and seal: one owner at a time, with any fault, and a crashed claimer blocks no other process."""

from __future__ import annotations

import pytest

from lancelsm.common.layout import Position, Version, published_manifest, wal_entry
from lancelsm.errors import Ambiguous, Contended, Fenced, Invalid, Unavailable
from lancelsm.region.catalog import SealedRegion
from lancelsm.region.head import RegionState
from lancelsm.wal.claim import claim, finish_claim, seal
from lancelsm.wal.entry import decode
from tests.simulation import claim_scenarios
from tests.simulation.environment import OWNER, RIVAL, Environment, collect
from tests.simulation.faults import Crash, FaultPlan
from tests.simulation.situations import CLAIMS, calls, half_claim, interruptions, one_fault_each, outages

situations = pytest.mark.parametrize("situation", CLAIMS.values(), ids=list(CLAIMS))


@pytest.mark.one_case
@situations
def test_after_one_fault_at_any_call_the_next_process_can_write_or_finds_the_region_sealed(situation):
    for environment, error in one_fault_each(situation):
        assert error is None or isinstance(error, (Crash, Unavailable, Ambiguous, Contended))
        sealed = environment.region("reader").head().status is RegionState.SEALED
        assert sealed or {90, 91} <= set(environment.acknowledged)
        if situation is CLAIMS["seal"] and error is None:
            assert sealed


@pytest.mark.one_case
@situations
def test_an_outage_from_any_call_on_raises_unavailable_or_ambiguous(situation):
    kinds = {type(error) for _, error in outages(situation)}
    assert kinds <= {type(None), Unavailable, Ambiguous}
    assert {Unavailable, Ambiguous} <= kinds


@pytest.mark.one_case
@situations
def test_another_operation_between_any_two_calls_leaves_one_owner_and_a_complete_log(situation):
    kinds = {type(error) for _, error in interruptions(situation)}
    assert kinds <= {type(None), Fenced, Invalid, SealedRegion, Ambiguous}


def test_a_claim_ends_with_a_fence_in_the_log_and_its_epoch_in_the_manifest():
    environment = Environment()
    environment.write(environment.region("writer"), 1)

    head = claim(environment.region("claimer"), owner=RIVAL)

    assert (head.epoch, head.owner, head.manifest_epoch, head.next_position) == (2, RIVAL, 2, 3)
    assert environment.log[Position(2)].fence
    assert environment.log[Position(2)].summary.epoch == 2
    environment.audit()


def test_a_claim_takes_fifteen_calls_and_one_more_for_each_entry_of_the_tail():
    counted = [(call.port, call.method) for call in calls(CLAIMS["claim"])]
    assert counted == [
        ("registry", "read"),
        ("objects", "get"),  # the manifest
        ("objects", "get"),  # the tail, of one entry
        ("registry", "swap"),
        ("objects", "list"),
        ("objects", "create"),
        ("registry", "swap"),
        ("registry", "read"),
        ("objects", "get"),
        ("objects", "get"),
        ("objects", "get"),  # the next version, which must not be published yet
        ("objects", "create"),
        ("registry", "swap"),
        ("objects", "create"),
        ("objects", "get"),
        ("objects", "replace"),
    ]


def test_a_claim_that_is_finished_already_takes_no_calls_to_finish():
    environment = Environment()
    head = claim(environment.region("claimer"), owner=OWNER)
    finish_claim(environment.region("sibling"), head, owner=OWNER)
    assert not [call for call in environment.plan.calls if call.process == "sibling"]


def test_a_claim_that_is_refused_reads_only_the_head():
    environment = Environment()
    environment.write(environment.region("writer"), 1)

    with pytest.raises(Fenced):
        claim(environment.region("claimer"), owner=RIVAL, held_by=("somebody",))
    seal(environment.region("sealer"))
    with pytest.raises(Invalid, match="sealed"):
        claim(environment.region("claimer"), owner=RIVAL)

    assert [call.method for call in environment.plan.calls if call.process == "claimer"] == ["read", "read"]


def test_a_writer_that_lost_the_region_gets_fenced_with_the_name_of_the_new_owner():
    environment = Environment()
    writer = environment.region("writer")
    held = environment.write(writer, 1).head

    claim(environment.region("claimer"), owner=RIVAL)

    with pytest.raises(Fenced, match=r"held by 'rival' in epoch 2, not by 'default'.*lancelsm region claim memory://t"):
        environment.write(writer, 2, held=held)
    assert environment.audit().applied("q") == 1


def test_two_writers_in_different_epochs_can_never_both_write():
    claim_scenarios.two_claims()


def test_a_fence_is_never_below_a_concurrent_collection():
    # slatedb 1682: the slot that the claimer chose was flushed and removed before its fence was put there.
    environment = Environment()
    for number in (1, 2):
        environment.write(environment.region("writer"), number)

    def collects_before(call):
        if call.method == "create" and "/wal/" in call.key:
            collect(environment, environment.region("collector", faulty=False))

    environment.plan = FaultPlan(collects_before)
    head = claim(environment.region("claimer"), owner=RIVAL)

    fences = [position for position, entry in environment.log.items() if entry.fence]
    assert fences == [3]
    assert head.first_position == 3
    environment.audit()


def test_fences_fill_the_log_up_to_the_highest_object_above_the_head():
    claim_scenarios.leftovers_above_a_gap()


def test_a_claim_replaces_an_undecodable_object_and_the_owner_can_append_again():
    claim_scenarios.undecodable_object()


def test_an_undecodable_object_that_lands_after_the_claim_is_left_alone():
    claim_scenarios.undecodable_object_after_the_claim()


def test_an_entry_of_a_higher_epoch_than_the_head_is_from_a_writer_without_the_registry():
    claim_scenarios.entry_of_a_higher_epoch()


def test_an_append_after_two_claims_in_a_row_finishes_both():
    environment = Environment()
    half_claim(environment.region("first"))

    def claims_again(call):
        if (
            call.method == "create"
            and "/staged/" in call.key
            and environment.region("x", faulty=False).head().epoch == 2
        ):
            half_claim(environment.region("second", faulty=False))

    environment.plan = FaultPlan(claims_again)
    appended = environment.write(environment.region("writer"), 1)

    assert appended.summary.epoch == appended.head.epoch == appended.head.manifest_epoch == 3
    assert [entry.fence for _, entry in sorted(environment.log.items())] == [True, True, False]
    environment.audit()


def test_a_sealed_region_refuses_appends_and_claims_and_stays_sealed():
    claim_scenarios.sealed_region()


def test_an_entry_in_flight_during_a_seal_is_not_in_the_log():
    environment = Environment()
    held = environment.write(environment.region("writer"), 1).head

    def seals_before_the_swap(call):
        if call.process == "writer" and call.method == "swap":
            seal(environment.region("sealer", faulty=False))

    environment.plan = FaultPlan(seals_before_the_swap)
    with pytest.raises(Invalid):
        environment.write(environment.region("writer"), 2, held=held)
    environment.audit()


def test_a_fence_has_the_format_of_lances_fences():
    environment = Environment()
    claim(environment.region("claimer"), owner=OWNER)
    body = environment.store.get(wal_entry(environment.id, Position(1))).body
    entry = decode(body, position=Position(1), key="")
    assert (entry.fence, entry.sound, entry.summary.rows, entry.table().num_columns) == (True, True, 0, 0)
    assert environment.store.get(published_manifest(environment.id, Version(2))) is not None
