"""Rejected rows are quarantined while the others are applied in order. Redrive appends them unless newer rows exist."""

from __future__ import annotations

import base64
import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from lancelsm import cli
from lancelsm.common.clock import SystemClock
from lancelsm.common.layout import CONFIG
from lancelsm.record.normalize import upserts
from lancelsm.region import config
from lancelsm.region.handle import open_configured
from lancelsm.stack.delivery.message import unpacked
from lancelsm.stack.delivery.queue import SqsQueue
from lancelsm.stack.delivery.send import send
from lancelsm.stack.delivery.table_cache import Inbox
from lancelsm.table import Table
from tests.integration.deployment import Deployment, history, rows, until

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.int64())])
Versions = Mapping[int, int | None]


@contextmanager
def with_wrong_schema(deployment: Deployment, table: Table) -> Iterator[None]:
    """Within the block, the table's configuration says wrongly that `v` is never null."""
    wrong = table.config.schema.columns.set(1, table.config.schema.columns.field("v").with_nullable(False))
    schema = replace(table.config.schema, columns=wrong)

    def put(content: config.Config) -> None:
        bucket, _, key = table.uri.removeprefix("s3://").partition("/")
        deployment.client("s3").put_object(Bucket=bucket, Key=f"{key}/{CONFIG}", Body=config.encode(content))

    put(replace(table.config, schema=schema))
    try:
        yield
    finally:
        put(table.config)


def quarantine(deployment: Deployment, table: Table, *messages: Versions) -> list[dict[str, Any]]:
    """Send messages to a writer that rejects nulls, and return the dead letters once the queue is empty."""
    handle = open_configured(table.uri)
    queue = SqsQueue(deployment.output("QueueUrl"), clock=SystemClock())
    inbox = Inbox.below(f"s3://{deployment.output('Bucket')}/work")
    with with_wrong_schema(deployment, table):
        for number, versions in enumerate(messages):
            prepared = upserts([{"id": key, "v": v} for key, v in versions.items()], schema=handle.config.schema)
            send(
                prepared,
                handle=handle,
                queue=queue,
                inbox=inbox,
                producer=table.uri,
                sequence=number,
                seconds=30,
            )
        until(deployment.waiting, lambda remaining: remaining == 0)
        return dead_letters(deployment)


def dead_letters(deployment: Deployment) -> list[dict[str, Any]]:
    """Return the dead letters without removing them from the queue."""
    sqs, url = deployment.client("sqs"), deployment.output("DeadLetterUrl")
    found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages", [])
    for one in found:
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"], VisibilityTimeout=0)
    return [json.loads(one["Body"]) for one in found]


def redrive(deployment: Deployment, *options: str) -> list[dict[str, Any]]:
    """Run `lancelsm redrive` for this stage and return what it reports on each dead letter."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert cli.main(["redrive", "--stage", deployment.stage, "--output", "json", *options]) == 0
    found: list[dict[str, Any]] = json.loads(output.getvalue())["dead_letters"]
    return found


@pytest.mark.rest
def test_rejected_rows_in_a_batch_are_quarantined_and_redriven_unless_superseded(deployment: Deployment) -> None:
    # Given a batch with two rejected rows in the middle, and a newer row for one of their keys after them
    table = deployment.table("poison", COLUMNS)

    # When it is applied
    (dead_letter,) = quarantine(deployment, table, {1: 1, 2: 1}, {2: 2, 3: None, 4: None, 5: 2}, {1: 3, 4: 3})

    # Then only these rows are in the dead-letter queue, with the reason, and all others are applied in order
    rejected = unpacked(base64.b64decode(dead_letter["message"]["rows"]))
    assert rejected.column("id").to_pylist() == [3, 4]
    assert (dead_letter["reason"]["kind"], dead_letter["table"]) == ("Invalid", table.uri)
    assert "'v' is null" in dead_letter["reason"]["message"]
    assert history(table) == {1: [1, 3], 2: [1, 2], 4: [3], 5: [2]}

    # When the schema is corrected and they are redriven
    (planned,) = redrive(deployment)
    unchanged = history(table)
    (done,) = redrive(deployment, "--yes")

    # Then the row without a newer one is appended, and the superseded row is not
    assert planned == done
    assert (done["verdict"], done["rows"], done["table"]) == ("appended", 1, table.uri)
    assert unchanged == {1: [1, 3], 2: [1, 2], 4: [3], 5: [2]}
    assert rows(table) == {1: 3, 2: 2, 3: None, 4: 3, 5: 2}
    assert deployment.waiting("DeadLetterUrl") == 0


@pytest.mark.rest
def test_redrive_drops_a_row_whose_newer_row_is_already_merged(deployment: Deployment) -> None:
    # Given a quarantined row, and a newer row of its key that is merged into the base
    table = deployment.table("old", COLUMNS)
    quarantine(deployment, table, {7: None}, {7: 2})
    deployment.invoke("compaction", {"table": table.uri})
    deployment.invoke("merger", {"table": table.uri})

    # When the quarantined row is redriven, it is dropped
    (done,) = redrive(deployment, "--yes")

    assert (done["verdict"], done["rows"]) == ("superseded", 0)
    assert rows(table) == {7: 2}
    assert deployment.waiting("DeadLetterUrl") == 0
