"""Repeat a step in a thread while a block runs. A KeyboardInterrupt at any line of the block can't stop its end.

See `common.task_pool` for why this uses no thread or event of `threading`.
"""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue


class Renewal:
    """Calls `step` every few seconds, until it returns False or the end is wanted; then calls `then`.

    The thread does not keep the process from ending.
    """

    def __init__(self, step: Callable[[], bool], *, seconds: float, then: Callable[[], None] = lambda: None) -> None:
        self._step = step
        self._seconds = seconds
        self._then = then
        self._going = _thread.allocate_lock()  # held until the end
        self._going.acquire()
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._process: int | None = None  # the one that has the thread

    def start(self) -> None:
        _thread.start_new_thread(self._run, ())
        self._process = os.getpid()

    def stop(self) -> None:
        """Stop soon. It waits for no lock, so a finaliser may call it."""
        with suppress(RuntimeError):  # another call was first
            self._going.release()

    def end(self) -> None:
        """Stop, and wait for a step that is running. May be called again after a KeyboardInterrupt.

        A forked child does not have the thread, so it has nothing to wait for.
        """
        self.stop()
        if self._process == os.getpid():
            self._ended.get()

    def _run(self) -> None:
        try:
            while not self._going.acquire(timeout=self._seconds) and self._step():
                pass
            self._then()
        finally:
            for _ in range(3):  # `end` may be called again
                self._ended.put(None)
