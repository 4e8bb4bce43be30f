"""Serve a small S3 with scripted failures, for behaviour that a working store can't show on demand.

It supports objects, ranges, If-None-Match, If-Match and ListObjectsV2, without signatures. Lance can use it too, for
files below 5 MiB. `script[method, key]` lists the
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
from urllib.parse import parse_qs, unquote, urlsplit

from tests.conformance.listening import Handler, listening

BUCKET = "stub"

_CODES = {
    301: "PermanentRedirect",
    400: "InvalidBucketName",
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
        self.sent = 0  # bytes of objects in answers
        self.page = 3  # names in an answer to a LIST
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


def _handler(stub: Stub) -> type[Handler]:
    class Stubbed(Handler):
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
                self._answer(200, _listing(stub, query.get("prefix", [""])[0], after, query.get("delimiter", [""])[0]))
            elif key not in stub.objects:
                self._answer(404)
            else:
                whole = stub.objects[key]
                first, end = _range(self.headers.get("Range"), len(whole))
                stub.sent += end - first
                part = f"bytes {first}-{end - 1}/{len(whole)}" if "Range" in self.headers else None
                self._answer(206 if part else 200, whole[first:end], tag=etag(whole), cut=event == "cut", part=part)

        def do_HEAD(self) -> None:
            key = unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}/")
            if self._event("HEAD", key) is not None:
                body = stub.objects.get(key)
                self._answer(404 if body is None else 200, body or b"")

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            key = unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}/")
            event = self._event("PUT", key)
            if event is None:
                return
            if event == "late":
                stub.late.append((key, body, self.headers))
                self.drop()
                return
            with stub.lock:
                status = stub.put(key, body, self.headers)
            if event == "applied 500":
                self._answer(500)
            elif event == "applied drop":
                self.drop()
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
                self.drop()
                return None
            return event

        def _answer(
            self, status: int, body: bytes = b"", tag: str | None = None, cut: bool = False, part: str | None = None
        ) -> None:
            if status >= 300:
                body = f"<Error><Code>{_CODES[status]}</Code><Message>m</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if part is not None:
                self.send_header("Content-Range", part)
            self.send_header("Last-Modified", "Fri, 27 Nov 2026 20:00:00 GMT")
            self.send_header("ETag", tag or etag(body))
            self.end_headers()
            if self.command == "HEAD":
                return
            self.wfile.write(body[: len(body) // 2] if cut else body)
            if cut:
                self.drop()

    return Stubbed


def _signer(headers: Message) -> str:
    """Return `ACCESS KEY/REGION` of the signature."""
    scope = headers.get("Authorization", "").partition("Credential=")[2].partition(",")[0].split("/")
    return f"{scope[0]}/{scope[2]}" if len(scope) > 2 else ""


def _range(wanted: str | None, size: int) -> tuple[int, int]:
    """Return first byte and end of the part that is wanted of an object."""
    if wanted is None:
        return 0, size
    first, last = wanted.removeprefix("bytes=").split("-")
    if not first:
        return max(size - int(last), 0), size
    return int(first), min(int(last) + 1, size) if last else size


def _listing(stub: Stub, prefix: str, after: str, delimiter: str) -> bytes:
    names = {_up_to(delimiter, key, prefix) for key in stub.objects if key.startswith(prefix)}
    keys = sorted(name for name in names if name > after)
    page = keys[: stub.page]
    lines = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2026-11-27T20:00:00.000Z</LastModified><ETag>e</ETag>"
        f"<Size>{len(stub.objects[key])}</Size></Contents>"
        if key in stub.objects
        else f"<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>"
        for key in page
    )
    more = len(keys) > len(page)
    token = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if more else ""
    return (
        f"<ListBucketResult><Name>{BUCKET}</Name><Prefix>{prefix}</Prefix><KeyCount>{len(page)}</KeyCount>"
        f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{lines}</ListBucketResult>"
    ).encode()


def _up_to(delimiter: str, key: str, prefix: str) -> str:
    """Return the key, or its part up to the first delimiter behind the prefix."""
    head, found, _ = key.removeprefix(prefix).partition(delimiter) if delimiter else (key, "", "")
    return prefix + head + found if found else key
