"""What a benchmark says: one number of ours, the peer's beside it, and what was measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Act = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the result. Of every unit less is better.

    peer: what the same work costs the peer; None where there is none. how: what was measured, and the peer's name.
    """

    what: str
    ours: float
    unit: str
    peer: float | None = None
    how: str = ""

    @property
    def ratio(self) -> float | None:
        """The peer's cost in units of ours: above 1, ours is less."""
        return self.peer / self.ours if self.peer is not None and self.ours else None


def seconds(act: Act) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def best(*acts: Act, rounds: int = 3) -> list[float]:
    """The shortest wall time of each, taken in turns, so that what else the machine does meets all alike."""
    taken: list[list[float]] = [[] for _ in acts]
    for _ in range(rounds):
        for times, act in zip(taken, acts, strict=True):
            times.append(seconds(act))
    return [min(times) for times in taken]


def cpu_seconds(act: Act, *, rounds: int) -> float:
    """CPU time of one call, the least of many."""
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        act()
        taken.append(time.process_time() - start)
    return min(taken)


class Used:
    """Wall and CPU time of a `with` block, all threads together."""

    wall = cpu = 0.0

    @property
    def cores(self) -> float:
        return self.cpu / self.wall


@contextmanager
def used() -> Iterator[Used]:
    found = Used()
    wall, cpu = time.perf_counter(), time.process_time()
    yield found
    found.wall, found.cpu = time.perf_counter() - wall, time.process_time() - cpu


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def machine() -> str:
    """What the figures were taken on."""
    taken = []
    for _ in range(50):
        wall, cpu = time.perf_counter(), time.process_time()
        while time.process_time() - cpu < 0.01:
            pass
        taken.append(time.perf_counter() - wall)
    return f"{os.cpu_count()} cores, shared: 10 ms of work take {1000 * quantile(taken, 0.5):.0f} ms in the median"
