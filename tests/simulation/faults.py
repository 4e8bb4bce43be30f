"""Stores and registries in memory, and wrappers that inject the faults of a plan.

A fault loses a reply, crashes a process, stalls a call, or applies a write late. A plan numbers the calls of all
wrappers that share it. So a test can run once, read `plan.calls`, and then run again with a fault at each call:

    for call in calls_of(run):
        run(FaultPlan.at(call.index, CRASH_AFTER))

The plan and the number of the call decide everything: the same plan over the same calls injects the same faults.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from lancelsm.common.clock import Clock
from lancelsm.common.layout import Key
from lancelsm.errors import LsmError, Unavailable
from lancelsm.objects import Body, ETag, Listed, Object, ObjectStore, PreconditionFailed, WriteUnknown, Written
from lancelsm.objects.filesystem import etag_of
from lancelsm.objects.keys import check_key
from lancelsm.registry import Fields, Record, Registry, SwapApplied, SwapLost, SwapUnknown, apply_swap, matches

T = TypeVar("T")

WRITES = frozenset({"create", "replace", "swap", "delete"})  # methods of stores and registries


class MemoryStore:
    """Objects in a dictionary."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bodies: dict[str, bytes] = {}

    def get(self, key: str) -> Object | None:
        with self._lock:
            body = self._bodies.get(check_key(key))
        return None if body is None else Object(body=body, etag=etag_of(body))

    def create(self, key: str, body: Body) -> Written | PreconditionFailed:
        with self._lock:
            if check_key(key) in self._bodies:
                return PreconditionFailed()
            self._bodies[key] = bytes(body)
            return Written(etag=etag_of(body))

    def replace(self, key: str, body: Body, *, expect: ETag) -> Written | PreconditionFailed:
        with self._lock:
            if check_key(key) not in self._bodies or etag_of(self._bodies[key]) != expect:
                return PreconditionFailed()
            self._bodies[key] = bytes(body)
            return Written(etag=etag_of(body))

    def list(self, prefix: str) -> Iterator[Listed]:
        with self._lock:
            listed = [Listed(key=key, size=len(body)) for key, body in self._bodies.items() if key.startswith(prefix)]
        return iter(sorted(listed, key=lambda line: line.key.encode()))

    def delete(self, keys: Collection[str]) -> None:
        with self._lock:
            for key in keys:
                self._bodies.pop(check_key(key), None)

    def remove(self, key: str) -> None:
        """Remove an object, as a test does that plays damage or a collector."""
        self.delete([key])


class MemoryRegistry:
    """Records in a dictionary."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[Key, Record] = {}

    def read(self, key: Key) -> Record | None:
        with self._lock:
            record = self._records.get(key)
        return None if record is None else dict(record)

    def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> SwapApplied | SwapLost:
        with self._lock:
            old = self._records.get(key)
            new = apply_swap(key, old, expect=expect, change=change)
            if new is None:
                return SwapLost(record=None if old is None else dict(old))
            self._records[key] = new
            return SwapApplied(record=dict(new))

    def delete(self, key: Key, *, expect: Fields) -> SwapApplied | SwapLost:
        with self._lock:
            old = self._records.get(key)
            if old is None or not matches(old, expect):
                return SwapLost(record=None if old is None else dict(old))
            return SwapApplied(record=dict(self._records.pop(key)))

    def discard(self, key: Key) -> None:
        with self._lock:
            self._records.pop(key, None)

    def list(self, partition: str) -> list[tuple[Key, Record]]:
        with self._lock:
            return sorted((key, dict(record)) for key, record in self._records.items() if key.partition == partition)


class FakeClock:
    """A clock that moves only by sleeps and by `advance`."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._lock = threading.Lock()
        self._start = start
        self._elapsed = 0.0

    def now(self) -> float:
        return self._start + self.monotonic()

    def monotonic(self) -> float:
        with self._lock:
            return self._elapsed

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._elapsed += max(0.0, seconds)


class Crash(BaseException):
    """The process crashed here. It is not an `Exception`, so that the code under test can't catch it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call.

    kind: `deny` (the call has no effect and raises `Unavailable`), `fail before` (no effect, and the outcome is unknown
        to the caller), `fail after` (the call takes effect, its reply is lost), `crash before`, `crash after`, `stall`
        (the call takes effect after `seconds`), `late` (the outcome is unknown to the caller; the call takes effect
        `calls` calls later, and its condition is check_key then).
    """

    kind: str
    seconds: float = 0.0
    calls: int = 0


DENY = Fault("deny")
FAIL_BEFORE = Fault("fail before")
FAIL_AFTER = Fault("fail after")
CRASH_BEFORE = Fault("crash before")
CRASH_AFTER = Fault("crash after")


def stall(seconds: float) -> Fault:
    return Fault("stall", seconds=seconds)


def late(calls: int) -> Fault:
    """A late write. A read that meets this fault fails."""
    return Fault("late", calls=calls)


EVERY_FAULT = (DENY, FAIL_BEFORE, FAIL_AFTER, CRASH_BEFORE, CRASH_AFTER, late(1), late(3), late(1_000_000))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a port: `objects` get, create, replace, list, delete; `registry` read, swap, list, delete."""

    index: int
    port: str
    method: str
    key: str
    process: str = ""

    @property
    def writes(self) -> bool:
        return self.method in WRITES


class FaultPlan:
    """Decides which calls meet which fault. Wrappers that share a plan share its numbering.

    A process that crashed makes no more calls: each further call raises `Crash` and is neither numbered nor applied.
    """

    def __init__(
        self, decide: Callable[[Call], Fault | None] = lambda call: None, *, clock: Clock | None = None
    ) -> None:
        self.calls: list[Call] = []
        self.injected: list[tuple[Call, Fault]] = []
        self.crashed: set[str] = set()
        self._decide = decide
        self._clock = clock
        self._lock = threading.RLock()
        self._late: list[tuple[int, Callable[[], object]]] = []

    @classmethod
    def at(cls, index: int, fault: Fault, *, clock: Clock | None = None) -> FaultPlan:
        """Make a plan with one fault, at the call with this number (from 0)."""
        return cls.of({index: fault}, clock=clock)

    @classmethod
    def of(cls, faults: Mapping[int, Fault], *, clock: Clock | None = None) -> FaultPlan:
        """Make a plan with faults by the number of the call.

        `{call.index: fault for call, fault in plan.injected}` replays another plan.
        """
        return cls(lambda call: faults.get(call.index), clock=clock)

    @classmethod
    def seeded(cls, seed: int | str, rates: Mapping[Fault, float], *, clock: Clock | None = None) -> FaultPlan:
        """Make a plan in which each call meets a fault at its rate, as `seed` and the number of the call decide."""

        def decide(call: Call) -> Fault | None:
            chance = random.Random(f"{seed} {call.index}").random()
            for fault, rate in rates.items():
                chance -= rate
                if chance < 0:
                    return fault
            return None

        print(f"faults: seed {seed!r}")
        return cls(decide, clock=clock)

    def meet(self, fault: Fault, *, after: int = 0) -> None:
        """From now on inject one fault: at the next call, or `after` calls later."""
        at = len(self.calls) + after
        self._decide = lambda call: fault if call.index == at else None

    def stop(self) -> None:
        """Inject no more faults. Late writes still land."""
        self._decide = lambda call: None

    def land(self) -> None:
        """Apply all late writes now."""
        with self._lock:
            due, self._late = self._late, []
        for _, apply in due:
            _land(apply)

    def forget(self) -> None:
        """Drop all late writes: they never land."""
        with self._lock:
            self._late = []

    def perform(
        self,
        port: str,
        method: str,
        key: str,
        process: str,
        act: Callable[[], T],
        *,
        unknown: Callable[[str], T] | None,
    ) -> T:
        """Make one call under the plan. `unknown` makes the answer of a write with unknown outcome; None for reads."""
        call, fault, due = self._begin(port, method, key, process)
        for apply in due:
            _land(apply)
        if fault is None:
            return act()

        def lost(cause: str) -> T:
            if unknown is None:
                raise Unavailable(cause, remedy="Retry", object=key)
            return unknown(cause)

        if fault.kind == "deny":
            raise Unavailable(f"denied by the plan at call {call.index}", remedy="Retry", object=key)
        if fault.kind == "fail before":
            return lost(f"no effect at call {call.index}")
        if fault.kind == "late":
            if unknown is not None:
                with self._lock:
                    self._late.append((call.index + fault.calls, act))
            return lost(f"late at call {call.index}")
        if fault.kind == "crash before":
            raise self._crash(call)
        if fault.kind == "stall":
            assert self._clock is not None, "a plan with stalls needs a clock"
            self._clock.sleep(fault.seconds)
            return act()
        act()
        if fault.kind == "crash after":
            raise self._crash(call)
        return lost(f"reply lost at call {call.index}")

    def _begin(
        self, port: str, method: str, key: str, process: str
    ) -> tuple[Call, Fault | None, list[Callable[[], object]]]:
        with self._lock:
            if process in self.crashed:
                raise Crash(f"process {process!r} is dead")
            call = Call(len(self.calls), port, method, key, process)
            self.calls.append(call)
            due = [apply for at, apply in self._late if at <= call.index]
            self._late = [(at, apply) for at, apply in self._late if at > call.index]
            fault = self._decide(call)
            if fault is not None:
                self.injected.append((call, fault))
                print(f"fault: {call} {fault}")
            return call, fault, due

    def _crash(self, call: Call) -> Crash:
        with self._lock:
            self.crashed.add(call.process)
        return Crash(f"{call}")


def _land(apply: Callable[[], object]) -> None:
    with suppress(LsmError):
        apply()


def calls_of(run: Callable[[FaultPlan], object]) -> list[Call]:
    """Return the calls that a run makes without faults."""
    plan = FaultPlan()
    run(plan)
    return plan.calls


class FaultyStore:
    """An object store whose calls pass a plan. A crash ends all wrappers with the same `process`."""

    def __init__(self, inner: ObjectStore, plan: FaultPlan, *, process: str = "") -> None:
        self.inner = inner
        self.plan = plan
        self._process = process

    def get(self, key: str) -> Object | None:
        return self._perform("get", key, lambda: self.inner.get(key))

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        kept = bytes(body)  # the caller may change the buffer before a late write lands
        return self._perform("create", key, lambda: self.inner.create(key, kept), unknown=_unknown_write)

    def replace(self, key: str, body: Body, *, expect: ETag) -> Written | PreconditionFailed | WriteUnknown:
        kept = bytes(body)
        return self._perform(
            "replace", key, lambda: self.inner.replace(key, kept, expect=expect), unknown=_unknown_write
        )

    def list(self, prefix: str) -> Iterator[Listed]:
        return iter(self._perform("list", prefix, lambda: list(self.inner.list(prefix))))

    def delete(self, keys: Collection[str]) -> None:
        named = list(keys)
        self._perform("delete", " ".join(named), lambda: self.inner.delete(named), unknown=_unanswered)

    def _perform(self, method: str, key: str, act: Callable[[], T], *, unknown: Callable[[str], T] | None = None) -> T:
        return self.plan.perform("objects", method, key, self._process, act, unknown=unknown)


class FaultyRegistry:
    """A registry whose calls pass a plan. A crash ends all wrappers with the same `process`."""

    def __init__(self, inner: Registry, plan: FaultPlan, *, process: str = "") -> None:
        self.inner = inner
        self.plan = plan
        self._process = process

    def read(self, key: Key) -> Record | None:
        return self._perform("read", _text(key), lambda: self.inner.read(key))

    def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        expected = None if expect is None else dict(expect)
        changed = dict(change)
        return self._perform(
            "swap",
            _text(key),
            lambda: self.inner.swap(key, expect=expected, change=changed),
            unknown=lambda cause: SwapUnknown(cause=cause),
        )

    def delete(self, key: Key, *, expect: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        expected = dict(expect)
        return self._perform(
            "delete",
            _text(key),
            lambda: self.inner.delete(key, expect=expected),
            unknown=lambda cause: SwapUnknown(cause=cause),
        )

    def discard(self, key: Key) -> None:
        self._perform("discard", _text(key), lambda: self.inner.discard(key), unknown=_unanswered)

    def list(self, partition: str) -> list[tuple[Key, Record]]:
        return self._perform("list", partition, lambda: self.inner.list(partition))

    def _perform(self, method: str, key: str, act: Callable[[], T], *, unknown: Callable[[str], T] | None = None) -> T:
        return self.plan.perform("registry", method, key, self._process, act, unknown=unknown)


def _unanswered(cause: str) -> None:
    raise Unavailable(cause, remedy="Retry")


def _unknown_write(cause: str) -> Written | PreconditionFailed | WriteUnknown:
    return WriteUnknown(cause=cause)


def _text(key: Key) -> str:
    return f"{key.partition}/{key.sort}"
