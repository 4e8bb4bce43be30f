"""Apply messages on a queue whose region was sealed by a reshard: docs/concepts/changes.md, "Resharding".

The messages of the old region are in one group, in order: the first has rows of keys x and y, the second one of x, the
third one of x and y. The old region has applied the first one. Under the new spec, x and y are in regions of their own.
Two consumers get the first message of the group that is not settled; each decides by the sealed head, then appends to
one region after the other: an append succeeds if its head is still current. A consumer that takes no more steps has
crashed. Meanwhile the producer sends a newer row of x, and a row of another key, to the new region of x, by the queue
too; their sequences are higher than those of all others. A collection may remove the log of a new region.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

KEYS = "xy"
MESSAGES = ("xy", "x", "xy")  # the keys of each; the sequence of a message is its number, from 1
APPLIED = 1  # by the old region
NEWER = 9  # the sequence of the newer row of x
OTHER = 0  # in the log: a row of another key, with the same sequence


class Guard(Enum):
    OLD_HEAD = "a message is dropped if the sealed head of its region has it"
    OWN_PRODUCER = "its rows are appended under a producer of their own, not under that of the queue"
    NEWER_KEY = "a row is appended only if no other entry has its key"
    LOWER_IS_OLDER = "entries of lower messages of the same old region are older than the row"
    EVERY_HEAD = "the rows are drafted again for each head"
    ONE_SWAP = "an entry and its sequence are committed by one swap"
    EACH_REGION = "each region decides by its own head whether it has the message"
    COLLECTED = "rows are appended only behind a log that is kept from its first entry"


class Region(NamedTuple):
    log: tuple[int, ...] = ()  # sequences of the rows, oldest first
    floor: int = 0
    moved: int = 0  # sequence of the producer for the old region
    direct: int = 0  # sequence of the queue itself


class Consumer(NamedTuple):
    call: str = "receive"
    message: int = 0
    key: str = ""
    rows: tuple[int, ...] = ()
    head: int = 0


class State(NamedTuple):
    settled: int = 0
    regions: tuple[Region, ...] = (Region(),) * len(KEYS)
    consumers: tuple[Consumer, ...] = (Consumer(),) * 2
    sent: tuple[int, ...] = ()
    dead: tuple[tuple[str, int], ...] = ()

    def region(self, key: str) -> Region:
        return self.regions[KEYS.index(key)]

    def with_region(self, key: str, region: Region) -> State:
        at = KEYS.index(key)
        return self._replace(regions=(*self.regions[:at], region, *self.regions[at + 1 :]))


Move = tuple[str, str, Consumer, State]


@dataclass(frozen=True, slots=True)
class ReshardedQueue:
    without: Guard | None = None

    def initial(self) -> State:
        return State()

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        for row in sorted({NEWER, OTHER} - set(state.sent)):
            region = state.region("x")
            after = state.with_region("x", region._replace(log=(*region.log, row), direct=NEWER))
            yield Step("producer", "append", f"{row}"), after._replace(sent=(*state.sent, row))
        for key in KEYS:
            region = state.region(key)
            if region.floor < len(region.log):
                yield Step("collector", key), state.with_region(key, region._replace(floor=len(region.log)))
        for number, mine in enumerate(state.consumers):
            for action, outcome, new, after in self._consumer(state, mine):
                consumers = (*after.consumers[:number], new, *after.consumers[number + 1 :])
                yield Step(f"consumer {number}", action, outcome), after._replace(consumers=consumers)

    def _consumer(self, state: State, mine: Consumer) -> Iterator[Move]:
        match mine.call:
            case "receive":
                if state.settled < len(MESSAGES):
                    yield "receive", f"{state.settled + 1}", Consumer("judge", state.settled + 1), state
            case "judge":
                if mine.message <= APPLIED and self.without is not Guard.OLD_HEAD:
                    yield "judge", "applied", mine._replace(call="settle"), state
                else:
                    yield "judge", "not applied", mine._replace(call="draft", key=MESSAGES[mine.message - 1][0]), state
            case "draft":
                yield self._drafted(state, mine)
            case "append":
                yield self._appended(state, mine)
            case "remember":
                region = state.region(mine.key)._replace(moved=mine.message)
                yield "remember", "", self._next(mine), state.with_region(mine.key, region)
            case "settle":
                settled = max(state.settled, mine.message)
                yield "settle", f"{mine.message}", Consumer(), state._replace(settled=settled)

    def _drafted(self, state: State, mine: Consumer) -> Move:
        region = state.region(mine.key)
        applied = region.direct if self.without is Guard.OWN_PRODUCER else region.moved
        if mine.message <= applied:
            return "draft", "the region has it", self._next(mine), state
        if self.without is Guard.EACH_REGION and mine.key != "x" and state.region("x").moved >= mine.message:
            return "draft", "the first region has it", self._next(mine), state
        if region.floor and self.without is not Guard.COLLECTED:
            dead = tuple(sorted({*state.dead, (mine.key, mine.message)}))
            return "draft", "collected", self._next(mine), state._replace(dead=dead)
        newer = [one for one in region.log[region.floor :] if one != OTHER and self._is_newer(one, mine.message)]
        rows = () if newer else (mine.message,)
        return "draft", f"{rows}", mine._replace(call="append", rows=rows, head=len(region.log)), state

    def _is_newer(self, one: int, message: int) -> bool:
        if self.without is Guard.NEWER_KEY:
            return False
        return one > message or self.without is Guard.LOWER_IS_OLDER

    def _appended(self, state: State, mine: Consumer) -> Move:
        region = state.region(mine.key)
        if mine.head != len(region.log) and self.without is not Guard.EVERY_HEAD:
            return "append", "another writer was first", mine._replace(call="draft"), state
        if not mine.rows:
            return "append", "nothing", self._next(mine), state
        appended = region._replace(log=(*region.log, *mine.rows))
        if self.without is Guard.ONE_SWAP:
            return "append", "", mine._replace(call="remember"), state.with_region(mine.key, appended)
        mixed = max(appended.direct, mine.message) if self.without is Guard.OWN_PRODUCER else appended.direct
        after = appended._replace(moved=max(appended.moved, mine.message), direct=mixed)
        return "append", "", self._next(mine), state.with_region(mine.key, after)

    def _next(self, mine: Consumer) -> Consumer:
        later = [key for key in MESSAGES[mine.message - 1] if key > mine.key]
        return Consumer("draft", mine.message, later[0]) if later else Consumer("settle", mine.message)

    def violation(self, state: State) -> Violation | None:
        for key in KEYS:
            log = [one for one in state.region(key).log if one != OTHER]
            if len(set(log)) < len(log) or any(one <= APPLIED for one in log):
                return Violation("applied twice", f"{key}: {log}")
            if log != sorted(log):
                return Violation("older row wins", f"{key}: {log}")
            for number in range(APPLIED + 1, state.settled + 1):
                has = key not in MESSAGES[number - 1] or number in log or (key, number) in state.dead
                if not has and not any(one > number for one in log):
                    return Violation("row lost", f"{key} {number}: {log}")
        return None
