"""Move the rows of a foreign shard to the regions of their keys: docs/concepts/epochs-and-fences.md, "Other tools".

The other tool appends rows to its shard; the row at position n belongs to region n modulo 2. Two processes adopt the
shard. One that takes no more steps has crashed. Each reads the end of the shard behind a fence. For each region it
drafts the rows above the applied sequence of a head, and appends them if that head is still current. Then it publishes
a manifest that says up to which position the rows are in regions (`drained`). Its create fails if another manifest has
the next version. A fenced tool may claim the shard again. Meanwhile a writer of ours appends to the regions (0).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

REGIONS = 2


class Guard(Enum):
    ABOVE_APPLIED = "only rows above the applied sequence are appended"
    EVERY_HEAD = "the rows are drafted again for each head"
    ONE_SWAP = "an entry and its applied sequence are committed by one swap"
    APPEND_FIRST = "the shard is drained after the rows of every region are appended"


class Region(NamedTuple):
    log: tuple[int, ...] = ()  # positions in the shard; 0: a row of ours
    entries: int = 0
    applied: int = 0


class Adopter(NamedTuple):
    call: str = "fence"
    version: int = 0  # of the manifest that fences
    after: int = 0
    end: int = 0
    region: int = 0
    draft: tuple[int, ...] = ()
    head: int = 0


class State(NamedTuple):
    shard: int = 0  # rows in the shard
    version: int = 1  # of its newest manifest
    drained: int = 0
    open: bool = True  # the tool may append
    regions: tuple[Region, ...] = (Region(),) * REGIONS
    adopters: tuple[Adopter, ...] = (Adopter(),) * 2
    ours: int = 0  # rows that our writer appended
    claims: int = 0  # by the tool


@dataclass(frozen=True, slots=True)
class ForeignShard:
    without: Guard | None = None
    rows: int = 3
    ours: int = 1
    claims: int = 1

    def initial(self) -> State:
        return State()

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        if state.open and state.shard < self.rows:
            yield Step("tool", "append", f"{state.shard + 1}"), state._replace(shard=state.shard + 1)
        if not state.open and state.claims < self.claims:
            claimed = state._replace(open=True, version=state.version + 1, claims=state.claims + 1)
            yield Step("tool", "claim"), claimed
        if state.ours < self.ours:
            for number, region in enumerate(state.regions):
                appended = region._replace(log=(*region.log, 0), entries=region.entries + 1)
                yield Step("ours", f"append to {number}"), _with(state, number, appended)._replace(ours=state.ours + 1)
        for number, mine in enumerate(state.adopters):
            for action, outcome, new, after in self._adopter(state, mine):
                adopters = (*after.adopters[:number], new, *after.adopters[number + 1 :])
                yield Step(f"adopter {number}", action, outcome), after._replace(adopters=adopters)

    def _adopter(self, state: State, mine: Adopter) -> Iterator[tuple[str, str, Adopter, State]]:
        match mine.call:
            case "fence":
                if state.shard > state.drained:
                    after = state._replace(open=False, version=state.version + state.open)
                    yield "fence", "", Adopter(call="read", version=after.version, after=state.drained), after
            case "read":
                first = "drain" if self.without is Guard.APPEND_FIRST else "draft"
                yield "read the shard", f"{state.shard}", mine._replace(call=first, end=state.shard), state
            case "draft":
                region = state.regions[mine.region]
                applied = 0 if self.without is Guard.ABOVE_APPLIED else region.applied
                rows = range(max(applied, mine.after) + 1, mine.end + 1)
                draft = tuple(row for row in rows if row % REGIONS == mine.region)
                new = mine._replace(call="append", draft=draft, head=region.entries) if draft else self._next(mine)
                yield f"draft for {mine.region}", f"{draft}", new, state
            case "append":
                yield from self._append(state, mine)
            case "swap the sequence":
                region = state.regions[mine.region]._replace(applied=mine.end)
                yield "swap the sequence", "", self._next(mine), _with(state, mine.region, region)
            case "drain":
                yield from self._drain(state, mine)

    def _append(self, state: State, mine: Adopter) -> Iterator[tuple[str, str, Adopter, State]]:
        region = state.regions[mine.region]
        if mine.head != region.entries and self.without is not Guard.EVERY_HEAD:
            yield "append", "another writer was first", mine._replace(call="draft"), state
            return
        apart = self.without is Guard.ONE_SWAP
        appended = Region(
            log=(*region.log, *mine.draft),
            entries=region.entries + 1,
            applied=region.applied if apart else max(region.applied, mine.end),
        )
        new = mine._replace(call="swap the sequence") if apart else self._next(mine)
        yield "append", f"{mine.draft}", new, _with(state, mine.region, appended)

    def _next(self, mine: Adopter) -> Adopter:
        if mine.region + 1 < REGIONS:
            return mine._replace(call="draft", region=mine.region + 1, draft=())
        return Adopter() if self.without is Guard.APPEND_FIRST else mine._replace(call="drain", draft=())

    def _drain(self, state: State, mine: Adopter) -> Iterator[tuple[str, str, Adopter, State]]:
        early = self.without is Guard.APPEND_FIRST
        new = mine._replace(call="draft") if early else Adopter()
        if state.version != mine.version:  # always needed: the store creates an object only if it is absent
            yield "drain", "another manifest was first", new, state
            return
        drained = max(state.drained, mine.end)
        yield "drain", f"{drained}", new, state._replace(drained=drained, version=state.version + 1)

    def violation(self, state: State) -> Violation | None:
        for number, region in enumerate(state.regions):
            theirs = [row for row in region.log if row]
            if len(set(theirs)) < len(theirs):
                return Violation("appended twice", f"{region.log}")
            if theirs != sorted(theirs):
                return Violation("reordered", f"{region.log}")
            if lost := {row for row in range(1, state.drained + 1) if row % REGIONS == number} - set(theirs):
                return Violation("row lost", f"{lost}: {state}")
        return None


def _with(state: State, number: int, region: Region) -> State:
    return state._replace(regions=(*state.regions[:number], region, *state.regions[number + 1 :]))
