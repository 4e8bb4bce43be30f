"""Events and answers of the functions: batches of the queue, forms of requests, calls by URL, and light imports."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError

from lancelsm.errors import Fenced, Invalid, Unavailable
from lancelsm.stack import telemetry
from lancelsm.stack.delivery import events
from lancelsm.stack.delivery.message import packed
from lancelsm.stack.delivery.queue import Delivery, Outgoing, Sent, SqsQueue, identity
from lancelsm.stack.delivery.request import RowsInput, over_http, stored_rows, write
from lancelsm.stack.function import FunctionCall
from lancelsm.stack.telemetry import Telemetry
from tests.simulation.deployment import URI, Deployment
from tests.simulation.faults import FakeClock

ROOT = Path(__file__).parents[2]


def call() -> FunctionCall:
    return FunctionCall(id="request", seconds=30.0, telemetry=Telemetry(function="test"))


def records(deliveries: list[Delivery]) -> dict[str, Any]:
    """The event that Lambda builds from a batch of messages."""
    return {
        "Records": [
            {
                "messageId": one.id,
                "receiptHandle": one.receipt,
                "body": one.body,
                "attributes": {
                    "MessageGroupId": one.group,
                    "SequenceNumber": str(one.sequence),
                    "ApproximateReceiveCount": str(one.receives),
                },
            }
            for one in deliveries
        ]
    }


def answer_event(deployment: Deployment, event: dict[str, Any]) -> dict[str, Any]:
    return events.answer(
        event,
        call(),
        tables=deployment.tables,
        inbox=deployment.inbox,
        queue=deployment.queue,
        dead_letters=deployment.dead_letters,
    )


def test_an_applied_batch_leaves_nothing_on_the_queue():
    deployment = Deployment()
    deployment.send([(1, 1), (2, 1), (3, 1)], sequence=1)

    assert answer_event(deployment, records(deployment.queue.receive())) == {"batchItemFailures": []}
    assert deployment.queue.postponed == []


def test_failed_messages_are_reported_and_their_group_is_postponed_together():
    deployment = Deployment(buckets=1)
    deployment.put_text('{"format": 2}', like=7)
    deployment.send([(7, 1)], sequence=1)
    batch = deployment.queue.receive()

    answer = answer_event(deployment, records(batch))

    assert answer == {"batchItemFailures": [{"itemIdentifier": one.id} for one in batch]}
    ((receipts, seconds),) = deployment.queue.postponed
    assert receipts == tuple(one.receipt for one in batch)
    assert 2 <= seconds <= 3


def test_a_failed_postponement_does_not_change_the_answer():
    deployment = Deployment(buckets=1)
    deployment.put_text('{"format": 2}', like=7)
    batch = deployment.queue.receive()

    def refuse(*_: object, **__: object) -> None:
        raise Unavailable("not today")

    deployment.queue.postpone = refuse

    assert len(answer_event(deployment, records(batch))["batchItemFailures"]) == 1


def test_retry_delays_double_up_to_a_minute():
    assert [events.delay(receives, chance=0.0) for receives in (1, 2, 5, 6, 500)] == [2, 4, 32, 60, 60]
    assert events.delay(6, chance=0.999) == 75


def test_retries_last_longer_than_the_14_days_that_the_queue_keeps_a_message():
    assert sum(events.delay(receives, chance=0.0) for receives in range(1, 1000)) > 14 * 86400


def test_values_of_rows_are_not_logged(monkeypatch):
    deployment = Deployment(buckets=1)
    deployment.put((4711, None), like=4711)
    lines: list[str] = []
    monkeypatch.setattr(Telemetry, "log", lambda self, message, **facts: lines.append(f"{message} {facts}"))

    answer_event(deployment, records(deployment.queue.receive()))

    (line,) = lines
    assert "quarantined" in line
    assert "4711" not in line


def test_an_unexpected_error_is_logged_with_type_and_trace_but_without_its_text(monkeypatch):
    deployment = Deployment(buckets=1)
    deployment.send([(key := 4711, 1)], sequence=1)

    def find(table: str, **_: object) -> None:
        raise ZeroDivisionError(key)

    monkeypatch.setattr(deployment.tables, "find", find)
    lines: list[str] = []
    monkeypatch.setattr(telemetry, "_logger", lambda: RecordingLogger(lines))

    answer = answer_event(deployment, records(deployment.queue.receive()))

    assert len(answer["batchItemFailures"]) == 1
    assert "[ERROR] ZeroDivisionError" in lines[0]
    assert "in find" in lines[0]
    assert not any("4711" in line for line in lines)


class RecordingLogger:
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def __getattr__(self, level: str) -> Any:
        return lambda message, extra: self._lines.append(f"{level} {message} {extra}")


# Requests


def stored(deployment: Deployment, **given: Any) -> list[tuple[int, int | None, bool]]:
    rows = stored_rows(RowsInput(table=URI, **given), handle=deployment.handle, inbox=deployment.inbox).to_pylist()
    return [(row["id"], row["v"], row["_tombstone"]) for row in rows]


def test_a_request_carries_rows_as_json_as_arrow_or_by_reference():
    deployment = Deployment()
    stream = packed(pa.table({"v": [1], "id": [7]}))
    deployment.inbox.put("a.arrow", stream)
    keys = base64.b64encode(packed(pa.table({"id": [7]}))).decode()

    assert stored(deployment, upserts=[{"id": 7, "v": 1}]) == [(7, 1, False)]
    assert stored(deployment, arrow=base64.b64encode(stream).decode()) == [(7, 1, False)]
    assert stored(deployment, object="a.arrow") == [(7, 1, False)]
    assert stored(deployment, arrow=keys, op="delete") == [(7, None, True)]


def test_deletes_win_over_upserts_of_the_same_request():
    deployment = Deployment()
    given = {"upserts": [{"id": 7, "v": 1}, {"id": 8, "v": 1}], "deletes": [{"id": 7}]}
    assert stored(deployment, **given) == [(8, 1, False), (7, None, True)]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"upserts": [], "arrow": "AA=="},
        {"arrow": "no base64!"},
        {"arrow": "AA=="},
        {"object": "missing.arrow"},
        {"object": "../config.json"},
        {"upserts": [{"id": 7, "v": None}]},
        {"upserts": [{"id": 7}]},
        {"deletes": [{"id": 7, "v": 1}]},
    ],
)
def test_a_malformed_request_is_refused_and_the_error_names_the_table(given):
    with pytest.raises(Invalid) as refused:
        stored(Deployment(), **given)
    assert refused.value.where["table"] == URI


def test_a_direct_write_returns_region_and_position_of_its_rows():
    deployment = Deployment(buckets=1)
    rows = stored_rows(
        RowsInput(table=URI, upserts=[{"id": 7, "v": 1}]), handle=deployment.handle, inbox=deployment.inbox
    )

    answer = write(rows, handle=deployment.handle, seconds=10)

    region = deployment.region(7).id
    assert answer == {"rows": 1, "entries": [{"region": region, "position": 1, "rows": 1}]}


@pytest.mark.parametrize(("error", "status"), [(Invalid("no"), 400), (Fenced("no"), 409), (Unavailable("no"), 503)])
def test_an_error_of_a_call_by_url_becomes_an_http_answer(error, status):
    def work(event: object, call: FunctionCall) -> dict[str, Any]:
        raise error

    answer = over_http({"requestContext": {}, "body": "{}"}, call(), work)

    assert answer["statusCode"] == status
    assert json.loads(answer["body"])["error"]["message"] == "no"


@pytest.mark.parametrize("body", ["", "[]", "not JSON", "[" * 100_000])
def test_a_body_that_is_not_a_json_object_is_refused(body):
    answer = over_http({"requestContext": {}, "body": body}, call(), lambda event, call: event)
    assert answer["statusCode"] == 400


def test_a_base64_body_is_decoded():
    body = base64.b64encode(b'{"table": "a"}').decode()
    event = {"requestContext": {}, "body": body, "isBase64Encoded": True}
    assert json.loads(over_http(event, call(), lambda event, call: event)["body"]) == {"table": "a"}


# SQS


class Client:
    """A client that returns or raises the given answers of SQS."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def answer(**arguments: Any) -> Any:
            self.calls.append(name)
            found = self.answers[name]
            if isinstance(found, Exception):
                raise found
            return found

        return answer


def test_each_message_of_a_batch_has_its_own_outcome():
    client = Client(
        send_message_batch={
            "Successful": [{"Id": "1", "MessageId": "m", "SequenceNumber": "9"}],
            "Failed": [
                {"Id": "0", "SenderFault": False, "Code": "Busy"},
                {"Id": "2", "SenderFault": True, "Code": "X"},
            ],
        }
    )
    messages = [Outgoing(body="b", group="g", dedup=str(n)) for n in range(4)]

    outcomes = SqsQueue("url", clock=FakeClock(), client=client).send(messages)

    assert [type(one) for one in outcomes] == [Unavailable, Sent, Invalid, Unavailable]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ClientError({"Error": {"Code": "AccessDeniedException"}}, "SendMessageBatch"), Invalid),
        (ClientError({"Error": {"Code": "AWS.SimpleQueueService.NonExistentQueue"}}, "SendMessageBatch"), Invalid),
        (ClientError({"Error": {"Code": "ThrottlingException"}}, "SendMessageBatch"), Unavailable),
        (ConnectTimeoutError(endpoint_url="http://127.0.0.1"), Unavailable),
    ],
)
def test_errors_of_sqs_become_errors_of_lancelsm(error, kind):
    queue = SqsQueue("url", clock=FakeClock(), client=Client(send_message_batch=error))
    with pytest.raises(kind):
        queue.send([Outgoing(body="b", group="g", dedup="d")])


def test_received_messages_stay_invisible_long_enough_to_be_redriven():
    request = {}

    class Sqs:
        def receive_message(self, **arguments):
            request.update(arguments)
            return {}

    assert SqsQueue("url", clock=FakeClock(), client=Sqs()).receive() == []

    assert request["VisibilityTimeout"] >= 600  # the default of the queue is 30 s


def test_the_identity_of_a_queue_is_refreshed_before_its_name_can_be_reused():
    clock = FakeClock()
    attributes = {"QueueArn": "arn:aws:sqs:us-east-1:1:writes.fifo", "CreatedTimestamp": "1"}
    client = Client(get_queue_attributes={"Attributes": attributes})
    queue = SqsQueue("url", clock=clock, client=client)
    first = queue.identity()
    assert queue.identity() == first == identity(attributes)
    assert len(client.calls) == 1

    attributes["CreatedTimestamp"] = "2"
    clock.advance(59)

    assert queue.identity() != first
    assert len(first) == 16


# Functions


SETTINGS = {
    "LANCELSM_TABLES": "s3://bucket/tables",
    "LANCELSM_WORK": "s3://bucket/work",
    "LANCELSM_QUEUE_URL": "https://sqs/writes.fifo",
    "LANCELSM_DEAD_LETTER_URL": "https://sqs/dead-letters.fifo",
}


@pytest.mark.parametrize("name", ["ingest", "writer_flush"])
def test_the_write_functions_import_no_heavy_packages(name):
    heavy = ("numpy", "lance", "pydantic", "pyarrow.dataset", "aws_xray_sdk", "boto3")
    script = f"import sys; sys.modules |= dict.fromkeys({heavy}); import {name}"
    environment = os.environ | SETTINGS | {"PYTHONPATH": str(ROOT / "functions"), "AWS_REGION": "us-east-1"}

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )

    assert (done.returncode, done.stderr) == (0, "")
