"""Append: whatever gets lost on the way, an entry is committed once or never, or its writer can't tell and says so."""

from __future__ import annotations

import pytest

from lancelsm.errors import Ambiguous, Contended, Fenced, Invalid, Unavailable
from tests.simulation.crowd import crowd
from tests.simulation.faults import FAIL_AFTER, FAIL_BEFORE, Crash, late
from tests.simulation.situations import APPENDS, calls, interruptions, one_fault_each, outages

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
        crowd(seed)


@pytest.mark.long
@pytest.mark.parametrize("block", range(8, 208))
def test_more_seeds_of_everybody_at_once(block):
    for seed in range(block * 50, block * 50 + 50):
        crowd(seed)


def test_the_seeds_meet_every_outcome():
    told = [error for seed in range(60) for error in crowd(seed).told.values()]
    assert {type(error) for error in told} == {Fenced, Invalid, Unavailable, Contended, Ambiguous, Crash}
