"""Measure time, and describe a measured number together with the number of a peer."""

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
    """One line of the result. In every unit, less is better.

    Args:
        peer: the same measurement of a peer; None without a peer.
        how: what was measured, and the name of the peer.
    """

    what: str
    ours: float
    unit: str
    peer: float | None = None
    how: str = ""

    @property
    def ratio(self) -> float | None:
        """The peer's number divided by ours: above 1, ours is better."""
        return self.peer / self.ours if self.peer is not None and self.ours else None


def seconds(act: Act) -> float:
    """Return the wall time of one call."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def best(*acts: Act, rounds: int = 3) -> list[float]:
    """Return the shortest wall time of each. They run in turns, so that other load of the machine affects all alike."""
    measured: list[list[float]] = [[] for _ in acts]
    for _ in range(rounds):
        for times, act in zip(measured, acts, strict=True):
            times.append(seconds(act))
    return [min(times) for times in measured]


def cpu_seconds(act: Act, *, rounds: int) -> float:
    """Return the CPU time of one call, the least of many."""
    measured = []
    for _ in range(rounds):
        start = time.process_time()
        act()
        measured.append(time.process_time() - start)
    return min(measured)


class Used:
    """Wall and CPU time of a `with` block, all threads together."""

    wall = cpu = 0.0

    @property
    def cores(self) -> float:
        return self.cpu / self.wall


@contextmanager
def used() -> Iterator[Used]:
    """Measure a `with` block."""
    measured = Used()
    wall, cpu = time.perf_counter(), time.process_time()
    yield measured
    measured.wall, measured.cpu = time.perf_counter() - wall, time.process_time() - cpu


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def machine() -> str:
    """Describe the machine and how busy it is."""
    measured = []
    for _ in range(50):
        wall, cpu = time.perf_counter(), time.process_time()
        while time.process_time() - cpu < 0.01:
            pass
        measured.append(time.perf_counter() - wall)
    return f"{os.cpu_count()} cores, shared: 10 ms of work take {1000 * quantile(measured, 0.5):.0f} ms in the median"
