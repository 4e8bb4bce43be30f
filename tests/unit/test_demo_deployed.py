"""The demo of a deployment, against functions that answer from a table in a directory."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from botocore.exceptions import ClientError
from rich.console import Console

import lancelsm
from lancelsm.common.clock import SeededIds
from lancelsm.compaction.maintenance import flush_table, merge_table
from lancelsm.demo import deployed
from lancelsm.demo.flights import KEY, flown, read_flights
from lancelsm.demo.stack_calls import DeployedStage
from lancelsm.errors import Contended, Invalid, LsmError
from lancelsm.record.json_lines import json_objects
from lancelsm.region.handle import open_table
from lancelsm.stack import documents
from lancelsm.stack.query import count_rows, key_rows
from tests.unit.flights import flights_of_days

Event = dict[str, Any]
TURNS = ((3, 31), (6, 30), (12, 31))


class FakeStack:
    """Lambda and Step Functions of a stage: rows wait on the queue until somebody reads so often.

    Args:
        reads: how many reads come before rows that were sent.
        losing: of these operations nothing arrives.
    """

    def __init__(self, tables: Path, *, reads: int = 1, losing: str = "") -> None:
        self.tables = tables
        self.reads = reads
        self.losing = losing
        self.queue: list[tuple[int, Event]] = []
        self.asked = 0
        self.engines: list[str] = []
        self.faults: list[LsmError] = []
        self.failure: Event | None = None

    @property
    def place(self) -> DeployedStage:
        return DeployedStage(stage="dev", tables=str(self.tables), registry="sqlite", machine="merge")

    def service(self, name: str, **_: object) -> FakeStack:
        assert name in ("lambda", "stepfunctions")
        return self

    def invoke(self, *, FunctionName: str, Payload: bytes) -> Any:
        event = json.loads(Payload)
        functions: dict[str, Callable[[Event], Any]] = {
            "lancelsm-dev-ingest": self.ingest,
            "lancelsm-dev-query": self.query,
            "lancelsm-dev-compaction": self.compaction,
        }
        if FunctionName.endswith("compaction") and self.faults:
            error = self.faults.pop()
            return reply({"errorType": error.kind, "errorMessage": json.dumps(error.document())}, FunctionError="x")
        return reply(functions[FunctionName](event))

    def ingest(self, event: Event) -> Event:
        self.queue.append((self.asked + self.reads, event))
        return {"rows": 1, "messages": [{}, {}]}

    def query(self, event: Event) -> Event:
        self.asked += 1
        while self.queue and self.queue[0][0] <= self.asked:
            self.write(self.queue.pop(0)[1])
        table = lancelsm.open(self.tables / event["table"])
        if event.get("count"):
            return {"count": count_rows(table)}
        return {"rows": list(json_objects(table.get(key_rows(event["keys"], table=table))))}

    def write(self, event: Event) -> None:
        rows = pa.ipc.open_stream(base64.b64decode(event["arrow"])).read_all()
        table = lancelsm.open(self.tables / event["table"])
        if event["op"] != self.losing:
            (table.upsert if event["op"] == "upsert" else table.delete)(rows)

    def compaction(self, event: Event) -> Event:
        return documents.flushed(flush_table(open_table(str(self.tables / event["table"]))))

    def start_execution(self, *, stateMachineArn: str, input: str) -> Event:  # noqa: A002 - boto3's name
        assert stateMachineArn == "merge"
        event = json.loads(input)
        self.engines.append(event["engine"])
        merged = merge_table(open_table(str(self.tables / event["table"])), engine="inprocess")
        output = {"engine": event["engine"], "merge": documents.merged(merged)}
        self.execution = {"status": "SUCCEEDED", "output": json.dumps(output)}
        return {"executionArn": "execution"}

    def describe_execution(self, *, executionArn: str) -> Event:
        assert executionArn == "execution"
        return self.failure or self.execution


class Hurrying:
    """A clock on which waiting is over at once, and takes a minute."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    monotonic = now

    def sleep(self, seconds: float) -> None:
        self.seconds += 60


def reply(document: Any, **more: str) -> Event:
    return {"Payload": io.BytesIO(json.dumps(document).encode()), **more}


@pytest.fixture(scope="module")
def some() -> pa.Table:
    """Flights of the days on which something happens."""
    return flights_of_days(read_flights(), days=TURNS, every=50)


def run(aws: FakeStack, some: pa.Table, *, console: Console | None = None) -> deployed.ShownOnAws:
    return deployed.run_demo(
        stage="dev",
        console=console or Console(file=io.StringIO()),
        flights=some,
        place=aws.place,
        service=aws.service,
        clock=Hurrying(),
        ids=SeededIds(1),
    )


def test_what_is_sent_through_a_deployment_ends_as_the_flights_that_flew(some: pa.Table, tmp_path: Path) -> None:
    aws, console = FakeStack(tmp_path), Console(file=io.StringIO())

    shown = run(aws, some, console=console)

    table = lancelsm.open(shown.table)
    by_key = [(name, "ascending") for name in KEY]
    assert table.scan().to_arrow().sort_by(by_key).equals(flown(some).sort_by(by_key))
    assert (shown.scheduled, shown.cancelled + shown.flown) == (some.num_rows, some.num_rows)
    assert shown.events == 2 * shown.flown + shown.cancelled
    assert (shown.messages, shown.usd > 0) == (2 * shown.requests, True)
    assert shown.generations == sum(region.merged_generation for region in table.status().regions)
    assert f"{shown.flown:,} flown" in console.file.getvalue()


def test_the_machine_decides_where_the_first_merge_runs_and_the_last_is_on_spark(
    some: pa.Table, tmp_path: Path
) -> None:
    aws = FakeStack(tmp_path)

    shown = run(aws, some)

    assert (aws.engines, shown.merges) == (["auto", "spark"], 2)


def test_rows_that_arrive_late_are_waited_for(some: pa.Table, tmp_path: Path) -> None:
    aws = FakeStack(tmp_path, reads=4)

    assert run(aws, some).flown == flown(some).num_rows


@pytest.mark.parametrize(("losing", "found"), [("upsert", "other rows"), ("delete", "instead of")])
def test_a_deployment_that_loses_rows_fails_the_demo(losing: str, found: str, some: pa.Table, tmp_path: Path) -> None:
    with pytest.raises(LsmError, match=f"the demo failed: a read found.*{found}"):
        run(FakeStack(tmp_path, losing=losing), some)


def test_a_flush_that_may_succeed_later_is_repeated(some: pa.Table, tmp_path: Path) -> None:
    aws = FakeStack(tmp_path)
    aws.faults = [Contended("another flush"), Contended("another flush")]

    assert run(aws, some).generations > 0


def test_a_flush_that_is_refused_ends_the_demo(some: pa.Table, tmp_path: Path) -> None:
    aws = FakeStack(tmp_path)
    aws.faults = [Invalid("no such table")]

    with pytest.raises(Invalid, match="no such table"):
        run(aws, some)


def test_a_merge_that_failed_says_why(some: pa.Table, tmp_path: Path) -> None:
    aws = FakeStack(tmp_path)
    aws.failure = {"status": "FAILED", "error": "Corrupt", "cause": "a generation is gone"}

    with pytest.raises(LsmError, match="FAILED, Corrupt: a generation is gone"):
        run(aws, some)


def test_a_place_is_read_from_the_stack_that_every_deployment_has() -> None:
    named = {"Bucket": "lake", "RegistryName": "dynamodb:names", "MergeMachine": "arn:merge"}
    outputs = {"lancelsm-dev-pipeline": named}

    class Stacks:
        def describe_stacks(self, *, StackName: str) -> Any:
            if StackName not in outputs:
                raise ClientError({"Error": {"Code": "ValidationError", "Message": "no such stack"}}, "DescribeStacks")
            given = outputs[StackName].items()
            return {"Stacks": [{"Outputs": [{"OutputKey": key, "OutputValue": value} for key, value in given]}]}

    def service(*_: object) -> Stacks:
        return Stacks()

    place = DeployedStage(stage="dev", tables="s3://lake/tables", registry="dynamodb:names", machine="arn:merge")
    assert DeployedStage.of("dev", service=service) == place
    with pytest.raises(Invalid, match="lancelsm-test-pipeline"):
        DeployedStage.of("test", service=service)
