"""Rows pass through `ingest`, a FIFO queue and `writer_flush`, with the AWS services of MiniStack."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.cli import main
from lancelsm.common import aws
from lancelsm.common.clock import SystemClock
from lancelsm.common.layout import CONFIG, region_id
from lancelsm.region import config as configs
from lancelsm.region.config import Config
from lancelsm.region.handle import TableHandle, open_configured
from lancelsm.routing.route import route
from lancelsm.stack.delivery.message import Message, encode, group_id, packed
from lancelsm.stack.delivery.queue import Outgoing, SqsQueue
from lancelsm.stack.delivery.table_cache import Inbox
from tests.conformance.dynamodb import create_registry_table, dynamodb_client
from tests.conformance.ministack import create_bucket, ministack, options
from tests.handlers.conftest import load_function

ROOT = Path(__file__).parents[2]
COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("state", pa.string())])


@dataclass
class Context:
    aws_request_id: str
    function_name: str = "lancelsm-test"

    def get_remaining_time_in_millis(self) -> int:
        return 35_000


@dataclass
class Stack:
    """A deployment whose handlers run in this process."""

    uri: str
    queue_url: str
    dead_letter_url: str
    ingest: ModuleType
    writer_flush: ModuleType
    requests: int = 0

    def call(self, function: ModuleType, event: dict[str, Any]) -> dict[str, Any]:
        self.requests += 1
        answer: dict[str, Any] = function.handler(event, Context(f"request-{self.requests}"))
        return json.loads(json.dumps(answer))

    def poll(self) -> list[str]:
        """Apply one batch as an event source mapping would, and return the ids of failed messages."""
        sqs = aws.client("sqs")
        found = sqs.receive_message(
            QueueUrl=self.queue_url, MaxNumberOfMessages=10, MessageSystemAttributeNames=["All"]
        ).get("Messages", [])
        records = [
            {
                "messageId": one["MessageId"],
                "receiptHandle": one["ReceiptHandle"],
                "body": one["Body"],
                "attributes": one["Attributes"],
                "eventSource": "aws:sqs",
            }
            for one in found
        ]
        answer = self.call(self.writer_flush, {"Records": records})
        failed = [one["itemIdentifier"] for one in answer["batchItemFailures"]]
        for one in found:
            if one["MessageId"] not in failed:
                sqs.delete_message(QueueUrl=self.queue_url, ReceiptHandle=one["ReceiptHandle"])
        return failed

    def rows(self) -> dict[int, str]:
        table = lancelsm.open(self.uri)
        return {row["id"]: row["state"] for row in table.scan().to_arrow().to_pylist()}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ministack(tmp_path_factory.mktemp("ministack")) as endpoint:
        create_bucket(endpoint, "lake")
        create_registry_table(dynamodb_client(endpoint), "registry")
        yield endpoint


@pytest.fixture
def stack(endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Stack]:
    name = f"t{abs(hash(request.node.name)) % 10**8}"
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "000000000000",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
        "POWERTOOLS_DEV": "false",
    }
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    _forget_clients()
    sqs = aws.client("sqs")
    urls = [
        sqs.create_queue(QueueName=f"{name}-{kind}.fifo", Attributes={"FifoQueue": "true", "VisibilityTimeout": "30"})[
            "QueueUrl"
        ]
        for kind in ("writes", "dead-letters")
    ]
    uri = f"s3://lake/tables/{name}"
    lancelsm.create(
        uri,
        COLUMNS,
        primary_key="id",
        regions="bucket(id, 2)",
        registry="dynamodb:registry",
        storage_options=options(endpoint),
    )
    monkeypatch.setenv("LANCELSM_TABLES", "s3://lake/tables")
    monkeypatch.setenv("LANCELSM_WORK", "s3://lake/work")
    monkeypatch.setenv("LANCELSM_QUEUE_URL", urls[0])
    monkeypatch.setenv("LANCELSM_DEAD_LETTER_URL", urls[1])
    yield Stack(uri, *urls, load_function("ingest"), load_function("writer_flush"))
    _forget_clients()


def _forget_clients() -> None:
    aws.client.cache_clear()
    aws.session.cache_clear()


@pytest.mark.rest
def test_rows_pass_through_the_queue_in_order_and_once(stack: Stack) -> None:
    # Given requests in every form; one request of a producer is sent twice
    for number in range(3):
        event = {"table": stack.uri, "upserts": [{"id": 1, "state": f"s{number}"}, {"id": 2, "state": f"s{number}"}]}
        answer = stack.call(stack.ingest, {**event, "producer": "p", "sequence": number})
    again = stack.call(stack.ingest, {**event, "producer": "p", "sequence": 2})
    assert again == answer
    assert answer["rows"] == 2
    assert {tuple(one) for one in answer["messages"]} == {("region", "id", "sequence")}
    name = stack.uri.rpartition("/")[2]
    arrow = base64.b64encode(packed(pa.table({"id": [3], "state": ["arrow"]}))).decode()
    stack.call(stack.ingest, {"table": name, "arrow": arrow})
    Inbox.below("s3://lake/work").put("big.arrow", packed(pa.table({"id": [4], "state": ["x" * 3_000_000]})))
    stack.call(stack.ingest, {"table": name, "object": "big.arrow"})
    url = {"requestContext": {}, "body": json.dumps({"table": name, "deletes": [{"id": 2}]})}
    assert stack.call(stack.ingest, url)["statusCode"] == 200

    # When the queue is polled
    while stack.poll() or _waiting(stack.queue_url):
        pass

    # Then the table has the newest row of each key
    found = stack.rows()
    assert {key: value[:5] for key, value in found.items()} == {1: "s2", 3: "arrow", 4: "xxxxx"}
    assert stack.call(stack.writer_flush, {"table": name, "upserts": [{"id": 1, "state": "direct"}]})["rows"] == 1
    assert stack.rows()[1] == "direct"


def test_an_error_is_a_response_to_a_url_call_and_is_raised_by_an_invocation(stack: Stack) -> None:
    event = {"table": stack.uri, "upserts": [{"id": None, "state": "new"}]}

    answer = stack.call(stack.ingest, {"requestContext": {}, "body": json.dumps(event)})

    assert answer["statusCode"] == 400
    assert json.loads(answer["body"])["error"]["kind"] == "Invalid"
    with pytest.raises(lancelsm.errors.Invalid):
        stack.call(stack.ingest, event)


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore:.*column 'state' is nullable now:lancelsm.errors.LsmWarning")  # see Given
def test_rejected_rows_go_to_the_dead_letter_queue_and_redrive_appends_them(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a table that rejects rows without state, such a row, and a text that is not a message
    handle = open_configured(stack.uri)
    columns = pa.schema([field.with_nullable(False) for field in handle.config.schema.columns])
    _configure(handle, replace(handle.config, schema=replace(handle.config.schema, columns=columns)))
    stack.call(stack.ingest, {"table": stack.uri, "upserts": [{"id": 1, "state": "new"}]})
    rows = pa.table([[2], pa.nulls(1, pa.string()), [False]], schema=handle.config.schema.stored)
    (routed,) = route(rows, handle.target().regions)
    region = region_id(table=handle.config.table, spec_id=handle.target().regions.spec_id, values=routed.values)
    message = Message(table=stack.uri, region=region, values=routed.values, producer="p", sequence=1, rows=packed(rows))
    queue = SqsQueue(stack.queue_url, clock=SystemClock())
    group = group_id(handle.config.table, region)
    queue.send([Outgoing(body=encode(message), group=group, dedup="1"), Outgoing(body="what", group="g", dedup="2")])

    # When the batch is applied
    while stack.poll() or _waiting(stack.queue_url):
        pass

    # Then both are in the dead-letter queue, and the other row is in the table
    assert stack.rows() == {1: "new"}
    assert _redriven(stack, capsys) == ["left", "left"]

    # When the table accepts rows without state, redrive appends the row, but only with --yes
    _configure(handle, handle.config)
    assert _redriven(stack, capsys) == ["appended", "left"]
    assert 2 not in stack.rows()
    assert _redriven(stack, capsys, "--yes") == ["appended", "left"]
    assert _redriven(stack, capsys, "--yes") == ["left"]
    assert stack.rows() == {1: "new", 2: None}


def _configure(handle: TableHandle, config: Config) -> None:
    found = handle.context.objects.get(CONFIG)
    assert found is not None
    handle.context.objects.replace(CONFIG, configs.encode(config), expect=found.etag)


def _redriven(stack: Stack, capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """Run `lancelsm redrive` and return its verdict on each dead letter."""
    capsys.readouterr()
    assert main(["redrive", "--queue", stack.dead_letter_url, "--output", "json", *options]) == 0
    return sorted(one["verdict"] for one in json.loads(capsys.readouterr().out)["dead_letters"])


@pytest.mark.rest
def test_a_message_for_a_fenced_region_is_delayed_and_delivered_again(stack: Stack) -> None:
    # Given a region that belongs to another owner
    table = lancelsm.open(stack.uri)
    stack.call(stack.ingest, {"table": stack.uri, "upserts": [{"id": 1, "state": "new"}]})
    stack.poll()
    with table.writer(exclusive=True) as alone:
        alone.upsert([{"id": 1, "state": "alone"}])
        stack.call(stack.ingest, {"table": stack.uri, "upserts": [{"id": 1, "state": "waited"}]})

        # When its message is delivered, it fails and is not delivered again at once
        assert len(stack.poll()) == 1
        assert stack.poll() == []

    # Then it is applied when the region is released
    deadline = time.monotonic() + 30
    while stack.rows() != {1: "waited"} and time.monotonic() < deadline:
        stack.poll()
    assert stack.rows() == {1: "waited"}


def _waiting(url: str) -> int:
    found = aws.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    return int(found["Attributes"]["ApproximateNumberOfMessages"])
