"""Add a column while others write, flush, merge and read: docs/concepts/changes.md, "Changes of the columns".

There is one key. Its row has the column `v`, and `c` from version 2 of the columns on, whose default is "d". The change
is one commit of the base; then the configuration and the head follow. It may crash between any two steps, and the next
process that opens the table finishes it. All others began with version 1. Another tool may add a column of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

DEFAULT = "d"


class Guard(Enum):
    DEFAULTS = "rows of version 1 have the default"
    KNOWN = "rows of a newer version are not read with an older one"
    OWN_COLUMNS = "a transaction reads a view under the columns that it writes"
    BASE_FIRST = "the base has the change before the configuration"
    CONFIG_FIRST = "the configuration has the change before a head names it"
    WRITER_FINISHES = "a writer that learned the columns from the base writes the configuration before rows"
    FLUSH_READS_BASE = "a flush takes the columns of the base, which it reads after the head"
    HEADS_BEFORE_BASE = "a reader reads the head before the base"
    CONFLICT = "a merge is refused after a change of the columns"
    DRIFT = "columns that another tool changed are not changed"


class Row(NamedTuple):
    """A row in some level: under `version`, so that `c` is empty in version 1."""

    version: int
    v: str
    c: str = ""


class Base(NamedTuple):
    commits: int = 0
    columns: int = 1  # what its files have
    history: int = 1  # what its metadata says
    foreign: bool = False  # another tool added a column, and nobody adopted it
    row: Row | None = None
    counter: int = 0


class Head(NamedTuple):
    version: int = 1
    log: tuple[Row, ...] = ()
    generations: tuple[Row, ...] = ()
    flushed: int = 0  # entries


class Actor(NamedTuple):
    """A process: the version of the columns that it knows, and what it has read."""

    version: int = 1
    head: Head | None = None
    base: Base | None = None
    done: bool = False
    problem: str = ""


class State(NamedTuple):
    base: Base
    head: Head
    config: int
    truth: tuple[str, str]  # `v` and `c` after all entries
    change: int  # the number of steps that the change has done
    writer: Actor
    later: Actor  # opens the table by its configuration
    transaction: Actor
    flush: Actor
    merge: Actor
    reader: Actor
    tool: bool  # another tool may still change the base


@dataclass(frozen=True, slots=True)
class SchemaChange:
    without: Guard | None = None
    roles: str = "WLTFMR"

    def initial(self) -> State:
        idle = Actor()
        first = Row(1, "0")
        return State(
            Base(row=first), Head(), 1, ("0", DEFAULT), 0, idle, idle, idle, idle, idle, idle, "X" in self.roles
        )

    def violation(self, state: State) -> Violation | None:
        base, head = state.base, state.head
        actors = (state.writer, state.later, state.transaction, state.flush, state.merge, state.reader)
        if problem := next((actor.problem for actor in actors if actor.problem), ""):
            return Violation(problem, str(state))
        if base.history < min(2, max(state.config, head.version)) and self.without is not Guard.BASE_FIRST:
            return Violation("change lost", f"the base has version {base.history}")
        if base.history > base.columns:
            return Violation("wrong history", "the base does not have the columns of its history")
        found = self._newest(base, head.generations[base.counter :], head.log)
        if base.history == 2 and (found.v, found.c) != state.truth:
            return Violation("value lost", f"{found}, and {state.truth} was written")
        if found.v != state.truth[0]:
            return Violation("row lost", f"{found}, and {state.truth} was written")
        return None

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        yield from self._change(state)
        for role, steps in (
            ("W", self._writer),
            ("L", self._later),
            ("T", self._transaction),
            ("F", self._flush),
            ("M", self._merge),
            ("R", self._reader),
            ("X", self._tool),
        ):
            if role in self.roles:
                yield from steps(state)

    # The change. A crash is a process that takes no further step; each step may be taken by another process.

    def _change(self, state: State) -> Iterator[tuple[Step, State]]:
        order = ["base", "config", "head"]
        if self.without is Guard.BASE_FIRST:
            order = ["config", "base", "head"]
        if self.without is Guard.CONFIG_FIRST:
            order = ["base", "head", "config"]
        if state.change == len(order):
            return
        what, base = order[state.change], state.base
        if what == "base" and base.foreign and self.without is not Guard.DRIFT:
            return
        now = state._replace(change=state.change + 1)
        if what == "base":
            columns = base.columns if base.foreign else 2  # Lance refuses a name that is taken
            row = base.row and self._lifted(base.row, 2)
            now = now._replace(
                base=base._replace(commits=base.commits + 1, columns=columns, history=2, row=row),
            )
        elif what == "config":
            now = now._replace(config=2)
        else:
            now = now._replace(head=state.head._replace(version=2))
        yield Step("change", what), now

    def _lifted(self, row: Row, version: int) -> Row:
        if row.version == version:
            return row
        if version == 1:
            return Row(1, row.v)
        return Row(2, row.v, DEFAULT if self.without is not Guard.DEFAULTS else "")

    def _newest(self, base: Base, generations: tuple[Row, ...], log: tuple[Row, ...]) -> Row:
        every = [*filter(None, [base.row]), *generations, *log]
        return self._lifted(every[-1], base.history)

    def _reads(self, rows: tuple[Row, ...], version: int) -> bool:
        return self.without is Guard.KNOWN or all(row.version <= version for row in rows)

    def _appended(self, state: State, row: Row, truth: tuple[str, str]) -> State:
        head = state.head._replace(version=max(state.head.version, row.version), log=(*state.head.log, row))
        return state._replace(head=head, truth=truth)

    # Writers

    def _writer(self, state: State) -> Iterator[tuple[Step, State]]:
        """Writes whole rows without `c`. A head that it saw names a newer version: it reads the configuration."""
        actor = state.writer
        if actor.done:
            return
        if actor.head is None:
            yield Step("W", "read the head"), state._replace(writer=actor._replace(head=state.head))
            return
        row = Row(1, "w") if actor.version == 1 else Row(2, "w", DEFAULT)
        known, problem = actor.version, ""
        if state.head.version > known:
            known = state.config
            problem = "" if known >= state.head.version else "columns not found"
        now = self._appended(state, row, ("w", DEFAULT))
        yield Step("W", "swap"), now._replace(writer=Actor(version=known, done=True, problem=problem))

    def _later(self, state: State) -> Iterator[tuple[Step, State]]:
        """Opens the table by its configuration alone, and sets `c` if it has it."""
        if state.later.done:
            return
        row = Row(1, "l") if state.config == 1 else Row(2, "l", "c")
        truth = ("l", DEFAULT if state.config == 1 else "c")
        yield Step("L", "append"), self._appended(state, row, truth)._replace(later=Actor(done=True))

    def _transaction(self, state: State) -> Iterator[tuple[Step, State]]:
        """Changes `v` of the row as it is right before its entry."""
        actor = state.transaction
        if actor.done:
            return
        if actor.head is None:
            yield Step("T", "read the head"), state._replace(transaction=actor._replace(head=state.head))
        elif actor.base is None:
            now = actor._replace(base=state.base)
            if state.base.history > actor.version and self.without is not Guard.OWN_COLUMNS:
                now = Actor(version=2)
            yield Step("T", "read the base"), state._replace(transaction=now)
        else:
            seen = actor.head
            newer = (*state.head.generations[len(seen.generations) :], *state.head.log)
            if not self._reads((*seen.generations[actor.base.counter :], *seen.log, *newer), actor.version):
                yield Step("T", "learn"), state._replace(transaction=Actor(version=2))
                return
            row = self._newest(actor.base, seen.generations[actor.base.counter :], seen.log)
            row = self._lifted(newer[-1] if newer else row, actor.version)
            changed = row._replace(v=row.v + "t")
            truth = (state.truth[0] + "t", state.truth[1])
            now = self._appended(state, changed, truth)._replace(transaction=Actor(done=True))
            if changed.version == 2 and self.without is not Guard.WRITER_FINISHES:
                now = now._replace(config=2, change=max(state.change, 2))
            yield Step("T", "swap"), now

    # Maintenance and reads

    def _flush(self, state: State) -> Iterator[tuple[Step, State]]:
        actor, head = state.flush, state.head
        if actor.done:
            return
        if actor.head is None:
            if head.log:
                yield Step("F", "read the head"), state._replace(flush=actor._replace(head=head))
            return
        if actor.base is None:
            yield Step("F", "read the base"), state._replace(flush=actor._replace(base=state.base))
            return
        version = actor.base.history if self.without is not Guard.FLUSH_READS_BASE else actor.version
        if not self._reads(actor.head.log, version):
            yield Step("F", "fail"), state._replace(flush=Actor(done=True, problem="rows unreadable"))
            return
        generation = self._lifted(actor.head.log[-1], 1 if self.without is Guard.KNOWN else version)
        now = head._replace(
            log=head.log[len(actor.head.log) :],
            generations=(*head.generations, generation),
            flushed=head.flushed + len(actor.head.log),
        )
        yield Step("F", "commit"), state._replace(head=now, flush=Actor(done=True))

    def _merge(self, state: State) -> Iterator[tuple[Step, State]]:
        actor, base = state.merge, state.base
        if actor.done:
            return
        if actor.head is None:
            if len(state.head.generations) > base.counter:
                yield Step("M", "read the head"), state._replace(merge=actor._replace(head=state.head))
            return
        if actor.base is None:
            if not base.foreign:
                yield Step("M", "read the base"), state._replace(merge=actor._replace(base=base))
            return
        if actor.base.commits != base.commits and self.without is not Guard.CONFLICT:
            yield Step("M", "commit", "refused"), state._replace(merge=Actor())
            return
        row = self._lifted(actor.head.generations[-1], actor.base.history)
        now = actor.base._replace(commits=base.commits + 1, row=row, counter=len(actor.head.generations))
        yield Step("M", "commit"), state._replace(base=now, merge=Actor(done=True))

    def _reader(self, state: State) -> Iterator[tuple[Step, State]]:
        actor = state.reader
        if actor.done:
            return
        base_first = self.without is Guard.HEADS_BEFORE_BASE
        if actor.base is None and (actor.head is not None or base_first):
            yield Step("R", "read the base"), state._replace(reader=actor._replace(base=state.base))
        elif actor.head is None:
            yield Step("R", "read the head"), state._replace(reader=actor._replace(head=state.head))
        else:
            assert actor.base is not None
            rows = (*actor.head.generations[actor.base.counter :], *actor.head.log)
            readable = all(row.version <= actor.base.history for row in rows)
            found = Actor(done=True, problem="" if readable else "rows unreadable")
            yield Step("R", "read the rows"), state._replace(reader=found)

    def _tool(self, state: State) -> Iterator[tuple[Step, State]]:
        """Another tool adds a column of the same name; `schema sync` takes it up as the change."""
        base = state.base
        if state.tool and base.history == 1:
            yield (
                Step("tool", "add a column"),
                state._replace(base=base._replace(commits=base.commits + 1, foreign=True), tool=False),
            )
        if base.foreign and base.history == 1 and state.change == 0:
            row = base.row and self._lifted(base.row, 2)
            synced = base._replace(commits=base.commits + 1, foreign=False, columns=2, history=2, row=row)
            yield Step("sync", "adopt the column"), state._replace(base=synced, change=1)
