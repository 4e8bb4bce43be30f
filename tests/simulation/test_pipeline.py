"""Pipelined appends: faults, rivals and the writer's own threads in every order that a seed finds."""

from __future__ import annotations

import random
from functools import partial

import pytest

from lancelsm.errors import Ambiguous, Contended, Fenced, Invalid, Unavailable
from lancelsm.wal.claim import claim, seal
from lancelsm.wal.entry import encode
from lancelsm.wal.pipeline import Pipeline
from tests.simulation.actors import ROUGH
from tests.simulation.environment import OWNER, RIVAL, Environment, a_nonce, collect, raised, row
from tests.simulation.faults import EVERY_FAULT, FAIL_AFTER, FAIL_BEFORE, Call, Crash, Fault, FaultPlan, late, stall
from tests.simulation.pipelined import ME, PipelinedEnvironment, Run, live
from tests.simulation.situations import half_claim, noted

DEPTHS = (3, 2, 5, 8)
depths = pytest.mark.parametrize("depth", [3, *(pytest.param(depth, marks=pytest.mark.long) for depth in DEPTHS[1:])])


def _writes(environment: PipelinedEnvironment, region, owner: str) -> None:
    environment.write(region, 50 + len(environment.writers), owner=owner)


def _takes_over(environment: PipelinedEnvironment, region) -> None:
    claim(region, owner=RIVAL)
    _writes(environment, region, RIVAL)


OTHERS = {
    "takes over": _takes_over,
    "takes over and dies": lambda environment, region: half_claim(region, owner=RIVAL),
    "takes over, gives back": lambda environment, region: (
        _takes_over(environment, region),
        claim(region, owner=OWNER),
    ),
    "claims for ordinary writers": lambda environment, region: (
        claim(region, owner=OWNER),
        _writes(environment, region, OWNER),
    ),
    "seals": lambda environment, region: seal(region),
    "collects": collect,
    "takes over, collects": lambda environment, region: (
        _takes_over(environment, region),
        collect(environment, region),
    ),
    "commits": lambda environment, region: environment.commit(region),
}


def calls(run: Run) -> list[Call]:
    """What the writer asks of its ports when all goes well."""
    return [call for call in live(run).plan.calls if call.process == "actor"]


def outcomes(environment: PipelinedEnvironment) -> set[type]:
    return {type(error) for number, error in environment.raised.items() if number < 50}


@depths
def test_without_faults_all_is_acknowledged_in_order_and_the_region_is_given_back(depth):
    for seed in range(20):
        environment = live(Run(seed=seed, depth=depth, rows=10))
        assert environment.acknowledgements == list(range(1, 11))
        assert environment.region("reader", faulty=False).head().owner == OWNER


def test_one_swap_moves_the_head_past_several_entries():
    swaps = [
        sum(call.method == "swap" for call in calls(Run(seed=seed, depth=8, rows=16)))
        - sum(call.method == "swap" for call in calls(Run(seed=seed, depth=8, rows=0)))
        for seed in range(10)
    ]
    assert max(swaps) < 16


@depths
def test_one_fault_at_any_call_neither_loses_nor_doubles_nor_reorders_a_row(depth):
    heard: set[type] = set()
    for seed in range(2):
        run = Run(seed=seed, depth=depth, rows=5)
        for call in calls(run):
            for fault in (*EVERY_FAULT, stall(1.0), stall(60.0)):
                with noted(run, call, fault):
                    heard |= outcomes(live(run, lambda _, now, at=call, fault=fault: at_call(now, at, fault)))
    assert heard <= {Crash, Unavailable, Ambiguous, Contended}
    assert {Crash, Unavailable, Contended} <= heard


@depths
def test_an_outage_of_one_port_from_any_call_on_is_told_as_what_it_did(depth):
    heard: set[type] = set()
    run = Run(seed=depth, depth=depth, rows=5)
    for call in calls(run):
        for fault in (FAIL_BEFORE, FAIL_AFTER, late(3)):
            for length in (3, 10_000):
                for port in ("objects", "registry"):

                    def decide(_, now, first=call.index, fault=fault, length=length, port=port) -> Fault | None:
                        return fault if first <= now.index < first + length and now.port == port else None

                    with noted(run, call, fault, length, port):
                        heard |= outcomes(live(run, decide))
    assert heard == {Unavailable, Ambiguous, Contended}


@depths
@pytest.mark.parametrize("other", OTHERS.values(), ids=list(OTHERS))
@pytest.mark.parametrize("before", [None, *(pytest.param(f, marks=pytest.mark.long) for f in (FAIL_AFTER, late(4)))])
def test_another_operation_before_any_call_neither_loses_nor_doubles_nor_reorders_a_row(depth, other, before):
    run = Run(seed=depth, depth=depth, rows=4)
    for call in calls(run):
        with noted(run, call, before):
            environment = live(run, lambda environment, now, at=call: interrupted(environment, now, at, other, before))
            assert outcomes(environment) <= {Fenced, Invalid, Ambiguous, Contended}


def at_call(now: Call, at: Call, fault: Fault) -> Fault | None:
    return fault if now.index == at.index else None


def interrupted(environment: PipelinedEnvironment, now: Call, at: Call, other, fault: Fault | None) -> Fault | None:
    """The write before that call may have met a fault."""
    if now.index == at.index - 1 and now.writes:
        return fault
    if now.index == at.index:
        raised(lambda: other(environment, environment.region("other", faulty=False)))
    return None


def actors(seed: int, mutant: type[Pipeline] = Pipeline) -> PipelinedEnvironment:
    """A pipelined writer, others and faults, as a seed decides."""
    dice = random.Random(f"pipelined {seed}")
    factor = dice.choice([0, 1, 1, 3])
    faults, weights = [None, *ROUGH], [1.0, *(factor * rate for rate in ROUGH.values())]

    def decide(environment: PipelinedEnvironment, call: Call) -> Fault | None:
        fault = dice.choices(faults, weights)[0]
        return fault if call.writes or dice.random() < 0.1 else None

    names = dice.sample(sorted(OTHERS), dice.choice([0, 1, 1, 2]))

    def other(name: str, pause: int, environment: PipelinedEnvironment) -> None:
        for _ in range(pause):
            environment.schedule.switch()
        OTHERS[name](environment, environment.region(name))

    others = {name: partial(other, name, dice.randrange(60)) for name in names}
    budget = dice.choice([0.2, 5.0])
    run = Run(seed=seed, depth=dice.choice(DEPTHS), rows=dice.choice([4, 9]), budget_seconds=budget, mutant=mutant)
    return live(run, decide, **others)


@pytest.mark.parametrize("block", range(3))
def test_seeds_of_faults_and_others_at_once(block):
    for seed in range(block * 100, block * 100 + 100):
        actors(seed)


@pytest.mark.long
@pytest.mark.parametrize("block", range(3, 103))
def test_more_seeds_of_faults_and_others_at_once(block):
    for seed in range(block * 100, block * 100 + 100):
        actors(seed)


def test_the_seeds_meet_every_outcome():
    assert set().union(*(outcomes(actors(seed)) for seed in (*range(40), 107))) == {
        Ambiguous, Contended, Crash, Fenced, Invalid, Unavailable,
    }  # fmt: skip


class _SwapsWhatIsNotPlaced(Pipeline):
    def _carry(self, flight, draft):
        flight.placed = encode(draft, position=flight.position, epoch=flight.epoch, nonce=a_nonce(flight.position))
        super()._carry(flight, draft)


class _KeepsItsEpoch(Pipeline):
    def _give_up(self, flights, error):
        super()._give_up(flights, error)
        self._abandoned = False


class _ClaimsAgainstAnybody(Pipeline):
    def _claim(self):
        return claim(self._region, owner=ME)


class _TakesAnothersEpochForItsOwn(Pipeline):
    def _acknowledge(self, entries, head):
        before = self._abandoned
        super()._acknowledge(entries, head)
        self._abandoned = before


@pytest.mark.parametrize("mutant", [_SwapsWhatIsNotPlaced, _KeepsItsEpoch, _ClaimsAgainstAnybody])
def test_a_pipeline_that_lacks_a_guard_is_found_out(mutant):
    with pytest.raises(AssertionError):
        _until_found_out(mutant)


def _until_found_out(mutant: type[Pipeline]) -> None:
    for seed in range(1000):
        actors(seed, mutant)


def _after_a_rival_behind_a_lost_reply(kind: type[Pipeline]) -> object:
    """The swap of the only entry in flight is not answered, and a rival takes over before the head is read again."""
    environment = Environment()
    swaps = []

    def decide(call: Call) -> Fault | None:
        if call.process == "actor" and call.method == "swap":
            swaps.append(call)
            return FAIL_AFTER if len(swaps) == 4 else None  # behind those of the claim, its fence and its manifest
        if call.process == "actor" and len(swaps) == 4:
            swaps.append(call)
            _takes_over(environment, environment.region("other", faulty=False))
        return None

    environment.plan = FaultPlan(decide, clock=environment.schedule.clock)
    environment.writers |= {1: ME, 2: ME}
    pipeline = kind(environment.region("actor"), owner=ME, previous_owners=(OWNER,), depth=2)
    assert pipeline.submit(row(1)).result().position == 2
    raised_then = raised(lambda: pipeline.submit(row(2)).result())
    pipeline.close()
    return raised_then


def test_an_entry_that_was_seen_committed_under_another_s_epoch_is_the_last_one():
    assert isinstance(_after_a_rival_behind_a_lost_reply(Pipeline), Fenced)
    with pytest.raises(AssertionError, match="under 'rival'"):
        _after_a_rival_behind_a_lost_reply(_TakesAnothersEpochForItsOwn)
