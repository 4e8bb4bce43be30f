"""Serve the part of S3 that Lance and obstore use for small tables, in memory, and count requests by method."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

_BUCKET = "/bucket/"
_DATE = "Fri, 27 Nov 2026 20:00:00 GMT"


class Server:
    """The objects, and the number of requests so far."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.options: dict[str, str] = {}  # storage options for Lance and obstore


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    http.daemon_threads = True
    server.options = {
        "aws_endpoint": f"http://127.0.0.1:{http.server_port}",
        "aws_region": "us-east-1",
        "aws_access_key_id": "any",
        "aws_secret_access_key": "any",
        "allow_http": "true",
    }
    # pylance's LSM readers do not pass the options of the dataset on when they open generations.
    os.environ |= {"AWS_" + name.upper().removeprefix("AWS_"): value for name, value in server.options.items()}
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            if "list-type" in query:
                self._count("LIST")
                prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
                with server.lock:
                    self._answer(200, _listing(server.objects, prefix, delimiter))
                return
            self._count("GET")
            self._object()

        def do_HEAD(self) -> None:
            self._count("HEAD")
            self._object()

        def do_PUT(self) -> None:
            self._count("PUT")
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with server.lock:
                old = server.objects.get(self._key)
                exists = self.headers.get("If-None-Match") == "*" and old is not None
                if exists or ("If-Match" in self.headers and (old is None or self.headers["If-Match"] != _etag(old))):
                    self._answer(412)
                    return
                server.objects[self._key] = body
            self._answer(200, etag=_etag(body))

        def do_DELETE(self) -> None:
            self._count("DELETE")
            with server.lock:
                server.objects.pop(self._key, None)
            self._answer(204)

        def do_POST(self) -> None:
            """Delete several objects at once."""
            self._count("DELETE")
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            keys = re.findall(r"<Key>(.*?)</Key>", body)
            with server.lock:
                for key in keys:
                    server.objects.pop(unescape(key), None)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

        @property
        def _key(self) -> str:
            return unquote(urlsplit(self.path).path).removeprefix(_BUCKET)

        def _count(self, method: str) -> None:
            with server.lock:
                server.requests[method] += 1

        def _object(self) -> None:
            with server.lock:
                body = server.objects.get(self._key)
            if body is None:
                self._answer(404)
                return
            range_header = self.headers.get("Range", "").removeprefix("bytes=")
            if not range_header:
                self._answer(200, body, etag=_etag(body))
                return
            first, _, last = range_header.partition("-")
            start = int(first) if first else max(0, len(body) - int(last))
            end = min(len(body), int(last) + 1) if first and last else len(body)
            self._answer(206, body[start:end], etag=_etag(body), range_=f"bytes {start}-{end - 1}/{len(body)}")

        def _answer(self, status: int, body: bytes = b"", *, etag: str = "", range_: str = "") -> None:
            if status >= 400:
                body = f"<Error><Code>{ {404: 'NoSuchKey', 412: 'PreconditionFailed'}[status] }</Code></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Last-Modified", _DATE)
            for name, value in (("ETag", etag), ("Content-Range", range_)):
                if value:
                    self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _listing(objects: dict[str, bytes], prefix: str, delimiter: str) -> bytes:
    """Return a listing on one page."""
    keys = sorted(key for key in objects if key.startswith(prefix))
    folders = {
        prefix + key[len(prefix) :].partition(delimiter)[0] + delimiter
        for key in keys
        if _nested(key, prefix, delimiter)
    }
    files = [key for key in keys if not _nested(key, prefix, delimiter)]
    lines = [
        f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-27T20:00:00.000Z</LastModified>"
        f"<ETag>{escape(_etag(objects[key]))}</ETag><Size>{len(objects[key])}</Size></Contents>"
        for key in files
    ]
    lines += [f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in sorted(folders)]
    return (
        f"<ListBucketResult><Name>bucket</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(lines)}</KeyCount>"
        f"<IsTruncated>false</IsTruncated>{''.join(lines)}</ListBucketResult>"
    ).encode()


def _nested(key: str, prefix: str, delimiter: str) -> bool:
    return bool(delimiter) and delimiter in key[len(prefix) :]
