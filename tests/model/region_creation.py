"""Create a region: docs/concepts/head-and-manifest.md, "Create a region".

Two creators find the same new region values. A creator appends a row as soon as there is a head, and a flush commits
the second manifest. A reader lists the catalog, then reads heads. Any process may stop at any line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation


class Guard(Enum):
    CATALOG_BEFORE_HEAD = "the catalog record is written before the head"
    MANIFEST_BEFORE_HEAD = "the manifest that the head will name is written before the head"
    HEAD_IF_ABSENT = "a head is created only if it does not exist"
    HEAD_BEFORE_ENTRY = "an entry is appended only to a region with a head"
    SAME_MANIFEST = "every creator writes the same first manifest, byte for byte"
    CATALOG_THEN_HEADS = "readers list the catalog before they read heads"
    HEADLESS_IS_EMPTY = "a catalog record without a head is an empty region"
    HEAD_AFTER_LEFTOVERS = "manifests without a head count as a lost head only if a later read finds no head"


class Head(NamedTuple):
    manifest: str  # staged key
    version: int = 1
    next: int = 1


class Creator(NamedTuple):
    call: str


class Reader(NamedTuple):
    call: str = "first"
    catalogued: bool | None = None
    head: Head | None = None
    at_least: int = 0
    rows: int | None = None


class State(NamedTuple):
    catalogued: bool
    staged: frozenset[str]
    published: tuple[str, ...]  # bytes of version 1, 2
    head: Head | None
    acknowledged: int
    creators: tuple[Creator, ...]
    reader: Reader
    alarm: str = ""


ORDER = ("catalog", "find head", "look for manifests", "stage", "publish", "create head", "append", "done")


@dataclass(frozen=True, slots=True)
class RegionCreation:
    without: Guard | None = None

    def initial(self) -> State:
        return State(False, frozenset(), (), None, 0, (Creator(self._order()[0]),) * 2, Reader())

    def _order(self) -> tuple[str, ...]:
        order = list(ORDER)
        if self.without is Guard.CATALOG_BEFORE_HEAD:
            order.remove("catalog")
            order.insert(order.index("create head") + 1, "catalog")
            order.insert(order.index("catalog"), "append early")
        if self.without is Guard.MANIFEST_BEFORE_HEAD:
            order.remove("create head")
            order.insert(order.index("stage"), "create head")
        if self.without is Guard.HEAD_BEFORE_ENTRY:
            order.insert(0, "append early")
        return tuple(order)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        for index in range(2):
            yield from self._create(state, index)
        head = state.head
        if head is not None and head.version == 1 and head.next > 1 and len(state.published) == 1:
            flushed = state._replace(head=head._replace(version=2), published=(*state.published, "second"))
            yield Step("flush", "commit and publish 2"), flushed
        yield from self._read(state)

    def violation(self, state: State) -> Violation | None:
        if state.alarm:
            return Violation("false alarm", state.alarm)
        head, reader = state.head, state.reader
        if head is not None and head.manifest not in state.staged:
            return Violation("manifest missing", f"{head}")
        if (head.next - 1 if head else 0) < state.acknowledged:
            return Violation("rows lost", f"{head}, {state.acknowledged} acknowledged")
        if reader.rows is not None and reader.rows < reader.at_least:
            return Violation("rows not seen", f"{reader}")
        return None

    def _create(self, state: State, index: int) -> Iterator[tuple[Step, State]]:  # noqa: PLR0912 - one branch per call
        me, order, name = state.creators[index], self._order(), f"creator {index}"
        if me.call == "done":
            return
        again = me.call.removesuffix(" again")
        following = order[order.index(again) + 1]
        key = f"1-{index}"

        def go(after: State, call: str = following) -> State:
            creators = list(after.creators)
            creators[index] = Creator(call)
            return after._replace(creators=tuple(creators))

        step = Step(name, me.call)
        match again:
            case "catalog":
                yield step, go(state._replace(catalogued=True))
            case "find head":
                if state.head is not None:
                    yield step, go(state, "append")
                elif me.call == again:
                    yield step, go(state)
                else:
                    yield step, go(state._replace(alarm="no head was lost, but the creator reports one"), "done")
            case "look for manifests":
                if len(state.published) < 2:
                    yield step._replace(outcome="only the first"), go(state)
                elif self.without is Guard.HEAD_AFTER_LEFTOVERS:
                    yield step, go(state._replace(alarm="a region with a head is reported as lost"))
                else:
                    yield step._replace(outcome="some"), go(state, "find head again")
            case "stage":
                yield step, go(state._replace(staged=state.staged | {key}))
            case "publish":
                body = key if self.without is Guard.SAME_MANIFEST else "first"
                if not state.published:
                    yield step._replace(outcome="written"), go(state._replace(published=(body,)))
                elif state.published[0] == body:
                    yield step._replace(outcome="there"), go(state)
                else:
                    yield step, go(state._replace(alarm="the manifest of another creator is reported as foreign"))
            case "create head":
                if state.head is None or self.without is Guard.HEAD_IF_ABSENT:
                    created = state._replace(head=Head(key))
                    yield step._replace(outcome="applied"), go(created)
                    yield step._replace(outcome="applied, reply lost"), go(created, "create head again")
                else:
                    yield step._replace(outcome="lost"), go(state)
            case "append" | "append early":
                if state.head is not None:
                    moved = state._replace(
                        head=state.head._replace(next=state.head.next + 1), acknowledged=state.acknowledged + 1
                    )
                    yield step, go(moved)
                elif me.call == "append early":
                    yield step, go(state._replace(acknowledged=state.acknowledged + 1))

    def _read(self, state: State) -> Iterator[tuple[Step, State]]:
        reader = state.reader
        heads_first = self.without is Guard.CATALOG_THEN_HEADS
        if reader.call == "first":
            at_least = state.acknowledged
            if heads_first:
                started = Reader("second", head=state.head, at_least=at_least)
            else:
                started = Reader("second", catalogued=state.catalogued, at_least=at_least)
            yield Step("reader", "read heads" if heads_first else "list catalog"), state._replace(reader=started)
        elif reader.call == "second":
            catalogued = state.catalogued if heads_first else reader.catalogued
            head = reader.head if heads_first else state.head
            step = Step("reader", "list catalog" if heads_first else "read heads")
            if catalogued and head is None and (self.without is Guard.HEADLESS_IS_EMPTY or heads_first):
                yield step, state._replace(alarm="a region without a head is reported as corrupt")
            else:
                rows = head.next - 1 if catalogued and head else 0
                yield step, state._replace(reader=reader._replace(call="done", rows=rows))
