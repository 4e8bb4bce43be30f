"""Decide whether work that must end in time does one more step, such as one more generation of a flush."""

from __future__ import annotations

import threading

from lancelsm.common.clock import Clock

_TIMES_MOVED = 3  # a flush moves each byte at least 3 more times than a read: it writes, sums and reads back


class Pace:
    """The time of a flush of one region, an optimize, or a run of `dispatch`.

    A flush commits nothing before it has read its log to the end. So the time that is left must be enough for one more
    generation, and for the rest of the log. The rest is read faster than the part before it was flushed.

    Args:
        seconds: from now until the work must end.
    """

    def __init__(self, *, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._began = self._last = clock.monotonic()
        self._ends = self._began + seconds
        self._longest = 0.0
        self.stopped = False  # the time was not enough

    def has_time(self, done: int, total: int) -> bool:
        """Return whether to do one more step. Called after each step.

        Args:
            done: for a flush, the bytes of the log that are in generations. Other work gives 1 for both.
            total: for a flush, the bytes of the log.
        """
        now = self._clock.monotonic()
        self._longest, self._last = max(self._longest, now - self._last), now
        reading = (now - self._began) * max(0, total - done) / max(1, done) / _TIMES_MOVED
        self.stopped = self._ends - now < 2 * self._longest + reading
        return not self.stopped


class SharedPace:
    """The time that steps of known sizes share, such as compactions of generations of several regions. Thread-safe.

    The first step always has time. A later step has time if twice its time is left, at the speed of the steps before.

    Args:
        seconds: from now until the work must end.
    """

    def __init__(self, *, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._ends = self._began + seconds
        self._done = 0
        self._lock = threading.Lock()

    def has_time(self, size: int) -> bool:
        """Return whether to begin a step of this size."""
        now = self._clock.monotonic()
        with self._lock:
            return not self._done or self._ends - now >= 2 * size * (now - self._began) / self._done

    def add(self, size: int) -> None:
        """Count a step that is done."""
        with self._lock:
            self._done += size
