"""Pipelined appends with faults, other operations and the writer's own threads, in orders that seeds decide."""

from __future__ import annotations

import pytest

from lancelsm.errors import Ambiguous, Contended, Fenced, Invalid, Unavailable
from lancelsm.region.catalog import SealedRegion
from lancelsm.wal.claim import claim
from lancelsm.wal.entry import encode
from lancelsm.wal.pipeline import Pipeline
from tests.simulation.environment import OWNER, Environment, a_nonce, raised, row
from tests.simulation.faults import EVERY_FAULT, FAIL_AFTER, FAIL_BEFORE, Call, Crash, Fault, FaultPlan, late, stall
from tests.simulation.pipelined import (
    DEPTHS,
    ME,
    OTHERS,
    PipelinedEnvironment,
    Run,
    run_pipelined_actors,
    run_writer,
    take_over,
)
from tests.simulation.situations import note_on_failure

depths = pytest.mark.parametrize("depth", [3, *(pytest.param(depth, marks=pytest.mark.long) for depth in DEPTHS[1:])])


def calls(run: Run) -> list[Call]:
    """Return the port calls of the writer without faults."""
    return [call for call in run_writer(run).plan.calls if call.process == "actor"]


def outcomes(environment: PipelinedEnvironment) -> set[type]:
    return {type(error) for number, error in environment.raised.items() if number < 50}


@depths
def test_without_faults_all_rows_are_acknowledged_in_order_and_the_region_is_released(depth):
    for seed in range(20):
        environment = run_writer(Run(seed=seed, depth=depth, rows=10))
        assert environment.acknowledgements == list(range(1, 11))
        assert environment.region("reader", faulty=False).head().owner == OWNER


def test_one_swap_advances_the_head_past_several_entries():
    swaps = [
        sum(call.method == "swap" for call in calls(Run(seed=seed, depth=8, rows=16)))
        - sum(call.method == "swap" for call in calls(Run(seed=seed, depth=8, rows=0)))
        for seed in range(10)
    ]
    assert max(swaps) < 16


@pytest.mark.rest
@depths
def test_one_fault_at_any_call_neither_loses_nor_duplicates_nor_reorders_a_row(depth):
    kinds: set[type] = set()
    for seed in range(2):
        run = Run(seed=seed, depth=depth, rows=5)
        for call in calls(run):
            for fault in (*EVERY_FAULT, stall(1.0), stall(60.0)):
                with note_on_failure(run, call, fault):
                    kinds |= outcomes(run_writer(run, lambda _, now, at=call, fault=fault: at_call(now, at, fault)))
    assert kinds <= {Crash, Unavailable, Ambiguous, Contended}
    assert {Crash, Unavailable, Contended} <= kinds


@pytest.mark.rest
@depths
def test_an_outage_of_one_port_from_any_call_on_raises_the_matching_error(depth):
    kinds: set[type] = set()
    run = Run(seed=depth, depth=depth, rows=5)
    for call in calls(run):
        for fault in (FAIL_BEFORE, FAIL_AFTER, late(3)):
            for length in (3, 10_000):
                for port in ("objects", "registry"):

                    def decide(_, now, first=call.index, fault=fault, length=length, port=port) -> Fault | None:
                        return fault if first <= now.index < first + length and now.port == port else None

                    with note_on_failure(run, call, fault, length, port):
                        kinds |= outcomes(run_writer(run, decide))
    assert kinds == {Unavailable, Ambiguous, Contended}


@depths
@pytest.mark.parametrize("other", OTHERS.values(), ids=list(OTHERS))
@pytest.mark.parametrize("before", [None, *(pytest.param(f, marks=pytest.mark.long) for f in (FAIL_AFTER, late(4)))])
def test_another_operation_before_any_call_neither_loses_nor_duplicates_nor_reorders_a_row(depth, other, before):
    run = Run(seed=depth, depth=depth, rows=4)
    for call in calls(run):
        with note_on_failure(run, call, before):
            environment = run_writer(
                run, lambda environment, now, at=call: interrupted(environment, now, at, other, before)
            )
            assert outcomes(environment) <= {Fenced, Invalid, SealedRegion, Ambiguous, Contended}


def at_call(now: Call, at: Call, fault: Fault) -> Fault | None:
    return fault if now.index == at.index else None


def interrupted(environment: PipelinedEnvironment, now: Call, at: Call, other, fault: Fault | None) -> Fault | None:
    """Run another operation right before a call. The write before that call may meet a fault."""
    if now.index == at.index - 1 and now.writes:
        return fault
    if now.index == at.index:
        raised(lambda: other(environment, environment.region("other", faulty=False)))
    return None


@pytest.mark.one_case
@pytest.mark.parametrize("block", range(3))
def test_concurrent_operations_and_faults_keep_every_promise(block):
    for seed in range(block * 100, block * 100 + 100):
        run_pipelined_actors(seed)


@pytest.mark.long
@pytest.mark.parametrize("block", range(3, 103))
def test_concurrent_operations_and_faults_keep_every_promise_in_many_more_seeds(block):
    for seed in range(block * 100, block * 100 + 100):
        run_pipelined_actors(seed)


def test_the_seeds_cover_every_outcome():
    assert set().union(*(outcomes(run_pipelined_actors(seed)) for seed in (*range(40), 107))) == {
        Ambiguous, Contended, Crash, Fenced, SealedRegion, Unavailable,
    }  # fmt: skip


class _SwapsBeforeThePut(Pipeline):
    def _put_and_commit(self, item, draft):
        item.written = encode(draft, position=item.position, epoch=item.epoch, nonce=a_nonce(item.position))
        super()._put_and_commit(item, draft)


class _KeepsItsEpoch(Pipeline):
    def _fail(self, items, error):
        super()._fail(items, error)
        self._abandoned = False


class _ClaimsFromAnyOwner(Pipeline):
    def _claim(self):
        return claim(self._region, owner=ME)


class _GoesOnInAnotherEpoch(Pipeline):
    def _acknowledge(self, entries, head):
        before = self._abandoned
        super()._acknowledge(entries, head)
        self._abandoned = before


@pytest.mark.parametrize("mutant", [_SwapsBeforeThePut, _KeepsItsEpoch, _ClaimsFromAnyOwner])
@pytest.mark.rest
def test_the_seeds_find_a_pipeline_without_a_guard(mutant):
    with pytest.raises(AssertionError):
        _run_until_it_fails(mutant)


def _run_until_it_fails(mutant: type[Pipeline]) -> None:
    for seed in range(1000):
        run_pipelined_actors(seed, mutant)


def _after_a_lost_reply_and_a_rival(kind: type[Pipeline]) -> object:
    """The swap of the only entry in flight loses its reply, and a rival takes over before the head is read again."""
    environment = Environment()
    swaps = []

    def decide(call: Call) -> Fault | None:
        if call.process == "actor" and call.method == "swap":
            swaps.append(call)
            return FAIL_AFTER if len(swaps) == 4 else None  # after the swaps of the claim, its fence and its manifest
        if call.process == "actor" and len(swaps) == 4:
            swaps.append(call)
            take_over(environment, environment.region("other", faulty=False))
        return None

    environment.plan = FaultPlan(decide, clock=environment.schedule.clock)
    environment.writers |= {1: ME, 2: ME}
    pipeline = kind(environment.region("actor"), owner=ME, previous_owners=(OWNER,), depth=2)
    assert pipeline.submit(row(1)).result().position == 2
    error = raised(lambda: pipeline.submit(row(2)).result())
    pipeline.close()
    return error


def test_an_entry_found_committed_after_another_claim_is_the_last_one_of_its_writer():
    assert isinstance(_after_a_lost_reply_and_a_rival(Pipeline), Fenced)
    with pytest.raises(AssertionError, match="under 'rival'"):
        _after_a_lost_reply_and_a_rival(_GoesOnInAnotherEpoch)
