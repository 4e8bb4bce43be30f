"""Share a number of bytes of memory between threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class MemoryBudget:
    """Memory that several tasks share. Thread-safe; a thread takes only one share at a time.

    Args:
        total: how many bytes the tasks may hold together.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._used = 0
        self._change = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Context manager that waits until these bytes are free, and holds them; a larger share waits to be alone."""
        with self._change:
            self._change.wait_for(lambda: not self._used or self._used + size <= self._total)
            self._used += size
        try:
            yield
        finally:
            with self._change:
                self._used -= size
                self._change.notify_all()
