"""Append: whatever gets lost on the way, an entry is committed once or never, or its writer can't tell and says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lancelsm.common.layout import Position, wal_entry
from lancelsm.errors import Ambiguous, Contended, Corrupt, Fenced, Invalid, Unavailable
from lancelsm.wal.claim import claim, seal
from tests.simulation.actors import actors
from tests.simulation.environment import OWNER, Environment, collect, numbers_in, raised
from tests.simulation.faults import FAIL_AFTER, FAIL_BEFORE, Crash, FaultPlan, late
from tests.simulation.situations import APPENDS, RIVAL, calls, interruptions, one_fault_each, orphan, outages

situations = pytest.mark.parametrize("situation", APPENDS.values(), ids=list(APPENDS))


def test_an_append_is_one_create_and_one_swap_and_without_a_held_head_one_read_more():
    held, fresh = calls(APPENDS["with a held head"]), calls(APPENDS["without a head"])
    assert [(call.port, call.method) for call in held] == [("objects", "create"), ("registry", "swap")]
    assert [(call.port, call.method) for call in fresh] == [("registry", "read"), *((c.port, c.method) for c in held)]


@situations
def test_one_fault_at_any_call_neither_loses_nor_doubles_a_row(situation):
    heard = {type(error) for _, error in one_fault_each(situation)}
    assert heard <= {type(None), Crash, Unavailable, Ambiguous, Contended}  # a stall may take longer than the budget
    assert {type(None), Crash} <= heard


@situations
def test_an_outage_from_any_call_on_is_told_as_what_it_did(situation):
    heard = {type(error) for _, error in outages(situation)}
    assert heard <= {type(None), Unavailable, Ambiguous}
    assert {Unavailable, Ambiguous} <= heard


@situations
def test_another_operation_between_any_two_calls_neither_loses_nor_doubles_a_row(situation):
    heard = {type(error) for _, error in interruptions(situation)}
    assert heard <= {type(None), Fenced, Invalid, Ambiguous}
    assert {type(None), Fenced, Invalid} <= heard


@pytest.mark.long
@situations
def test_another_operation_after_a_write_without_an_answer_neither_loses_nor_doubles_a_row(situation):
    heard = {type(error) for _, error in interruptions(situation, before=(FAIL_AFTER, FAIL_BEFORE, late(3), late(99)))}
    assert heard <= {type(None), Fenced, Invalid, Ambiguous}


@pytest.mark.parametrize("block", range(8))
def test_seeds_of_everybody_at_once(block):
    for seed in range(block * 50, block * 50 + 50):
        actors(seed)


@pytest.mark.long
@pytest.mark.parametrize("block", range(8, 208))
def test_more_seeds_of_everybody_at_once(block):
    for seed in range(block * 50, block * 50 + 50):
        actors(seed)


def test_the_seeds_meet_every_outcome():
    raised = [error for seed in range(60) for error in actors(seed).raised.values()]
    assert {type(error) for error in raised} == {Fenced, Invalid, Unavailable, Contended, Ambiguous, Crash}


def test_a_row_whose_put_lost_its_reply_is_not_taken_for_a_stranger_s():
    # slatedb 766: after a reset the retry met its own file, and the writer declared itself fenced.
    environment = Environment()
    environment.plan = FaultPlan.at(1, FAIL_AFTER)
    assert environment.write(environment.region("writer"), 1).summary.position == 1
    assert [call.method for call in environment.plan.calls] == ["read", "create", "get", "swap"]
    environment.audit()


def test_a_refusal_by_one_s_own_first_try_is_not_believed_before_the_nonce_was_compared():
    # 409, then the first try lands, then 412.
    environment = Environment()
    environment.plan = FaultPlan.at(1, late(2))
    assert environment.write(environment.region("writer"), 1).summary.position == 1
    assert [call.method for call in environment.plan.calls] == ["read", "create", "get", "create", "get", "swap"]
    environment.audit()


def test_a_stalled_writer_is_not_acknowledged_after_the_collector_passed():
    # slatedb 352 and 1622, Lance 6699: collection makes a taken position free again.
    for ends in (collect, lambda environment, region: (claim(region, owner=RIVAL), collect(environment, region))):
        environment = Environment()
        held = environment.write(environment.region("stalled"), 1).head
        environment.write(environment.region("sibling"), 2)
        ends(environment, environment.region("other"))
        assert environment.store.get(wal_entry(environment.id, held.next_position)) is None

        error = raised(
            lambda environment=environment, held=held: environment.write(environment.region("stalled"), 3, held=held)
        )

        assert isinstance(error, Ambiguous)
        assert "collected below" in str(error)
        environment.audit()


def test_a_put_that_lands_in_a_collected_slot_changes_nothing():
    environment = Environment()

    def sibling_goes_ahead(call):
        if call.index == 1:
            return late(1_000_000)
        if call.index == 2:
            environment.write(environment.region("sibling", faulty=False), 2)
        return None

    region = _planned(environment, sibling_goes_ahead)
    assert environment.write(region, 1).summary.position == 2
    collect(environment, environment.region("collector", faulty=False))
    environment.plan.land()

    assert environment.store.get(wal_entry(environment.id, Position(1))) is not None
    assert environment.write(environment.region("next", faulty=False), 3).summary.position == 3
    environment.audit()


def test_a_late_put_that_refills_a_collected_slot_between_two_looks_proves_nothing():
    # The object is ours and the head is past it, but what was committed there was another's.
    environment = Environment()
    first = []

    def decide(call):
        if call.method == "create":
            first.append(call.index)
            return late(1_000_000) if len(first) == 1 else None
        reads = (
            [c for c in environment.plan.calls if c.index > first[0] and c.method in ("get", "read")] if first else []
        )
        if len(reads) == 1 and call is reads[0]:
            environment.write(environment.region("sibling", faulty=False), 2)
        if len(reads) == 4 and call is reads[3]:
            collect(environment, environment.region("collector", faulty=False))
            environment.plan.land()
        return None

    error = raised(lambda: environment.write(_planned(environment, decide), 1))

    assert isinstance(error, Ambiguous)
    environment.audit()


def test_the_writer_that_died_between_put_and_swap_is_helped_by_the_next():
    environment = Environment()
    head = environment.write(environment.region("writer"), 1).head
    orphan(environment, 2, position=head.next_position, epoch=head.epoch)

    assert environment.write(environment.region("next"), 3, held=head).summary.position == 3
    assert numbers_in(environment.log[Position(2)]) == [2]
    environment.audit()


def test_an_entry_that_a_claim_overtook_is_replaced_by_the_fence_and_appended_after_it():
    environment = Environment()
    held = environment.write(environment.region("slow"), 1).head

    def claimed_before_the_swap(call):
        if call.method == "swap" and 3 not in environment.writers:
            claim(environment.region("claimer", faulty=False), owner=OWNER)
            environment.write(environment.region("sibling", faulty=False), 3)

    assert environment.write(_planned(environment, claimed_before_the_swap), 2, held=held).summary.position == 4
    assert [numbers_in(entry) for _, entry in sorted(environment.log.items())] == [[1], [], [3], [2]]
    environment.audit()


def test_an_entry_of_our_epoch_that_is_not_ours_to_commit_is_left_alone():
    # Lance's own writer has no nonce; a torn copy has a sum that does not hold. Neither is helped nor replaced.
    for spoil in (lambda body: body.replace(b"lancelsm.nonce", b"lancelsm.n0nce"), _bent):
        environment = Environment()
        head = environment.write(environment.region("writer"), 1).head
        body = orphan(environment, 2, position=head.next_position, epoch=head.epoch)
        key = wal_entry(environment.id, head.next_position)
        environment.store.remove(key)
        environment.store.create(key, spoil(body))

        with pytest.raises(Corrupt, match=r"not one that this release appends.*lancelsm region claim") as raised:
            environment.write(environment.region("next"), 3)

        assert raised.value.where["position"] == head.next_position
        assert environment.store.get(key).body == spoil(body)
        assert environment.region("reader").head().next_position == head.next_position


def test_an_append_after_a_seal_or_under_another_owner_writes_nothing():
    environment = Environment()
    seal(environment.region("sealer"))
    assert isinstance(raised(lambda: environment.write(environment.region("writer"), 1)), Invalid)
    other = Environment()
    assert isinstance(raised(lambda: other.write(other.region("writer"), 1, owner="stranger")), Fenced)
    for each in (environment, other):
        assert not [call for call in each.plan.calls if call.process == "writer" and call.writes]


def test_a_source_never_goes_back_when_batches_are_committed_out_of_order():
    environment = Environment()
    region = environment.region("writer")
    for number in (100, 9):
        environment.write(region, number)
    assert environment.audit().applied_sequences == {"q": "100"}


def test_a_store_that_refuses_after_an_unanswered_put_is_not_told_as_nothing_written():
    environment = Environment()

    class Revoked:
        def __init__(self, inner):
            self.inner, self.puts = inner, 0

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def create(self, key, body):
            self.puts += 1
            if self.puts > 1:
                raise Invalid("the credentials were revoked")
            return self.inner.create(key, body)

    region = _planned(environment, lambda call: late(1_000_000) if call.method == "create" else None)
    revoked = replace(region.context, objects=Revoked(region.context.objects))

    assert isinstance(raised(lambda: environment.write(replace(region, context=revoked), 1)), Ambiguous)
    environment.audit()


def _planned(environment, decide):
    """The writer's region; `decide` is asked at its calls only."""
    environment.plan = FaultPlan(decide, clock=environment.schedule.clock)
    return environment.region("writer")


def _bent(body: bytes) -> bytes:
    """One byte of the rows is another."""
    at = body.rindex((2).to_bytes(8, "little"))
    return body[:at] + b"\x03" + body[at + 1 :]
