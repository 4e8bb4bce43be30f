"""Publish manifests for readers of files: docs/concepts/head-and-manifest.md, "Publication".

A committer swaps a staged manifest into the head and then publishes it. Before the next manifest is committed, its
committer makes sure that the current one is published. A collector raises the floor of published versions to the hint
and sweeps below it. A reader of files starts at the hint, walks up and stops at the first hole. Any process may stop at
any line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation


class Guard(Enum):
    BEFORE_NEXT = "version v is published before v + 1 is committed"
    COMMITTED_ONLY = "only a manifest that the head has named is published"
    OWN_VERSION = "a committer that was overtaken after a lost reply reads the published version to learn whose it is"
    HINT_UPWARDS = "the hint is replaced under If-Match and only rises"
    INTERVAL = "a sweep waits until a reader that read an older hint has walked to the end"
    SWEEP_BELOW_HINT = "published versions at or above the hint are never deleted"


class Committer(NamedTuple):
    call: str = "load"
    version: int = 0  # version of the manifest that the head named when it was read
    based_on: str = ""
    attempt: int = 0
    hint: int = 0  # the hint as read, to be raised next


class Reader(NamedTuple):
    call: str = "hint"
    at_least: int = 0  # the newest version that was published when the read began
    start: int = 0
    at: int = 0


class State(NamedTuple):
    chain: tuple[str, ...]  # the manifests that the head named as version 1, 2, ...
    published: tuple[tuple[int, str], ...]
    hint: int
    committers: tuple[Committer, ...]
    reader: Reader
    sweeper: int  # the hint that the sweep has read; 0: not read yet


@dataclass(frozen=True, slots=True)
class Publication:
    without: Guard | None = None
    committers: int = 2
    versions: int = 4

    def initial(self) -> State:
        return State(("first",), ((1, "first"),), 1, (Committer(),) * self.committers, Reader(), 0)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        for index in range(self.committers):
            for step, answer, after in self._commit(state, index):
                yield Step(f"committer {index}", step, answer), after
        yield from self._sweep(state)
        yield from self._read(state)

    def violation(self, state: State) -> Violation | None:
        for version, name in state.published:
            if version > len(state.chain) or state.chain[version - 1] != name:
                return Violation("published, not committed", f"{name} as {version}: {state.chain}")
        if len({name.split(".")[0] for name in state.chain}) < len(state.chain):
            return Violation("committed twice", f"{state.chain}")
        reader = state.reader
        if reader.call == "done" and reader.at < reader.at_least:
            return Violation("stopped at a hole", f"read {reader.at}, {reader.at_least} was published before")
        versions = [version for version, _ in state.published]
        if state.hint not in versions:
            return Violation("hint dangles", f"{state.hint}: {versions}")
        if len(versions) <= max(versions) - min(versions):
            return Violation("hole", f"{versions}")
        return None

    def _commit(self, state: State, index: int) -> Iterator[tuple[str, str, State]]:  # noqa: PLR0912 - one branch per call
        me = state.committers[index]
        newest = len(state.chain)
        name = f"{index}.{me.attempt}"
        published = dict(state.published)

        def go(after: State, **changes: object) -> State:
            committers = list(after.committers)
            committers[index] = me._replace(**changes)
            return after._replace(committers=tuple(committers))

        def publish(after: State, version: int, what: str) -> State:
            return after._replace(published=tuple(sorted({version: what, **published}.items())))

        match me.call:
            case "load":
                if newest < self.versions:
                    yield "load", "", go(state, call="ensure", version=newest, based_on=state.chain[-1])
            case "ensure":
                if self.without is Guard.BEFORE_NEXT or published.get(me.version) == me.based_on:
                    yield "get published", "there", go(state, call="swap")
                elif newest > me.version:
                    yield "get published", "overtaken", go(state, call="load", version=0, based_on="")
                else:
                    yield "create published", "", go(publish(state, me.version, me.based_on), call="swap")
            case "swap":
                if self.without is Guard.COMMITTED_ONLY and me.version + 1 not in published:
                    yield "create published", "", publish(state, me.version + 1, name)
                if newest == me.version:
                    swapped = state._replace(chain=(*state.chain, name))
                    yield "swap", "applied", go(swapped, call="publish")
                    yield "swap", "applied, reply lost", go(swapped, call="settle")
                else:
                    yield "swap", "lost", go(state, call="load", version=0, based_on="", attempt=me.attempt)
            case "settle":
                if newest == me.version + 1 and state.chain[-1] == name:
                    yield "read head", "ours", go(state, call="publish")
                elif self.without is Guard.OWN_VERSION:
                    yield "read head", "newer", go(state, call="load", version=0, based_on="", attempt=me.attempt + 1)
                elif published.get(me.version + 1) == name:
                    yield "read head, get published", "ours", go(state, call="done", version=0, based_on="")
                else:
                    yield "read head, get published", "Ambiguous", go(state, call="done", version=0, based_on="")
            case "publish":
                yield "create published", "", go(publish(state, me.version + 1, name), call="hint")
            case "hint":
                yield "get hint", "", go(state, call="raise", hint=state.hint)
            case "raise":
                blind = self.without is Guard.HINT_UPWARDS
                raised = state
                if blind or (state.hint == me.hint and me.hint < me.version + 1):
                    raised = state._replace(hint=me.version + 1)
                yield "replace hint", "", go(raised, call="done", version=0, based_on="", hint=0)

    def _sweep(self, state: State) -> Iterator[tuple[Step, State]]:
        if not state.sweeper:
            yield Step("sweep", "get hint"), state._replace(sweeper=state.hint)
            return
        floor = state.sweeper + (self.without is Guard.SWEEP_BELOW_HINT)
        walking = state.reader.call == "walk" and state.reader.start < floor
        if walking and self.without is not Guard.INTERVAL:
            return
        for version, _ in state.published[:1]:
            if version < floor:
                yield Step("sweep", f"delete {version}"), state._replace(published=state.published[1:])

    def _read(self, state: State) -> Iterator[tuple[Step, State]]:
        reader, published = state.reader, dict(state.published)
        if reader.call == "hint":
            started = Reader("walk", max(published, default=0), state.hint, state.hint)
            yield Step("reader", "get hint"), state._replace(reader=started)
        elif reader.call == "walk":
            if reader.at in published:
                yield (
                    Step("reader", f"get {reader.at}", "there"),
                    state._replace(reader=reader._replace(at=reader.at + 1)),
                )
            else:
                ended = reader._replace(call="done", at=reader.at - 1)
                yield Step("reader", f"get {reader.at}", "hole"), state._replace(reader=ended)
