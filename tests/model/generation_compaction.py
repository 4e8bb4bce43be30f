"""Compact generations while flushes, merges, collections, reads and a snapshot happen.

See docs/concepts/flush.md, "Compaction of generations".

Flush 1 writes key a, flush 2 deletes it, flush 3 writes key b. A compactor replaces neighbouring generations by one. It
begins, writes a directory, and commits it, by a swap that any other commit may precede. The collector deletes
directories by rank: it may mark the directory of a compactor that has not committed yet. A crash is an actor that takes
no further step, and after a lost reply it commits again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

DEAD = 0  # the value of a tombstone
FLUSHES = ({"a": 1}, {"a": DEAD}, {"b": 3})
Rows = tuple[tuple[str, int], ...]


class Guard(Enum):
    NO_ROUND = "a compaction commits only if no collection round was committed since it began"
    KNOWN_COMPACTIONS = "a round is committed only if no compaction was committed since it was marked"
    STILL_LISTED = "a compaction commits only if all its parts are still listed"
    NEIGHBOURS = "only generations without another one between them become one"
    TOMBSTONES = "a tombstone stays"
    SPANS = "a view is sound if its first generation above the counter begins at or below counter + 1"
    OWN_WORK = "a compaction that was committed is recognised by its directory"
    PLAN_AGAIN = "a merge whose directories are gone is planned again if they are not listed any more"


class Generation(NamedTuple):
    first: int
    number: int
    name: str  # of its directory
    rows: Rows


class Manifest(NamedTuple):
    newest: int = 0
    generations: tuple[Generation, ...] = ()
    round: int = 0
    compactions: int = 0


class Base(NamedTuple):
    counter: int = 0
    rows: Rows = ()


class Compactor(NamedTuple):
    call: str = "start"
    parts: tuple[Generation, ...] = ()
    made: Generation | None = None
    round: int = 0


class Collector(NamedTuple):
    call: str = "start"
    items: frozenset[str] = frozenset()
    compactions: int = 0
    readers: bool = False  # a read from before the commit still runs: the interval is not over


class Reader(NamedTuple):
    call: str = "start"
    manifest: Manifest | None = None
    base: Base | None = None


class State(NamedTuple):
    manifest: Manifest = Manifest()
    base: Base = Base()
    stored: frozenset[str] = frozenset()  # directories
    compactors: tuple[Compactor, ...] = ()
    collector: Collector = Collector()
    reader: Reader = Reader()
    merger: Reader = Reader()
    pin: Reader = Reader()
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class GenerationCompaction:
    """`roles` says who takes part: M a merge that takes several steps, else it takes one; R a read; P a snapshot."""

    without: Guard | None = None
    compactors: int = 1
    rounds: int = 1
    roles: str = "MRP"

    def initial(self) -> State:
        return State(compactors=(Compactor(),) * self.compactors)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        yield from self._flush(state)
        for index in range(self.compactors):
            for step, compactor, after in self._compact(state, index):
                others = state.compactors
                yield step, after._replace(compactors=(*others[:index], compactor, *others[index + 1 :]))
        yield from self._collect(state)
        yield from self._merge(state)
        if "R" in self.roles:
            yield from self._read(state)
        if "P" in self.roles:
            yield from self._pin(state)

    def violation(self, state: State) -> Violation | None:
        if state.wrong:
            return Violation(state.wrong, f"{state}")
        gone = [one.name for one in state.manifest.generations if one.name not in state.stored]
        if gone:
            return Violation("listed generation missing", f"{gone}")
        spans = [number for one in state.manifest.generations for number in range(one.first, one.number + 1)]
        if spans != list(range(spans[0], state.manifest.newest + 1) if spans else ()):
            return Violation("generations overlap", f"{state.manifest}")
        if state.base.rows != _expected(state.base.counter):
            return Violation("wrong rows in the base", f"{state.base}")
        if state.pin.call == "confirmed" and not _dirs(state.pin) <= state.stored:
            return Violation("pinned object missing", f"{state.pin}")
        return None

    def _flush(self, state: State) -> Iterator[tuple[Step, State]]:
        manifest, number = state.manifest, state.manifest.newest + 1
        if number > len(FLUSHES):
            return
        made = Generation(number, number, f"F_{number}", _rows(FLUSHES[number - 1]))
        listed = manifest._replace(newest=number, generations=(*manifest.generations, made))
        yield Step("F", f"flush {number}"), state._replace(manifest=listed, stored=state.stored | {made.name})

    def _compact(self, state: State, index: int) -> Iterator[tuple[Step, Compactor, State]]:
        manifest, actor, name = state.manifest, state.compactors[index], f"C{index}"
        if actor.call == "start":
            pending = [one for one in manifest.generations if one.number > state.base.counter]
            runs = [pending[i:j] for i in range(len(pending)) for j in range(i + 2, len(pending) + 1)]
            if self.without is Guard.NEIGHBOURS and len(pending) > 2:
                runs.append([pending[0], pending[2]])
            for run in runs:
                rows = _overlaid(one.rows for one in run)
                if self.without is Guard.TOMBSTONES:
                    rows = tuple(row for row in rows if row[1] != DEAD)
                made = Generation(run[0].first, run[-1].number, f"{name}_{run[-1].number}", rows)
                after = state._replace(stored=state.stored | {made.name})
                yield Step(name, f"write {made.name}"), Compactor("commit", tuple(run), made, manifest.round), after
        elif actor.call == "commit":
            outcome, after = self._committed(state, actor)
            yield Step(name, "commit", outcome), actor._replace(call="stopped"), after
            if outcome == "applied":
                yield Step(name, "commit", "reply lost"), actor, after

    def _committed(self, state: State, actor: Compactor) -> tuple[str, State]:
        manifest, made, listed = state.manifest, actor.made, state.manifest.generations
        if made in listed and self.without is not Guard.OWN_WORK:
            return "own", state
        if self.without is not Guard.STILL_LISTED and not set(actor.parts) <= set(listed):
            return "superseded", state._replace(wrong="false report" if made in listed else "")
        if self.without is not Guard.NO_ROUND and manifest.round != actor.round:
            return "superseded", state
        left = [one for one in listed if one not in actor.parts]
        after = sorted([*left, made], key=lambda one: (one.number, one.first))
        if self.without is Guard.NEIGHBOURS:  # its span would hide the one between
            before = [actor.parts[0].first, *(one.number + 1 for one in after)]
            after = [one._replace(first=first) for first, one in zip(before, after, strict=False)]
        committed = manifest._replace(generations=tuple(after), compactions=manifest.compactions + 1)
        return "applied", state._replace(manifest=committed)

    def _collect(self, state: State) -> Iterator[tuple[Step, State]]:
        manifest, actor = state.manifest, state.collector
        if actor.call == "start" and manifest.round < self.rounds:
            listed = {one.name: one for one in manifest.generations}
            leaving = {name for name, one in listed.items() if one.number <= state.base.counter}
            orphans = {name for name in state.stored if name not in listed and _number(name) <= manifest.newest}
            items = frozenset(leaving | orphans)
            if items:
                marked = Collector("commit", items, manifest.compactions)
                yield Step("G", f"mark {sorted(items)}"), state._replace(collector=marked)
        elif actor.call == "commit":
            if self.without is not Guard.KNOWN_COMPACTIONS and actor.compactions != manifest.compactions:
                yield Step("G", "commit", "superseded"), state._replace(collector=Collector())
                return
            left = tuple(one for one in manifest.generations if one.name not in actor.items)
            committed = manifest._replace(generations=left, round=manifest.round + 1)
            sweeps = actor._replace(call="sweep", readers=state.reader.call in ("base", "levels"))
            yield Step("G", "commit", "applied"), state._replace(manifest=committed, collector=sweeps)
        elif actor.call == "sweep" and not (actor.readers and state.reader.call in ("base", "levels")):
            held = _dirs(state.pin) if state.pin.call in ("written", "confirmed") else set()
            swept = state.stored - (actor.items - held)
            yield Step("G", "sweep"), state._replace(stored=swept, collector=Collector())

    def _merge(self, state: State) -> Iterator[tuple[Step, State]]:
        """Merge all that is pending. It may take longer than the interval, so directories may go while it reads."""
        actor = state.merger
        if actor.call == "start" and state.manifest.newest > state.base.counter:
            planned = Reader("levels", state.manifest, state.base)
            if "M" in self.roles:
                yield Step("M", "plan"), state._replace(merger=planned)
            else:
                yield self._merged(state, planned)
        elif actor.call == "levels":
            if not _dirs(actor) <= state.stored:
                listed = {one.name for one in state.manifest.generations}
                known = _dirs(actor) <= listed or self.without is Guard.PLAN_AGAIN
                yield (
                    Step("M", "read", "gone"),
                    state._replace(merger=Reader(), wrong="false alarm" if known else ""),
                )
                return
            yield self._merged(state, actor)

    def _merged(self, state: State, actor: Reader) -> tuple[Step, State]:
        pending = [one.rows for one in _above(actor)]
        rows = _live(_overlaid([state.base.rows, *pending]))
        merged = state._replace(base=Base(actor.manifest.newest, rows), merger=Reader())
        return Step("M", f"merge to {actor.manifest.newest}"), merged

    def _read(self, state: State) -> Iterator[tuple[Step, State]]:
        actor = state.reader
        if actor.call == "start":
            yield Step("R", "read head"), state._replace(reader=Reader("base", state.manifest))
        elif actor.call == "base":
            seen = Reader("levels", actor.manifest, state.base)
            if state.base.counter > actor.manifest.newest:
                seen = Reader()
            yield Step("R", "read base"), state._replace(reader=seen)
        elif actor.call == "levels":
            above = _above(actor)
            begins = above[0].first if above else actor.manifest.newest + 1
            counter = actor.base.counter
            sound = begins == counter + 1 if self.without is Guard.SPANS else begins <= counter + 1
            rows = _live(_overlaid([actor.base.rows, *(one.rows for one in above)]))
            wrong = ""
            if not sound:
                wrong = "false alarm"
            elif not _dirs(actor) <= state.stored:
                wrong = "object missing in a view"
            elif rows != _expected(actor.manifest.newest):
                wrong = "wrong rows read"
            yield Step("R", "read levels"), state._replace(reader=Reader("stopped"), wrong=wrong)

    def _pin(self, state: State) -> Iterator[tuple[Step, State]]:
        """Create a snapshot: view, pin, then compare the number of the round; docs/concepts/pins.md, "The protocol"."""
        actor = state.pin
        if actor.call == "start" and state.manifest.newest:
            yield Step("P", "write pin"), state._replace(pin=Reader("written", state.manifest, state.base))
        elif actor.call == "written":
            kept = actor.manifest.round == state.manifest.round
            yield Step("P", "confirm"), state._replace(pin=actor._replace(call="confirmed") if kept else Reader("gone"))


def _number(name: str) -> int:
    """Return the number in the name of a directory."""
    return int(name.rpartition("_")[2])


def _above(reader: Reader) -> list[Generation]:
    return [one for one in reader.manifest.generations if one.number > reader.base.counter]


def _dirs(reader: Reader) -> set[str]:
    return {one.name for one in _above(reader)}


def _rows(values: dict[str, int]) -> Rows:
    return tuple(sorted(values.items()))


def _overlaid(levels: Iterator[Rows] | list[Rows]) -> Rows:
    """Return the newest row of each key; the levels are oldest first."""
    return _rows({key: value for rows in levels for key, value in rows})


def _live(rows: Rows) -> Rows:
    return tuple(row for row in rows if row[1] != DEAD)


def _expected(flushes: int) -> Rows:
    return _live(_overlaid([_rows(one) for one in FLUSHES[:flushes]]))
