"""Budgets end, waits grow with jitter, and nonces are unique 128-bit values."""

from __future__ import annotations

import re

import pytest

from lancelsm.common.clock import Budget, SeededIds, SystemClock, SystemIds
from tests.simulation.faults import FakeClock


class RecordingClock(FakeClock):
    def __init__(self):
        super().__init__()
        self.waits = []

    def sleep(self, seconds):
        self.waits.append(seconds)
        super().sleep(seconds)


class MaximalIds:
    """Ids whose random numbers are always 1.0."""

    def nonce(self):
        raise AssertionError("no nonces are needed")

    def uniform(self):
        return 1.0


def test_waits_double_up_to_two_seconds_and_end_with_the_budget():
    clock = RecordingClock()
    attempts = list(Budget(clock=clock, ids=MaximalIds(), seconds=10.0).attempts())
    doubling = [0.01 * 2**n for n in range(8)]
    assert clock.waits == pytest.approx([*doubling, 2.0, 2.0, 2.0, 10.0 - sum(doubling) - 6.0])
    assert attempts == list(range(len(clock.waits) + 1))
    assert clock.monotonic() == pytest.approx(10.0)


def test_waits_are_jittered_between_zero_and_the_limit():
    clock = RecordingClock()
    list(Budget(clock=clock, ids=SeededIds(3), seconds=60.0).attempts())
    late = clock.waits[8:]
    assert len(late) > 20
    assert min(late) < 0.5
    assert 1.5 < max(late) <= 2.0


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_spent_budget_allows_one_attempt(seconds):
    budget = Budget(clock=FakeClock(), ids=MaximalIds(), seconds=seconds)
    assert list(budget.attempts()) == [0]
    assert list(budget.attempts()) == [0]


def test_attempts_that_take_longer_than_the_budget_are_at_least_so_many_and_wait():
    clock = RecordingClock()
    attempts = []
    for attempt in Budget(clock=clock, ids=MaximalIds(), seconds=10.0).attempts(least=3):
        attempts.append(attempt)
        clock.advance(20.0)
    assert (attempts, clock.waits) == ([0, 1, 2], [0.01, 0.02])


def test_retry_loops_of_one_operation_share_a_budget():
    clock = FakeClock()
    budget = Budget(clock=clock, ids=MaximalIds(), seconds=5.0)
    list(budget.attempts())
    assert list(budget.attempts()) == [0]
    assert clock.monotonic() == pytest.approx(5.0)


def test_time_spent_in_an_attempt_counts_against_the_budget():
    clock = FakeClock()
    budget = Budget(clock=clock, ids=MaximalIds(), seconds=5.0)
    for _ in budget.attempts():
        clock.advance(5.0)
    assert clock.monotonic() == 5.0


@pytest.mark.parametrize("ids", [SystemIds(), SeededIds(1)], ids=["system", "seeded"])
def test_nonces_are_32_hex_digits_and_random_numbers_are_below_one(ids):
    nonces = [ids.nonce() for _ in range(1000)]
    assert len(set(nonces)) == 1000
    assert all(re.fullmatch("[0-9a-f]{32}", nonce) for nonce in nonces)
    assert all(0 <= ids.uniform() < 1 for _ in range(1000))


def test_seeded_ids_repeat_only_with_the_same_seed():
    def names(seed):
        ids = SeededIds(seed)
        return [ids.nonce(), ids.uniform(), ids.nonce()]

    assert names("a") == names("a") != names("b")


def test_the_system_clock_advances():
    clock = SystemClock()
    before = clock.monotonic()
    clock.sleep(0.001)
    assert clock.monotonic() > before
    assert clock.now() > 1_700_000_000
