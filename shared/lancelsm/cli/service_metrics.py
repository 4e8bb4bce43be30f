"""The metrics of a service for Prometheus, and its endpoints `/healthz` and `/metrics`."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from lancelsm.cli.service_event import Event
from lancelsm.common.extras import needing
from lancelsm.errors import Invalid
from lancelsm.read.status import TableStatus

LOCAL = "127.0.0.1"
_MOST_PORT = 65_535
_DIGITS = 5  # Python converts no text of thousands of digits
_IDLE_SECONDS = 10.0  # a client that sends nothing for so long is disconnected
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.1, 0.5, 1, 5, 15, 60, 300, 1800)


class Metrics:
    """Counters and gauges of all tables of a service, in a registry of their own."""

    def __init__(self) -> None:
        with needing("prometheus_client", extra="serve"):
            import prometheus_client as prometheus

        self._registry = registry = prometheus.CollectorRegistry()

        def gauge(name: str, text: str) -> Any:
            return prometheus.Gauge(f"lancelsm_{name}", text, ["table"], registry=registry)

        self._render = prometheus.generate_latest
        self._seconds = prometheus.Histogram(
            "lancelsm_step_seconds", "Time of a step", ["table", "step"], registry=registry, buckets=_BUCKETS
        )
        self._errors = prometheus.Counter(
            "lancelsm_errors", "Rounds that failed, by kind of error", ["table", "kind"], registry=registry
        )
        self._rows = prometheus.Counter("lancelsm_rows", "Rows that a step wrote", ["table", "step"], registry=registry)
        self._deleted = prometheus.Counter(
            "lancelsm_deleted_objects", "Objects that collections deleted", ["table"], registry=registry
        )
        self._gauges: Mapping[str, tuple[Any, Callable[[TableStatus], float]]] = {
            name: (gauge(name, text), value)
            for name, text, value in (
                ("wal_rows", "Rows that wait for a flush", lambda status: sum(one.wal_rows for one in status.regions)),
                ("wal_bytes", "Bytes of log that wait", lambda status: sum(one.wal_bytes for one in status.regions)),
                (
                    "generations",
                    "Generations that wait for a merge",
                    lambda status: sum(one.generations for one in status.regions),
                ),
                (
                    "most_generations",
                    "Generations of the region with the most of them",
                    lambda status: max((one.generations for one in status.regions), default=0),
                ),
                ("regions", "Regions", lambda status: len(status.regions)),
                ("base_version", "Version of the base", lambda status: status.base_version),
            )
        }

    def step(self, event: Event) -> None:
        """Count a step."""
        self._seconds.labels(event.table, event.step).observe(event.seconds)
        rows = sum(event.facts.get(name, 0) for name in ("rows", "rows_upserted", "rows_deleted"))
        if rows:
            self._rows.labels(event.table, event.step).inc(rows)
        self._deleted.labels(event.table).inc(event.facts.get("deleted", 0))

    def status(self, status: TableStatus) -> None:
        """Show a status."""
        for shown, value in self._gauges.values():
            shown.labels(status.table).set(value(status))

    def error(self, table: str, kind: str) -> None:
        """Count a round that failed."""
        self._errors.labels(table, kind).inc()

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        rendered: bytes = self._render(self._registry)
        return rendered


def parse_address(text: str) -> tuple[str, int]:
    """Parse `PORT` or `HOST:PORT`; without a host, only this machine can connect. Raise `Invalid` if it is neither."""
    host, _, port = text.rpartition(":")
    if (
        not port.isdecimal()
        or len(port) > _DIGITS
        or int(port) > _MOST_PORT
        or (":" in host and not host.startswith("["))
    ):
        raise Invalid(f"{text!r} is not PORT or HOST:PORT", remedy="Give 9090, or 0.0.0.0:9090", field="serve")
    return host.strip("[]") or LOCAL, int(port)


@contextmanager
def endpoints(
    address: tuple[str, int], metrics: Metrics, health: Callable[[], Sequence[Mapping[str, Any]]]
) -> Iterator[int]:
    """Answer `/healthz` and `/metrics` in the `with` block. Yield the port.

    Raises:
        Invalid: the address can't be bound.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _IDLE_SECONDS

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, _TEXT, metrics.text())
            elif path == "/healthz":
                tables = health()
                is_ok = all(one["ok"] for one in tables)
                body = json.dumps({"ok": is_ok, "tables": tables}, ensure_ascii=False).encode()
                self._answer(200 if is_ok else 503, "application/json", body)
            else:
                self._answer(404, "text/plain; charset=utf-8", b"see /healthz and /metrics\n")

        def _answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Requests are not logged."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Report an error on stderr, unless the client has gone."""
            if not isinstance(sys.exception(), OSError):
                super().handle_error(request, client_address)

    try:
        server = Server(address, Handler)
    except OSError as error:
        shown = f"{address[0]}:{address[1]}"
        raise Invalid(
            f"{shown} can't be bound: {error.strerror}", remedy="Give another port or host", field="serve"
        ) from error
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
