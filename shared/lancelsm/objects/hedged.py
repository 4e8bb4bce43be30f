"""Send a slow read of an object a second time, and take the first answer.

Only `get` is sent twice. It changes nothing, and both answers are what the store had during the call. Writes and
listings are never sent twice, and the registry does not use this store. "The Tail at Scale" (Dean, Barroso, 2013)
describes hedged requests.
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Collection, Iterator
from queue import Empty, SimpleQueue

from lancelsm.common.clock import Clock
from lancelsm.common.read_trace import NO_TRACE, Trace
from lancelsm.objects import Body, ETag, Listed, Object, ObjectStore, PreconditionFailed, WriteUnknown, Written

_KEPT = 64  # the number of last reads whose times are kept
_LEAST_KEPT = 16  # no read counts as slow before as many times are kept
_SLOW = 0.95  # a read is slow if it takes longer than this share of the kept times

Answer = tuple[Object | None, BaseException | None]


class _Reads:
    """Counts reads, and keeps the times of the last ones. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: deque[float] = deque(maxlen=_KEPT)
        self._sent = 0
        self._sent_twice = 0

    def begin(self) -> float | None:
        """Count a read. Return the seconds after which it is slow; None if that is not known yet."""
        with self._lock:
            self._sent += 1
            kept = sorted(self._seconds)
        return kept[int(_SLOW * len(kept))] if len(kept) >= _LEAST_KEPT else None

    def may_send_twice(self, percent: int) -> bool:
        """Count a second request and return True, unless there were too many of them."""
        with self._lock:
            allowed = (self._sent_twice + 1) * 100 <= self._sent * percent  # a slow store must not get twice the load
            self._sent_twice += allowed
        return allowed

    def took(self, seconds: float) -> None:
        with self._lock:
            self._seconds.append(seconds)


class HedgedStore:
    """An object store that sends slow reads twice. A read is slow if it takes longer than 95 % of the last reads.

    Args:
        percent: the largest share of reads that are sent twice.
        trace: counts the second requests as `objects.get, sent again`.
    """

    def __init__(
        self, store: ObjectStore, *, percent: int, clock: Clock, trace: Trace = NO_TRACE, reads: _Reads | None = None
    ) -> None:
        self._store = store
        self._percent = percent
        self._clock = clock
        self._trace = trace
        self._reads = reads or _Reads()

    def traced(self, trace: Trace) -> HedgedStore:
        """Return the same store with a trace."""
        return HedgedStore(self._store, percent=self._percent, clock=self._clock, trace=trace, reads=self._reads)

    def get(self, key: str) -> Object | None:
        slow_after = self._reads.begin()
        answers: SimpleQueue[Answer] = SimpleQueue()
        outstanding = 1
        _thread.start_new_thread(self._attempt, (key, answers))
        try:
            found, error = answers.get(timeout=slow_after)
        except Empty:
            if self._reads.may_send_twice(self._percent):
                self._trace.request("objects.get, sent again")
                outstanding = 2
                _thread.start_new_thread(self._attempt, (key, answers))
            found, error = answers.get()
        if error is not None and outstanding == 2:
            found, error = answers.get()  # the other request may still succeed
        if error is not None:
            raise error
        return found

    def _attempt(self, key: str, answers: SimpleQueue[Answer]) -> None:
        began = self._clock.monotonic()
        try:
            answers.put((self._store.get(key), None))
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            answers.put((None, error))
            return
        self._reads.took(self._clock.monotonic() - began)

    def list(self, prefix: str) -> Iterator[Listed]:
        return self._store.list(prefix)

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        return self._store.create(key, body)

    def replace(self, key: str, body: Body, *, expect: ETag) -> Written | PreconditionFailed | WriteUnknown:
        return self._store.replace(key, body, expect=expect)

    def delete(self, keys: Collection[str]) -> None:
        self._store.delete(keys)
