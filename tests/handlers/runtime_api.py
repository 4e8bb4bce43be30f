"""Run functions as Lambda does: its own runtime client in processes, each with a server of the runtime API.

Each process is an execution environment that handles one event at a time, so concurrent events get several processes.
A process that exceeds its timeout is killed. After a process ended, the next event starts a new one. The server sends
head and body of an answer in one write: with two writes, each event would wait for a delayed acknowledgement.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class FunctionError(Exception):
    """The error that a function, or Lambda for it, returns instead of a document."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message

    @property
    def document(self) -> dict[str, Any]:
        """The error document in the message."""
        return json.loads(self.message)["error"]


class _Server(ThreadingHTTPServer):
    """Serve the runtime API of one environment."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.events: queue.Queue[tuple[Any, Mapping[str, str]] | None] = queue.Queue()
        self.answers: queue.Queue[tuple[str, Any]] = queue.Queue()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        """Send the next event as soon as there is one."""
        found = self.server.events.get()
        if found is None:
            self.close_connection = True
            return
        event, headers = found
        self._answer(HTTPStatus.OK, json.dumps(event).encode(), headers)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "null")
        self.server.answers.put((self.path.rpartition("/")[2], body))
        self._answer(HTTPStatus.ACCEPTED, b'{"status":"OK"}', {})

    def log_message(self, *_: object) -> None:
        """Log nothing: tests look only at the output of the functions."""

    def _answer(self, status: HTTPStatus, body: bytes, headers: Mapping[str, str]) -> None:
        head = [f"HTTP/1.1 {status.value} {status.phrase}", f"Content-Length: {len(body)}"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        with contextlib.suppress(OSError):
            self.wfile.write("\r\n".join([*head, "", ""]).encode() + body)


class _Environment:
    """One process that handles one event at a time."""

    def __init__(self, start: Callable[[int], subprocess.Popen[bytes]]) -> None:
        self._server = _Server()
        self._process = start(self._server.server_port)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def handle(self, event: Any, *, identity: str, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        headers = {
            "Lambda-Runtime-Aws-Request-Id": identity,
            "Lambda-Runtime-Invocation-Id": identity,
            "Lambda-Runtime-Deadline-Ms": str(int((time.time() + seconds) * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:us-east-1:111111111111:function:f",
            "Content-Type": "application/json",
        }
        self._server.events.put((event, headers))
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                outcome, body = self._server.answers.get(timeout=0.02)
                if outcome == "response":
                    return body
                raise FunctionError(body["errorType"], body["errorMessage"])
            if not self.is_alive and self._server.answers.empty():
                raise FunctionError("Runtime.ExitError", f"exit {self._process.returncode}")
        self.kill()
        raise FunctionError("Sandbox.Timedout", f"Task timed out after {seconds:.2f} seconds")

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self.kill()
        self._server.events.put(None)
        self._server.shutdown()
        self._server.server_close()


class Runtime:
    """A deployed function. Call it with an event, from any number of threads: each event has its own environment.

    `log` is the output of all its processes.
    """

    def __init__(self, start: Callable[[int], subprocess.Popen[bytes]], *, log: Path, seconds: float) -> None:
        self._start, self._log, self._seconds = start, log, seconds
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._idle: list[_Environment] = []
        self._busy: list[_Environment] = []

    @property
    def log(self) -> str:
        return self._log.read_text()

    def __call__(self, event: Any) -> Any:
        """Return the function's document. Raise `FunctionError`, of the kind `Sandbox.Timedout` after a timeout."""
        with self._lock:
            identity = f"00000000-0000-4000-8000-{next(self._numbers):012d}"
            environment = self._idle.pop() if self._idle else _Environment(self._start)
            self._busy.append(environment)
        try:
            return environment.handle(event, identity=identity, seconds=self._seconds)
        finally:
            self._busy.remove(environment)
            if environment.is_alive:
                self._idle.append(environment)
            else:
                environment.end()

    def kill(self) -> None:
        """End every environment that handles an event. Its caller gets `Runtime.ExitError`."""
        for environment in list(self._busy):
            environment.kill()

    def close(self) -> None:
        for environment in self._idle:
            environment.end()


@contextmanager
def runtime(
    functions: Path, handler: str, environment: Mapping[str, str], *, log: Path, seconds: float = 30.0
) -> Iterator[Runtime]:
    """Run a function.

    Args:
        functions: the directory with its file.
        handler: `module.name`.
        environment: all variables of its processes, except those that Python and Lambda need.
        log: the file for the output of its processes.
        seconds: the timeout of an event.
    """
    variables = {
        "PATH": os.environ["PATH"],
        "AWS_LAMBDA_FUNCTION_NAME": handler.partition(".")[0],
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "1024",
        "AWS_REGION": "us-east-1",
        "LAMBDA_TASK_ROOT": str(functions),
        "_HANDLER": handler,
        **environment,
    }

    def start(port: int) -> subprocess.Popen[bytes]:
        address = {"AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{port}"}
        with log.open("ab") as output:
            command = [sys.executable, "-m", "awslambdaric", handler]
            return subprocess.Popen(
                command, cwd=functions, env=variables | address, stdout=output, stderr=subprocess.STDOUT
            )

    running = Runtime(start, log=log, seconds=seconds)
    try:
        yield running
    finally:
        running.close()
