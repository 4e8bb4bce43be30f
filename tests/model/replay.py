"""Take a path through a model's state graph with the real code, and compare after every step.

Each actor of a model is played by the function that it is a model of. It runs in a greenlet of its own and stops before
each call of a port; the model's step says who goes on and what becomes of the call. After the step, storage and what
the actors were told must be what the model says, and each actor must be about to make the call that the model has next
for it.

A model may take several calls as one step. A play says which calls those are; they are answered at once.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from greenlet import getcurrent, greenlet

from lancelsm.claim import create_region
from lancelsm.errors import LsmError
from lancelsm.layout import Key, Nonce, Position, head_key, region_id, wal_entry, wal_position
from lancelsm.objects import Body, ETag, Listed, Refused, Written
from lancelsm.objects import Object as Stored
from lancelsm.objects import Unknown as UnknownWrite
from lancelsm.region import Region, Storage
from lancelsm.registry import Applied, Fields, Lost, Record
from lancelsm.registry import Unknown as UnknownSwap
from lancelsm.setsum import Setsum
from lancelsm.wal.entry import Draft, Entry, decode, encode
from tests.model.append import APPLIED, IN_FLIGHT, LOST, NO_EFFECT, READ_HEAD, REFUSED, REPLY_LOST, WRITTEN
from tests.model.engine import Edge, Model, Path, S, Step, Violation, graph
from tests.simulation.faults import FakeClock, MemoryRegistry, MemoryStore
from tests.simulation.world import TABLE, VALUES

ENDED = "nothing more"
LIST, SWAP_MANIFEST = "list objects", "swap manifest"
LOOK_AT_PUBLISHED = "get published manifest"
ANYTHING: frozenset[str] = frozenset()
REPLIES = {WRITTEN: Written, REFUSED: Refused, APPLIED: Applied, LOST: Lost}
ZOMBIE = 99  # the number of a writer that no play lets act

P = TypeVar("P", bound=Hashable)


class Mismatch(AssertionError):
    """The code and the model went different ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a port that waits for its answer; `name` is in the words of the models."""

    name: str
    act: Callable[[], Any]
    unknown: Callable[[], Any] | None = None  # what a write is told when there is no answer

    @property
    def reads(self) -> bool:
        return self.unknown is None


class Play(Protocol[P]):
    """How one model is played by the real code."""

    def stage(self) -> Stage:
        """Storage in the model's initial state."""
        ...

    def cast(self, stage: Stage) -> dict[str, Callable[[], object]]:
        """The actors by the name that steps give them."""
        ...

    def due(self, state: P) -> Mapping[str, frozenset[str]]:
        """The calls that each actor may be about to make; `ANYTHING` if the model stops to follow it."""
        ...

    def folded(self, call: Call, due: frozenset[str]) -> bool:
        """Whether a call is part of the step that came before it, when others are due."""
        ...

    def happen(self, stage: Stage, step: Step) -> None:
        """Do what no actor does."""
        ...

    def seen(self, stage: Stage) -> Hashable:
        """Storage and what actors were told, in the terms of the model."""
        ...

    def told(self, state: P) -> Hashable:
        """What `seen` must be in this state."""
        ...


class Stage:
    """Storage of one region as its actors see it, and what happened there."""

    def __init__(self) -> None:
        self.objects, self.registry = _one_region()
        self.id = region_id(table=TABLE, spec_id=1, values=VALUES)
        self.key = head_key(TABLE, self.id)
        self.hub = getcurrent()
        self.log: list[tuple[Hashable, Record]] = []  # each committed entry and the head right after
        self.late: Callable[[], object] | None = None  # a write that is still in flight
        self.results: list[tuple[str, Any]] = []  # what actors were told, in the order in which they were
        self.remarks: dict[str, Any] = {}  # what else a play wants to remember
        self._clock = FakeClock()
        self._entries: dict[str, Hashable] = {}

    def region(self, actor: str, *, number: int) -> Region:
        storage = Storage(
            uri="memory://t",
            table=TABLE,
            objects=StagedObjects(self, actor),
            registry=StagedRegistry(self, actor),
            clock=self._clock,
            ids=Numbered(number),
            budget_seconds=1e9,  # the models know no end of patience
            parallel=1,
        )
        return Region(storage=storage, id=self.id, spec_id=1, values=VALUES)

    def head(self) -> Record:
        record = self.registry.read(self.key)
        assert record is not None
        return record

    def entries(self) -> tuple[tuple[int, Hashable], ...]:
        """Every object of the log."""
        found = []
        for listed in self.objects.list(wal_entry(self.id, Position(1)).rpartition("/")[0]):
            position = wal_position(listed.key)
            stored = self.objects.get(listed.key)
            assert position is not None
            assert stored is not None
            found.append((position, self.entry(stored.body, position)))
        return tuple(sorted(found))

    def entry(self, body: bytes, position: Position) -> Hashable:
        """An entry in the terms of the model."""
        raise NotImplementedError

    def put(self, draft: Draft, *, position: int, epoch: int) -> None:
        """What a zombie left."""
        ours = encode(draft, position=position, epoch=epoch, nonce=Numbered(ZOMBIE).nonce())
        self.objects.create(wal_entry(self.id, Position(position)), ours.body)

    # What the ports do for an actor

    def get(self, actor: str, key: str) -> Stored | None:
        return self.objects.get(key)

    def written(self, key: str, body: bytes, outcome: Written | Refused) -> Written | Refused:
        position = wal_position(key)
        if isinstance(outcome, Written) and position is not None:
            entry = decoded(body, position)
            self._entries[entry.summary.entry_setsum.hex()] = self.entry(body, position)
        return outcome

    def swap(self, actor: str, *, expect: Fields | None, change: Fields) -> Applied | Lost:
        old = self.head()
        outcome = self.registry.swap(self.key, expect=expect, change=change)
        if isinstance(outcome, Applied) and outcome.record["next_position"] != old["next_position"]:
            added = Setsum.from_hex(str(outcome.record["entry_setsum"])) - Setsum.from_hex(str(old["entry_setsum"]))
            self.log.append((self._entries[added.hex()], outcome.record))
        return outcome


class StagedObjects:
    """The store of one actor, who stops before each call."""

    def __init__(self, stage: Stage, actor: str) -> None:
        self._stage = stage
        self._actor = actor

    def get(self, key: str) -> Stored | None:
        return self._stop(f"get {_named(key)}", lambda: self._stage.get(self._actor, key))

    def list(self, prefix: str) -> Iterator[Listed]:
        return iter(self._stop(LIST, lambda: list(self._stage.objects.list(prefix))))

    def create(self, key: str, body: Body) -> Written | Refused | UnknownWrite:
        kept = bytes(body)
        return self._stop(
            f"create {_named(key)}",
            lambda: self._stage.written(key, kept, self._stage.objects.create(key, kept)),
            unknown=_no_write,
        )

    def replace(self, key: str, body: Body, *, expect: ETag) -> Written | Refused | UnknownWrite:
        kept = bytes(body)
        return self._stop(
            f"replace {_named(key)}",
            lambda: self._stage.written(key, kept, self._stage.objects.replace(key, kept, expect=expect)),
            unknown=_no_write,
        )

    def _stop(self, name: str, act: Callable[[], Any], *, unknown: Callable[[], Any] | None = None) -> Any:
        return self._stage.hub.switch(Call(name=name, act=act, unknown=unknown))


class StagedRegistry:
    """The registry of one actor, who stops before each call."""

    def __init__(self, stage: Stage, actor: str) -> None:
        self._stage = stage
        self._actor = actor

    def read(self, key: Key) -> Record | None:
        assert key == self._stage.key
        return self._stage.hub.switch(Call(name=READ_HEAD, act=lambda: self._stage.registry.read(key)))

    def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> Applied | Lost | UnknownSwap:
        assert key == self._stage.key
        if "next_position" in change:
            assert expect is not None
            name = f"swap {change['next_position'] - 1}"
        else:
            name = "claim" if "owner" in change else SWAP_MANIFEST
        act = functools.partial(self._stage.swap, self._actor, expect=expect, change=change)
        return self._stage.hub.switch(Call(name=name, act=act, unknown=_no_swap))

    def list(self, partition: str) -> list[tuple[Key, Record]]:
        raise NotImplementedError


class Numbered:
    """Names that say whose they are; no chance."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._minted = 0

    def nonce(self) -> Nonce:
        self._minted += 1
        return Nonce(f"{self._number:08x}{self._minted:024x}")

    def uniform(self) -> float:
        return 0.0


def number_of(nonce: str) -> int:
    """Whose a nonce is, or what begins with one."""
    return int(nonce[:8], 16)


class _Script(Generic[P]):
    """One path, step by step."""

    def __init__(self, play: Play[P], path: Path[P]) -> None:
        self._play = play
        self._stage = play.stage()
        self._actors: dict[str, greenlet] = {}
        self._waiting: dict[str, Call | None] = {}
        for name, act in play.cast(self._stage).items():
            actor = greenlet(lambda act=act: (act(), None)[1])
            self._actors[name] = actor
            self._waiting[name] = actor.switch()
            self._go_on(name, path[0].before)
        self._compare(path[0].before)

    def take(self, edge: Edge[P]) -> None:
        _, step, after = edge
        if step.actor in self._actors:
            self._answer(step)
            self._go_on(step.actor, after)
        else:
            self._play.happen(self._stage, step)
        self._compare(after)

    def close(self) -> None:
        for actor in self._actors.values():
            actor.throw()

    def _answer(self, step: Step) -> None:
        call = self._waiting[step.actor]
        if call is None:
            raise Mismatch(f"{step}, but the code has ended")
        if step.outcome in (NO_EFFECT, IN_FLIGHT, REPLY_LOST):
            if call.unknown is None:
                raise Mismatch(f"{step}, but the code does: {call.name}")
            if step.outcome == IN_FLIGHT:
                assert self._stage.late is None
                self._stage.late = call.act
            elif step.outcome == REPLY_LOST:
                expect(call.act(), (Written, Applied), step)
            reply = call.unknown()
        else:
            reply = call.act()
            if step.outcome in REPLIES:
                expect(reply, REPLIES[step.outcome], step)
        self._waiting[step.actor] = self._actors[step.actor].switch(reply)

    def _go_on(self, name: str, state: P) -> None:
        """Up to the call that is due."""
        due = self._play.due(state)[name]
        for _ in range(100):
            call = self._waiting[name]
            if call is None or not due or call.name in due or not self._play.folded(call, due):
                return
            self._waiting[name] = self._actors[name].switch(call.act())
        raise Mismatch(f"{name} goes on and on, due is: {', '.join(due)}")

    def _compare(self, state: P) -> None:
        for name, due in self._play.due(state).items():
            call = self._waiting[name]
            does = ENDED if call is None else call.name
            if due and does not in due:
                raise Mismatch(f"{name} is about to: {does}; due is: {', '.join(sorted(due))}")
        seen, told = self._play.seen(self._stage), self._play.told(state)
        if seen != told:
            raise Mismatch(f"storage and results differ\n  code:  {seen}\n  model: {told}")


def replay(play: Play[P], path: Path[P]) -> None:
    """Take a path from the initial state.

    Raises:
        Mismatch: the code did something else than the model, at the last of the steps that are named.
    """
    taken: list[Step] = []
    script = None
    try:
        script = _Script(play, path)
        for edge in path:
            taken.append(edge.step)
            script.take(edge)
    except (LsmError, AssertionError) as error:
        steps = "\n".join(f"  {number:2} {step}" for number, step in enumerate(taken, 1))
        raise Mismatch(f"{error}\n{steps}") from error
    finally:
        if script is not None:
            script.close()


def expect(reply: object, kind: type | tuple[type, ...], step: Step) -> None:
    """Compare an answer with the one that a step names."""
    if not isinstance(reply, kind):
        raise Mismatch(f"{step}, but the answer is {reply}")


class Counted(NamedTuple, Generic[S]):
    state: S
    taken: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(Generic[S]):
    """A model without the paths on which something rare happens too often: (what is rare, how often it may happen)."""

    model: Model[S]
    rare: tuple[tuple[Callable[[Step], bool], int], ...] = field(default=())

    def initial(self) -> Counted[S]:
        return Counted(self.model.initial(), (0,) * len(self.rare))

    def steps(self, counted: Counted[S]) -> Iterator[tuple[Step, Counted[S]]]:
        for step, after in self.model.steps(counted.state):
            taken = tuple(n + is_rare(step) for n, (is_rare, _) in zip(counted.taken, self.rare, strict=True))
            if all(n <= most for n, (_, most) in zip(taken, self.rare, strict=True)):
                yield step, Counted(after, taken)

    def violation(self, counted: Counted[S]) -> Violation | None:
        return self.model.violation(counted.state)


def paths(cut: Cut[S]) -> Iterable[Path[S]]:
    """Paths that together take every edge of the model that is left."""
    for path in graph(cut).covering_paths():
        yield tuple(Edge(before.state, step, after.state) for before, step, after in path)


def walk(model: Model[S], *, seed: int, most: int) -> Path[S]:
    """A random path that ends after `most` steps, or where the model does."""
    chance = random.Random(seed)
    edges: list[Edge[S]] = []
    state = model.initial()
    while len(edges) < most and (steps := list(model.steps(state))):
        step, after = chance.choice(steps)
        edges.append(Edge(state, step, after))
        state = after
    return tuple(edges)


def unanswered(step: Step) -> bool:
    return step.outcome in (NO_EFFECT, IN_FLIGHT, REPLY_LOST)


@functools.cache
def _made() -> tuple[MemoryStore, MemoryRegistry]:
    objects, registry = MemoryStore(), MemoryRegistry()
    storage = Storage(
        uri="memory://t", table=TABLE, objects=objects, registry=registry, clock=FakeClock(), ids=Numbered(ZOMBIE)
    )
    create_region(storage, spec_id=1, values=VALUES, owner="O")
    return objects, registry


def _one_region() -> tuple[MemoryStore, MemoryRegistry]:
    """An open region of the owner O in its first epoch."""
    objects, registry = MemoryStore(), MemoryRegistry()
    made_objects, made_registry = _made()
    for listed in made_objects.list(""):
        stored = made_objects.get(listed.key)
        assert stored is not None
        objects.create(listed.key, stored.body)
    key = head_key(TABLE, region_id(table=TABLE, spec_id=1, values=VALUES))
    head = made_registry.read(key)
    assert head is not None
    registry.swap(key, expect=None, change=head)
    return objects, registry


@functools.lru_cache(maxsize=10_000)
def decoded(body: bytes, position: Position) -> Entry:
    return decode(body, position=position, key="")


def _named(key: str) -> str:
    position = wal_position(key)
    if position is not None:
        return f"object {position}"
    if key.endswith("version_hint.json"):
        return "hint"
    return "staged manifest" if "/staged/" in key else "published manifest"


def _no_write() -> UnknownWrite:
    return UnknownWrite(cause="the script gave no answer")


def _no_swap() -> UnknownSwap:
    return UnknownSwap(cause="the script gave no answer")
