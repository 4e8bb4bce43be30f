"""Functions in Lambda's own runtime client, with a bucket and a registry in DynamoDB."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest

from lancelsm.client.large_payloads import fetch
from lancelsm.stack.backlog import UNITS
from lancelsm.wal.claim import claim
from tests.conformance.dynamodb import create_registry_table
from tests.conformance.endpoint import RUN
from tests.handlers.conftest import FUNCTIONS, ORDERS, ROOT, Deployment, event
from tests.handlers.runtime_api import FunctionError, Runtime, runtime

LEAN = ("ingest", "writer_flush", "region_claim", "dispatch", "gc_round", "gc_sweep")
HEAVY = ("numpy", "lance", "pydantic", "pyarrow.dataset", "aws_xray_sdk")
SETTINGS = {
    "LANCELSM_TABLES": "s3://lake/tables",
    "LANCELSM_WORK": "s3://lake/work",
    "LANCELSM_REGISTRY": "dynamodb:registry",
    "LANCELSM_QUEUE_URL": "http://127.0.0.1:1/111111111111/writes.fifo",
    "LANCELSM_DEAD_LETTER_URL": "http://127.0.0.1:1/111111111111/dead.fifo",
    "LANCELSM_COMPACTION": "compaction",
    "LANCELSM_DISPATCH_QUEUE_URL": "http://127.0.0.1:1/111111111111/dispatch",
    "LANCELSM_MERGE_MACHINE": "arn:aws:states:us-east-1:111111111111:stateMachine:merge",
    "LANCELSM_WRITE_MAPPING": "00000000-0000-4000-8000-000000000001",
}


@contextmanager
def deploy(
    name: str, cloud: Deployment, directory: Path, *, seconds: float = 60.0, extra: Mapping[str, str] | None = None
) -> Iterator[Runtime]:
    """Run a function with the library of this repository, as its asset does."""
    environment = {**SETTINGS, **cloud.environment, "PYTHONPATH": str(ROOT / "shared"), **(extra or {})}
    with runtime(FUNCTIONS, f"{name}.handler", environment, log=directory / "log", seconds=seconds) as invoke:
        yield invoke


def error_of(invoke: Runtime, request: Any) -> FunctionError:
    with pytest.raises(FunctionError) as raised:
        invoke(request)
    return raised.value


def metrics(log: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [line for line in lines if "_aws" in line]


@pytest.mark.rest
def test_a_claim_a_flush_and_a_merge_work_in_the_cloud(cloud: Deployment, tmp_path: Path) -> None:
    table = cloud.table("pipeline")
    table.upsert([{"id": 0, "state": "sent"}])
    for region in table.list_regions():
        claim(region, owner="crashed")
    request = {"table": "pipeline"}

    with deploy("region_claim", cloud, tmp_path) as invoke:
        assert {one["owner"] for one in invoke(request)["regions"]} == {"default"}
    with deploy("compaction", cloud, tmp_path) as invoke:
        assert sum(one["rows"] for one in invoke(request)["generations"]) == 1
    with deploy("merger", cloud, tmp_path) as invoke:
        plan = invoke({"table": "pipeline", "step": "plan", "execution": "one"})
        merged = invoke({"table": plan["table"], "engine": plan["engine"], "result": plan["result"]})
        recorded = invoke({"table": "pipeline", "step": "record", "result": plan["result"]})

    assert plan["plan"] == f"{cloud.work}/steps/one/plan.json"
    assert merged == recorded["merge"]
    assert merged["rows_upserted"] == 1
    assert table.get([0]).to_pylist() == [{"id": 0, "state": "sent"}]
    log = (tmp_path / "log").read_text()
    for line in metrics(log):
        assert line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["function"]]
    assert '"table":"pipeline","step":"record"}' in log, "the line of a call that succeeded"


@pytest.mark.rest
def test_a_result_that_is_too_large_or_an_arrow_file_is_returned_as_a_link(cloud: Deployment, tmp_path: Path) -> None:
    table = cloud.table("wide", regions=None)
    rows = [{"id": key, "state": f"{key:09d}" * 100} for key in range(12_000)]
    table.upsert(rows)

    with deploy("query", cloud, tmp_path) as invoke:
        small = invoke({"table": "wide", "limit": 10})
        large = invoke({"table": "wide"})
        arrow = invoke({"table": "wide", "limit": 10, "format": "arrow"})

    body, file = fetch(large["url"]), fetch(arrow["url"])
    table_of_file = pa.ipc.open_file(file).read_all()
    assert (arrow["format"], arrow["rows"], arrow["bytes"]) == ("arrow", table_of_file.num_rows, len(file))
    assert table_of_file.to_pylist() == small["rows"]
    found = [json.loads(line) for line in body.splitlines()]
    assert len(small["rows"]) == 10
    assert (large["rows"], large["bytes"]) == (len(found), len(body))
    assert sorted(found, key=lambda row: row["id"]) == rows


def test_an_error_is_returned_as_its_kind_and_document(cloud: Deployment, tmp_path: Path) -> None:
    with deploy("query", cloud, tmp_path) as invoke:
        absent = error_of(invoke, {"table": "nothing"})
        wrong = error_of(invoke, {"table": "nothing", "colour": "red"})

    assert (absent.kind, absent.document["kind"]) == ("Invalid", "Invalid")
    assert absent.document["table"] == f"{cloud.tables}/nothing"
    assert wrong.document["field"] == "colour"


@pytest.mark.rest
def test_no_value_of_a_row_is_logged(cloud: Deployment, tmp_path: Path) -> None:
    cloud.table("secrets")
    secret = "a-secret-value"

    with deploy("query", cloud, tmp_path) as invoke:
        for request in (
            {"table": "secrets", "key": secret},
            {"table": "secrets", "keys": secret},
            {"table": "secrets", "where": f"id = '{secret}'"},
        ):
            assert error_of(invoke, request).kind == "Invalid"
        log = invoke.log
    with deploy("apply", cloud, tmp_path) as invoke:
        for request in (
            {"table": "secrets", "op": "update", "where": "true", "set": {"state": f"'{secret}"}},
            {"table": "secrets", "op": "update", "where": "true", "set": {"state": f"{secret.replace('-', '_')} + 1"}},
            {"table": "secrets", "op": "update", "where": f"id = '{secret}'", "set": {"state": "'x'"}},
            {"table": "secrets", "upserts": [{"id": secret}], "partial": True},
            {"table": "secrets", "upserts": [{"id": 1, "state": secret}], "if_unchanged": secret},
        ):
            assert error_of(invoke, request).kind == "Invalid"
        assert invoke({"table": "secrets", "upserts": [{"id": 1, "state": secret}], "if_absent": True})["skipped"] == 1
        log += invoke.log

    assert "Invalid" in log
    assert secret not in log
    assert secret.replace("-", "_") not in log


@pytest.mark.rest
def test_a_function_without_a_required_setting_fails_when_it_starts(cloud: Deployment, tmp_path: Path) -> None:
    with deploy("query", cloud, tmp_path, extra={"LANCELSM_WORK": ""}) as invoke:
        missing = error_of(invoke, event("query"))

    assert missing.kind == "Invalid"
    assert "LANCELSM_WORK" in missing.document["message"]


@pytest.mark.rest
def test_a_killed_flush_is_finished_by_the_next_flush(cloud: Deployment, tmp_path: Path) -> None:
    table = cloud.table("killed", settings={"flush_rows": 1})
    for order in ORDERS:
        table.upsert([order])

    # The first timeout ends the function while it starts, the last one is long enough.
    ended: list[str] = []
    for seconds in (0.1, 1.0, 2.0, 3.0, 4.0, 60.0):
        with deploy("compaction", cloud, tmp_path, seconds=seconds) as invoke:
            try:
                invoke({"table": "killed"})
                break
            except FunctionError as error:
                ended.append(error.kind)

    assert set(ended) == {"Sandbox.Timedout"}
    assert sum(one.wal_rows for one in table.status().regions) == 0
    assert sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == ORDERS


@pytest.mark.parametrize("name", LEAN)
def test_a_lean_function_starts_without_heavy_packages(name: str) -> None:
    # pyarrow imports numpy if it is installed, so the script hides the heavy packages instead.
    script = f"import sys; sys.modules |= dict.fromkeys({HEAVY}); import {name}; {name}.handler"
    aws = {"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "111111111111", "AWS_SECRET_ACCESS_KEY": "secret"}
    environment = {**SETTINGS, **aws, "PYTHONPATH": f"{ROOT / 'shared'}:{FUNCTIONS}"}

    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.rest
def test_the_scheduled_dispatch_names_the_state_of_the_mapping_of_the_write_queue(
    cloud: Deployment, tmp_path: Path
) -> None:
    queue, compute, iam = (boto3.client(name, region_name="us-east-1") for name in ("sqs", "lambda", "iam"))
    by_lambda = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [by_lambda]})
    role = iam.create_role(RoleName=f"writer-{RUN}", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    create_registry_table(boto3.client("dynamodb", region_name="us-east-1"), f"idle-{RUN}")
    url = queue.create_queue(QueueName=f"writes-{RUN}")["QueueUrl"]
    arn = queue.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    compute.create_function(
        FunctionName=f"writer_flush-{RUN}",
        Runtime="python3.11",
        Handler="writer_flush.handler",
        Role=role,
        Code={"ZipFile": b"PK\x05\x06" + bytes(18)},  # an empty archive
    )
    mapping = compute.create_event_source_mapping(EventSourceArn=arn, FunctionName=f"writer_flush-{RUN}", Enabled=False)
    extra = {"LANCELSM_REGISTRY": f"dynamodb:idle-{RUN}", "LANCELSM_WRITE_MAPPING": mapping["UUID"]}

    with deploy("dispatch", cloud, tmp_path, extra=extra) as invoke:
        answer = invoke({})
        compute.delete_event_source_mapping(UUID=mapping["UUID"])
        unknown = invoke({})

    assert answer == {"flushed": [], "merges": [], "queued": 0, "delivery": "Disabled"}
    log = (tmp_path / "log").read_text()
    assert "the event source mapping is Disabled: messages of the write queue wait" in log
    assert unknown["delivery"] == "Unknown"
    assert [line["heartbeat"] for line in metrics(log)] == [[1.0], [1.0]]
    assert not any(UNITS.keys() & line.keys() for line in metrics(log)), "nothing waits: these metrics would cost"


@pytest.mark.rest
def test_dispatch_starts_the_merge_that_is_due(cloud: Deployment, tmp_path: Path) -> None:
    machine = boto3.client("stepfunctions", region_name="us-east-1").create_state_machine(
        name=f"merge-{RUN}",
        definition=json.dumps({"StartAt": "Wait", "States": {"Wait": {"Type": "Wait", "Seconds": 600, "End": True}}}),
        roleArn="arn:aws:iam::111111111111:role/merge",
    )["stateMachineArn"]
    table = cloud.table("due")
    table.upsert(ORDERS)
    table.flush()
    extra = {"LANCELSM_MERGE_GENERATIONS": "1", "LANCELSM_MERGE_MACHINE": machine}

    with deploy("dispatch", cloud, tmp_path, extra=extra) as invoke:
        only = {"table": table.uri}
        (first,) = invoke(only)["merges"]
        again = invoke(only)

    assert table.config.table in first
    assert again == {"flushed": [], "merges": [], "queued": 0}
    log = (tmp_path / "log").read_text()
    before, after = metrics(log)
    assert before["pending_generations"] == after["pending_generations"] == [1.0]
    assert 0 < before["merge_lag_seconds"][0] < 600
    assert "heartbeat" not in before, "a call for one table is no run of the schedule"
    assert ("running_merge_seconds" in before, after["running_merge_seconds"][0] < 600) == (False, True)
    waits = [line for line in map(json.loads, log.splitlines()) if line.get("message") == "waits"]
    (region, *others) = {line["region"] for line in waits}
    assert (region in {one.id for one in table.list_regions()}, others) == (True, [])
