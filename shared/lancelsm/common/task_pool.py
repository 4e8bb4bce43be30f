"""Run tasks in threads, so that a KeyboardInterrupt at any line of the caller can't block them.

`concurrent.futures` and `threading.Condition` hold locks in Python code. If an interrupt comes between the lock and
its `with` block, the lock stays locked, and the threads of the pool wait for it endlessly. Here the caller uses only
queues and locks of C, which take effect as a whole or not at all.
"""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class PoolTask(Generic[T]):
    """A call whose result comes later."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._outcome: list[tuple[T | None, BaseException | None]] = []
        self._done = _thread.allocate_lock()
        self._done.acquire()

    def run(self) -> None:
        try:
            self._outcome.append((self._call(), None))
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._outcome.append((None, error))
        self._done.release()

    def result(self) -> T:
        """Wait for the result; raise the error of the call. After the first return, each call has the same outcome."""
        if not self._outcome:
            self._done.acquire()
        value, error = self._outcome[0]
        if error is not None:
            raise error
        return value  # type: ignore[return-value]


class TaskPool:
    """A context with some threads. At its end it drops the tasks that have not begun, and waits for the others.

    An interrupt right before its end leaves the threads idle. They don't keep the process from ending.
    """

    def __init__(self, threads: int) -> None:
        self._most = threads
        self._stopped = False
        self._tasks: SimpleQueue[PoolTask[Any] | None] = SimpleQueue()
        self._running: list[_thread.LockType] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True  # not by `finish`: an interrupt at the start of a call would leave the threads idle
        for _ in range(self._most):
            self._tasks.put(None)
        for running in self._running:
            with running:
                pass

    def stop(self) -> None:
        """Let the threads end after the tasks that were submitted. Submit none later."""
        for _ in range(self._most):
            self._tasks.put(None)

    def finish(self) -> None:
        """Wait for all tasks, then let the threads end. May be called again, also after a KeyboardInterrupt."""
        self.stop()
        for running in self._running:
            with running:
                pass

    def submit(self, call: Callable[[], T]) -> PoolTask[T]:
        """Run a call in a thread of the pool. Calls start in the order in which they were submitted."""
        task = PoolTask(call)
        self._tasks.put(task)
        if len(self._running) < self._most:
            running = _thread.allocate_lock()
            running.acquire()
            _thread.start_new_thread(self._work, (running,))
            self._running.append(running)
        return task

    def map(self, call: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """Call a function for every item; return the results in the order of the items."""
        tasks = [self.submit(lambda item=item: call(item)) for item in items]  # type: ignore[misc]
        return [task.result() for task in tasks]

    def _work(self, running: _thread.LockType) -> None:
        try:
            while (task := self._tasks.get()) is not None:
                if not self._stopped:
                    task.run()
                del task  # an idle thread must not keep what the task used
        finally:
            running.release()


def in_threads(call: Callable[[T], U], items: Collection[T], *, most: int) -> list[U]:
    """Call a function for every item, in at most this many threads; return the results in the order of the items.

    With one thread or one item, the calls are made in the caller's thread, in order.
    """
    threads = min(most, len(items))
    if threads <= 1:
        return [call(item) for item in items]
    with TaskPool(threads) as pool:
        return pool.map(call, items)


@contextmanager
def beside(call: Callable[[], T], *, most: int) -> Iterator[Callable[[], T]]:
    """Make a call in another thread beside the `with` block, or before the block if there may be one thread only.

    The block gets a function that waits for the result. If block and call fail, the error of the call is raised.
    """
    if most <= 1:
        result = call()
        yield lambda: result
        return
    with TaskPool(1) as pool:
        task = pool.submit(call)
        try:
            yield task.result
        except Exception:
            task.result()
            raise


def mapped(call: Callable[[T], U], items: Iterable[T], *, threads: int) -> Iterator[U]:
    """Yield the results of a function for every item, in the order of the items.

    This many threads call it, for one item each, while the caller gets the next item or works on a result. With one
    thread, the calls are made in the caller's thread.
    """
    if threads <= 1:
        yield from map(call, items)
        return
    waiting = deque[PoolTask[U]]()
    with TaskPool(threads) as pool:
        for item in items:
            if len(waiting) == threads:
                yield waiting.popleft().result()
            waiting.append(pool.submit(partial(call, item)))
        while waiting:
            yield waiting.popleft().result()


def ahead(items: Iterable[T], *, count: int) -> Iterator[T]:
    """Yield the same items. A thread gets the next ones, at most `count` of them, while the caller works on one."""
    source, end, waiting = iter(items), object(), deque[PoolTask[Any]]()
    with TaskPool(1) as pool:
        while True:
            while len(waiting) < count:
                waiting.append(pool.submit(partial(next, source, end)))
            if (item := waiting.popleft().result()) is end:
                return
            yield item
