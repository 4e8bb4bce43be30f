"""The rows of one table on their way to `ingest`: buffered, cut into requests, sent one after the other.

A request keeps its producer and sequence through all its attempts, by which the queue knows it again for five minutes.
No attempt starts so late that it could still arrive after that: then nobody can tell any more, and `Ambiguous` says so.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from lancelsm.client.encoding import EncodedRows
from lancelsm.client.invoke import Answered, Failed, NoResponse, Response
from lancelsm.common.clock import Budget, Clock, Ids
from lancelsm.errors import Ambiguous, LsmError, Unavailable

BATCH_BYTES: Final = 1 << 20
DEDUP_SECONDS: Final = 300  # SQS FIFO: how long a message is known again
ATTEMPT_SECONDS: Final = 60  # until an attempt is over, in the function and at the queue too
RETRY_SECONDS: Final = DEDUP_SECONDS - ATTEMPT_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Rows that travel together, and the time of their first attempt on both clocks."""

    rows: EncodedRows
    producer: str
    sequence: int
    first_row: int  # number of its first row among all that were given for this table, from 0
    now: float
    monotonic: float


class Lane:
    """One table's buffer. One request is in flight at a time, so rows arrive in the order given. Thread-safe.

    Args:
        producer: names whoever sends now; never the same for two processes.
        invoke: one attempt of a request.
        retry_seconds: for all attempts of one request together.
    """

    def __init__(
        self,
        table: str,
        invoke: Callable[[Request], Response],
        *,
        producer: Callable[[], str],
        retry_seconds: float,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._table = table
        self._invoke = invoke
        self._producer = producer
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._ids = ids
        self._lock = threading.RLock()
        self._waiting: deque[EncodedRows] = deque()
        self._bytes = 0
        self._since = 0.0
        self._pending: Request | None = None
        self._unheard: LsmError | None = None
        self._sequence = 0
        self._first_row = 0

    def add(self, pieces: Iterable[EncodedRows]) -> None:
        """Take rows, and send what fills requests. Raises as `send`."""
        with self._lock:
            self._raise_unheard()
            for piece in pieces:
                if not self._waiting:
                    self._since = self._clock.monotonic()
                self._waiting.append(piece)
                self._bytes += piece.bytes
            self._drain(until=BATCH_BYTES)

    def send(self) -> None:
        """Send everything.

        Raises: what became of one request, see `Client`. Its rows are not tried again; those after it stay here.
        """
        with self._lock:
            self._raise_unheard()
            self._drain(until=1)

    def send_aged(self, seconds: float) -> None:
        """As `send`, if a row has waited so long. What goes wrong is raised by the next `add` or `send`, not here."""
        with self._lock:
            aged = self._waiting and self._clock.monotonic() - self._since >= seconds
            if self._unheard is None and (aged or self._pending is not None):
                try:
                    self._drain(until=1)
                except LsmError as error:
                    self._unheard = error

    def _raise_unheard(self) -> None:
        if self._unheard is not None:
            error, self._unheard = self._unheard, None
            raise error

    def _drain(self, *, until: int) -> None:
        while self._pending is not None or (self._waiting and self._bytes >= until):
            # An interruption leaves the request here: it goes on under the same sequence, or not at all.
            resumed = self._pending is not None
            self._pending = self._pending or self._next()
            try:
                self._deliver(self._pending, lost="an attempt was interrupted" if resumed else None)
            except LsmError as error:
                failed = self._pending
                error.where |= {"table": self._table, "producer": failed.producer, "sequence": failed.sequence}
                error.where |= {"first_row": failed.first_row, "rows": failed.rows.rows}
                self._pending = None
                raise
            self._pending = None

    def _next(self) -> Request:
        """The longest run of the first rows that fits a request."""
        rows = self._waiting.popleft()
        while self._waiting and rows.joins(self._waiting[0]) and rows.bytes + self._waiting[0].bytes <= BATCH_BYTES:
            rows = rows.joined(self._waiting.popleft())
        self._bytes -= rows.bytes
        self._since = self._clock.monotonic()
        request = Request(
            rows=rows,
            producer=self._producer(),
            sequence=self._sequence,
            first_row=self._first_row,
            now=self._clock.now(),
            monotonic=self._clock.monotonic(),
        )
        self._sequence += 1
        self._first_row += rows.rows
        return request

    def _deliver(self, request: Request, *, lost: str | None) -> None:
        """Attempts until the queue has the rows.

        Args:
            lost: why an earlier attempt may have been applied; None if none may.
        """
        cause = "no time was left"
        left = self._retry_seconds - self._elapsed(request)
        for _ in Budget(clock=self._clock, ids=self._ids, seconds=left).attempts():
            if self._elapsed(request) >= self._retry_seconds:
                break
            outcome = self._invoke(request)
            if isinstance(outcome, Answered):
                return
            if isinstance(outcome, Failed):
                if not outcome.again:
                    outcome.error.where |= {} if lost is None else {"earlier_attempt": lost}
                    raise outcome.error
                lost = cause = str(outcome.error)
            else:
                cause = outcome.cause
                lost = cause if isinstance(outcome, NoResponse) else lost
        if lost is not None:
            remedy = "Read the table, then decide whether to send these rows again"
            raise Ambiguous(f"the rows may be on the queue, once: {lost}", remedy=remedy)
        raise Unavailable(f"the rows were not sent: {cause}", remedy="Send them again")

    def _elapsed(self, request: Request) -> float:
        """Seconds since the first attempt by the clock that went further: on a suspended machine one of them stops."""
        return max(self._clock.monotonic() - request.monotonic, self._clock.now() - request.now)
