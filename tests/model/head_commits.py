"""Commit appends, flushes and a claim to one head: docs/concepts/head-and-manifest.md, "The commit loop".

An appender changes the log half of the head; two flushers and a claimer change the manifest half. A flusher plans once,
commits on the manifest of its plan, reads a newer one only after a refusal, and may be overtaken at any line. Replies
get lost. A row is its position, so a generation is the range of positions that it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation


class Guard(Enum):
    PRECONDITION = "a flush is dead once the replay point or the generation number differs from its plan"
    OWN_WORK = "a flush that was applied is recognised, by the published manifest or by its own directory"
    MANIFEST_VERSION = "a manifest is committed only as the successor of the manifest that it was made from"
    OWN_FIELDS = "an append depends on the log half of the head only, and changes only that half"


class Generation(NamedTuple):
    number: int
    first: int
    last: int
    flusher: str  # represents the random name of the directory


class Manifest(NamedTuple):
    version: int = 1
    epoch: int = 1
    generations: tuple[Generation, ...] = ()

    @property
    def replayed(self) -> int:
        return self.generations[-1].last if self.generations else 0


class Head(NamedTuple):
    epoch: int
    next: int
    manifest: Manifest


class Actor(NamedTuple):
    call: str = "start"
    held: Head | None = None
    plan: Generation | None = None
    staged: Manifest | None = None


class State(NamedTuple):
    head: Head
    appender: Actor
    claimer: Actor
    flushers: tuple[Actor, ...]
    reports: tuple[tuple[Generation, str], ...]  # the outcome that each flush reported
    committed: tuple[Generation, ...]
    acknowledged: int


@dataclass(frozen=True, slots=True)
class HeadCommits:
    without: Guard | None = None
    entries: int = 3
    flushers: tuple[str, ...] = ("F", "G")

    def initial(self) -> State:
        return State(Head(1, 1, Manifest()), Actor(), Actor(), (Actor(),) * len(self.flushers), (), (), 0)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        yield from self._append(state)
        yield from self._claim(state)
        for index in range(len(self.flushers)):
            yield from self._flush(state, index)

    def violation(self, state: State) -> Violation | None:
        manifest = state.head.manifest
        covered = 0
        for generation in manifest.generations:
            if generation.first != covered + 1:
                return Violation("ranges overlap", f"{manifest.generations}")
            covered = generation.last
        if not set(state.committed) <= set(manifest.generations):
            return Violation("generation lost", f"{state.committed}, manifest {manifest}")
        for generation, report in state.reports:
            if (report == "done") != (generation in state.committed):
                return Violation("false report", f"{generation} reported {report}, committed {state.committed}")
        if state.head.next <= state.acknowledged:
            return Violation("entry lost", f"{state.head}")
        return None

    def _append(self, state: State) -> Iterator[tuple[Step, State]]:
        """Append in the first epoch only."""
        head, actor = state.head, state.appender
        if actor.call == "start" and head.next <= self.entries and head.epoch == 1:
            yield Step("A", "read head, put"), state._replace(appender=Actor("swap", head))
        elif actor.call == "swap":
            held = actor.held
            if (head.epoch, head.next) != (held.epoch, held.next):
                yield Step("A", "swap", "lost"), state._replace(appender=Actor())
                return
            whole = self.without is Guard.OWN_FIELDS
            moved = (held if whole else head)._replace(next=held.next + 1)
            after = state._replace(head=moved, acknowledged=held.next, appender=Actor())
            yield Step("A", f"swap {held.next}", "applied"), after

    def _claim(self, state: State) -> Iterator[tuple[Step, State]]:
        head, actor = state.head, state.claimer
        if actor.call == "start":
            claimed = head._replace(epoch=head.epoch + 1)
            yield Step("C", "swap epoch", "applied"), state._replace(head=claimed, claimer=Actor("stage"))
        elif actor.call == "stage":
            staged = head.manifest._replace(version=head.manifest.version + 1, epoch=head.epoch)
            yield Step("C", "stage"), state._replace(claimer=Actor("swap", head, None, staged))
        elif actor.call == "swap":
            if self._current(head, actor):
                swapped = state._replace(head=head._replace(manifest=actor.staged), claimer=Actor("stopped"))
                yield Step("C", "swap manifest", "applied"), swapped
            else:
                yield Step("C", "swap manifest", "lost"), state._replace(claimer=Actor(self._overtaken(head, actor)))
        elif actor.call == "look":
            yield Step("C", "look at published", "another's"), state._replace(claimer=Actor("stage"))

    def _current(self, head: Head, actor: Actor) -> bool:
        return head.manifest.version == actor.held.manifest.version or self.without is Guard.MANIFEST_VERSION

    def _overtaken(self, head: Head, actor: Actor) -> str:
        """Choose how to learn whose version it is: from the head, or later from the published manifest."""
        return "look" if head.manifest.version > actor.staged.version else "stage"

    def _flush(self, state: State, index: int) -> Iterator[tuple[Step, State]]:  # noqa: PLR0912 - one branch per call
        head, actor, name = state.head, state.flushers[index], self.flushers[index]

        def go(after: State, actor: Actor) -> State:
            flushers = (*after.flushers[:index], actor, *after.flushers[index + 1 :])
            return after._replace(flushers=flushers)

        def report(after: State, outcome: str) -> State:
            return go(after._replace(reports=(*after.reports, (actor.plan, outcome))), Actor("stopped"))

        manifest = head.manifest
        if actor.call == "start" and manifest.replayed < head.next - 1:
            plan = Generation(len(manifest.generations) + 1, manifest.replayed + 1, head.next - 1, name)
            new = manifest._replace(version=manifest.version + 1, generations=(*manifest.generations, plan))
            yield Step(name, f"plan {plan.first}-{plan.last}, stage"), go(state, Actor("swap", head, plan, new))
        elif actor.call == "stage":
            plan = actor.plan
            if plan in manifest.generations and self.without is not Guard.OWN_WORK:
                yield Step(name, "load", "own path"), report(state, "done")
            elif plan.first != manifest.replayed + 1 and self.without is not Guard.PRECONDITION:
                yield Step(name, "load", "overtaken"), report(state, "dead")
            else:
                new = manifest._replace(version=manifest.version + 1, generations=(*manifest.generations, plan))
                yield Step(name, "load, stage"), go(state, Actor("swap", head, plan, new))
        elif actor.call == "swap":
            if self._current(head, actor):
                swapped = state._replace(
                    head=head._replace(manifest=actor.staged), committed=(*state.committed, actor.plan)
                )
                yield Step(name, "swap manifest", "applied"), report(swapped, "done")
                unknown = go(swapped, actor._replace(call="settle"))
                yield Step(name, "swap manifest", "applied, reply lost"), unknown
            else:
                again = Actor(self._overtaken(head, actor), plan=actor.plan)
                yield Step(name, "swap manifest", "lost"), go(state, again)
        elif actor.call == "settle":
            if manifest == actor.staged:
                yield Step(name, "read head", "names ours"), report(state, "done")
            else:
                yield Step(name, "read head", "names another"), go(state, Actor("look", plan=actor.plan))
        elif actor.call == "look":
            if actor.plan in state.committed and self.without is not Guard.OWN_WORK:
                yield Step(name, "look at published", "ours"), report(state, "done")
            else:
                yield Step(name, "look at published", "another's"), go(state, Actor("stage", plan=actor.plan))
