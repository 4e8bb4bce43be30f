"""Reshard a table while writers go on: docs/concepts/changes.md, "Resharding".

Key x is in the old region "a", which exists. Key y is in the old region "b", which a writer creates when it first
writes y. Under the new spec both keys are in region "n". A writer knows a spec, perhaps an old one, and appends to the
region of its key; an append fails if the region is sealed. Then the writer reads the spec again. Two processes reshard,
since the next one that meets the record finishes what a crash left. A process that takes no more steps has crashed.
A merge moves the rows of a region into the base: the rows of the base are older than those of any region.

The order of a write is that of its append. A reader who finds rows of a key in two regions can't order them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

OLD, NEW = 1, 2
REGION = {(OLD, "x"): "a", (OLD, "y"): "b", (NEW, "x"): "n", (NEW, "y"): "n"}
REGIONS = ("a", "b", "n")


class Guard(Enum):
    RECORD_FIRST = "the record is written before the catalog is listed"
    CREATOR_LOOKS = "the creator of a region reads the record between catalog record and head"
    CATALOG_FIRST = "the catalog record of a region is written before its creator reads the record"
    NO_HEAD = "a region without a head is created before it is sealed"
    MERGED = "the new spec is committed only when the base has all rows of the sealed regions"
    AFTER_SEAL = "the rows are merged after the seal, not before it"
    SEALS_ALL = "every region of the catalog is sealed, not only those that were dirty"


class Region(NamedTuple):
    listed: bool = False  # in the catalog
    head: str = ""  # open or sealed; empty: there is no head
    log: tuple[tuple[str, int], ...] = ()
    merged: int = 0


class Writer(NamedTuple):
    call: str = "start"
    key: str = ""
    spec: int = OLD


class Resharder(NamedTuple):
    call: str = "start"
    listed: tuple[str, ...] = ()


class State(NamedTuple):
    regions: tuple[Region, ...]
    writers: tuple[Writer, ...]
    resharders: tuple[Resharder, ...]
    record: bool = False
    spec: int = OLD
    base: tuple[tuple[str, int], ...] = ()  # the newest merged row of each key
    written: tuple[tuple[str, int], ...] = ()  # in order

    def region(self, name: str) -> Region:
        return self.regions[REGIONS.index(name)]

    def with_region(self, name: str, region: Region) -> State:
        at = REGIONS.index(name)
        return self._replace(regions=(*self.regions[:at], region, *self.regions[at + 1 :]))


Move = tuple[str, str, Writer, State]


@dataclass(frozen=True, slots=True)
class Reshard:
    without: Guard | None = None
    writes: int = 3
    resharders: int = 2

    def initial(self) -> State:
        regions = (Region(listed=True, head="open"), Region(), Region())
        return State(regions, (Writer(),) * 2, (Resharder(),) * self.resharders)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        for number, writer in enumerate(state.writers):
            for action, outcome, mine, after in self._writer(state, writer):
                writers = (*after.writers[:number], mine, *after.writers[number + 1 :])
                yield Step(f"writer {number}", action, outcome), after._replace(writers=writers)
        for number, resharder in enumerate(state.resharders):
            for action, new, after in self._resharder(state, resharder):
                resharders = (*after.resharders[:number], new, *after.resharders[number + 1 :])
                yield Step(f"resharder {number}", action), after._replace(resharders=resharders)

    def _writer(self, state: State, mine: Writer) -> Iterator[Move]:
        name = REGION.get((mine.spec, mine.key), "")
        match mine.call:
            case "start":
                if len(state.written) < self.writes:
                    for key in "xy":
                        yield "start", key, mine._replace(call="append", key=key), state
            case "append":
                yield from self._append(state, mine, name, state.region(name))
            case "list":
                listed = state.with_region(name, state.region(name)._replace(listed=True))
                late = self.without is Guard.CATALOG_FIRST or self.without is Guard.CREATOR_LOOKS
                yield "add to the catalog", name, mine._replace(call="create" if late else "look"), listed
            case "look":
                if state.record and mine.spec < NEW:
                    yield "look", "a reshard has begun", mine._replace(call="read the spec"), state
                else:
                    late = self.without is Guard.CATALOG_FIRST
                    yield "look", "no reshard", mine._replace(call="list" if late else "create"), state
            case "create":
                region = state.region(name)
                created = region._replace(head=region.head or "open")
                yield "create the head", name, mine._replace(call="append"), state.with_region(name, created)
            case "read the spec":
                if state.spec > mine.spec:
                    yield "read the spec", "", mine._replace(call="append", spec=state.spec), state

    def _append(self, state: State, mine: Writer, name: str, region: Region) -> Iterator[Move]:
        if region.head == "sealed":
            yield "append", "sealed", mine._replace(call="read the spec"), state
        elif not region.head:
            first = "look" if self.without is Guard.CATALOG_FIRST else "list"
            yield "append", "no region", mine._replace(call=first), state
        elif len(state.written) < self.writes:
            row = (mine.key, len(state.written) + 1)
            after = state.with_region(name, region._replace(log=(*region.log, row)))
            yield "append", f"{row}", mine._replace(call="start"), after._replace(written=(*state.written, row))

    def _resharder(self, state: State, mine: Resharder) -> Iterator[tuple[str, Resharder, State]]:
        late_record = self.without is Guard.RECORD_FIRST
        match mine.call:
            case "start":
                if state.spec < NEW:
                    yield "begin", mine._replace(call="catalog" if late_record else "record"), state
            case "record":
                after = "seal" if late_record else "catalog"
                yield "write the record", mine._replace(call=after), state._replace(record=True)
            case "catalog":
                listed = tuple(name for name in "ab" if state.region(name).listed)
                if self.without is Guard.SEALS_ALL:
                    listed = tuple(name for name in listed if state.region(name).log)
                first = "merge" if self.without is Guard.AFTER_SEAL else "seal"
                new = Resharder(call="record" if late_record else first, listed=listed)
                yield "list the catalog", new, state
            case "seal":
                yield self._seal(state, mine)
            case "merge":
                after = state
                for name in mine.listed:
                    after = _merged(after, name)
                sealed = all(state.region(name).head in ("sealed", "") for name in mine.listed)
                yield "merge", mine._replace(call="commit" if sealed else "seal"), after
            case "commit":
                if state.spec < NEW:
                    opened = state.with_region("n", Region(listed=True, head="open"))
                    yield "commit the spec", Resharder(call="done"), opened._replace(spec=NEW)
                else:
                    yield "find the spec", Resharder(call="done"), state

    def _seal(self, state: State, mine: Resharder) -> tuple[str, Resharder, State]:
        for name in mine.listed:
            region = state.region(name)
            if region.head == "open" or (not region.head and self.without is not Guard.NO_HEAD):
                return f"seal {name}", mine, state.with_region(name, region._replace(head="sealed"))
        skips = self.without is Guard.MERGED or self.without is Guard.AFTER_SEAL
        return "find all sealed", mine._replace(call="commit" if skips else "merge"), state

    def violation(self, state: State) -> Violation | None:
        newest = dict(state.written)
        pending = {name: dict(region.log[region.merged :]) for name, region in zip(REGIONS, state.regions, strict=True)}
        for key, value in newest.items():
            found = [rows[key] for rows in pending.values() if key in rows]
            if len(found) > 1:
                return Violation("two regions", f"{key} is in two regions: {found}")
            seen = found[0] if found else dict(state.base).get(key)
            if seen != value:
                return Violation("older row", f"{key} is {seen}, not {value}")
        return None


def _merged(state: State, name: str) -> State:
    region = state.region(name)
    base = dict(state.base) | dict(region.log[region.merged :])
    after = state.with_region(name, region._replace(merged=len(region.log)))
    return after._replace(base=tuple(sorted(base.items())))
