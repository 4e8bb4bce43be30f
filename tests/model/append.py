"""Append, help, replace and acknowledge: docs/concepts/path-of-a-row.md, "Append" and the table of what can happen.

Writers of one owner, writers that take the region over, a flush, a collector and its sweep share one region. A step of
a writer is one call of a port with its answer. The answer alone decides the next call, as in lancelsm.wal.append and
lancelsm.wal.slot. So the code can replay a path through the graph. A write may be applied and lose its reply, have no
effect, or land after its caller gave up. ETags are hashes of the content, so they repeat. A writer that takes no more
steps has crashed. A claim is one step here; tests/model/claim.py has its parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.engine import Step, Violation

# Calls of the ports.
READ_HEAD, CLAIM, SWAP = "read head", "claim", "swap"
CREATE, GET, REPLACE = "create object", "get object", "replace object"

# Answers to writes. After the last three the caller only knows that the outcome is unknown.
WRITTEN, REFUSED = "written", "refused"
APPLIED, LOST = "applied", "lost"
REPLY_LOST, NO_EFFECT, IN_FLIGHT = "applied, reply lost", "no effect, no reply", "in flight, no reply"

ENVIRONMENT = "environment"


class Guard(Enum):
    """The rules of the protocol. Without any one of them a promise breaks."""

    CONDITION = "a swap names the epoch and the next position that its entry was written for"
    OWN_NONCE = "the nonce of an existing object is compared with ours before the object counts as another writer's"
    DEFINITE_REFUSAL = "a writer leaves a position and starts again only if every attempt of its put was refused"
    HEAD_AFTER_OBJECT = "an object proves a commit only if a later head still has first_position <= n"
    HELP_NOT_REPLACE = "an entry of our own epoch is committed for its writer, never replaced"
    REPLACE_UNDER_ETAG = "an entry of an older epoch is replaced only while it is still the entry that was read"
    STOP_AT_NEW_EPOCH = "a writer of an older epoch does not swap"
    FRESH_HEAD = "an object with a higher epoch counts as corruption only if the head was read after it"
    COMMIT_BEFORE_SWEEP = "objects are deleted only after the head's first_position passed them"
    ACKNOWLEDGE_AFTER_SWAP = "an entry is acknowledged when the head has passed it, not when its object exists"


class Head(NamedTuple):
    epoch: int
    owner: str
    next: int  # next_position
    first: int  # first_position


class Object(NamedTuple):
    """An entry in storage; also its own ETag."""

    entry: str
    epoch: int


class Pending(NamedTuple):
    """A write that is still in flight."""

    call: str
    position: int
    object: Object
    expect: Object | None = None


class Writer(NamedTuple):
    entries: tuple[str, ...]  # still to append, the current one first
    call: str = "start"  # the next call of a port
    head: Head | None = None  # read or held; the entry's position is its `next`, the entry's epoch its `epoch`
    seen: Object | None = None  # the object that was read for the next decision
    unsure: bool = False  # at least one attempt of our put was not definitely refused


class State(NamedTuple):
    head: Head
    objects: tuple[tuple[int, Object], ...]
    log: tuple[Object, ...]  # the entry committed at position 1, 2, ...
    flushed: int  # positions up to here are in a generation
    acknowledged: tuple[tuple[str, int], ...]
    failed: tuple[tuple[str, str], ...]
    writers: tuple[Writer, ...]
    pending: Pending | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One writer: its owner, the entries that it appends, and whether it takes the region over."""

    owner: str
    entries: tuple[str, ...]
    claims: bool = False


def object_at(state: State, position: int) -> Object | None:
    for at, found in state.objects:
        if at == position:
            return found
    return None


def with_object(state: State, position: int, new: Object | None) -> State:
    rest = [(at, found) for at, found in state.objects if at != position]
    if new is not None:
        rest.append((position, new))
    return state._replace(objects=tuple(sorted(rest)))


def committed(state: State, position: int, entry: Object) -> State:
    """Advance the head past `position` for this entry, whichever object is there."""
    return state._replace(head=state.head._replace(next=position + 1), log=(*state.log, entry))


@dataclass(frozen=True, slots=True)
class Append:
    roles: tuple[Role, ...]
    without: Guard | None = None
    last_epoch: int = 4  # a bound: a fenced writer may claim again and again
    in_flight: tuple[str, ...] = (CREATE, REPLACE, SWAP)  # writes that may land after their caller gave up

    def initial(self) -> State:
        writers = tuple(Writer(entries=role.entries) for role in self.roles)
        return State(Head(1, "O", 1, 1), (), (), 0, (), (), writers, None)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        for index, writer in enumerate(state.writers):
            if writer.entries and writer.call != "stopped":
                yield from _Turn(self, state, index).steps()
        yield from self._environment(state)

    def violation(self, state: State) -> Violation | None:
        log = [entry for entry, _ in state.log]
        if len(set(log)) < len(log):
            return Violation("committed twice", f"{log}")
        for entry, position in state.acknowledged:
            if position > len(log) or log[position - 1] != entry:
                return Violation("acknowledged, not committed", f"{entry} at {position}: {log}")
        for position in range(state.head.first, state.head.next):
            found = object_at(state, position)
            if found is None or found != state.log[position - 1]:
                return Violation("committed entry missing", f"{found} at {position}: {state.log}")
        epochs = [epoch for _, epoch in state.log]
        if epochs != sorted(epochs):
            return Violation("epoch falls", f"{state.log}")
        for entry, kind in state.failed:
            if kind == "Corrupt":
                return Violation("false alarm", f"{entry} reported as Corrupt")
            if kind == "Fenced" and entry in log:
                return Violation("fenced, yet committed", f"{entry}: {log}")
        return None

    def _environment(self, state: State) -> Iterator[tuple[Step, State]]:
        """A write that lands late; flush; the collector's commit; its sweep."""
        head = state.head
        if state.pending is not None:
            yield self._late(state, state.pending)
        if state.flushed < head.next - 1:
            yield Step(ENVIRONMENT, "flush"), state._replace(flushed=head.next - 1)
        if head.first <= state.flushed:
            yield Step(ENVIRONMENT, "collect"), state._replace(head=head._replace(first=state.flushed + 1))
        swept = state.flushed + 1 if self.without is Guard.COMMIT_BEFORE_SWEEP else head.first
        for position, _ in state.objects:
            if position < swept:
                yield Step(ENVIRONMENT, f"sweep {position}"), with_object(state, position, None)

    def _late(self, state: State, write: Pending) -> tuple[Step, State]:
        call, position, new, expect = write
        after = state._replace(pending=None)
        step = Step(ENVIRONMENT, f"late {call} {position} of {new.entry}", WRITTEN)
        if call == SWAP and (state.head.epoch, state.head.next) == (new.epoch, position):
            return step, committed(after, position, new)
        if call != SWAP and object_at(state, position) == expect:
            return step, with_object(after, position, new)
        return step._replace(outcome=REFUSED), after


class _Turn:
    """The next call of one writer in one state. There is a step for every possible answer."""

    __slots__ = ("head", "index", "model", "n", "name", "ours", "state", "without", "writer")

    def __init__(self, model: Append, state: State, index: int) -> None:
        self.model, self.state, self.index = model, state, index
        self.without = model.without
        self.writer = writer = state.writers[index]
        self.head = state.head
        self.name = f"{model.roles[index].owner}{index}"
        if writer.head is not None:
            self.n = writer.head.next
            self.ours = Object(writer.entries[0], writer.head.epoch)  # a nonce is of one entry in one epoch

    def steps(self) -> Iterator[tuple[Step, State]]:
        match self.writer.call:
            case "start":
                return self.start()
            case "claim":
                return self.claim()
            case "create":
                return self.put(CREATE, expect=None)
            case "replace":
                return self.put(REPLACE, expect=self.writer.seen)
            case "examine":
                return self.examine()
            case "yield":
                return self.yield_to()
            case "help":
                return self.help()
            case "swap":
                return self.swap()
            case "settle":
                return iter(((Step(self.name, READ_HEAD), self.settled(self.state)),))
            case "verify":
                return self.verify()
            case "verify head":
                return self.verify_head()
        raise AssertionError(self.writer.call)

    # What a writer does after an answer

    def go(self, state: State, call: str, **changes: object) -> State:
        writers = list(state.writers)
        writers[self.index] = self.writer._replace(call=call, **changes)
        return state._replace(writers=tuple(writers))

    def begin(self, state: State, *, entries: tuple[str, ...] | None = None) -> State:
        """Start the next entry under the current head if that head admits us."""
        role = self.model.roles[self.index]
        entries = self.writer.entries if entries is None else entries
        if not entries or state.head.owner == role.owner:
            return self.go(
                state,
                "create" if entries else "stopped",
                entries=entries,
                head=state.head if entries else None,
                seen=None,
                unsure=False,
            )
        if not role.claims:
            return self.fail(state, "Fenced", entries=entries)
        head = state.head if state.head.epoch < self.model.last_epoch else None
        call = "claim" if head else "stopped"
        return self.go(state, call, entries=entries, head=head, seen=None, unsure=False)

    def fail(self, state: State, kind: str, *, entries: tuple[str, ...] | None = None) -> State:
        entry = (self.writer.entries if entries is None else entries)[0]
        state = state._replace(failed=(*state.failed, (entry, kind)))
        return self.go(state, "stopped", entries=(), head=None, seen=None, unsure=False)

    def acknowledge(self, state: State) -> State:
        done, *rest = self.writer.entries
        state = state._replace(acknowledged=(*state.acknowledged, (done, self.n)))
        return self.begin(state, entries=tuple(rest))

    # Calls

    def start(self) -> Iterator[tuple[Step, State]]:
        yield Step(self.name, READ_HEAD), self.begin(self.state)

    def claim(self) -> Iterator[tuple[Step, State]]:
        """Swap on the epoch alone. After a lost reply, the owner in the head shows that the swap was applied."""
        held = self.writer.head
        if self.head.epoch != held.epoch:
            yield Step(self.name, CLAIM, LOST), self.begin(self.state)
            return
        head = self.head._replace(epoch=held.epoch + 1, owner=self.model.roles[self.index].owner)
        after = self.state._replace(head=head)
        yield Step(self.name, CLAIM, APPLIED), self.begin(after)
        yield Step(self.name, CLAIM, REPLY_LOST), self.go(after, "start", head=None)

    def put(self, call: str, *, expect: Object | None) -> Iterator[tuple[Step, State]]:
        state, n = self.state, self.n
        found = object_at(state, n)
        holds = found == expect
        if call == REPLACE and self.without is Guard.REPLACE_UNDER_ETAG:
            holds = found is not None
        what = f"{call} {n}"
        unsure = self.go(state, "examine", seen=None, unsure=True)
        if holds:
            written = with_object(state, n, self.ours)
            yield Step(self.name, what, WRITTEN), self.written(written)
            yield Step(self.name, what, REPLY_LOST), with_object(unsure, n, self.ours)
        else:
            yield Step(self.name, what, REFUSED), self.go(state, "examine", seen=None)
        yield Step(self.name, what, NO_EFFECT), unsure
        if holds and state.pending is None and call in self.model.in_flight:
            yield Step(self.name, what, IN_FLIGHT), unsure._replace(pending=Pending(call, n, self.ours, expect))

    def written(self, state: State) -> State:
        if self.without is Guard.ACKNOWLEDGE_AFTER_SWAP:
            return self.acknowledge(state)
        return self.go(state, "swap", seen=None, unsure=False)

    def examine(self) -> Iterator[tuple[Step, State]]:
        """Read the object at n after our put was refused or its outcome is unknown."""
        writer, state = self.writer, self.state
        found = object_at(state, self.n)
        step = Step(self.name, f"{GET} {self.n}")
        if found is None:
            yield step, self.go(state, "create" if writer.unsure else "start")
        elif found == self.ours and self.without is not Guard.OWN_NONCE:
            yield step, self.written(state)
        elif found.epoch < self.ours.epoch or (
            found.epoch == self.ours.epoch and self.without is Guard.HELP_NOT_REPLACE
        ):
            yield step, self.go(state, "replace", seen=found)
        elif found.epoch > self.ours.epoch and self.without is Guard.FRESH_HEAD:
            yield step, self.fail(state, "Corrupt")
        else:
            yield step, self.go(state, "yield", seen=found)

    def yield_to(self) -> Iterator[tuple[Step, State]]:
        """Another entry of our epoch or a later one is at n: commit it for its writer, or give way."""
        step, state, writer = Step(self.name, READ_HEAD), self.state, self.writer
        if self.head.next > self.n:
            verify = writer.unsure and self.without is not Guard.DEFINITE_REFUSAL
            yield step, self.go(state, "verify", seen=None) if verify else self.begin(state)
        elif self.head.epoch != self.ours.epoch:
            yield step, self.begin(state)
        elif writer.seen.epoch > self.head.epoch:
            yield step, self.fail(state, "Corrupt")
        else:
            yield step, self.go(state, "help")

    def help(self) -> Iterator[tuple[Step, State]]:
        """Commit the other entry at n. Whatever the outcome, n belongs to that entry: ours starts again behind it."""
        for answer, swapped in self.swapped(self.writer.seen):
            if answer in (APPLIED, LOST):
                after = self.begin(swapped)
            else:
                after = self.go(swapped, "start", seen=None, unsure=False)
            yield Step(self.name, f"{SWAP} {self.n} for {self.writer.seen.entry}", answer), after

    def swap(self) -> Iterator[tuple[Step, State]]:
        for answer, swapped in self.swapped(self.ours):
            if answer == APPLIED:
                after = self.acknowledge(swapped)
            elif answer == LOST:
                after = self.settled(swapped)
            else:
                after = self.go(swapped, "settle")
            yield Step(self.name, f"{SWAP} {self.n}", answer), after

    def swapped(self, entry: Object) -> Iterator[tuple[str, State]]:
        state, held = self.state, self.writer.head
        holds = (self.head.epoch, self.head.next) == (held.epoch, held.next)
        if holds or self.without is Guard.CONDITION:
            after = committed(state, self.n, entry)
            yield APPLIED, after
            yield REPLY_LOST, after
            if state.pending is None and SWAP in self.model.in_flight:
                yield IN_FLIGHT, state._replace(pending=Pending(SWAP, self.n, entry))
        else:
            yield LOST, state
        yield NO_EFFECT, state

    def settled(self, state: State) -> State:
        """Decide under the current head after our swap was lost or had no answer. Our object was at n by then."""
        if self.head.next > self.n:
            return self.go(state, "verify")
        if self.head.epoch != self.ours.epoch and self.without is not Guard.STOP_AT_NEW_EPOCH:
            return self.begin(state)
        return self.go(state, "swap", head=self.head)

    def verify(self) -> Iterator[tuple[Step, State]]:
        """The head is past n: find out for whose entry. The object proves it only if n is not collected later."""
        found = object_at(self.state, self.n)
        step = Step(self.name, f"{GET} {self.n}")
        if found == self.ours and self.without is Guard.HEAD_AFTER_OBJECT:
            yield step, self.acknowledge(self.state)
        else:
            yield step, self.go(self.state, "verify head", seen=found)

    def verify_head(self) -> Iterator[tuple[Step, State]]:
        step, seen = Step(self.name, READ_HEAD), self.writer.seen
        if self.head.first > self.n:
            yield step, self.fail(self.state, "Ambiguous")
        elif seen is None:
            yield step, self.fail(self.state, "Corrupt")
        elif seen == self.ours:
            yield step, self.acknowledge(self.state)
        else:
            yield step, self.begin(self.state)


SIBLINGS = (Role(owner="O", entries=("a",)), Role(owner="O", entries=("c",)))
TAKEOVER = (Role(owner="O", entries=("a",)), Role(owner="P", entries=("fence",), claims=True))
BUSY_TAKEOVER = (Role(owner="O", entries=("a", "a2")), Role(owner="P", entries=("fence", "b"), claims=True))
SIBLINGS_AND_TAKEOVER = (*SIBLINGS, Role(owner="P", entries=("fence",), claims=True))
TWO_TAKEOVERS = (*TAKEOVER, Role(owner="Q", entries=("fence 2",), claims=True))
TAKE_AND_RETAKE = (
    Role(owner="O", entries=("a", "a2"), claims=True),
    Role(owner="P", entries=("fence", "b"), claims=True),
)
TAKEOVER_BY_SIBLINGS = (*TAKEOVER, Role(owner="P", entries=("b",)))
