"""Take a region over, with fences and with the epoch in the manifest: docs/concepts/epochs-and-fences.md, "Claim".

A zombie of the first epoch has left entries above the head. A claimer and a sibling of the same owner, perhaps of
another release, finish the claim together; the sibling appends. Another owner claims at any time. A release can't
decode rows of another release; that it can decode the fences of another release is a guard. An object that lands above
the head after the listing stays there: the next append of the new epoch replaces it (tests/model/append.py). An actor
that finds the head past its entry checks whose entry was committed. That check is part of the same step, since nothing
is swept here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation


class Guard(Enum):
    ON_EPOCH = "a claim is conditional on the epoch that was read"
    THROUGH_HIGHEST = "fences are appended up to the highest object that was listed above the head"
    FINISH_FIRST = "a writer finishes the claim before it appends while the epoch of the manifest is behind"
    FENCES_READABLE = "every release decodes the fences of every other release"
    FRESH_MANIFEST_EPOCH = "an undecodable object is replaced only if a head read after it shows an unfinished claim"
    EPOCH_IN_MANIFEST = "a claim is finished only when the manifest has its epoch"


class Head(NamedTuple):
    epoch: int = 1
    owner: str = "O"
    next: int = 1
    manifest_epoch: int = 1


class Object(NamedTuple):
    kind: str  # "fence" or "rows"
    writer: str
    epoch: int


class Actor(NamedTuple):
    call: str
    head: Head | None = None
    through: int = 0
    seen: Object | None = None
    rows: bool = False  # the actor appends rows, not a fence
    base: int = 0  # epoch of the manifest that the next one is made from; it identifies the manifest


class State(NamedTuple):
    head: Head
    objects: tuple[tuple[int, Object], ...]
    log: tuple[tuple[Object, int, str], ...]  # entry, epoch and owner of the head that committed it
    leftovers: frozenset[int]  # positions above the head when the claim was made
    actors: tuple[Actor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    name: str
    owner: str
    release: int
    claims: bool


P = Role(name="P", owner="P", release=1, claims=True)
SIBLING = Role(name="P'", owner="P", release=2, claims=False)
Q = Role(name="Q", owner="Q", release=1, claims=True)
OWNERS = {role.name: role.owner for role in (P, SIBLING, Q)} | {"O": "O"}
RELEASES = {role.name: role.release for role in (P, SIBLING, Q)} | {"O": 1}

Go = Callable[..., State]  # (state, next call, changes of the actor)
Begin = Callable[[State], State]


def object_at(state: State, position: int) -> Object | None:
    return dict(state.objects).get(position)


def with_object(state: State, position: int, new: Object) -> State:
    return state._replace(objects=tuple(sorted({**dict(state.objects), position: new}.items())))


@dataclass(frozen=True, slots=True)
class Claim:
    without: Guard | None = None
    roles: tuple[Role, ...] = (P, SIBLING)
    leftovers: tuple[int, ...] = (1, 2)
    last_epoch: int = 3  # a bound: an actor that lost a race may claim again

    def initial(self) -> State:
        zombie = tuple((position, Object("rows", "O", 1)) for position in self.leftovers)
        return State(Head(), zombie, (), frozenset(), tuple(Actor("start") for _ in self.roles))

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        for index, role in enumerate(self.roles):
            for answer, after in self._act(state, index, role):
                yield Step(role.name, state.actors[index].call, answer), after

    def violation(self, state: State) -> Violation | None:
        head = state.head
        owners: dict[int, str] = {}
        for entry, epoch, owner in state.log:
            if owners.setdefault(epoch, owner) != owner or OWNERS[entry.writer] != owner:
                return Violation("two owners of one epoch", f"{state.log}")
        for position, (entry, _, _) in enumerate(state.log, 1):
            if object_at(state, position) != entry:
                return Violation("committed entry missing", f"{object_at(state, position)} at {position}, not {entry}")
        if head.manifest_epoch == head.epoch > 1:
            ours = [entry for entry, epoch, _ in state.log if epoch == head.epoch]
            if not ours or ours[0].kind != "fence":
                return Violation("claim without a fence", f"{state.log}")
            for position in state.leftovers:
                if position >= head.next and (object_at(state, position) or ours[0]).epoch < head.epoch:
                    return Violation("leftover above the head", f"{position}: {object_at(state, position)}")
        return None

    def _act(self, state: State, index: int, role: Role) -> Iterator[tuple[str, State]]:  # noqa: PLR0912 - one branch per call
        actor, head = state.actors[index], state.head
        n = actor.head.next if actor.head else 0

        def go(after: State, call: str, **changes: object) -> State:
            actors = list(after.actors)
            actors[index] = actor._replace(call=call, **changes)
            return after._replace(actors=tuple(actors))

        def stop(after: State, call: str = "stopped") -> State:
            return go(after, call, head=None, through=0, seen=None, rows=False, base=0)

        def begin(after: State) -> State:
            """Choose the next call under the current head."""
            now = after.head
            if now.owner != role.owner:
                return stop(after)
            early = self.without is Guard.FINISH_FIRST and not role.claims
            if now.manifest_epoch == now.epoch or early:
                if role.claims:
                    return stop(after)
                return go(after, "create", head=now, through=0, seen=None, rows=True, base=0)
            if not actor.through or actor.rows or (actor.head and actor.head.epoch != now.epoch):
                return go(after, "list", head=now, through=0, seen=None, rows=False, base=0)
            if now.next <= actor.through:
                return go(after, "create", head=now, seen=None, rows=False, base=0)
            return go(after, "load manifest", head=now, seen=None, base=0)

        match actor.call:
            case "start":
                if head.owner == role.owner:
                    yield "", begin(state)
                elif role.claims and head.epoch < self.last_epoch:
                    yield "", go(state, "claim", head=head)
            case "claim":
                if head.epoch == actor.head.epoch or self.without is Guard.ON_EPOCH:
                    above = {position for position, found in state.objects if position >= head.next}
                    claimed = head._replace(epoch=actor.head.epoch + 1, owner=role.owner)
                    after = state._replace(head=claimed, leftovers=state.leftovers | above)
                    yield "applied", go(after, "list", head=claimed)
                    yield "applied, reply lost", go(after, "start", head=None)
                elif head.owner == role.owner:
                    yield "lost", begin(state)
                elif head.epoch < self.last_epoch:
                    yield "lost", go(state, "claim", head=head)
                else:
                    yield "lost", stop(state, "spent")
            case "list":
                highest = max((position for position, _ in state.objects), default=0)
                through = max(highest, n) if self.without is not Guard.THROUGH_HIGHEST else n
                skip = self.without is Guard.EPOCH_IN_MANIFEST
                yield f"through {through}", go(state, "load manifest" if skip else "create", through=through)
            case "create":
                ours = Object("rows" if actor.rows else "fence", role.name, actor.head.epoch)
                if object_at(state, n) is None:
                    yield "written", go(with_object(state, n, ours), "swap")
                    yield "applied, reply lost", go(with_object(state, n, ours), "examine")
                else:
                    yield "refused", go(state, "examine")
            case "examine":
                yield from self._examine(state, actor, role, go)
            case "judge":
                yield from self._judge(state, actor, role, go, begin)
            case "replace":
                ours = Object("rows" if actor.rows else "fence", role.name, actor.head.epoch)
                if object_at(state, n) == actor.seen:
                    yield "written", go(with_object(state, n, ours), "swap", seen=None)
                else:
                    yield "refused", go(state, "examine", seen=None)
            case "swap" | "help":
                ours = Object("rows" if actor.rows else "fence", role.name, actor.head.epoch)
                entry = ours if actor.call == "swap" else actor.seen
                if (head.epoch, head.next) == (actor.head.epoch, n):
                    log = (*state.log, (entry, head.epoch, head.owner))
                    swapped = state._replace(head=head._replace(next=n + 1), log=log)
                    done = actor.call == "swap" and actor.rows
                    yield "applied", stop(swapped) if done else begin(swapped)
                else:
                    yield "lost", begin(state)
            case "load manifest":
                done = head.manifest_epoch >= actor.head.epoch
                yield "", begin(state) if done else go(state, "swap manifest", base=head.manifest_epoch)
            case "swap manifest":
                if head.manifest_epoch == actor.base:
                    swapped = state._replace(head=head._replace(manifest_epoch=actor.head.epoch))
                    yield "applied", begin(swapped)
                    yield "applied, reply lost", go(swapped, "settle")
                elif head.manifest_epoch < actor.head.epoch:
                    yield "lost", go(state, "load manifest", base=0)
                else:
                    yield "lost", begin(state)  # a sibling committed the same bytes, or a later epoch followed
            case "settle":
                yield "ours", begin(state)

    def _decodes(self, role: Role, found: Object) -> bool:
        if found.kind == "fence" and self.without is not Guard.FENCES_READABLE:
            return True
        return RELEASES[found.writer] == role.release

    def _examine(self, state: State, actor: Actor, role: Role, go: Go) -> Iterator[tuple[str, State]]:
        found, epoch = object_at(state, actor.head.next), actor.head.epoch
        if found.writer == role.name and found.epoch == epoch:
            yield "ours", go(state, "swap")
        elif found.epoch < epoch and self._decodes(role, found):
            yield "older epoch", go(state, "replace", seen=found)
        else:
            yield f"{found.kind} of {found.writer}", go(state, "judge", seen=found)

    def _judge(self, state: State, actor: Actor, role: Role, go: Go, begin: Begin) -> Iterator[tuple[str, State]]:
        """Judge an object of another writer of our epoch, or one that can't be decoded. The head is read after it."""
        head, seen = state.head, actor.seen
        unfinished = head.manifest_epoch < head.epoch or self.without is Guard.FRESH_MANIFEST_EPOCH
        if (head.epoch, head.next) != (actor.head.epoch, actor.head.next):
            yield "moved", begin(state)
        elif self._decodes(role, seen):
            yield "help", go(state, "help")
        elif unfinished and not actor.rows:
            yield "replace", go(state, "replace")
        else:
            yield "Corrupt", go(state, "stopped", head=None, through=0, seen=None, rows=False, base=0)
