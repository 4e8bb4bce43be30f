"""Locks, conditions and a thread pool inside a schedule: instead of blocking, an actor lets others continue.

threads = Threads(schedule)
with threads.replacing(module):               # a module that imports `threading` and `ThreadPoolExecutor`
    thing = module.Thing()                    # creates its locks and its pool
    schedule.run({"user": thing.use, **threads.workers()})
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

from greenlet import getcurrent

from tests.simulation.schedule import Schedule


class Threads:
    """Replaces the module `threading` and creates pools whose workers are actors."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._pools: list[Pool] = []

    def Lock(self) -> Lock:
        return Lock(self._schedule)

    def Condition(self) -> Condition:
        return Condition(self._schedule)

    def pool(self, size: int, *, thread_name_prefix: str = "") -> Pool:
        self._pools.append(Pool(self._schedule, size))
        return self._pools[-1]

    @contextmanager
    def replacing(self, module: ModuleType) -> Iterator[None]:
        with mock.patch.multiple(module, threading=self, ThreadPoolExecutor=self.pool):
            yield

    def workers(self) -> dict[str, Callable[[], None]]:
        """Return the workers of all pools created so far, as actors. A worker ends when its pool is shut down."""
        return {f"worker {p} {n}": pool.work for p, pool in enumerate(self._pools) for n in range(pool.size)}


class Lock:
    """A reentrant lock. A program that works with plain locks can't see the difference."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._holder: object = None
        self._depth = 0

    def __enter__(self) -> None:
        while self._holder not in (None, getcurrent()):
            self._schedule.switch()
        self._holder = getcurrent()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        assert self._holder is getcurrent()
        self._depth -= 1
        if not self._depth:
            self._holder = None


class Condition(Lock):
    """A condition with spurious wake-ups, as conditions may have."""

    def wait_for(self, predicate: Callable[[], bool]) -> None:
        while not predicate():
            depth, self._depth, self._holder = self._depth, 0, None
            self._schedule.switch()
            self.__enter__()
            self._depth = depth

    def notify_all(self) -> None:
        assert self._holder is getcurrent()


class Pool:
    """A pool of `size` workers, which are actors. They take work in the order of submission."""

    def __init__(self, schedule: Schedule, size: int) -> None:
        self.size = size
        self._schedule = schedule
        self._waiting: deque[Callable[[], Any]] = deque()
        self._busy = 0
        self._down = False

    def submit(self, act: Callable[..., Any], *args: Any) -> None:
        assert not self._down
        self._waiting.append(lambda: act(*args))

    def shutdown(self, *, wait: bool) -> None:
        assert wait
        self._down = True
        while self._waiting or self._busy:
            self._schedule.switch()

    def work(self) -> None:
        while self._waiting or not self._down:
            if not self._waiting:
                self._schedule.switch()
                continue
            act = self._waiting.popleft()
            self._busy += 1
            act()
            self._busy -= 1
