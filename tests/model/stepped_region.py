"""One region for a replay: an actor stops before each call of a port, and the replay decides how the call ends."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from greenlet import getcurrent

from lancelsm.common.layout import Epoch, Key, Nonce, Position, head_key, region_id, wal_entry, wal_position, wal_prefix
from lancelsm.common.setsum import Setsum
from lancelsm.objects import Body, ETag, Listed, PreconditionFailed, WriteUnknown, Written
from lancelsm.objects import Object as Stored
from lancelsm.region.catalog import Region, TableContext
from lancelsm.registry import Fields, Record, SwapApplied, SwapLost, SwapUnknown
from lancelsm.wal.claim import create_region
from lancelsm.wal.entry import Draft, Entry, decode, encode
from tests.model.append import READ_HEAD
from tests.simulation.environment import TABLE, VALUES, numbers_in
from tests.simulation.faults import FakeClock, MemoryRegistry, MemoryStore

LIST, SWAP_MANIFEST, SWAP_NOTE = "list objects", "swap manifest", "swap note"
GET_PUBLISHED = "get published manifest"
ZOMBIE = 99  # the number of a writer that takes no steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a port that waits for its answer. `name` is its name in the models."""

    name: str
    act: Callable[[], Any]
    unknown: Callable[[], Any] | None = None  # makes the answer of a write with an unknown outcome

    @property
    def reads(self) -> bool:
        return self.unknown is None


class SteppedRegion(ABC):
    """Storage of one region, and a record of what happened to it."""

    def __init__(self) -> None:
        self.objects, self.registry = _one_region()
        self.id = region_id(table=TABLE, spec_id=1, values=VALUES)
        self.key = head_key(TABLE, self.id)
        self.hub = getcurrent()
        self.log: list[tuple[Hashable, Record]] = []  # each committed entry, and the head right after its commit
        self.late: Callable[[], object] | None = None  # a write that is still in flight
        self.results: list[tuple[str, Any]] = []  # results and errors of actors, in order
        self.notes: dict[str, Any] = {}  # other facts that a driver records
        self._clock = FakeClock()
        self._entries: dict[str, Hashable] = {}

    def region(self, actor: str, *, number: int) -> Region:
        context = TableContext(
            uri="memory://t",
            table=TABLE,
            objects=SteppedObjects(self, actor),
            registry=SteppedRegistry(self, actor),
            clock=self._clock,
            ids=Numbered(number),
            budget_seconds=1e9,  # the models have no time limit
            parallel=1,
        )
        return Region(context=context, id=self.id, spec_id=1, values=VALUES)

    def head(self) -> Record:
        record = self.registry.read(self.key)
        assert record is not None
        return record

    def entries(self) -> tuple[tuple[int, Hashable], ...]:
        """Return every object of the log."""
        found = []
        for listed in self.objects.list(wal_prefix(self.id)):
            position = wal_position(listed.key)
            stored = self.objects.get(listed.key)
            assert position is not None
            assert stored is not None
            found.append((position, self.entry(stored.body, position)))
        return tuple(sorted(found))

    @abstractmethod
    def entry(self, body: bytes, position: Position) -> Hashable:
        """Convert an entry to its form in the model."""

    def put(self, draft: Draft, *, position: int, epoch: int) -> None:
        """Put an entry that a zombie left behind."""
        ours = encode(draft, position=position, epoch=epoch, nonce=Numbered(ZOMBIE).nonce())
        self.objects.create(wal_entry(self.id, Position(position)), ours.body)

    # Calls of the ports by an actor

    def get(self, actor: str, key: str) -> Stored | None:
        return self.objects.get(key)

    def written(self, key: str, body: bytes, outcome: Written | PreconditionFailed) -> Written | PreconditionFailed:
        position = wal_position(key)
        if isinstance(outcome, Written) and position is not None:
            entry = decoded(body, position)
            self._entries[entry.summary.entry_setsum.hex()] = self.entry(body, position)
        return outcome

    def swap(self, actor: str, *, expect: Fields | None, change: Fields) -> SwapApplied | SwapLost:
        old = self.head()
        outcome = self.registry.swap(self.key, expect=expect, change=change)
        if isinstance(outcome, SwapApplied) and outcome.record["next_position"] != old["next_position"]:
            added = Setsum.from_hex(str(outcome.record["entry_setsum"])) - Setsum.from_hex(str(old["entry_setsum"]))
            self.log.append((self._entries[added.hex()], outcome.record))
        return outcome


class SteppedObjects:
    """The store of one actor, which stops before each call."""

    def __init__(self, stepped: SteppedRegion, actor: str) -> None:
        self._stepped = stepped
        self._actor = actor

    def get(self, key: str) -> Stored | None:
        return self._stop(f"get {_named(key)}", lambda: self._stepped.get(self._actor, key))

    def list(self, prefix: str) -> Iterator[Listed]:
        return iter(self._stop(LIST, lambda: list(self._stepped.objects.list(prefix))))

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        kept = bytes(body)
        return self._stop(
            f"create {_named(key)}",
            lambda: self._stepped.written(key, kept, self._stepped.objects.create(key, kept)),
            unknown=_no_write,
        )

    def replace(self, key: str, body: Body, *, expect: ETag) -> Written | PreconditionFailed | WriteUnknown:
        kept = bytes(body)
        return self._stop(
            f"replace {_named(key)}",
            lambda: self._stepped.written(key, kept, self._stepped.objects.replace(key, kept, expect=expect)),
            unknown=_no_write,
        )

    def _stop(self, name: str, act: Callable[[], Any], *, unknown: Callable[[], Any] | None = None) -> Any:
        return self._stepped.hub.switch(Call(name=name, act=act, unknown=unknown))


class SteppedRegistry:
    """The registry of one actor, which stops before each call."""

    def __init__(self, stepped: SteppedRegion, actor: str) -> None:
        self._stepped = stepped
        self._actor = actor

    def read(self, key: Key) -> Record | None:
        assert key == self._stepped.key
        return self._stepped.hub.switch(Call(name=READ_HEAD, act=lambda: self._stepped.registry.read(key)))

    def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        assert key == self._stepped.key
        if "next_position" in change:
            assert expect is not None
            name = f"swap {change['next_position'] - 1}"
        else:
            name = "claim" if "owner" in change else SWAP_NOTE if set(change) == {"waiting"} else SWAP_MANIFEST
        act = functools.partial(self._stepped.swap, self._actor, expect=expect, change=change)
        return self._stepped.hub.switch(Call(name=name, act=act, unknown=_no_swap))

    def delete(self, key: Key, *, expect: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        raise NotImplementedError  # no replayed protocol deletes records; a driver of one that does must support it

    def discard(self, key: Key) -> None:
        raise NotImplementedError  # see delete

    def list(self, partition: str) -> list[tuple[Key, Record]]:
        raise NotImplementedError  # no replayed protocol lists records; a driver of one that does must support it


class Numbered:
    """Nonces that carry the number of their actor, and no randomness."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._minted = 0

    def nonce(self) -> Nonce:
        self._minted += 1
        return Nonce(f"{self._number:08x}{self._minted:024x}")

    def uniform(self) -> float:
        return 0.0


def number_of(nonce: str) -> int:
    """Return the number of the actor that made a nonce, or a text that begins with one."""
    return int(nonce[:8], 16)


@functools.cache
def _created_once() -> tuple[MemoryStore, MemoryRegistry]:
    objects, registry = MemoryStore(), MemoryRegistry()
    context = TableContext(
        uri="memory://t", table=TABLE, objects=objects, registry=registry, clock=FakeClock(), ids=Numbered(ZOMBIE)
    )
    create_region(context, spec_id=1, values=VALUES, owner="O")
    return objects, registry


def _one_region() -> tuple[MemoryStore, MemoryRegistry]:
    """Create an open region of owner O in its first epoch."""
    objects, registry = MemoryStore(), MemoryRegistry()
    made_objects, made_registry = _created_once()
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


@functools.lru_cache(maxsize=10_000)
def numbers_and_epoch(body: bytes, position: Position) -> tuple[tuple[int, ...], Epoch]:
    """Return the row numbers and the epoch of an entry that `row` drafted."""
    entry = decoded(body, position)
    return tuple(numbers_in(entry)), entry.summary.epoch


def _named(key: str) -> str:
    position = wal_position(key)
    if position is not None:
        return f"object {position}"
    if key.endswith("version_hint.json"):
        return "hint"
    return "staged manifest" if "/staged/" in key else "published manifest"


def _no_write() -> WriteUnknown:
    return WriteUnknown(cause="the replayed path gives no answer")


def _no_swap() -> SwapUnknown:
    return SwapUnknown(cause="the replayed path gives no answer")
