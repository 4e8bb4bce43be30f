"""Run several actors, one at a time, in an order that a seed decides.

An actor is a plain function that uses the ports. Each port call and each sleep is a switch point: the actor stops
there, and the schedule chooses the actor that continues. Time is virtual: it moves when the chosen actor was asleep.

    schedule = Schedule(seed)
    store = ScheduledStore(MemoryStore(), schedule)
    outcomes = schedule.run({"writer": lambda: write(store, schedule.clock), "collector": lambda: collect(store)})

Threads that an actor starts run outside the schedule: their calls are no switch points. With faults, give each actor a
`FaultyStore(ScheduledStore(...), plan, process=name)`, so that a crash ends that actor only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from greenlet import getcurrent, greenlet

from lancelsm.common.layout import Key
from lancelsm.errors import LsmError
from lancelsm.objects import Body, ETag, Listed, Object, ObjectStore, PreconditionFailed, WriteUnknown, Written
from lancelsm.registry import Fields, Record, Registry, SwapApplied, SwapLost, SwapUnknown
from tests.simulation.faults import Crash, FakeClock


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an actor ended: its result, or the error or crash that ended it."""

    value: Any = None
    error: LsmError | Crash | None = None


class Schedule:
    """Chooses the actor that continues at each switch point: from `choices` first, then by `seed`.

    The attribute `choices` records all choices for a replay.
    """

    def __init__(self, seed: int | str = 0, choices: Sequence[str] = (), *, limit: int = 100_000) -> None:
        self.clock = ScheduledClock(self)
        self.choices: list[str] = []
        self._seed = seed
        self._given = list(choices)
        self._random = random.Random(seed)
        self._limit = limit
        self._hub: greenlet | None = None
        self._names: dict[greenlet, str] = {}
        self._wakes: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"Schedule(seed={self._seed!r}, choices={self.choices!r})"

    def run(self, actors: Mapping[str, Callable[[], Any]]) -> dict[str, Outcome]:
        """Run all actors to their end.

        An `LsmError` or a `Crash` ends its actor only and is its outcome. Any other exception, above all a failed
        assertion, ends the run and is raised again, with the schedule as a note.
        """
        self._hub = getcurrent()
        outcomes: dict[str, Outcome] = {}

        def body(name: str, act: Callable[[], Any]) -> None:
            try:
                outcomes[name] = Outcome(value=act())
            except (LsmError, Crash) as error:
                outcomes[name] = Outcome(error=error)

        waiting = {name: greenlet(lambda name=name, act=act: body(name, act)) for name, act in actors.items()}
        self._names = {each: name for name, each in waiting.items()}
        try:
            while waiting:
                name = self._next(sorted(waiting))
                waiting[name].switch()
                if waiting[name].dead:
                    del waiting[name]
        except BaseException as error:
            error.add_note(f"replay with {self!r}")
            raise
        finally:
            self._names = {}  # calls in `finally` blocks of abandoned actors are no switch points
            for each in waiting.values():
                each.throw()
        return outcomes

    def switch(self, wake: float | None = None) -> None:
        """A switch point. With `wake`, the actor sleeps until then. Outside an actor this does nothing."""
        name = self._names.get(getcurrent())
        if name is None or self._hub is None:
            return
        if wake is not None:
            self._wakes[name] = wake
        self._hub.switch()

    def _next(self, names: list[str]) -> str:
        assert len(self.choices) < self._limit, f"no end after {self._limit} switches"
        asleep = [name for name in names if name in self._wakes]
        candidates = [name for name in names if name not in self._wakes]
        if asleep:
            # Only the sleeper that wakes first is a candidate: no sleeper wakes too early, and the others sleep on.
            candidates.append(min(asleep, key=lambda name: (self._wakes[name], name)))
        if len(self.choices) < len(self._given):
            chosen = self._given[len(self.choices)]
            assert chosen in candidates, f"{chosen} can't continue at choice {len(self.choices)}: {candidates}"
        else:
            chosen = self._random.choice(candidates)
        self.choices.append(chosen)
        self.clock.reach(self._wakes.pop(chosen, 0.0))
        return chosen


class ScheduledClock(FakeClock):
    """Virtual time. A sleep lets other actors continue."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self._schedule = schedule

    def sleep(self, seconds: float) -> None:
        if getcurrent() in self._schedule._names:
            self._schedule.switch(self.monotonic() + max(0.0, seconds))
        else:
            self.advance(seconds)

    def reach(self, elapsed: float) -> None:
        """Advance to `elapsed` seconds after the start, unless time is later already."""
        self.advance(elapsed - self.monotonic())


class ScheduledStore:
    """An object store in which every call is a switch point."""

    def __init__(self, inner: ObjectStore, schedule: Schedule) -> None:
        self.inner = inner
        self._schedule = schedule

    def get(self, key: str) -> Object | None:
        self._schedule.switch()
        return self.inner.get(key)

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        self._schedule.switch()
        return self.inner.create(key, body)

    def replace(self, key: str, body: Body, *, expect: ETag) -> Written | PreconditionFailed | WriteUnknown:
        self._schedule.switch()
        return self.inner.replace(key, body, expect=expect)

    def list(self, prefix: str) -> Iterator[Listed]:
        self._schedule.switch()
        return self.inner.list(prefix)

    def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            self._schedule.switch()
            self.inner.delete([key])


class ScheduledRegistry:
    """A registry in which every call is a switch point."""

    def __init__(self, inner: Registry, schedule: Schedule) -> None:
        self.inner = inner
        self._schedule = schedule

    def read(self, key: Key) -> Record | None:
        self._schedule.switch()
        return self.inner.read(key)

    def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        self._schedule.switch()
        return self.inner.swap(key, expect=expect, change=change)

    def delete(self, key: Key, *, expect: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        self._schedule.switch()
        return self.inner.delete(key, expect=expect)

    def discard(self, key: Key) -> None:
        self._schedule.switch()
        self.inner.discard(key)

    def list(self, partition: str) -> list[tuple[Key, Record]]:
        self._schedule.switch()
        return self.inner.list(partition)
