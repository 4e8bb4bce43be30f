"""Maintain several tables until the process is stopped: `lancelsm run --forever`.

Each table has a thread, which does what is due and collects. Of all services of a table, the one that holds the lease
`collector` collects. A signal lets each thread end its step; a process that is killed leaves nothing to clean up.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from lancelsm.cli.service_event import Event, error_event
from lancelsm.cli.service_metrics import Metrics
from lancelsm.common.clock import iso
from lancelsm.compaction.background import TICK_SECONDS, BackgroundRunner, Step
from lancelsm.compaction.runner import Engine
from lancelsm.errors import Ambiguous, Contended, LsmError, Unavailable
from lancelsm.gc.collect import Collected, collect
from lancelsm.read.status import TableStatus
from lancelsm.region.handle import TableHandle
from lancelsm.region.lease import COLLECTOR_LEASE, lease

FAILING_SECONDS = 300.0  # a table whose rounds have failed for so long is not healthy


class TableService:
    """The maintenance of one table, and what is known about its health."""

    def __init__(
        self,
        handle: TableHandle,
        *,
        stop: threading.Event,
        report: Callable[[Event], object],
        metrics: Metrics | None = None,
        engine: Engine = "auto",
    ) -> None:
        self.uri = handle.context.uri
        self.failure: Exception | None = None  # ended the service of this table
        self._handle = handle
        self._stop = stop
        self._report = report
        self._metrics = metrics
        self._clock = handle.context.clock
        self._good = self._clock.now()  # when a round was last done
        self._last_error: LsmError | None = None
        self._is_collector: Callable[[], bool] = lambda: False  # reads whether the lease is held by this service
        self._next_collection = float("-inf")
        self._runner = BackgroundRunner(handle, engine=engine, on_step=self._on_step, on_status=self._on_status)

    def run(self) -> None:
        """Do what is due until `stop` is set, or until an error that a retry does not solve."""
        with ExitStack() as held:
            while not self._stop.is_set():
                is_busy = False
                try:
                    is_busy = self._runner.round(everything=False)
                    self._collect_if_due(held)
                    self._good, self._last_error = self._clock.now(), None
                except (Ambiguous, Contended, Unavailable) as error:
                    self._on_error(error)
                except Exception as error:  # noqa: BLE001 - `serve` raises it, once the other tables have ended
                    self.failure = error
                    self._on_error(error if isinstance(error, LsmError) else _Bug(error))
                    return
                if not is_busy:
                    self._stop.wait(TICK_SECONDS)

    def health(self) -> dict[str, Any]:
        """Return the state of the table as a document; `ok` is False if its maintenance stopped or keeps failing."""
        is_failing = self._last_error is not None and self._clock.now() - self._good > FAILING_SECONDS
        shown = None if self._last_error is None else f"{self._last_error.kind}: {self._last_error.redacted}"
        return {
            "table": self.uri,
            "ok": self.failure is None and not is_failing,
            "last_round": iso(self._good, digits="seconds"),
            "error": shown,
        }

    def _collect_if_due(self, held: ExitStack) -> None:
        """Collect once per interval, if this service is the collector of the table or can become it."""
        now = self._clock.monotonic()
        if now < self._next_collection:
            return
        self._next_collection = now + self._handle.settings.collect_interval_seconds
        # A lease expires if nothing renews it: in a process of one thread, or after a long stall. Then another service
        # may have it.
        if not self._is_collector():
            self._is_collector = lambda: False
            held.close()  # of the lost lease
            try:
                self._is_collector = held.enter_context(lease(self._handle.context, COLLECTOR_LEASE))
            except Contended:  # another service is; look again after the interval
                return
        done = collect(self._handle, yes=True)
        self._emit("collect", self._clock.monotonic() - now, _collected(done))

    def _on_step(self, step: Step) -> None:
        self._emit(step.name, step.seconds, step.facts)

    def _emit(self, name: str, seconds: float, facts: Mapping[str, Any]) -> None:
        event = Event(time=self._clock.now(), table=self.uri, step=name, seconds=seconds, facts=facts)
        if self._metrics is not None:
            self._metrics.step(event)
        self._report(event)

    def _on_status(self, status: TableStatus) -> None:
        if self._metrics is not None:
            self._metrics.status(status)

    def _on_error(self, error: LsmError) -> None:
        """Report an error, but a repeated one only once."""
        if self._metrics is not None:
            self._metrics.error(self.uri, error.kind)
        is_new = self._last_error is None or self._last_error.redacted != error.redacted
        self._last_error = error
        if is_new:
            self._report(error_event(self.uri, error, time=self._clock.now()))


class _Bug(LsmError):
    """An error that is no `LsmError`, as health and events show it: without its text, which may have values of rows."""

    kind = "Internal"
    next_step = "This is a bug: report it with the traceback that LANCELSM_TRACEBACK=1 prints when the process ends"

    def __init__(self, error: Exception) -> None:
        super().__init__(type(error).__name__)


def serve(services: Sequence[TableService], stop: threading.Event) -> None:
    """Run the services until `stop` is set, or until all of them have ended.

    Raises the first error that ended a service. A service that ends leaves the others running.
    """
    threads = [threading.Thread(target=one.run, name=one.uri, daemon=True) for one in services]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for thread in threads:
            thread.join(timeout=0.2)  # with a timeout, so that signals are handled meanwhile
    stop.set()
    for one in services:
        if one.failure is not None:
            raise one.failure


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[list[int]]:
    """Set `stop` at the first SIGTERM or SIGINT; a second one ends the process at once. Yield the signals received."""
    received: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        received.append(number)
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _collected(done: Collected) -> dict[str, Any]:
    return {"phase": done.phase, "candidates": len(done.candidates), "deleted": done.deleted}
