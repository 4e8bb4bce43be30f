"""A fake of the AWS services that a client of the functions calls, with scripted faults."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError, SSLError

from lancelsm.common.clock import Clock
from lancelsm.errors import LsmError

DEDUP_SECONDS = 300
Row = dict[str, Any]
Fault = Callable[["FakeAws", bytes], Any]


def lost_reply(aws: FakeAws, payload: bytes) -> Any:
    """The function runs, but its answer never arrives."""
    aws.run(payload)
    raise ReadTimeoutError(endpoint_url="https://lambda")


def lost_request(aws: FakeAws, payload: bytes) -> Any:
    """The function never runs; the client sees the same timeout as for a lost reply."""
    raise ReadTimeoutError(endpoint_url="https://lambda")


def broken_answer(aws: FakeAws, payload: bytes) -> Any:
    """The function runs, and TLS fails while its answer is read."""
    aws.run(payload)
    raise SSLError(endpoint_url="https://lambda", error="[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC]")


def no_trust(aws: FakeAws, payload: bytes) -> Any:
    raise SSLError(endpoint_url="https://lambda", error="[SSL: CERTIFICATE_VERIFY_FAILED]")


def no_connection(aws: FakeAws, payload: bytes) -> Any:
    raise EndpointConnectionError(endpoint_url="https://lambda")


def refused(code: str, status: int) -> Fault:
    def fault(aws: FakeAws, payload: bytes) -> Any:
        reply: Any = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
        raise ClientError(reply, "Invoke")

    return fault


throttled = refused("TooManyRequestsException", 429)


def raised(error: LsmError) -> Fault:
    return failed(error.kind, json.dumps(error.document()))


def failed(kind: str, message: str) -> Fault:
    def fault(aws: FakeAws, payload: bytes) -> Any:
        return aws.reply({"errorType": kind, "errorMessage": message}, FunctionError="Unhandled")

    return fault


class FakeAws:
    """Lambda with `ingest`, `writer_flush` and `query`, S3, CloudFormation, and a queue that drops duplicates.

    Args:
        faults: one per invocation, in order; None, or an invocation after the last fault, gets a normal answer.
    """

    def __init__(self, clock: Clock, *, faults: Iterable[Fault | None] = ()) -> None:
        self.clock = clock
        self.faults = list(faults)
        self.payloads: list[bytes] = []
        self.times: list[float] = []
        self.delivered: dict[str, list[Row]] = {}
        self.objects: dict[str, bytes] = {}
        self.answer: Any = None  # what `query` returns
        self._last_sent: dict[tuple[str, str, int], float] = {}

    @property
    def events(self) -> list[Row]:
        return [json.loads(payload) for payload in self.payloads]

    def service(self, name: str, **_: object) -> FakeAws:
        assert name in ("lambda", "s3", "cloudformation")
        return self

    def invoke(self, *, FunctionName: str, Payload: bytes) -> Any:
        self.payloads.append(Payload)
        self.times.append(self.clock.monotonic())
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            return fault(self, Payload)
        if FunctionName.endswith("query:live"):
            return self.reply(self.answer)
        return self.reply(self.run(Payload))

    def run(self, payload: bytes) -> Row:
        """Put the rows on the queue; without a sequence, put them into the log."""
        event = json.loads(payload)
        key = (event["table"], event.get("producer", ""), event.get("sequence", -1))
        rows = [*self._rows(event)]
        if "sequence" not in event or self.clock.monotonic() - self._last_sent.get(key, -1e9) >= DEDUP_SECONDS:
            self._last_sent[key] = self.clock.monotonic()
            self.delivered.setdefault(event["table"], []).extend(rows)
        return {"rows": len(rows), "entries": [{"region": "r", "position": 7, "rows": len(rows)}], "messages": []}

    def _rows(self, event: Row) -> Iterable[Row]:
        if "object" in event or "arrow" in event:
            body = (
                self.objects["work/inbox/" + event["object"]] if "object" in event else base64.b64decode(event["arrow"])
            )
            for row in pa.ipc.open_stream(body).read_all().to_pylist():
                yield {**row, "op": event["op"]}
        for op in ("upserts", "deletes"):
            yield from ({**row, "op": op.removesuffix("s")} for row in event.get(op, ()))

    def reply(self, document: Any, **more: str) -> Any:
        return {"StatusCode": 200, "Payload": io.BytesIO(json.dumps(document).encode()), **more}

    def put_object(self, *, Bucket: str, Key: str, Body: bytes) -> None:
        assert Bucket == "lake"
        self.objects[Key] = Body

    def describe_stacks(self, *, StackName: str) -> Any:
        assert StackName == "lancelsm-dev-pipeline"
        return {"Stacks": [{"Outputs": [{"OutputKey": "Bucket", "OutputValue": "lake"}]}]}
