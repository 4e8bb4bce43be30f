"""Promise an index to Lance's readers only while every listed generation has it: docs/concepts/search.md, "Indexes".

The base has the wanted list with a number, and the promise. Lance refuses a commit of the list if the list has changed
since the version that was read, and a commit of the promise if either has changed. A maintainer writes the list, makes
every head require its number, indexes the listed generations, then promises the index. A second maintainer, whose lease
has expired, does the same from the list that it finds. A dropper goes the other way. Meanwhile each of two regions is
flushed, and one of them is created only now. An actor that makes no more steps has crashed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation


class Guard(Enum):
    HEAD_NUMBER = "a flush commits only if the head requires no higher number than that of its list"
    LIST_AFTER_REGION = "a flush reads the list after it has seen the region"
    HEADS_EXIST = "a region without a head gets one before the generations are listed"
    REQUIRED_FIRST = "every head requires the number before the generations are listed"
    PROMISE_OF_LIST = "an index is promised only if the list still has the number that the generations were indexed for"
    PROMISE_CONFLICT = "a promise is committed only on the list that it was compared with"
    MARKED_FIRST = "the list marks an index before the promise leaves it out"
    LIST_LAST = "the list loses an index after the promise"


class List(NamedTuple):
    number: int = 0
    state: str = "absent"  # absent, wanted or leaving

    @property
    def builds(self) -> bool:
        return self.state != "absent"


class Region(NamedTuple):
    catalog: bool
    head: bool
    required: int = 0
    generations: tuple[bool, ...] = ()  # whether each has the index


class Flush(NamedTuple):
    call: str = "see"
    read: List = List()


class Maintainer(NamedTuple):
    call: str
    runs: int
    read: List = List()
    base: tuple[int, int] = (0, 0)
    listed: tuple[int, ...] = ()


class State(NamedTuple):
    list: List
    promised: bool
    list_commits: int
    promise_commits: int
    regions: tuple[Region, ...]
    flushes: tuple[Flush, ...]
    maintainers: tuple[Maintainer, ...]
    dropper: str


@dataclass(frozen=True, slots=True)
class IndexPromise:
    without: Guard | None = None
    creations: int = 2

    def initial(self) -> State:
        return State(
            list=List(),
            promised=False,
            list_commits=0,
            promise_commits=0,
            regions=(Region(True, True, generations=(False,)), Region(False, False)),
            flushes=(Flush(), Flush()),
            maintainers=(Maintainer("create", self.creations), Maintainer("read", 1)),
            dropper="mark",
        )

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        for index in range(len(state.regions)):
            yield from self._create_region(state, index)
            yield from self._flush(state, index)
        for index in range(len(state.maintainers)):
            yield from self._maintain(state, index)
        yield from self._drop(state)

    def violation(self, state: State) -> Violation | None:
        lacking = sum(not indexed for region in state.regions for indexed in region.generations)
        if state.promised and lacking:
            return Violation("promise broken", f"{lacking} generations lack the index")
        return None

    def _create_region(self, state: State, index: int) -> Iterator[tuple[Step, State]]:
        region, name = state.regions[index], f"creator of region {index}"
        if not region.catalog:
            yield Step(name, "add to catalog"), _with_region(state, index, region._replace(catalog=True))
        elif not region.head:
            yield Step(name, "create head"), _with_region(state, index, region._replace(head=True))

    def _flush(self, state: State, index: int) -> Iterator[tuple[Step, State]]:
        flush, region, name = state.flushes[index], state.regions[index], f"flush of region {index}"
        early = self.without is Guard.LIST_AFTER_REGION
        match flush.call:
            case "see":
                if early:
                    yield Step(name, "read list"), _with_flush(state, index, Flush("commit", state.list))
                elif region.catalog:
                    yield Step(name, "see region"), _with_flush(state, index, Flush("read"))
            case "read":
                yield Step(name, "read list"), _with_flush(state, index, Flush("commit", state.list))
            case "commit":
                if not region.head:
                    return
                if flush.read.number < region.required and self.without is not Guard.HEAD_NUMBER:
                    yield Step(name, "commit", "refused"), _with_flush(state, index, Flush("read"))
                    return
                done = region._replace(
                    generations=(*region.generations, flush.read.builds),
                    required=max(region.required, flush.read.number),
                )
                yield Step(name, "commit"), _with_flush(_with_region(state, index, done), index, Flush("done"))

    def _maintain(self, state: State, index: int) -> Iterator[tuple[Step, State]]:
        actor, name = state.maintainers[index], f"maintainer {index}"

        def go(after: State, new: Maintainer) -> State:
            others = after.maintainers
            return after._replace(maintainers=(*others[:index], new, *others[index + 1 :]))

        if actor.call in {"compare", "promise"}:
            yield from self._promise(state, index, go)
            return
        match actor.call:
            case "create":
                if actor.runs and state.list.state == "absent":
                    wanted = List(state.list.number + 1, "wanted")
                    listed = state._replace(list=wanted, list_commits=state.list_commits + 1)
                    yield Step(name, "write list"), go(listed, actor._replace(call="regions", read=wanted))
            case "read":
                if actor.runs and state.list.state == "wanted":
                    yield Step(name, "read list"), go(state, actor._replace(call="regions", read=state.list))
            case "regions":
                found = tuple(number for number, region in enumerate(state.regions) if region.catalog)
                first = "generations" if self.without is Guard.REQUIRED_FIRST else "require"
                yield Step(name, "list regions"), go(state, actor._replace(call=first, listed=found))
            case "require":
                after = state
                for number in actor.listed:
                    region = after.regions[number]
                    if not region.head and self.without is Guard.HEADS_EXIST:
                        continue
                    required = max(region.required, actor.read.number)
                    after = _with_region(after, number, region._replace(head=True, required=required))
                last = "compare" if self.without is Guard.REQUIRED_FIRST else "generations"
                yield Step(name, "require number"), go(after, actor._replace(call=last))
            case "generations":
                after = state
                for number in actor.listed:
                    region = after.regions[number]
                    after = _with_region(after, number, region._replace(generations=(True,) * len(region.generations)))
                last = "require" if self.without is Guard.REQUIRED_FIRST else "compare"
                yield Step(name, "index generations"), go(after, actor._replace(call=last))

    def _promise(
        self, state: State, index: int, go: Callable[[State, Maintainer], State]
    ) -> Iterator[tuple[Step, State]]:
        actor, name = state.maintainers[index], f"maintainer {index}"
        commits = (state.list_commits, state.promise_commits)
        match actor.call:
            case "compare":
                same = state.list == actor.read
                if self.without is Guard.PROMISE_OF_LIST:
                    same = state.list.state == "wanted"
                if same:
                    yield Step(name, "compare list"), go(state, actor._replace(call="promise", base=commits))
                else:
                    yield Step(name, "compare list", "changed"), go(state, _again(actor, index))
            case "promise":
                if commits != actor.base and self.without is not Guard.PROMISE_CONFLICT:
                    yield Step(name, "promise", "refused"), go(state, actor._replace(call="compare"))
                    return
                promised = state._replace(promised=True, promise_commits=state.promise_commits + 1)
                yield Step(name, "promise"), go(promised, _again(actor, index))

    def _drop(self, state: State) -> Iterator[tuple[Step, State]]:
        def listed(to: str, after: State) -> State:
            return after._replace(list=after.list._replace(state=to), list_commits=after.list_commits + 1)

        marks = self.without is not Guard.MARKED_FIRST
        match state.dropper:
            case "mark":
                if state.list.state == "wanted":
                    marked = listed("leaving", state) if marks else state
                    first = "list" if self.without is Guard.LIST_LAST else "withdraw"
                    yield Step("dropper", "mark"), marked._replace(dropper=first)
            case "withdraw":
                withdrawn = state._replace(promised=False, promise_commits=state.promise_commits + 1)
                last = "done" if self.without is Guard.LIST_LAST else "list"
                yield Step("dropper", "withdraw promise"), withdrawn._replace(dropper=last)
            case "list":
                last = "withdraw" if self.without is Guard.LIST_LAST else "done"
                yield Step("dropper", "remove from list"), listed("absent", state)._replace(dropper=last)


def _again(actor: Maintainer, index: int) -> Maintainer:
    return Maintainer("create" if index == 0 else "read", actor.runs - 1)


def _with_region(state: State, index: int, region: Region) -> State:
    return state._replace(regions=(*state.regions[:index], region, *state.regions[index + 1 :]))


def _with_flush(state: State, index: int, flush: Flush) -> State:
    return state._replace(flushes=(*state.flushes[:index], flush, *state.flushes[index + 1 :]))
