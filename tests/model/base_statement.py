"""State and check the files of a base: docs/concepts/sums.md, "The statement of files".

A merger writes a file, sums it, reads it back, writes a statement, and commits both in one version. Another tool
commits one compaction, which no statement has. A checker reads the newest base, sums each file that no check has
summed, writes a statement of its own, and swaps the record `base_checked`. A collector deletes generations by that
record. It also lists statements, raises the fence, commits its round, and deletes the listed statements that nothing
names. A bit of one file flips at any time. A merger may crash between any two steps, and begins again; the others may
just stop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

FOREIGN = "foreign"


class Guard(Enum):
    SUM_FIRST = "a file is summed before it is read back"
    READ_BACK = "a merge commits only a file that it has read back"
    CONFLICT = "a merge commits only on the base version that it read"
    EVERY_FILE = "a version is checked only if all its files were summed, those without a line too"
    COMPARE = "a check compares the sum of a file with its line"
    CHECKED_COUNTER = "a generation goes only if the checked version has it"
    LISTED_BEFORE_FENCE = "statements are deleted only if they were listed before the fence was raised"
    READ_AFTER_FENCE = "statements are deleted only if nothing names them after the fence"
    ON_ROUND = "the record of a check is swapped on the round that was read before the check"


class Base(NamedTuple):
    version: int = 1
    holders: tuple[str, ...] = ()  # the file with the rows of generation 1, 2, ...
    statement: str = ""


class Merger(NamedTuple):
    call: str = "read"
    base: Base = Base()
    file: str = ""
    bad: bool = False  # whether the sum was taken of damaged bytes
    statement: str = ""


class Checker(NamedTuple):
    call: str = "read"
    base: Base = Base()
    round: int = 0
    summed: frozenset[str] = frozenset()
    statement: str = ""


class Collector(NamedTuple):
    call: str = "mark"
    holders: tuple[str, ...] = ()  # of the generations that go
    listed: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()


class State(NamedTuple):
    base: Base = Base()
    statements: frozenset[str] = frozenset()  # that are stored
    lines: frozenset[tuple[str, bool]] = frozenset()  # what merges stated: file, and whether of damaged bytes
    checked: tuple[tuple[str, ...], str] = ((), "")  # holders of the checked version, statement of the check
    intact: frozenset[str] = frozenset()  # files that a check has read, and that were not damaged then
    round: int = 0
    deleted: int = 0  # generations
    unproved: frozenset[str] = frozenset()  # holders of deleted generations that no check had found intact
    damaged: frozenset[str] = frozenset()
    merger: Merger = Merger()
    checker: Checker = Checker()
    collector: Collector = Collector()
    attempts: tuple[int, int, int] = (2, 1, 1)  # of merger, checker, collector
    foreign: int = 1
    flips: int = 1


@dataclass(frozen=True, slots=True)
class BaseStatement:
    without: Guard | None = None
    generations: int = 1

    def initial(self) -> State:
        return State()

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        yield from self._merge(state)
        yield from self._check(state)
        yield from self._collect(state)
        yield from self._others(state)

    def violation(self, state: State) -> Violation | None:
        if any(bad for _, bad in state.lines):
            return Violation("damage stated", f"{sorted(file for file, bad in state.lines if bad)}")
        if len(state.base.holders) < state.deleted:
            return Violation("rows lost", f"{state.deleted} generations deleted, base has {state.base.holders}")
        if state.unproved:
            return Violation("deleted without proof", f"{sorted(state.unproved)}")
        if state.base.statement and state.base.statement not in state.statements:
            return Violation("statement missing", f"{state.base.statement} of version {state.base.version}")
        if state.checked[1] and state.checked[1] not in state.statements:
            return Violation("check missing", f"{state.checked[1]}")
        return None

    def _merge(self, state: State) -> Iterator[tuple[Step, State]]:
        merger, base, left = state.merger, state.base, state.attempts[0]
        order = ["read", "write", "sum", "read back", "state", "commit"]
        if self.without is Guard.SUM_FIRST:
            order[2:4] = ["read back", "sum"]

        def go(after: State, **changes: object) -> State:
            call = order[order.index(merger.call) + 1]
            return after._replace(merger=merger._replace(call=call, **changes))

        fresh = state._replace(merger=Merger())
        if merger.call != "read":
            yield Step("merger", "stop"), fresh
        match merger.call:
            case "read" if left and len(base.holders) < self.generations:
                spent = state._replace(attempts=(left - 1, *state.attempts[1:]))
                yield Step("merger", "read base"), go(spent, base=base)
            case "write":
                yield Step("merger", f"write f{left}"), go(state, file=f"f{left}")
            case "sum":
                yield Step("merger", "sum file"), go(state, bad=merger.file in state.damaged)
            case "read back":
                if merger.file in state.damaged and self.without is not Guard.READ_BACK:
                    yield Step("merger", "read back", "corrupt"), fresh
                else:
                    yield Step("merger", "read back"), go(state)
            case "state":
                key = f"s{left}"
                written = state._replace(statements=state.statements | {key})
                yield Step("merger", f"write {key}"), go(written, statement=key)
            case "commit":
                if base.version != merger.base.version and self.without is not Guard.CONFLICT:
                    yield Step("merger", "commit", "conflict"), fresh
                    return
                made = Base(base.version + 1, (*merger.base.holders, merger.file), merger.statement)
                lines = state.lines | {(merger.file, merger.bad)}
                yield Step("merger", "commit", "applied"), fresh._replace(base=made, lines=lines)

    def _check(self, state: State) -> Iterator[tuple[Step, State]]:
        checker, left = state.checker, state.attempts[1]

        def go(after: State, call: str, **changes: object) -> State:
            return after._replace(checker=checker._replace(call=call, **changes))

        match checker.call:
            case "read" if left:
                spent = state._replace(attempts=(state.attempts[0], left - 1, state.attempts[2]))
                yield Step("checker", "read base"), go(spent, "sum", base=state.base, round=state.round)
            case "sum":
                stated = {file for file, _ in state.lines}
                skip = self.without is Guard.EVERY_FILE
                files = {file for file in checker.base.holders if file in stated or not skip}
                if files & state.damaged and self.without is not Guard.COMPARE:
                    yield Step("checker", "sum files", "corrupt"), state._replace(checker=Checker())
                    return
                intact = state.intact | (files - state.damaged)
                yield Step("checker", "sum files"), go(state._replace(intact=intact), "state")
            case "state":
                key = f"c{left}"
                written = state._replace(statements=state.statements | {key})
                yield Step("checker", f"write {key}"), go(written, "swap", statement=key)
            case "swap":
                fresh = state._replace(checker=Checker())
                if state.round != checker.round and self.without is not Guard.ON_ROUND:
                    yield Step("checker", "swap", "lost"), fresh
                else:
                    record = (checker.base.holders, checker.statement)
                    yield Step("checker", "swap", "applied"), fresh._replace(checked=record)

    def _collect(self, state: State) -> Iterator[tuple[Step, State]]:
        collector, left, base = state.collector, state.attempts[2], state.base

        def go(after: State, call: str, **changes: object) -> State:
            return after._replace(collector=collector._replace(call=call, **changes))

        match collector.call:
            case "mark" if left:
                proved = base.holders if self.without is Guard.CHECKED_COUNTER else state.checked[0]
                holders = proved[: len(base.holders)]
                spent = state._replace(attempts=(*state.attempts[:2], left - 1))
                yield Step("collector", f"mark through {len(holders)}"), go(spent, "list", holders=holders)
            case "list":
                listed = go(state, "fence", listed=state.statements, named=self._named(state))
                yield Step("collector", "list statements"), listed
            case "fence":
                fenced = state._replace(base=base._replace(version=base.version + 1), round=state.round + 1)
                yield Step("collector", "raise fence"), go(fenced, "look")
            case "look":
                named = collector.named if self.without is Guard.READ_AFTER_FENCE else self._named(state)
                late = self.without is Guard.LISTED_BEFORE_FENCE
                yield Step("collector", "look"), go(state, "list late" if late else "sweep", named=named)
            case "list late":
                yield Step("collector", "list statements"), go(state, "sweep", listed=state.statements)
            case "sweep":
                swept = state._replace(
                    statements=state.statements - (collector.listed - collector.named),
                    deleted=max(state.deleted, len(collector.holders)),
                    unproved=frozenset(collector.holders) - state.intact,
                    collector=Collector(),
                )
                yield Step("collector", f"sweep through {len(collector.holders)}"), swept

    def _named(self, state: State) -> frozenset[str]:
        return frozenset({state.base.statement, state.checked[1]})

    def _others(self, state: State) -> Iterator[tuple[Step, State]]:
        base = state.base
        if state.foreign and base.holders:
            made = base._replace(version=base.version + 1, holders=(FOREIGN,) * len(base.holders))
            yield Step("other tool", "compact"), state._replace(base=made, foreign=0)
        if state.flips:
            for file in sorted({*base.holders, state.merger.file} - {""}):
                yield Step("disk", f"flip {file}"), state._replace(damaged=state.damaged | {file}, flips=0)
