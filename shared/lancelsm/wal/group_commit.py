"""Queue the rows of many callers in groups, and settle their futures when a group is committed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from time import sleep  # noqa: TID251 - no time passes: it lets other threads run

import pyarrow as pa

from lancelsm.common.clock import Clock
from lancelsm.common.write_result import Committed, CommittedEntry
from lancelsm.record.single_rows import SingleRow
from lancelsm.wal.acknowledgement import Acknowledgement
from lancelsm.wal.region_writer import committed


class Submission(Acknowledgement[Committed]):
    """The rows of one call, until it is done, and its future. `parts` counts the regions that have not answered yet."""

    def __init__(self, rows: pa.Table | SingleRow, size: int) -> None:
        super().__init__()
        self.rows = rows
        self.size = size
        self.parts = 1
        self.entries: tuple[CommittedEntry, ...] = ()
        self.failure: BaseException | None = None

    @property
    def shares(self) -> list[Share]:
        return [(self, self.rows.num_rows)]


Share = tuple[Submission, int]
"""A submission, and the number of its rows in an entry."""


@dataclass(slots=True, eq=False)
class RegionPart:
    """The rows of several submissions that go to one region."""

    rows: pa.Table
    size: int
    shares: list[Share]


Waiting = Submission | RegionPart


class EagerLock:
    """A reentrant lock for short steps of many threads. Use it in a `with` statement.

    A thread that waits for an ordinary lock gets it while another thread runs in the interpreter, which then waits for
    the lock in turn: each step of each thread becomes a switch of threads, which takes 20 times as long as the step. So
    a thread takes this lock only while it runs, and otherwise lets others run.

    A KeyboardInterrupt leaves the lock free: a `with` statement calls methods of C, in which none is raised.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    @property
    def __enter__(self) -> Callable[[], object]:
        return self._lock.__enter__ if self._lock._is_owned() else self._take  # type: ignore[attr-defined]

    @property
    def __exit__(self) -> Callable[..., None]:  # noqa: PLE0302, PYI036 - a property
        return self._lock.__exit__

    def _take(self) -> None:
        acquire = self._lock.acquire
        try:
            while not acquire(blocking=False):
                sleep(0)
        except BaseException:  # it may have come right after the lock was taken
            if self._lock._is_owned():  # type: ignore[attr-defined]
                self._lock.release()
            raise


class GroupQueue:
    """Rows that wait for the same step. At most one thread runs it, so the rows keep the order of submission.

    Args:
        handle: the step. It must not raise an error.
        seconds: how long the first rows of a group wait for more rows.
        most_bytes: a group of this size does not wait.
    """

    def __init__(
        self, handle: Callable[[list[Waiting]], None], *, clock: Clock, seconds: float, most_bytes: int
    ) -> None:
        self._handle = handle
        self._clock = clock
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._since = 0.0  # arrival time of the oldest waiting rows
        self._waiting: deque[Waiting] = deque()
        self._bytes = 0
        self._running = False
        self._lock = threading.RLock()  # taken by itself, since a KeyboardInterrupt can leave a condition locked
        self._change = threading.Condition(self._lock)

    def put(self, rows: Waiting) -> bool:
        """Queue rows. Return True if the caller must start a thread that calls `run`."""
        with self._lock:
            if not self._waiting:
                self._since = self._clock.monotonic()
            self._waiting.append(rows)
            self._bytes += rows.size
            if self._bytes >= self._most_bytes:  # else its timer wakes the thread
                self._change.notify()
            idle, self._running = not self._running, True
            return idle

    def run(self) -> None:
        """Handle the waiting rows, group by group, until the queue is empty."""
        while group := self._take():
            self._handle(group)

    def _take(self) -> list[Waiting]:
        """Take the next group: the rows that arrive within the interval, or until a group is full."""
        with self._lock:
            if self._waiting:
                left = self._seconds - (self._clock.monotonic() - self._since)
                self._change.wait_for(lambda: self._bytes >= self._most_bytes, max(0.0, left))
            group: list[Waiting] = []
            size = 0
            while self._waiting and (not group or size + self._waiting[0].size <= self._most_bytes):
                group.append(self._waiting.popleft())
                size += group[-1].size
            self._bytes -= size
            self._running = bool(group)
            return group


@dataclass(slots=True)
class Buffer:
    """Counts what is submitted and not acknowledged, and completes the futures. Thread-safe."""

    lock: EagerLock = field(default_factory=EagerLock)
    size: int = 0
    failure: BaseException | None = None  # the first one

    def split(self, shares: Iterable[Share], parts: Iterable[Iterable[Share]]) -> None:
        """Count the regions that the rows of these shares go to, instead of the one place where they were."""
        with self.lock:
            for submission, _ in shares:
                submission.parts -= 1
            for part in parts:
                for submission, _ in part:
                    submission.parts += 1

    def settle(self, shares: Iterable[Share], outcome: CommittedEntry | BaseException) -> None:
        """Report the outcome of an entry to the submissions that have rows in it; complete those that are done."""
        done = []
        entries: dict[int, tuple[CommittedEntry]] = {}  # by the number of rows, since most submissions are alike
        with self.lock:
            for submission, rows in shares:
                if isinstance(outcome, BaseException):
                    submission.failure = submission.failure or outcome
                    self.failure = self.failure or outcome
                else:
                    if rows not in entries:
                        entries[rows] = (replace(outcome, rows=rows),)
                    submission.entries += entries[rows]  # the same tuple, if it is the first one
                submission.parts -= 1
                if submission.parts <= 0:
                    self.size -= submission.size
                    submission.rows = None  # a caller may keep many futures
                    done.append(submission)
        results: dict[int, Committed] = {}  # by identity: the hash of the entries takes longer than the rest
        for submission in done:
            try:
                if submission.failure is not None:
                    submission.set_exception(submission.failure)
                    continue
                result = results.get(id(submission.entries))
                if result is None:
                    result = results[id(submission.entries)] = committed(submission.entries)
                submission.set_result(result)
            except BaseException:  # noqa: BLE001 - an error in the callback of one caller must not affect others
                continue
