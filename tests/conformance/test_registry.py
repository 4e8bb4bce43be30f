"""The contract of `lancelsm.registry.Registry`, for every adapter."""

from __future__ import annotations

import random

import pytest

from lancelsm.common.layout import Key, RegionId, TableId, head_key, table_key
from lancelsm.errors import Corrupt
from lancelsm.registry import NEVER_DECREASE, SwapApplied, SwapLost
from tests.conformance import race
from tests.conformance.backends import REGISTRIES, between_processes, opened_registry
from tests.simulation.faults import MemoryRegistry

HEAD = head_key(TableId("9c1d"), RegionId("71aa"))
NAMES = ("one", "two", "three", "four")


@pytest.fixture(params=REGISTRIES)
def description(request, described):
    return described(request.param)


@pytest.fixture
def registry(description):
    return opened_registry(description)


def test_an_absent_record_is_read_as_none_and_not_listed(registry):
    assert registry.read(HEAD) is None
    assert registry.list(HEAD.partition) == []


def test_a_record_is_created_once(registry):
    assert registry.swap(HEAD, expect=None, change={"epoch": 1, "owner": "default"}) == SwapApplied(
        record={"epoch": 1, "owner": "default"}
    )
    assert registry.swap(HEAD, expect=None, change={"epoch": 2}) == SwapLost(record={"epoch": 1, "owner": "default"})
    assert registry.read(HEAD) == {"epoch": 1, "owner": "default"}


def test_a_swap_writes_its_fields_and_keeps_the_others(registry):
    registry.swap(HEAD, expect=None, change={"epoch": 1, "next_position": 7, "owner": "default"})

    assert registry.swap(
        HEAD, expect={"epoch": 1, "next_position": 7}, change={"next_position": 8, "nonce": "ab"}
    ) == SwapApplied(record={"epoch": 1, "next_position": 8, "owner": "default", "nonce": "ab"})
    assert registry.read(HEAD) == {"epoch": 1, "next_position": 8, "owner": "default", "nonce": "ab"}


def test_a_swap_with_a_wrong_expectation_is_lost_and_returns_the_record(registry):
    registry.swap(HEAD, expect=None, change={"epoch": 1, "next_position": 7})

    assert registry.swap(HEAD, expect={"epoch": 1, "next_position": 6}, change={"next_position": 8}) == SwapLost(
        record={"epoch": 1, "next_position": 7}
    )
    assert registry.read(HEAD) == {"epoch": 1, "next_position": 7}


def test_a_swap_of_an_absent_record_is_lost(registry):
    for expect in ({}, {"epoch": 1}, {"epoch": None}):
        assert registry.swap(HEAD, expect=expect, change={"epoch": 1}) == SwapLost(record=None)
    assert registry.read(HEAD) is None


def test_a_swap_without_expectations_is_applied(registry):
    registry.swap(HEAD, expect=None, change={"epoch": 1})

    assert registry.swap(HEAD, expect={}, change={"merged": 1}) == SwapApplied(record={"epoch": 1, "merged": 1})


def test_none_expects_an_absent_field_or_removes_a_field(registry):
    registry.swap(HEAD, expect=None, change={"a": 1, "b": None})
    assert registry.read(HEAD) == {"a": 1}

    assert registry.swap(HEAD, expect={"a": None}, change={"b": 2}) == SwapLost(record={"a": 1})
    assert registry.swap(HEAD, expect={"b": None}, change={"a": None, "c": 3}) == SwapApplied(record={"c": 3})
    assert registry.read(HEAD) == {"c": 3}


def test_values_keep_their_type_and_size(registry):
    fields = {"text": "1", "number": 1, "empty": "", "zero": 0, "big": 2**63 + 1, "low": -5, "odd": "ü\n\"'{}😀\x00"}
    fields |= {"bytes": bytes(range(256)), "none": b""}
    registry.swap(HEAD, expect=None, change=fields)

    record = registry.read(HEAD)
    assert record == fields
    assert {name: type(value) for name, value in record.items()} == {
        name: type(value) for name, value in fields.items()
    }
    assert isinstance(registry.swap(HEAD, expect={"number": "1"}, change={"x": 1}), SwapLost)
    assert isinstance(registry.swap(HEAD, expect=fields, change={"x": 1}), SwapApplied)


@pytest.mark.parametrize("field", NEVER_DECREASE)
def test_a_floor_or_a_counter_never_decreases(registry, field):
    registry.swap(HEAD, expect=None, change={field: 5, "owner": "default"})

    for change in ({field: 4}, {field: None}):
        with pytest.raises(Corrupt, match=field):
            registry.swap(HEAD, expect={"owner": "default"}, change={**change, "owner": "late"})
    assert registry.read(HEAD) == {field: 5, "owner": "default"}
    assert registry.swap(HEAD, expect={}, change={field: 5}) == SwapApplied(record={field: 5, "owner": "default"})
    assert registry.swap(HEAD, expect={}, change={field: 6}) == SwapApplied(record={field: 6, "owner": "default"})


def test_a_lost_swap_that_would_decrease_a_field_is_only_lost(registry):
    registry.swap(HEAD, expect=None, change={"epoch": 5})

    assert registry.swap(HEAD, expect={"epoch": 3}, change={"epoch": 4}) == SwapLost(record={"epoch": 5})


def test_a_partition_is_listed_in_order_without_others(registry):
    sorts = ["a", "a b", "a#b", "a%b", "a.json", "a/b", "a=23b", "a~", "..", "B", "ä", "日本", "😀", "10", "9"]
    keys = [Key(partition="T#table", sort=sort) for sort in sorts]
    for key in keys:
        registry.swap(key, expect=None, change={"name": key.sort})
    for partition in ("T", "T#tabl", "T#table2", "T#table#x", "T/table", "t#table", ".", ".."):
        registry.swap(Key(partition=partition, sort="a"), expect=None, change={"name": "other"})

    assert registry.list("T#table") == [(key, {"name": key.sort}) for key in sorted(keys)]
    assert registry.list("T") == [(Key(partition="T", sort="a"), {"name": "other"})]
    assert registry.read(table_key(TableId("a"))) == {"name": "other"}


def test_a_large_partition_is_listed_completely(registry):
    keys = [Key(partition="T#many", sort=f"{number:03}") for number in range(150)]
    for key in keys:
        registry.swap(key, expect=None, change={"name": key.sort})

    assert registry.list("T#many") == [(key, {"name": key.sort}) for key in keys]


def test_changing_a_returned_or_passed_dictionary_does_not_change_the_record(registry):
    change = {"epoch": 1}
    first = registry.swap(HEAD, expect=None, change=change).record
    change["epoch"] = 9
    for record in (first, registry.read(HEAD), registry.list(HEAD.partition)[0][1]):
        record["epoch"] = 99

    assert registry.read(HEAD) == {"epoch": 1}


@pytest.mark.parametrize("seed", range(3))
def test_random_swaps_have_the_same_outcome_as_in_memory(registry, seed):
    rng, model = random.Random(seed), MemoryRegistry()
    fields = (
        "epoch",
        "next_position",
        "owner",
        "name",
        "size",
    )  # some never decrease, some are reserved in DynamoDB

    def random_fields(maximum: int) -> dict[str, str | int | None]:
        names = rng.sample(fields, rng.randint(0, maximum))
        return {field: _value(rng, field) for field in names}

    for step in range(60):
        expect = None if rng.random() < 0.1 else random_fields(2)
        change = random_fields(4)
        expected, outcome = (_outcome(adapter, expect, change) for adapter in (model, registry))
        assert outcome == expected, f"seed {seed}, step {step}: {expect} -> {change}"
    assert registry.read(HEAD) == model.read(HEAD)


def _value(rng: random.Random, field: str) -> str | int | None:
    if rng.random() < 0.2:
        return None
    number = rng.randint(1, 3)
    return number if field in NEVER_DECREASE or rng.random() < 0.5 else str(number)


def _outcome(registry, expect, change):
    try:
        return registry.swap(HEAD, expect=expect, change=change)
    except Corrupt as error:
        return error.where


def assert_one_winner_each(registry, wins):
    assert sorted(n for rounds in wins.values() for n in rounds) == list(range(race.ROUNDS))
    for name, rounds in wins.items():
        assert all(registry.read(Key(partition="R#race", sort=f"{n}")) == {"by": name} for n in rounds)


def test_of_racing_threads_one_creates(registry):
    assert_one_winner_each(registry, race.by_threads("create_each_record", registry, NAMES))


@pytest.mark.one_case
def test_racing_threads_lose_no_swap(registry):
    registry.swap(race.RECORD, expect=None, change={"n": 0})

    race.by_threads("count_record", registry, NAMES)

    assert registry.read(race.RECORD) == {"n": race.STEPS * len(NAMES)}


def test_swaps_of_different_fields_do_not_conflict(registry):
    registry.swap(race.RECORD, expect=None, change=dict.fromkeys(NAMES, 0))

    lost = race.by_threads("count_own_field", registry, NAMES)

    assert lost == dict.fromkeys(NAMES, 0)
    assert registry.read(race.RECORD) == dict.fromkeys(NAMES, race.STEPS)


@pytest.mark.one_case
@pytest.mark.parametrize("backend", between_processes(REGISTRIES))
def test_of_racing_processes_one_creates(backend, described):
    description = described(backend)
    assert_one_winner_each(opened_registry(description), race.by_processes("create_each_record", description, NAMES))


@pytest.mark.one_case
@pytest.mark.parametrize("backend", between_processes(REGISTRIES))
def test_racing_processes_lose_no_swap(backend, described):
    description = described(backend)
    opened_registry(description).swap(race.RECORD, expect=None, change={"n": 0})

    race.by_processes("count_record", description, NAMES)

    assert opened_registry(description).read(race.RECORD) == {"n": race.STEPS * len(NAMES)}


@pytest.mark.one_case
@pytest.mark.parametrize("backend", between_processes(REGISTRIES))
def test_processes_that_swap_different_fields_do_not_conflict(backend, described):
    description = described(backend)
    opened_registry(description).swap(race.RECORD, expect=None, change=dict.fromkeys(NAMES, 0))

    lost = race.by_processes("count_own_field", description, NAMES)

    assert lost == dict.fromkeys(NAMES, 0)
    assert opened_registry(description).read(race.RECORD) == dict.fromkeys(NAMES, race.STEPS)
