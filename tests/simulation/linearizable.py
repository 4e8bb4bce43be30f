"""Check whether a history of one region is linearizable, with the search of Wing, Gong and Lowe.

The object is a log that is read as a table. An append adds its rows at the next position, all at once. A read returns
the newest value of each key. A read of the head returns the number of entries. A history is legal if each operation can
be assigned one moment between its call and its answer at which it happened as a whole, so that each operation saw the
effects of those before it. An operation without an answer has no end: it happened at any time after its call, or never.
The search remembers the states that it has visited.

Regions don't share keys, so a history of a table is checked region by region.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

NEVER = math.inf  # the end of an operation without an answer

Content = frozenset[tuple[Any, Any]]  # pairs of key and value; each key at most once


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The log: the value of each live key, and the number of entries."""

    rows: Content = frozenset()
    entries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(ABC):
    """A call of an actor with its answer, from the moment `called` to the moment `answered`."""

    actor: str
    called: float
    answered: float

    @property
    def may_never_happen(self) -> bool:
        """Return whether the operation has no answer."""
        return self.answered == NEVER

    @abstractmethod
    def after(self, state: State) -> State | None:
        """Return the state after the operation, or None if it can't happen in this state with its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(Operation):
    """One entry: values by key; None deletes. `position` is None if the append has no answer.

    Claims add entries without rows. They are not operations, so positions may have gaps.
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
class Transact(Append):
    """An entry that was computed from the rows of some keys, which it saw right before it."""

    saw: Mapping[Any, Any]
    keys: frozenset[Any]

    def after(self, state: State) -> State | None:
        before = {(key, value) for key, value in state.rows if key in self.keys}
        return Append.after(self, state) if before == set(self.saw.items()) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Operation):
    """A read of some keys, or of all keys if `keys` is None."""

    rows: Mapping[Any, Any]
    keys: frozenset[Any] | None = None

    def after(self, state: State) -> State | None:
        seen = state.rows if self.keys is None else {(key, value) for key, value in state.rows if key in self.keys}
        return state if seen == frozenset(self.rows.items()) else None

    def shows(self, key: Any, value: Any) -> bool:
        """Return whether the read shows this value for the key; None for no row."""
        return (self.keys is None or key in self.keys) and self.rows.get(key) == value


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadHead(Operation):
    """A read of the head: the number of entries in the log, including entries without rows."""

    entries: int

    def after(self, state: State) -> State | None:
        return State(rows=state.rows, entries=self.entries) if self.entries >= state.entries else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A history that has no legal order: the longest legal order found, and the operations that fit nowhere in it."""

    order: tuple[Operation, ...]
    left: tuple[Operation, ...]

    def __str__(self) -> str:
        def lines(operations: Iterable[Operation]) -> str:
            return "".join(f"\n  {operation}" for operation in operations)

        return f"not linearizable. The longest order:{lines(self.order)}\nThese do not fit:{lines(self.left)}"


def violation(history: Iterable[Operation], *, loaded: Mapping[Any, Any] | None = None) -> Violation | None:
    """Return None if the history is linearizable from a table with the rows `loaded`, else the violation.

    The time is exponential in the number of concurrent appends and linear in the length of the history.
    """
    before = frozenset((loaded or {}).items())
    operations = sorted(_settled(list(history), before), key=lambda one: (one.called, one.answered))
    required = sum(1 << number for number, one in enumerate(operations) if not one.may_never_happen)
    first = _advanced(operations, _Search(done=0, state=State(rows=before), order=()))
    stack, seen, longest = [(first, iter(_next(operations, first.done)))], {(first.done, first.state)}, first
    while stack:
        search, candidates = stack[-1]
        longest = max(longest, search, key=lambda one: one.done.bit_count())
        if search.done & required == required:
            return None
        for number in candidates:
            state = operations[number].after(search.state)
            if state is None:
                continue
            following = _advanced(operations, search.with_next(number, state))
            if (following.done, following.state) not in seen:
                seen.add((following.done, following.state))
                stack.append((following, iter(_next(operations, following.done))))
                break
        else:
            stack.pop()
    left = [one for number, one in enumerate(operations) if not longest.done >> number & 1 and not one.may_never_happen]
    return Violation(order=tuple(operations[number] for number in longest.numbers()), left=tuple(left))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """A state of the search: a bit for each operation that happened, its result, and the order with the last first."""

    done: int
    state: State
    order: tuple[int, Any] | tuple[()]

    def with_next(self, number: int, state: State) -> _Search:
        return _Search(done=self.done | 1 << number, state=state, order=(number, self.order))

    def numbers(self) -> list[int]:
        found, rest = [], self.order
        while rest:
            number, rest = rest
            found.append(number)
        return found[::-1]


def _advanced(operations: list[Operation], search: _Search) -> _Search:
    """Add all possible operations that change nothing: one that fits later fits here as well."""
    moved = True
    while moved:
        moved = False
        for number in _next(operations, search.done):
            if operations[number].after(search.state) == search.state:
                search, moved = search.with_next(number, search.state), True
    return search


def _next(operations: list[Operation], done: int) -> list[int]:
    """Return the operations that may happen next, those with the earliest answer first.

    Such an operation was called before any operation that has not happened yet got its answer. Operations are in the
    order of their calls, so the loop ends at the first call after the earliest answer.
    """
    possible: list[int] = []
    deadline = NEVER
    number = (~done & (done + 1)).bit_length() - 1  # the first one that has not happened
    while number < len(operations) and operations[number].called <= deadline:
        if not done >> number & 1:
            possible.append(number)
            deadline = min(deadline, operations[number].answered)
        number += 1
    return sorted(possible, key=lambda one: (operations[one].answered, one))


def _settled(history: list[Operation], loaded: Content) -> Iterable[Operation]:
    """Remove uncertainty from unanswered appends.

    An unanswered append that no read saw can be left out of any order. An unanswered append of a value that no other
    operation writes happened before the answer of the first read that shows the value.
    """
    reads = [one for one in history if isinstance(one, Read)]
    reads += [
        Read(actor=one.actor, called=one.called, answered=one.answered, rows=one.saw, keys=one.keys)
        for one in history
        if isinstance(one, Transact)
    ]
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
