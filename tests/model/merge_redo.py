"""Redo a merge after a conflict while its files may be collected: docs/concepts/collection.md, "The base".

A merger writes its fragments, then commits. After a conflict it redoes the lookup and may commit the same files again.
A collector lists the files of the base and raises `lancelsm.fence` by a commit that changes no data. Then it deletes
the listed files that no version names. A commit by another tool causes conflicts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation


class Guard(Enum):
    FENCE_UNMOVED = "written files are reused only if lancelsm.fence has not changed since they were written"
    ON_COMMIT_VERSION = "fence and counter are compared on the version that the commit is based on"
    LISTED_BEFORE_FENCE = "files are deleted only if they were listed before the fence was raised"
    READ_AFTER_FENCE = "files are deleted only if no version from the fence on names them"
    COUNTER_UNMOVED = "written files are reused only if the counter of the region has not changed"
    CONFLICT = "a merge commits only on the base version that it read"


class Base(NamedTuple):
    version: int = 1
    fence: int = 0
    counter: int = 0
    files: frozenset[str] = frozenset()


class Merger(NamedTuple):
    call: str = "read"
    base: Base | None = None  # the version that the commit is based on
    file: str | None = None
    written_on: Base | None = None
    file_counter: int = 0
    attempts: int = 0


class Collector(NamedTuple):
    call: str = "list"
    listed: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()


class State(NamedTuple):
    base: Base
    stored: frozenset[str]
    merges: tuple[str, ...]  # what was merged at counter 1, 2, ...
    mergers: tuple[Merger, ...]
    collector: Collector
    others: int  # remaining commits by other tools


@dataclass(frozen=True, slots=True)
class MergeRedo:
    without: Guard | None = None
    generations: int = 2
    attempts: int = 2

    def initial(self) -> State:
        return State(Base(), frozenset(), (), (Merger(), Merger()), Collector(), 1)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        for index in range(len(state.mergers)):
            yield from self._merge(state, index)
        yield from self._collect(state)
        if state.others:
            bumped = state.base._replace(version=state.base.version + 1)
            yield Step("other", "commit"), state._replace(base=bumped, others=state.others - 1)

    def violation(self, state: State) -> Violation | None:
        missing = state.base.files - state.stored
        if missing:
            return Violation("committed file missing", f"{sorted(missing)} of version {state.base.version}")
        if len(state.merges) != state.base.counter or list(state.merges) != sorted(set(state.merges)):
            return Violation("merged twice", f"{state.merges}, counter {state.base.counter}")
        return None

    def _merge(self, state: State, index: int) -> Iterator[tuple[Step, State]]:
        merger, name, base = state.mergers[index], f"merger {index}", state.base

        def go(after: State, new: Merger) -> State:
            return after._replace(mergers=(*after.mergers[:index], new, *after.mergers[index + 1 :]))

        match merger.call:
            case "read":
                if base.counter == self.generations or merger.attempts == self.attempts:
                    return
                read = Merger("write", base=base, attempts=merger.attempts + 1)
                yield Step(name, "read base"), go(state, read)
            case "write":
                file = f"{index}.{merger.attempts}"
                written = merger._replace(
                    call="commit", file=file, written_on=merger.base, file_counter=merger.base.counter
                )
                yield Step(name, f"write {file}"), go(state._replace(stored=state.stored | {file}), written)
            case "commit":
                if base.version != merger.base.version and self.without is not Guard.CONFLICT:
                    yield Step(name, "commit", "conflict"), go(state, merger._replace(call="redo", base=base))
                    return
                merged = base._replace(
                    version=base.version + 1,
                    counter=base.counter + 1,
                    files=base.files | {merger.file},
                )
                log = (*state.merges, f"generation {merger.file_counter + 1}")
                after = state._replace(base=merged, merges=log)
                yield Step(name, "commit", "applied"), go(after, Merger(attempts=merger.attempts))
            case "redo":
                # Lookup and deletion vectors use the newest version. The commit is based on that version.
                checked = merger.base if self.without is Guard.ON_COMMIT_VERSION else base
                reusable = self._reusable(merger, checked)
                redone = merger._replace(call="commit", base=base)
                yield (
                    Step(name, "redo lookup", "reuse" if reusable else "plan again"),
                    go(state, redone if reusable else Merger(attempts=merger.attempts)),
                )

    def _reusable(self, merger: Merger, base: Base) -> bool:
        fence = self.without is Guard.FENCE_UNMOVED or base.fence == merger.written_on.fence
        counter = self.without is Guard.COUNTER_UNMOVED or base.counter == merger.file_counter
        return fence and counter

    def _collect(self, state: State) -> Iterator[tuple[Step, State]]:
        collector, base = state.collector, state.base
        late = self.without is Guard.LISTED_BEFORE_FENCE
        match collector.call:
            case "list":
                listed = Collector("fence", listed=state.stored, named=base.files)
                yield Step("collector", "list"), state._replace(collector=listed)
            case "fence":
                raised = base._replace(version=base.version + 1, fence=base.fence + 1)
                fenced = collector._replace(call="read")
                yield Step("collector", "raise fence"), state._replace(base=raised, collector=fenced)
            case "read":
                named = collector.named if self.without is Guard.READ_AFTER_FENCE else base.files
                seen = collector._replace(call="delete", named=named)
                if late:
                    seen = seen._replace(listed=state.stored)
                yield Step("collector", "read base"), state._replace(collector=seen)
            case "delete":
                orphans = collector.listed - collector.named
                swept = state._replace(stored=state.stored - orphans, collector=Collector("done"))
                yield Step("collector", f"delete {sorted(orphans)}"), swept
