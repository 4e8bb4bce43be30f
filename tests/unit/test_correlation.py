"""The id of a call of `ingest` reaches the log line of the entry with its rows; each call logs one line at its end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lancelsm.stack.delivery.message import decode
from lancelsm.stack.function import Document, FunctionCall, function
from lancelsm.stack.telemetry import Telemetry
from tests.simulation.deployment import URI, Deployment
from tests.unit.test_delivery_events import answer_event, records
from tests.unit.test_function import Context

Lines = list[dict[str, Any]]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Lines:
    """The log lines of the test."""
    written: Lines = []
    monkeypatch.setattr(Telemetry, "log", lambda _self, message, **facts: written.append({"message": message, **facts}))
    return written


def lines(log: Lines, message: str) -> Lines:
    return [line for line in log if line["message"] == message]


def test_the_line_of_an_entry_names_the_requests_that_sent_its_rows(log: Lines) -> None:
    deployment = Deployment()
    for number, request in enumerate(["first", "second", ""]):
        deployment.send([(7, number)], sequence=number, request=request)

    answer_event(deployment, records(deployment.queue.receive()))

    (line,) = lines(log, "appended")
    head = deployment.region(7).head()
    assert line["requests"] == ["first", "second"]
    assert (line["table"], line["region"]) == (URI, deployment.region(7).id)
    assert (line["position"], line["rows"]) == (head.next_position - 1, 3)


def test_a_message_that_is_delivered_again_is_logged_with_its_request(log: Lines) -> None:
    deployment = Deployment()
    deployment.send([(7, 1)], sequence=1, request="first")
    batch = records(deployment.queue.receive())
    answer_event(deployment, batch)
    log.clear()

    answer_event(deployment, batch)

    (line,) = lines(log, "applied by an earlier delivery")
    assert (line["request"], line["table"], line["message_id"]) == ("first", URI, batch["Records"][0]["messageId"])


@pytest.mark.parametrize("request_id", [None, 7, ["x"], "x" * 101, {"a": 1}])
def test_a_message_with_another_kind_of_request_id_is_still_applied(request_id: Any) -> None:
    deployment = Deployment()
    deployment.send([(7, 1)], sequence=1, request="first")
    (delivery,) = deployment.queue.receive()
    assert decode(delivery.body).request == "first"
    document = json.loads(delivery.body)
    assert document["format"] == 1, "releases that don't know the field read the message"

    message = decode(json.dumps({**document, "request": request_id}))

    assert (message.request, message.rows) == ("", decode(delivery.body).rows)


def run(event: Document, answer: Document) -> None:
    def work(_event: Document, _call: FunctionCall) -> Document:
        return answer

    function(work)(event, Context())


def test_a_call_that_succeeds_logs_one_line_with_table_and_numbers(log: Lines) -> None:
    answer = {"rows": [{"secret": 1}], "url": "secret", "left": False, "count": 3, "document": {"secret": 1}}
    run({"table": "orders", "step": "merge", "upserts": [{"secret": 1}], "where": "secret"}, answer)

    counts = {"rows": 1, "left": False, "count": 3}
    assert log == [{"message": "done", "table": "orders", "step": "merge", "counts": counts}]


@pytest.mark.parametrize(("status", "logged"), [(200, 1), (400, 0), (503, 0)])
def test_an_error_that_a_url_answers_is_no_success(status: int, logged: int, log: Lines) -> None:
    run({"requestContext": {}}, {"statusCode": status, "body": "{}"})

    assert len(lines(log, "done")) == logged
