"""The checker accepts linearizable histories, rejects others, and agrees with brute force."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.linearizable import NEVER, Append, Operation, Read, ReadHead, State, violation


def append(called: float, answered: float, *, at: int | None, actor: str = "w", **rows: int | None) -> Append:
    return Append(actor=actor, called=called, answered=answered, rows=rows, position=at)


def read(called: float, answered: float, *, keys: str | None = None, **rows: int) -> Read:
    return Read(
        actor="r", called=called, answered=answered, rows=rows, keys=None if keys is None else frozenset(keys.split())
    )


def read_head(called: float, answered: float, entries: int) -> ReadHead:
    return ReadHead(actor="l", called=called, answered=answered, entries=entries)


GOOD: dict[str, list[Operation]] = {
    "empty": [],
    "one after another": [append(0, 1, at=1, a=1), read(2, 3, a=1), append(4, 5, at=2, a=2), read(6, 7, a=2)],
    "a read during a write sees it": [append(0, 9, at=1, a=1), read(1, 2, a=1)],
    "a read during a write does not see it": [append(0, 9, at=1, a=1), read(1, 2)],
    "of two reads during a write only the later one sees it": [append(0, 9, at=1, a=1), read(1, 2), read(3, 4, a=1)],
    "concurrent writes in either order": [
        append(0, 9, at=2, a=1),
        append(0, 9, at=1, a=2),
        read(10, 11, a=1),
    ],
    "an unanswered write that happened": [append(0, NEVER, at=None, a=1), read(2, 3, a=1)],
    "an unanswered write that never happened": [append(0, NEVER, at=None, a=1), read(2, 3), read_head(4, 5, 0)],
    "an unanswered write that happened late": [
        append(0, NEVER, at=None, a=1),
        append(1, 2, at=1, a=2),
        read(3, 4, a=2),
        read(5, 6, a=1),
    ],
    "a delete": [append(0, 1, at=1, a=1), append(2, 3, at=2, a=None), read(4, 5)],
    "a get of some keys": [append(0, 1, at=1, a=1, b=2), read(2, 3, keys="b c", b=2)],
    "a claim between two writes": [
        append(0, 1, at=1, a=1),
        read_head(2, 3, 2),
        append(4, 5, at=3, a=2),
        read_head(6, 7, 3),
    ],
    "a snapshot that is read much later": [append(0, 1, at=1, a=1), read(2, 3, a=1), append(4, 5, at=2, a=2)],
}

BAD: dict[str, list[Operation]] = {
    "a lost update": [append(0, 1, at=1, a=1), read(2, 3)],
    "a stale read": [append(0, 1, at=1, a=1), append(2, 3, at=2, a=2), read(4, 5, a=1)],
    "a read that goes back": [append(0, 9, at=1, a=1), read(1, 2, a=1), read(3, 4)],
    "a read from the future": [read(0, 1, a=1), append(2, 3, at=1, a=1)],
    "a read of a value that was never written": [append(0, 1, at=1, a=1), read(2, 3, a=7)],
    "two readers that see two writes in different orders": [
        append(0, 9, at=None, a=1),
        append(0, 9, at=None, b=1),
        read(1, 2, a=1),
        read(1, 2, b=1),
    ],
    "half of an entry": [append(0, 1, at=1, a=1, b=1), read(2, 3, a=1)],
    "half of an entry during its write": [append(0, 9, at=1, a=1, b=1), read(2, 3, b=1)],
    "applied twice": [append(0, 1, at=1, a=1), append(2, 3, at=2, a=2), read(4, 5, a=2), read(6, 7, a=1)],
    "an unanswered write that happened twice": [
        append(0, NEVER, at=None, a=1),
        read(1, 2, a=1),
        append(3, 4, at=2, a=2),
        read(5, 6, a=2),
        read(7, 8, a=1),
    ],
    "a deleted row that comes back": [append(0, 1, at=1, a=1), append(2, 3, at=2, a=None), read(4, 5), read(6, 7, a=1)],
    "positions against the order of writes": [append(0, 1, at=2, a=1), append(2, 3, at=1, a=2)],
    "one position for two entries": [append(0, 9, at=1, a=1), append(0, 9, at=1, b=1)],
    "a position above a head that was read later": [append(0, 1, at=5, a=1), read_head(2, 3, 4)],
    "a position that a head had passed": [read_head(0, 1, 3), append(2, 3, at=3, a=1)],
    "a head that falls": [read_head(0, 1, 3), read_head(2, 3, 2)],
    "an unanswered write that happened before its call": [read(0, 1, a=1), append(2, NEVER, at=None, a=1)],
    "an unanswered write that happened, then never did": [
        append(0, NEVER, at=None, a=1),
        read(1, 2, a=1),
        read(3, 4),
    ],
    "an unanswered write that a head has no room for": [
        append(0, 1, at=1, b=1),
        append(0, NEVER, at=None, a=1),
        read(2, 3, a=1, b=1),
        read_head(4, 5, 1),
    ],
}


@pytest.mark.parametrize("history", GOOD.values(), ids=GOOD)
def test_a_linearizable_history_is_accepted(history: list[Operation]) -> None:
    assert violation(history) is None
    assert is_legal(history)


@pytest.mark.parametrize("history", BAD.values(), ids=BAD)
def test_a_history_that_is_not_linearizable_is_rejected(history: list[Operation]) -> None:
    found = violation(history)

    assert found is not None
    assert found.left
    assert not is_legal(history)


def test_a_read_shows_the_rows_that_were_loaded_at_the_start() -> None:
    assert violation([read(0, 1, a=1)], loaded={"a": 1}) is None
    assert violation([read(0, 1)], loaded={"a": 1}) is not None


def test_a_violation_names_the_longest_order_and_the_operations_that_do_not_fit() -> None:
    first, second, stale = append(0, 1, at=1, a=1), append(2, 3, at=2, a=2), read(4, 5, a=1)

    found = violation([stale, second, first])

    assert found is not None
    assert (found.order, found.left) == ((first, second), (stale,))
    assert "not linearizable" in str(found)


def is_legal(history: list[Operation]) -> bool:
    """Decide by brute force: try every order of every choice of unanswered operations."""
    required = [one for one in history if not one.may_never_happen]
    optional = [one for one in history if one.may_never_happen]
    for size in range(len(optional) + 1):
        for chosen in itertools.combinations(optional, size):
            for order in itertools.permutations([*required, *chosen]):
                if _keeps_time(order) and _is_possible(order):
                    return True
    return False


def _keeps_time(order: tuple[Operation, ...]) -> bool:
    return all(earlier.called <= later.answered for earlier, later in itertools.combinations(order, 2))


def _is_possible(order: tuple[Operation, ...]) -> bool:
    state: State | None = State()
    for one in order:
        state = one.after(state)
        if state is None:
            return False
    return True


def generated(seed: int, *, operations: int, actors: int) -> list[Operation]:
    """Generate a legal history: each operation happens at one moment between its call and its answer."""
    dice = random.Random(f"history {seed}")
    state = State()
    free = [0.0] * actors
    history: list[Operation] = []
    now = 0.0
    for number in range(operations):
        now += 1.0
        actor = dice.randrange(actors)
        called = dice.uniform(min(free[actor], now), now)
        answered = now + dice.choice([0.1, 0.5, 1.5, 4.0])
        free[actor] = answered
        common: dict[str, Any] = {"actor": str(actor), "called": called, "answered": answered}
        keys = dice.sample("abc", dice.choice([1, 1, 2]))
        match dice.choice(["append", "append", "append", "claim", "unanswered", "read", "read", "get", "look"]):
            case "append":
                rows = {key: dice.choice([number, number, None]) for key in keys}
                one: Operation = Append(**common, rows=rows, position=state.entries + 1)
            case "claim":
                state = replace(state, entries=state.entries + 1)
                one = ReadHead(**common, entries=state.entries)
            case "unanswered":
                one = Append(**{**common, "answered": NEVER}, rows=dict.fromkeys(keys, number))
                if dice.random() < 0.5:
                    history.append(one)
                    continue
            case "read":
                one = Read(**common, rows=dict(state.rows))
            case "get":
                one = Read(**common, rows={k: v for k, v in state.rows if k in keys}, keys=frozenset(keys))
            case _:
                one = ReadHead(**common, entries=state.entries)
        after = one.after(state)
        assert after is not None
        state = after
        history.append(one)
    return history


def spoiled(history: list[Operation], seed: int) -> list[Operation] | None:
    """Change one answer of a history. Return None if the chosen answer has no other value."""
    dice = random.Random(f"spoil {seed}")
    number = dice.randrange(len(history))
    one = history[number]
    match one:
        case Read() if one.rows and dice.random() < 0.5:
            lacking = dict(one.rows)
            del lacking[dice.choice(sorted(lacking))]
            changed: Operation = replace(one, rows=lacking)
        case Read():
            older = [earlier for earlier in history if isinstance(earlier, Read) and earlier.keys == one.keys]
            changed = replace(one, rows=dice.choice(older).rows)
        case Append(position=int()):
            changed = replace(one, position=one.position + dice.choice([-1, 1]))
        case ReadHead():
            changed = replace(one, entries=max(0, one.entries + dice.choice([-1, 1])))
        case _:
            return None
    return None if changed == one else [*history[:number], changed, *history[number + 1 :]]


def many(make: Callable[[int], list[Operation] | None], seeds: range) -> Iterator[tuple[int, list[Operation]]]:
    for seed in seeds:
        history = make(seed)
        if history is not None:
            yield seed, history


@pytest.mark.parametrize(("operations", "actors"), [(6, 3), (40, 3), (120, 4), (400, 5)])
def test_every_generated_legal_history_is_accepted(operations: int, actors: int) -> None:
    for seed in range(2_000 // operations):
        assert violation(generated(seed, operations=operations, actors=actors)) is None, f"seed {seed}"


def test_most_spoiled_histories_are_rejected() -> None:
    histories = list(many(lambda seed: spoiled(generated(seed, operations=40, actors=3), seed), range(300)))
    rejected = sum(violation(history) is not None for _, history in histories)

    assert len(histories) > 200
    assert rejected > 0.7 * len(histories), f"{rejected} of {len(histories)}"


def test_the_checker_agrees_with_brute_force_on_small_histories() -> None:
    counts = {True: 0, False: 0}
    for seed, history in many(lambda seed: spoiled(generated(seed, operations=6, actors=3), seed), range(400)):
        legal = violation(history) is None
        counts[legal] += 1
        assert legal == is_legal(history), f"seed {seed}: {history}"

    assert min(counts.values()) > 50, counts
