"""Is a history of one region linearizable? The search of Wing, Gong and Lowe, with memory of where it was already.

The object is a log that is read as a table: an append adds its rows at the next position, all at once; a read sees the
newest value of each key; a look at the head sees how many entries there are. A history is legal if each operation can
be given one moment between its call and its answer at which it happened as a whole, and each saw what those before it
made. What was given no answer has no end: it happened at any time after its call, or never.

Regions don't share keys, so a history of a table is checked region by region.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

NEVER = math.inf  # when an operation ended that was given no answer

Content = frozenset[tuple[Any, Any]]  # (key, value), a key once


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The log: the value of each live key, and how many entries there are."""

    rows: Content = frozenset()
    entries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(ABC):
    """What an actor asked and was told, from the moment `called` to the moment `answered`."""

    actor: str
    called: float
    answered: float

    @property
    def may_never_happen(self) -> bool:
        """Nobody was told that it happened."""
        return self.answered == NEVER

    @abstractmethod
    def after(self, state: State) -> State | None:
        """The state that it leaves, if it can happen in this one with the answer that it got."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(Operation):
    """One entry: values by key, None deletes. `position` is None if its writer was not told it.

    Entries without rows, which claims add, are operations of nobody: a position may leave some out.
    """

    rows: Mapping[Any, Any]
    position: int | None = None

    def after(self, state: State) -> State | None:
        if self.position is not None and self.position <= state.entries:
            return None
        kept = {key: value for key, value in state.rows if key not in self.rows}
        written = {key: value for key, value in self.rows.items() if value is not None}
        return State(rows=frozenset({**kept, **written}.items()), entries=self.position or state.entries + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Operation):
    """What was read of some keys; of all of them if `keys` is None."""

    rows: Mapping[Any, Any]
    keys: frozenset[Any] | None = None

    def after(self, state: State) -> State | None:
        seen = state.rows if self.keys is None else {(key, value) for key, value in state.rows if key in self.keys}
        return state if seen == frozenset(self.rows.items()) else None

    def shows(self, key: Any, value: Any) -> bool:
        """Whether this is the value of the key, None for none."""
        return (self.keys is None or key in self.keys) and self.rows.get(key) == value


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(Operation):
    """A head: how many entries the log has, those without rows too."""

    entries: int

    def after(self, state: State) -> State | None:
        return State(rows=state.rows, entries=self.entries) if self.entries >= state.entries else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A history without an order: as much as fits in one, and what then fits nowhere."""

    order: tuple[Operation, ...]
    left: tuple[Operation, ...]

    def __str__(self) -> str:
        def lines(operations: Iterable[Operation]) -> str:
            return "".join(f"\n  {operation}" for operation in operations)

        return f"not linearizable. The longest order:{lines(self.order)}\nand then none of:{lines(self.left)}"


def violation(history: Iterable[Operation], *, loaded: Mapping[Any, Any] | None = None) -> Violation | None:
    """None if the history is linearizable from a table with these rows; else the longest order that was found.

    Takes time exponential in the number of appends under way at once, linear in their sequence.
    """
    before = frozenset((loaded or {}).items())
    operations = sorted(_settled(list(history), before), key=lambda one: (one.called, one.answered))
    required = sum(1 << number for number, one in enumerate(operations) if not one.may_never_happen)
    first = _advanced(operations, _Place(done=0, state=State(rows=before), order=()))
    stack, seen, longest = [(first, iter(_next(operations, first.done)))], {(first.done, first.state)}, first
    while stack:
        place, candidates = stack[-1]
        longest = max(longest, place, key=lambda one: one.done.bit_count())
        if place.done & required == required:
            return None
        for number in candidates:
            state = operations[number].after(place.state)
            if state is None:
                continue
            following = _advanced(operations, place.with_next(number, state))
            if (following.done, following.state) not in seen:
                seen.add((following.done, following.state))
                stack.append((following, iter(_next(operations, following.done))))
                break
        else:
            stack.pop()
    left = [one for number, one in enumerate(operations) if not longest.done >> number & 1 and not one.may_never_happen]
    return Violation(order=tuple(operations[number] for number in longest.numbers()), left=tuple(left))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where the search is: a bit for each operation that happened, what they left, and in which order, last first."""

    done: int
    state: State
    order: tuple[int, Any] | tuple[()]

    def with_next(self, number: int, state: State) -> _Place:
        return _Place(done=self.done | 1 << number, state=state, order=(number, self.order))

    def numbers(self) -> list[int]:
        found, rest = [], self.order
        while rest:
            number, rest = rest
            found.append(number)
        return found[::-1]


def _advanced(operations: list[Operation], place: _Place) -> _Place:
    """With all that can happen and changes nothing: if it fits anywhere later, it fits here as well."""
    moved = True
    while moved:
        moved = False
        for number in _next(operations, place.done):
            if operations[number].after(place.state) == place.state:
                place, moved = place.with_next(number, place.state), True
    return place


def _next(operations: list[Operation], done: int) -> list[int]:
    """Which may happen next: those that were called before any that is not done had its answer, the most urgent first.

    Operations are in the order of their calls, so the search ends at the first call after the earliest answer.
    """
    able: list[int] = []
    deadline = NEVER
    number = (~done & (done + 1)).bit_length() - 1  # the first that is not done
    while number < len(operations) and operations[number].called <= deadline:
        if not done >> number & 1:
            able.append(number)
            deadline = min(deadline, operations[number].answered)
        number += 1
    return sorted(able, key=lambda one: (operations[one].answered, one))


def _settled(history: list[Operation], loaded: Content) -> Iterable[Operation]:
    """Without what needs no guess: an unanswered append that nobody saw can be left out of any order; one whose value
    is written by nobody else happened before the first answer that shows it."""
    reads = [one for one in history if isinstance(one, Read)]
    writers = Counter(pair for one in history if isinstance(one, Append) for pair in one.rows.items())
    writers.update(loaded)
    for one in history:
        if not isinstance(one, Append) or not one.may_never_happen:
            yield one
            continue
        seen = {pair: [read.answered for read in reads if read.shows(*pair)] for pair in one.rows.items()}
        if any(seen.values()):
            own = [
                min(at) for (key, value), at in seen.items() if at and value is not None and writers[key, value] == 1
            ]
            yield replace(one, answered=min(own, default=NEVER))
