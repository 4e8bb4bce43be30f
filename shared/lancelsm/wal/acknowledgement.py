"""A future that costs little to create, for writers that hand out tens of thousands a second.

A plain `Future` creates a condition, which is ten objects for the garbage collector. They take longer than all other
work for a row. Most futures are done before anybody waits for them, so the condition is created by the first caller
that needs it. `tests/unit/test_acknowledgement.py` checks what this class relies on in `concurrent.futures`.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from typing import Any, TypeVar

T = TypeVar("T")

_LOCK = threading.Lock()  # decides whether a result or a condition is first


class Acknowledgement(Future[T]):
    """A future that is running from the beginning, so it can't be cancelled."""

    def __init__(self) -> None:
        # Not `Future.__init__`, which creates a condition.
        self._state = RUNNING
        self._result: Any = None
        self._exception: BaseException | None = None
        self._created: threading.Condition | None = None

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._created is None:
            with _LOCK:
                if self._created is None:
                    self._waiters: list[Any] = []
                    self._done_callbacks: list[Any] = []
                    self._created = threading.Condition()
        return self._created

    def set_result(self, result: T) -> None:
        if not self._finished(result, None):
            super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        if not self._finished(None, exception):
            super().set_exception(exception)

    def _finished(self, result: T | None, exception: BaseException | None) -> bool:
        """Finish the future if it has no condition yet: then nobody waits for it. Return whether it had none."""
        with _LOCK:
            if self._created is not None or self._state != RUNNING:
                return False
            self._result, self._exception = result, exception
            self._state = FINISHED
            return True
