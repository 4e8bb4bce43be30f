"""Send the rows of one table to `ingest`: buffer them, cut them into requests, send one request after the other.

A request has the same producer and sequence number in all its attempts, so the queue recognises it for five minutes. No
attempt starts so late that it could arrive after that. Then the outcome can't be known, and the error is `Ambiguous`.
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
DEDUP_SECONDS: Final = 300  # how long a FIFO queue of SQS recognises a message
ATTEMPT_SECONDS: Final = 60  # the longest attempt, including the function and the queue
RETRY_SECONDS: Final = DEDUP_SECONDS - ATTEMPT_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Rows that are sent together, and the time of their first attempt on both clocks."""

    rows: EncodedRows
    producer: str
    sequence: int
    first_row: int  # index of its first row among all rows given for this table, from 0
    now: float
    monotonic: float


class TableBuffer:
    """The buffer of one table. One request is in flight at a time, so rows arrive in the order given. Thread-safe.

    Args:
        producer: returns the name of the sending process; two processes never have the same name.
        invoke: makes one attempt of a request.
        retry_seconds: the time for all attempts of one request.
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
        self._background_error: LsmError | None = None
        self._sequence = 0
        self._first_row = 0

    def add(self, pieces: Iterable[EncodedRows]) -> None:
        """Buffer rows and send full requests. Raises the same errors as `send`."""
        with self._lock:
            self._raise_background_error()
            for piece in pieces:
                if not self._waiting:
                    self._since = self._clock.monotonic()
                self._waiting.append(piece)
                self._bytes += piece.bytes
            self._drain(until=BATCH_BYTES)

    def send(self) -> None:
        """Send all rows.

        Raises:
            Invalid, Fenced, Corrupt, Unavailable, Ambiguous: one request failed, see `Client`. Its rows are not sent
                again; later rows stay in the buffer.
        """
        with self._lock:
            self._raise_background_error()
            self._drain(until=1)

    def send_aged(self, seconds: float) -> None:
        """Send all rows if one has waited for this time. The next `add` or `send` raises the error, if any."""
        with self._lock:
            aged = self._waiting and self._clock.monotonic() - self._since >= seconds
            if self._background_error is None and (aged or self._pending is not None):
                try:
                    self._drain(until=1)
                except LsmError as error:
                    self._background_error = error

    def _raise_background_error(self) -> None:
        if self._background_error is not None:
            error, self._background_error = self._background_error, None
            raise error

    def _drain(self, *, until: int) -> None:
        while self._pending is not None or (self._waiting and self._bytes >= until):
            # An interrupted request stays pending: it is sent again with the same sequence number, or not at all.
            resumed = self._pending is not None
            self._pending = self._pending or self._next()
            try:
                self._deliver(self._pending, unresolved="an attempt was interrupted" if resumed else None)
            except LsmError as error:
                failed = self._pending
                error.where |= {"table": self._table, "producer": failed.producer, "sequence": failed.sequence}
                error.where |= {"first_row": failed.first_row, "rows": failed.rows.rows}
                self._pending = None
                raise
            self._pending = None

    def _next(self) -> Request:
        """Return the longest run of waiting rows, from the first one on, that fits one request."""
        rows = self._waiting.popleft()
        while self._waiting and rows.can_join(self._waiting[0]) and rows.bytes + self._waiting[0].bytes <= BATCH_BYTES:
            rows = rows.join(self._waiting.popleft())
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

    def _deliver(self, request: Request, *, unresolved: str | None) -> None:
        """Attempt a request until the queue has its rows.

        Args:
            unresolved: why an earlier attempt may have reached the queue; None if none may have.
        """
        cause = "no time left"
        left = self._retry_seconds - self._elapsed(request)
        for _ in Budget(clock=self._clock, ids=self._ids, seconds=left).attempts():
            if self._elapsed(request) >= self._retry_seconds:
                break
            outcome = self._invoke(request)
            if isinstance(outcome, Answered):
                return
            if isinstance(outcome, Failed):
                if not outcome.retryable:
                    outcome.error.where |= {} if unresolved is None else {"earlier_attempt": unresolved}
                    raise outcome.error
                unresolved = cause = str(outcome.error)
            else:
                cause = outcome.cause
                unresolved = cause if isinstance(outcome, NoResponse) else unresolved
        if unresolved is not None:
            remedy = "Read the table, then decide whether to send these rows again"
            raise Ambiguous(f"the rows may be on the queue, once: {unresolved}", remedy=remedy)
        raise Unavailable(f"the rows were not sent: {cause}", remedy="Send them again")

    def _elapsed(self, request: Request) -> float:
        """Return the seconds since the first attempt, by the faster clock: a suspended machine may stop one of them."""
        return max(self._clock.monotonic() - request.monotonic, self._clock.now() - request.now)
