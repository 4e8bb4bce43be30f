"""The demo of a deployment, against fake functions that work on a table in a directory."""

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
MERGE_DAYS = ((3, 31), (6, 30), (12, 31))


class FakeStack:
    """Lambda and Step Functions of a stage. Sent rows become visible only after some more reads.

    Args:
        reads: how many reads pass before sent rows are visible.
        losing: rows of this operation are lost, `upsert` or `delete`.
    """

    def __init__(self, tables: Path, *, reads: int = 1, losing: str = "") -> None:
        self.tables = tables
        self.reads = reads
        self.losing = losing
        self.queue: list[tuple[int, Event]] = []
        self.reads_seen = 0
        self.engines: list[str] = []
        self.requests: list[str] = []  # of merges
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
            "lancelsm-dev-ingest:live": self.ingest,
            "lancelsm-dev-query:live": self.query,
            "lancelsm-dev-compaction:live": self.compaction,
        }
        if FunctionName.endswith("compaction:live") and self.faults:
            error = self.faults.pop()
            return reply({"errorType": error.kind, "errorMessage": json.dumps(error.document())}, FunctionError="x")
        return reply(functions[FunctionName](event))

    def ingest(self, event: Event) -> Event:
        self.queue.append((self.reads_seen + self.reads, event))
        return {"rows": 1, "messages": [{}, {}]}

    def query(self, event: Event) -> Event:
        self.reads_seen += 1
        while self.queue and self.queue[0][0] <= self.reads_seen:
            self.write(self.queue.pop(0)[1])
        table = lancelsm.open(self.tables / event["table"])
        if event.get("count"):
            return {"count": count_rows(table)}
        return {"rows": list(json_objects(table.get(key_rows(event["keys"], table=table))))}

    def write(self, event: Event) -> None:
        op = event.get("op", "upsert")
        rows = pa.ipc.open_stream(base64.b64decode(event["arrow"])).read_all() if "arrow" in event else event["upserts"]
        table = lancelsm.open(self.tables / event["table"])
        if op != self.losing:
            (table.upsert if op == "upsert" else table.delete)(rows)

    def compaction(self, event: Event) -> Event:
        return documents.flushed(flush_table(open_table(str(self.tables / event["table"]))))

    def start_execution(self, *, stateMachineArn: str, input: str) -> Event:  # noqa: A002 - boto3's name
        assert stateMachineArn == "merge"
        event = json.loads(input)
        self.requests.append(input)
        self.engines.append(event["engine"])
        merged = merge_table(open_table(str(self.tables / event["table"])), engine="inprocess")
        output = {"engine": event["engine"], "merge": documents.merged(merged)}
        self.execution = {"status": "SUCCEEDED", "output": json.dumps(output)}
        return {"executionArn": "execution"}

    def describe_execution(self, *, executionArn: str) -> Event:
        assert executionArn == "execution"
        return self.failure or self.execution


class SkippingClock:
    """A clock whose `sleep` returns at once and advances it by a minute."""

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
def some_flights() -> pa.Table:
    """Some flights of the days in `MERGE_DAYS`."""
    return flights_of_days(read_flights(), days=MERGE_DAYS, every=50)


def run(aws: FakeStack, some_flights: pa.Table, *, console: Console | None = None) -> deployed.ShownOnAws:
    return deployed.run_demo(
        stage="dev",
        console=console or Console(file=io.StringIO()),
        flights=some_flights,
        resources=aws.place,
        service=aws.service,
        clock=SkippingClock(),
        ids=SeededIds(1),
    )


@pytest.mark.rest
def test_the_demo_ends_with_the_flights_that_flew_in_the_deployed_table(some_flights: pa.Table, tmp_path: Path) -> None:
    aws, console = FakeStack(tmp_path), Console(file=io.StringIO())

    shown = run(aws, some_flights, console=console)

    table = lancelsm.open(shown.table)
    by_key = [(name, "ascending") for name in KEY]
    assert table.scan().to_arrow().sort_by(by_key).equals(flown(some_flights).sort_by(by_key))
    assert (shown.scheduled, shown.cancelled + shown.flown) == (some_flights.num_rows, some_flights.num_rows)
    assert shown.events == 2 * shown.flown + shown.cancelled
    assert (shown.messages, shown.usd > 0) == (2 * shown.requests, True)
    assert shown.generations == sum(region.merged_generation for region in table.status().regions)
    assert f"{shown.flown:,} flown" in console.file.getvalue()


@pytest.mark.rest
def test_the_first_merge_runs_where_the_state_machine_decides_and_the_last_on_spark(
    some_flights: pa.Table, tmp_path: Path
) -> None:
    aws = FakeStack(tmp_path)

    shown = run(aws, some_flights)

    assert (aws.engines, shown.merges) == (["auto", "spark"], 2)


@pytest.mark.rest
def test_the_demo_waits_for_rows_that_become_visible_late(some_flights: pa.Table, tmp_path: Path) -> None:
    aws = FakeStack(tmp_path, reads=4)

    assert run(aws, some_flights).flown == flown(some_flights).num_rows


@pytest.mark.one_case
@pytest.mark.parametrize(("losing", "found"), [("upsert", "other rows"), ("delete", "instead of")])
def test_a_deployment_that_loses_rows_fails_the_demo(
    losing: str, found: str, some_flights: pa.Table, tmp_path: Path
) -> None:
    with pytest.raises(LsmError, match=f"the demo failed: a read found.*{found}"):
        run(FakeStack(tmp_path, losing=losing), some_flights)


@pytest.mark.rest
def test_a_flush_that_fails_temporarily_is_retried(some_flights: pa.Table, tmp_path: Path) -> None:
    aws = FakeStack(tmp_path)
    aws.faults = [Contended("another flush"), Contended("another flush")]

    assert run(aws, some_flights).generations > 0


def test_a_flush_that_is_refused_ends_the_demo(some_flights: pa.Table, tmp_path: Path) -> None:
    aws = FakeStack(tmp_path)
    aws.faults = [Invalid("no such table")]

    with pytest.raises(Invalid, match="no such table"):
        run(aws, some_flights)


@pytest.mark.rest
def test_a_failed_merge_reports_its_cause(some_flights: pa.Table, tmp_path: Path) -> None:
    aws = FakeStack(tmp_path)
    aws.failure = {"status": "FAILED", "error": "Corrupt", "cause": "a generation is gone"}

    with pytest.raises(LsmError, match="FAILED, Corrupt: a generation is gone"):
        run(aws, some_flights)


def test_a_deployed_stage_is_read_from_the_outputs_of_its_pipeline_stack() -> None:
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
    assert DeployedStage.from_outputs("dev", service=service) == place
    with pytest.raises(Invalid, match="lancelsm-test-pipeline"):
        DeployedStage.from_outputs("test", service=service)
