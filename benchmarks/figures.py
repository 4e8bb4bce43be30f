"""Measure time and memory, and describe a measured number together with the number of a peer."""

from __future__ import annotations

import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Act = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Our number beside the number of one peer. In every unit, less is better.

    Args:
        peer: the same measurement of the peer; None without a peer, or if the peer failed.
        peer_name: figures with the same `what` and different peers share a line of the table.
        how: what else was measured; or why the peer failed.
        held: our number with a table object that has read before.
        limit: the peer does a part of our work only, or keeps less of a promise: it shows how far we can get.
        drawn: the chart of ratios shows it.
    """

    what: str
    ours: float
    unit: str
    peer: float | None = None
    peer_name: str = ""
    how: str = ""
    held: float | None = None
    limit: bool = False
    drawn: bool = False

    @property
    def ratio(self) -> float | None:
        """The peer's number divided by ours: above 1, ours is better."""
        return self.peer / self.ours if self.peer is not None and self.ours else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """CPU time over a growing size: rows, regions, generations or columns."""

    what: str
    over: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def slope(self) -> float:
        """The exponent of the growth: 0 is constant, 1 linear, 2 quadratic."""
        return float(np.polyfit(np.log(self.sizes), np.log(self.seconds), 1)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a peer took; or the failure, and no value."""

    value: float | None = None
    failure: str = ""


def attempt(act: Callable[[], float | None]) -> Measured:
    """Let a peer act, and return what it measures. Its failure is part of the result, and the run goes on."""
    try:
        return Measured(value=act())
    except Exception as error:  # noqa: BLE001 - a peer may fail in any way
        return Measured(failure=f"failed: {type(error).__name__}: {str(error)[:200]}")


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


def peak_megabytes(act: Act) -> float:
    """Return by how much the resident memory of this process grows at most during a call. It needs Linux."""
    status = Path("/proc/self/status")

    def read(name: str) -> int:
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name))

    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again at what is resident now
    before = read("VmRSS")
    act()
    return (read("VmHWM") - before) / 1024


def machine() -> str:
    """Describe the machine and how busy it is."""
    measured = []
    for _ in range(50):
        wall, cpu = time.perf_counter(), time.process_time()
        while time.process_time() - cpu < 0.01:
            pass
        measured.append(time.perf_counter() - wall)
    parts = [
        f"{os.cpu_count()} cores ({_processor()})",
        f"tables on {_file_system(Path(tempfile.gettempdir()).resolve())}",
        f"load average {os.getloadavg()[0]:.1f}",
        f"10 ms of work take {1000 * quantile(measured, 0.5):.0f} ms in the median",
    ]
    return ", ".join(parts)


def _processor() -> str:
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return names[0] if names else platform.machine()


def _file_system(path: Path) -> str:
    """Return the kind of the file system: a sync costs nothing on tmpfs."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    return max((len(at), kind) for at, kind in mounts if path.is_relative_to(at))[1]
