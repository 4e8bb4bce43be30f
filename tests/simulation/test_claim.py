"""Claim and seal: one owner at a time, whatever is lost on the way, and nobody is blocked by a crashed claimer."""

from __future__ import annotations

import pytest

from lancelsm.common.layout import Epoch, Position, Version, published_manifest, wal_entry
from lancelsm.errors import Ambiguous, Contended, Corrupt, Fenced, Invalid, Unavailable
from lancelsm.region.head import RegionState
from lancelsm.wal.claim import claim, finish_claim, seal
from lancelsm.wal.entry import decode
from tests.simulation.environment import OWNER, Environment, collect
from tests.simulation.faults import Crash, FaultPlan
from tests.simulation.situations import CLAIMS, RIVAL, calls, half_claim, interruptions, one_fault_each, orphan, outages

situations = pytest.mark.parametrize("situation", CLAIMS.values(), ids=list(CLAIMS))


@situations
def test_one_fault_at_any_call_leaves_a_region_that_the_next_process_writes_to_or_finds_sealed(situation):
    for environment, error in one_fault_each(situation):
        assert error is None or isinstance(error, (Crash, Unavailable, Ambiguous, Contended))
        sealed = environment.region("reader").head().status is RegionState.SEALED
        assert sealed or {90, 91} <= set(environment.acknowledged)
        if situation is CLAIMS["seal"] and error is None:
            assert sealed


@situations
def test_an_outage_from_any_call_on_is_told(situation):
    heard = {type(error) for _, error in outages(situation)}
    assert heard <= {type(None), Unavailable, Ambiguous}
    assert {Unavailable, Ambiguous} <= heard


@situations
def test_another_operation_between_any_two_calls_leaves_one_owner_and_a_whole_log(situation):
    heard = {type(error) for _, error in interruptions(situation)}
    assert heard <= {type(None), Fenced, Invalid, Ambiguous}


def test_a_claim_ends_with_a_fence_in_the_log_and_its_epoch_in_the_manifest():
    environment = Environment()
    environment.write(environment.region("writer"), 1)

    head = claim(environment.region("claimer"), owner=RIVAL)

    assert (head.epoch, head.owner, head.manifest_epoch, head.next_position) == (2, RIVAL, 2, 3)
    assert environment.log[Position(2)].fence
    assert environment.log[Position(2)].summary.epoch == 2
    environment.audit()


def test_a_claim_takes_fifteen_calls_and_one_for_each_entry_of_the_tail_and_a_second_look_at_a_finished_one_none():
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
        ("objects", "get"),  # the next version, which nobody may have published
        ("objects", "create"),
        ("registry", "swap"),
        ("objects", "create"),
        ("objects", "get"),
        ("objects", "replace"),
    ]
    environment = Environment()
    head = claim(environment.region("claimer"), owner=OWNER)
    finish_claim(environment.region("sibling"), head, owner=OWNER)
    assert not [call for call in environment.plan.calls if call.process == "sibling"]


def test_a_claim_that_is_refused_reads_the_head_alone():
    environment = Environment()
    environment.write(environment.region("writer"), 1)

    with pytest.raises(Fenced):
        claim(environment.region("claimer"), owner=RIVAL, held_by=("somebody",))
    seal(environment.region("sealer"))
    with pytest.raises(Invalid, match="sealed"):
        claim(environment.region("claimer"), owner=RIVAL)

    assert [call.method for call in environment.plan.calls if call.process == "claimer"] == ["read", "read"]


def test_who_was_taken_over_is_fenced_and_told_by_whom():
    environment = Environment()
    writer = environment.region("writer")
    held = environment.write(writer, 1).head

    claim(environment.region("claimer"), owner=RIVAL)

    with pytest.raises(Fenced, match=r"held by 'rival' in epoch 2, not by 'default'.*lancelsm region claim memory://t"):
        environment.write(writer, 2, held=held)
    assert set(environment.audit().applied_sequences.values()) == {"1"}


def test_two_writers_are_never_open_at_once_in_different_epochs():
    # slatedb 271. Both claimed; the one that lost is told before it can write.
    environment = Environment()
    half_claim(environment.region("first"), owner="first")
    first = environment.region("first").head()
    second = claim(environment.region("second"), owner="second")

    with pytest.raises(Fenced, match="'second'"):
        finish_claim(environment.region("first"), first, owner="first")
    with pytest.raises(Fenced, match="'second'"):
        environment.write(environment.region("first"), 1, owner="first", held=first)
    environment.write(environment.region("second"), 2, owner="second", held=second)
    environment.audit()


def test_a_fence_is_never_behind_what_was_collected_meanwhile():
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


def test_fences_fill_the_log_through_the_highest_object_above_the_head():
    # Lance's writer fills the first gap, and its next start replays what lies behind the gap.
    environment = Environment()
    head = environment.write(environment.region("writer"), 1).head
    for ahead in (1, 3):
        position = Position(head.next_position + ahead)
        orphan(environment, 10 + ahead, position=position, epoch=head.epoch)

    after = claim(environment.region("claimer"), owner=OWNER)

    assert after.next_position == 6
    assert [environment.log[Position(p)].fence for p in (2, 3, 4, 5)] == [True] * 4
    environment.audit()


def test_a_claim_replaces_what_nobody_can_read_and_the_owner_goes_on():
    environment = Environment()
    head = environment.write(environment.region("writer"), 1).head
    environment.store.create(wal_entry(environment.id, head.next_position), b"torn")
    with pytest.raises(Corrupt, match=r"position 2.*lancelsm region claim"):
        environment.write(environment.region("writer"), 2)

    claim(environment.region("claimer"), owner=OWNER)
    environment.raised.clear()

    assert environment.write(environment.region("writer"), 3).summary.position == 3
    environment.audit()


def test_an_unreadable_object_after_the_claim_is_left_alone():
    # A sibling of another release may be about to commit it.
    environment = Environment()
    head = claim(environment.region("claimer"), owner=OWNER)
    key = wal_entry(environment.id, head.next_position)
    environment.store.create(key, b"of another release")

    with pytest.raises(Corrupt):
        environment.write(environment.region("writer"), 1)

    assert environment.store.get(key).body == b"of another release"


def test_a_writer_above_the_head_s_epoch_works_outside_the_registry():
    environment = Environment()
    head = environment.write(environment.region("writer"), 1).head
    body = orphan(environment, 2, position=head.next_position, epoch=Epoch(7))

    with pytest.raises(Corrupt, match=r"outside the registry.*lancelsm region adopt memory://t"):
        claim(environment.region("claimer"), owner=OWNER)

    assert environment.store.get(wal_entry(environment.id, head.next_position)).body == body


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


def test_a_sealed_region_takes_neither_rows_nor_claims_and_stays_sealed():
    environment = Environment()
    held = environment.write(environment.region("writer"), 1).head

    head = seal(environment.region("sealer"))

    assert (head.status, head.owner, head.epoch, head.manifest_epoch) == (RegionState.SEALED, "", 2, 2)
    for act in (
        lambda: environment.write(environment.region("writer"), 2, held=held),
        lambda: environment.write(environment.region("new writer"), 3),
        lambda: claim(environment.region("claimer"), owner=OWNER),
    ):
        with pytest.raises(Invalid, match="the region is sealed"):
            act()
    assert seal(environment.region("sealer")).manifest_version == head.manifest_version
    collect(environment, environment.region("collector"))
    environment.audit()


def test_what_was_in_flight_when_the_seal_came_is_not_in_the_log():
    environment = Environment()
    held = environment.write(environment.region("writer"), 1).head

    def seals_before_the_swap(call):
        if call.process == "writer" and call.method == "swap":
            seal(environment.region("sealer", faulty=False))

    environment.plan = FaultPlan(seals_before_the_swap)
    with pytest.raises(Invalid):
        environment.write(environment.region("writer"), 2, held=held)
    environment.audit()


def test_a_fence_is_an_entry_as_lance_writes_it():
    environment = Environment()
    claim(environment.region("claimer"), owner=OWNER)
    body = environment.store.get(wal_entry(environment.id, Position(1))).body
    entry = decode(body, position=Position(1), key="")
    assert (entry.fence, entry.sound, entry.summary.rows, entry.table().num_columns) == (True, True, 0, 0)
    assert environment.store.get(published_manifest(environment.id, Version(2))) is not None
