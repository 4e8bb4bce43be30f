"""Serve a small S3 with scripted failures, for behaviour that a working store can't show on demand.

It supports objects, If-None-Match, If-Match and ListObjectsV2, without signatures. `script[method, key]` lists the
events for the next requests, one per request: a status code (the request has no effect), `applied 500` (it takes
effect, the answer is 500), `applied drop` (it takes effect, the connection ends), `late` (the connection ends, the
request takes effect at `land`), `drop` (the connection ends), `cut` (the body ends early), `ok`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit

from tests.conformance.listening import listening

BUCKET = "stub"

_CODES = {
    301: "PermanentRedirect",
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    500: "InternalError",
    503: "SlowDown",
}


class Stub:
    """The objects, the script of events, and the requests so far as (method, key)."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.script: dict[tuple[str, str], list[int | str]] = {}
        self.requests: list[tuple[str, str]] = []
        self.signers: list[tuple[str, str | None]] = []  # per request: `ACCESS KEY/REGION`, session token
        self.late: list[tuple[str, bytes, Message]] = []
        self.lock = threading.Lock()
        self.endpoint = ""

    def count(self, method: str, key: str) -> int:
        return self.requests.count((method, key))

    def land(self) -> list[int]:
        """Apply the late requests now. Returns their status codes, which no client gets."""
        with self.lock:
            late, self.late = self.late, []
            return [self.put(*request) for request in late]

    def put(self, key: str, body: bytes, headers: Message) -> int:
        old = self.objects.get(key)
        if headers.get("If-None-Match") == "*" and old is not None:
            return 412
        if "If-Match" in headers:
            if old is None:
                return 404
            if headers["If-Match"] != etag(old):
                return 412
        self.objects[key] = body
        return 200


def etag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


@contextmanager
def serving() -> Iterator[Stub]:
    stub = Stub()
    with listening(_handler(stub)) as stub.endpoint:
        yield stub


def _handler(stub: Stub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            key = unquote(url.path).removeprefix(f"/{BUCKET}").removeprefix("/")
            query = parse_qs(url.query)
            listing = "list-type" in query
            event = self._event("LIST" if listing else "GET", query.get("prefix", [""])[0] if listing else key)
            if event is None:
                return
            if listing:
                after = query.get("start-after", query.get("continuation-token", [""]))[0]
                self._answer(200, _listing(stub, query.get("prefix", [""])[0], after))
            elif key not in stub.objects:
                self._answer(404)
            else:
                self._answer(200, stub.objects[key], cut=event == "cut")

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            key = unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}/")
            event = self._event("PUT", key)
            if event is None:
                return
            if event == "late":
                stub.late.append((key, body, self.headers))
                self._drop()
                return
            with stub.lock:
                status = stub.put(key, body, self.headers)
            if event == "applied 500":
                self._answer(500)
            elif event == "applied drop":
                self._drop()
            else:
                self._answer(status, tag=etag(body) if status == 200 else None)

        def _event(self, method: str, key: str) -> str | None:
            """Return the event for a request; None if the request has been answered here."""
            with stub.lock:
                stub.requests.append((method, key))
                stub.signers.append((_signer(self.headers), self.headers.get("x-amz-security-token")))
                events = stub.script.get((method, key), [])
                event = events.pop(0) if events else "ok"
            if isinstance(event, int):
                self._answer(event)
                return None
            if event == "drop":
                self._drop()
                return None
            return event

        def _answer(self, status: int, body: bytes = b"", tag: str | None = None, cut: bool = False) -> None:
            if status >= 300:
                body = f"<Error><Code>{_CODES[status]}</Code><Message>m</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Last-Modified", "Fri, 27 Nov 2026 20:00:00 GMT")
            self.send_header("ETag", tag or etag(body))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if cut else body)
            if cut:
                self._drop()

        def _drop(self) -> None:
            self.close_connection = True
            self.wfile.flush()
            self.connection.close()

        def log_message(self, *arguments: object) -> None:
            pass

    return Handler


def _signer(headers: Message) -> str:
    """Return `ACCESS KEY/REGION` of the signature."""
    scope = headers.get("Authorization", "").partition("Credential=")[2].partition(",")[0].split("/")
    return f"{scope[0]}/{scope[2]}" if len(scope) > 2 else ""


def _listing(stub: Stub, prefix: str, after: str, page: int = 3) -> bytes:
    keys = sorted(key for key in stub.objects if key.startswith(prefix) and key > after)
    more = len(keys) > page
    lines = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2026-11-27T20:00:00.000Z</LastModified><ETag>e</ETag>"
        f"<Size>{len(stub.objects[key])}</Size></Contents>"
        for key in keys[:page]
    )
    token = f"<NextContinuationToken>{keys[page - 1]}</NextContinuationToken>" if more else ""
    return (
        f"<ListBucketResult><Name>{BUCKET}</Name><Prefix>{prefix}</Prefix><KeyCount>{len(keys[:page])}</KeyCount>"
        f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{lines}</ListBucketResult>"
    ).encode()
