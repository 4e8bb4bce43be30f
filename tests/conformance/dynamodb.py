"""Clients and tables of DynamoDB for the registry, and a proxy in front of a working DynamoDB that scripts failures.

`script[action]` lists the events for the next requests of an action, one per request: the code of an error or `500`
(the request has no effect), `applied 500` (it takes effect, the answer is 500), `drop` and `applied drop` (the
connection ends without an answer), `late` (the connection ends, the request takes effect at `land`), `cut` (half of the
answer arrives), `ok`. A read that does not ask for consistency gets the answer of a replica without any data.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import boto3

from lancelsm.common import aws
from lancelsm.registry.dynamodb import INDEX
from tests.conformance.listening import Handler, listening

_ABSENT = {"GetItem": {}, "Query": {"Items": [], "Count": 0, "ScannedCount": 0}}


def dynamodb_client(endpoint: str) -> Any:
    """Create a client for this endpoint as `lancelsm.common.aws.client` does."""
    return boto3.client(
        "dynamodb",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="000000000000",
        aws_secret_access_key="secret",
        config=aws.no_retry_config(),
    )


@contextmanager
def environment_of(endpoint: str) -> Iterator[None]:
    """Within the block, `lancelsm.common.aws` finds this endpoint, region and account in the environment."""
    variables = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "000000000000",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with mock.patch.dict("os.environ", variables):
        _forget_clients()
        try:
            yield
        finally:
            _forget_clients()


def _forget_clients() -> None:
    aws.client.cache_clear()
    aws.session.cache_clear()


def create_registry_table(client: Any, name: str) -> str:
    """Create the table as a deployment does, and return its name."""
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in ("pk", "sk", INDEX)],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        GlobalSecondaryIndexes=[
            {
                "IndexName": INDEX,
                "KeySchema": [{"AttributeName": INDEX, "KeyType": "HASH"}],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
    )
    return name


class Proxy:
    """The script of events, and the requests so far as (action, body)."""

    def __init__(self, upstream: str) -> None:
        self.script: dict[str, list[str]] = {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.lock = threading.Lock()
        self.endpoint = ""
        self._upstream = upstream
        self._late: list[tuple[str, bytes, str]] = []

    def count(self, action: str) -> int:
        return sum(name == action for name, _ in self.requests)

    def begin(self, action: str, body: bytes) -> str:
        """Record a request and return its event."""
        with self.lock:
            self.requests.append((action, json.loads(body)))
            events = self.script.get(action, [])
            return events.pop(0) if events else "ok"

    def forward(self, target: str, body: bytes, authorization: str) -> tuple[int, bytes]:
        action = target.rpartition(".")[2]
        if action in _ABSENT and not json.loads(body).get("ConsistentRead"):
            return 200, json.dumps(_ABSENT[action]).encode()
        headers = {
            "X-Amz-Target": target,
            "Content-Type": "application/x-amz-json-1.0",
            "Authorization": authorization,
        }
        try:
            with urllib.request.urlopen(urllib.request.Request(self._upstream, body, headers)) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def hold(self, target: str, body: bytes, authorization: str) -> None:
        with self.lock:
            self._late.append((target, body, authorization))

    def land(self) -> None:
        """Apply the late requests now."""
        with self.lock:
            held, self._late = self._late, []
        for request in held:
            self.forward(*request)


@contextmanager
def proxied(upstream: str, proxy: Proxy | None = None) -> Iterator[Proxy]:
    """Run a proxy until the block ends."""
    proxy = proxy or Proxy(upstream)
    with listening(_handler(proxy)) as proxy.endpoint:
        yield proxy


def _handler(proxy: Proxy) -> type[Handler]:
    class Proxied(Handler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = self.headers["X-Amz-Target"], body, self.headers["Authorization"]
            event = proxy.begin(request[0].rpartition(".")[2], body)
            if event == "late":
                proxy.hold(*request)
            if event in ("drop", "late"):
                self.drop()
            elif event == "500":
                self._answer(500, _error("InternalServerError"))
            elif event in ("ok", "cut", "applied 500", "applied drop"):
                status, answer = proxy.forward(*request)
                if event == "applied drop":
                    self.drop()
                elif event == "applied 500":
                    self._answer(500, _error("InternalServerError"))
                else:
                    self._answer(status, answer, cut=event == "cut")
            else:
                self._answer(400, _error(event))

        def _answer(self, status: int, body: bytes, *, cut: bool = False) -> None:
            sent = body[: len(body) // 2] if cut else body
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(sent)))
            self.send_header("x-amz-crc32", str(zlib.crc32(body)))
            self.end_headers()
            self.wfile.write(sent)

    return Proxied


def _error(code: str) -> bytes:
    return json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "m"}).encode()
