"""Rows that don't fit: set aside while the others are applied in order, and driven back where nothing newer is."""

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
def mistaken(deployment: Deployment, table: Table) -> Iterator[None]:
    """The table's configuration says by mistake that `v` is never null."""
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


def set_aside(deployment: Deployment, table: Table, *messages: Versions) -> list[dict[str, Any]]:
    """Send messages to a writer that takes null for an error; returns the letters once the queue is empty."""
    handle = open_configured(table.uri)
    queue = SqsQueue(deployment.output("QueueUrl"), clock=SystemClock())
    inbox = Inbox.below(f"s3://{deployment.output('Bucket')}/work")
    with mistaken(deployment, table):
        for number, versions in enumerate(messages):
            some = upserts([{"id": key, "v": v} for key, v in versions.items()], schema=handle.config.schema)
            send(some, handle=handle, queue=queue, inbox=inbox, producer=table.uri, sequence=number, seconds=30)
        until(deployment.waiting, lambda left: left == 0)
        return dead_letters(deployment)


def dead_letters(deployment: Deployment) -> list[dict[str, Any]]:
    """What lies on the dead-letter queue; it stays there."""
    sqs, url = deployment.client("sqs"), deployment.output("DeadLetterUrl")
    found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages", [])
    for one in found:
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"], VisibilityTimeout=0)
    return [json.loads(one["Body"]) for one in found]


def redrive(deployment: Deployment, *more: str) -> list[dict[str, Any]]:
    """`lancelsm redrive` of this stage."""
    raised = io.StringIO()
    with contextlib.redirect_stdout(raised):
        assert cli.main(["redrive", "--stage", deployment.stage, "--output", "json", *more]) == 0
    found: list[dict[str, Any]] = json.loads(raised.getvalue())["dead_letters"]
    return found


def test_a_poison_row_in_the_middle_is_set_aside_and_comes_back_where_nothing_is_newer(deployment: Deployment) -> None:
    # Given a batch with two rows in the middle that don't fit, and a newer version of one of their keys behind them
    table = deployment.table("poison", COLUMNS)

    # When it is delivered
    (dead_letter,) = set_aside(deployment, table, {1: 1, 2: 1}, {2: 2, 3: None, 4: None, 5: 2}, {1: 3, 4: 3})

    # Then these rows alone are on the dead-letter queue, with the reason, and all others are applied in order
    aside = unpacked(base64.b64decode(dead_letter["message"]["rows"]))
    assert aside.column("id").to_pylist() == [3, 4]
    assert (dead_letter["reason"]["kind"], dead_letter["table"]) == ("Invalid", table.uri)
    assert "'v' is null" in dead_letter["reason"]["message"]
    assert history(table) == {1: [1, 3], 2: [1, 2], 4: [3], 5: [2]}

    # When the mistake is mended and they are driven back
    (asked,) = redrive(deployment)
    unchanged = history(table)
    (done,) = redrive(deployment, "--yes")

    # Then the row with nothing newer is there, and the other does not beat what is newer
    assert asked == done
    assert (done["verdict"], done["rows"], done["table"]) == ("appended", 1, table.uri)
    assert unchanged == {1: [1, 3], 2: [1, 2], 4: [3], 5: [2]}
    assert rows(table) == {1: 3, 2: 2, 3: None, 4: 3, 5: 2}
    assert deployment.waiting("DeadLetterUrl") == 0


def test_an_old_row_never_beats_a_newer_one_that_is_merged_before_it_is_driven_back(deployment: Deployment) -> None:
    # Given a row that was set aside, and a newer one of its key that went on into the base
    table = deployment.table("old", COLUMNS)
    set_aside(deployment, table, {7: None}, {7: 2})
    deployment.invoke("compaction", {"table": table.uri})
    deployment.invoke("merger", {"table": table.uri})

    # When it is driven back, it is dropped
    (done,) = redrive(deployment, "--yes")

    assert (done["verdict"], done["rows"]) == ("superseded", 0)
    assert rows(table) == {7: 2}
    assert deployment.waiting("DeadLetterUrl") == 0
