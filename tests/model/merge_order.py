"""Merge two regions with two mergers: docs/concepts/merge.md, "The steps of a merge".

A merger reads the heads one by one, then the base. It folds all pending generations of both regions and commits once,
with the counters of both. After a conflict it plans again, or commits again on the newer base. Generations are
collected once they are merged. The value of a region's key is the number of the generation that set it last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

REGIONS = ("A", "B")
Pair = tuple[int, int]


class Guard(Enum):
    HEADS_BEFORE_BASE = "all heads are read before the base"
    PLAN_AGAIN = "a merge plans again if a counter has moved since it planned"
    COUNTERS_RISE = "no counter ever decreases"
    CONFLICT = "a merge commits only on the base version that it read"


class Base(NamedTuple):
    version: int = 1
    values: Pair = (0, 0)
    counters: Pair = (0, 0)


class Merger(NamedTuple):
    call: str = "first"
    newest: tuple[int | None, int | None] = (None, None)
    oldest: Pair = (1, 1)
    base: Base | None = None
    planned: tuple[Pair, Pair] | None = None  # (counter, newest) of each region


class State(NamedTuple):
    base: Base
    newest: Pair
    oldest: Pair  # oldest generation kept
    mergers: tuple[Merger, ...]


def put(pair: Pair, index: int, value: int) -> Pair:
    return (value, pair[1]) if index == 0 else (pair[0], value)


@dataclass(frozen=True, slots=True)
class MergeOrder:
    without: Guard | None = None
    generations: int = 2
    mergers: int = 2

    def initial(self) -> State:
        return State(Base(), (0, 0), (1, 1), (Merger(),) * self.mergers)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        for index, region in enumerate(REGIONS):
            newest, counter = state.newest[index], state.base.counters[index]
            if newest < self.generations:
                yield (
                    Step("flush", f"{region}{newest + 1}"),
                    state._replace(newest=put(state.newest, index, newest + 1)),
                )
            if state.oldest[index] <= counter:
                collected = state._replace(oldest=put(state.oldest, index, counter + 1))
                yield Step("collect", f"{region} to {counter}"), collected
        for index in range(self.mergers):
            yield from self._merge(state, index)

    def violation(self, state: State) -> Violation | None:
        for index, region in enumerate(REGIONS):
            value, counter = state.base.values[index], state.base.counters[index]
            if state.oldest[index] > counter + 1:
                return Violation("counter fell", f"{region}: {counter}, oldest generation {state.oldest[index]}")
            if value < counter:
                return Violation("rows lost", f"{region}: base has {value}, counter {counter}")
        for number, merger in enumerate(state.mergers):
            if merger.call == "corrupt":
                return Violation("false alarm", f"merger {number}: {merger.oldest} kept, base {merger.base}")
        return None

    def _merge(self, state: State, index: int) -> Iterator[tuple[Step, State]]:  # noqa: PLR0912 - one branch per call
        merger, name = state.mergers[index], f"merger {index}"

        def go(after: State, new: Merger) -> State:
            return after._replace(mergers=(*after.mergers[:index], new, *after.mergers[index + 1 :]))

        if merger.call in ("first", "second"):
            base_now = (merger.call == "first") == (self.without is Guard.HEADS_BEFORE_BASE)
            call = "second" if merger.call == "first" else "plan"
            if base_now:
                yield Step(name, "read base"), go(state, merger._replace(call=call, base=state.base))
                return
            for region, known in enumerate(merger.newest):
                if known is None:
                    read = merger._replace(
                        newest=put(merger.newest, region, state.newest[region]),
                        oldest=put(merger.oldest, region, state.oldest[region]),
                    )
                    if None not in read.newest:
                        read = read._replace(call=call)
                    yield Step(name, f"read head {REGIONS[region]}"), go(state, read)
        elif merger.call == "plan":
            counters = merger.base.counters
            planned = tuple((done, max(done, new)) for done, new in zip(counters, merger.newest, strict=True))
            if any(oldest > done + 1 for oldest, done in zip(merger.oldest, counters, strict=True)):
                yield Step(name, "plan", "generations missing"), go(state, merger._replace(call="corrupt"))
            elif all(done == new for done, new in planned):
                yield Step(name, "plan", "nothing to do"), go(state, Merger("done"))
            else:
                commit = Merger("commit", base=merger.base, planned=planned)
                yield Step(name, "plan", f"A{planned[0]} B{planned[1]}"), go(state, commit)
        elif merger.call == "commit":
            if state.base.version == merger.base.version or self.without is Guard.CONFLICT:
                merged = state._replace(base=self._merged(state.base, merger))
                yield Step(name, "commit", "applied"), go(merged, Merger("done"))
                yield Step(name, "commit", "applied, reply lost"), go(merged, Merger())
                return
            counters = state.base.counters
            if all(counter >= new for counter, (_, new) in zip(counters, merger.planned, strict=True)):
                yield Step(name, "commit", "conflict, all merged"), go(state, Merger("done"))
            elif self.without not in (Guard.PLAN_AGAIN, Guard.COUNTERS_RISE) and any(
                counter != done for counter, (done, _) in zip(counters, merger.planned, strict=True)
            ):
                yield Step(name, "commit", "conflict, a counter moved"), go(state, Merger())
            else:
                yield Step(name, "commit", "conflict, redo"), go(state, merger._replace(base=state.base))

    def _merged(self, base: Base, merger: Merger) -> Base:
        values, counters = base.values, base.counters
        for index, (done, new) in enumerate(merger.planned):
            if new > done:
                values = put(values, index, new)
            if new > counters[index] or self.without is Guard.COUNTERS_RISE:
                counters = put(counters, index, new)
        return Base(base.version + 1, values, counters)
