"""The doctor finds every fault of a deployment or a table, names it, and gives a remedy."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, NoCredentialsError

import lancelsm
from lancelsm.cli.doctor import _text
from lancelsm.common.clock import SeededIds
from lancelsm.stack.doctor import Check
from lancelsm.stack.doctor.checks import checks
from lancelsm.stack.doctor.facts import FUNCTIONS, CallFailed, DeploymentFacts, fetch
from lancelsm.stack.doctor.table_checks import table_checks
from tests.cli.conftest import as_json, run  # noqa: F401 - fixtures
from tests.cli.console import Json, Run
from tests.simulation.faults import FakeClock
from tests.unit import tables

ARN = "arn:aws:{}:us-east-1:111111111111:{}"
WRITES = ARN.format("sqs", "lancelsm-prod-writes.fifo")
DEAD_LETTERS = ARN.format("sqs", "lancelsm-prod-dead-letters.fifo")
GONE = CallFailed(code="ResourceNotFoundException", message="not found")

Change = Callable[[dict[str, Any]], Any]


def function(name: str) -> dict[str, Any]:
    return {
        "FunctionArn": ARN.format("lambda", f"function:lancelsm-prod-{name}"),
        "Runtime": "python3.13",
        "Architectures": ["arm64"],
        "MemorySize": 1024,
        "Timeout": 60,
        "State": "Active",
        "Layers": [{}],
        "Environment": {"Variables": {"LANCELSM_STACK": "s", "LANCELSM_TABLES": "s3://lake/tables"}},
    }


def healthy() -> DeploymentFacts:
    queue = {
        "FifoQueue": "true",
        "ContentBasedDeduplication": "false",
        "MessageRetentionPeriod": "1209600",
        "VisibilityTimeout": "360",
        "ApproximateNumberOfMessages": "0",
    }
    policy = json.dumps({"deadLetterTargetArn": DEAD_LETTERS, "maxReceiveCount": 1000})
    mapping = {
        "EventSourceArn": WRITES,
        "FunctionArn": ARN.format("lambda", "function:lancelsm-prod-writer_flush:live"),
        "State": "Enabled",
        "BatchSize": 10,
        "UUID": "u",
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
    }
    registry = {
        "TableName": "lancelsm-prod-registry",
        "TableArn": ARN.format("dynamodb", "table/lancelsm-prod-registry"),
        "TableStatus": "ACTIVE",
        "KeySchema": [
            {"AttributeName": "pk", "KeyType": "HASH"},
            {"AttributeName": "sk", "KeyType": "RANGE"},
        ],
        "GlobalSecondaryIndexes": [{"IndexName": "dirty"}],
        "DeletionProtectionEnabled": True,
    }
    return DeploymentFacts(
        stage="prod",
        region="us-east-1",
        caller={"Arn": "arn:aws:iam::111111111111:user/me"},
        skew_seconds=1.0,
        stacks={"state": {"StackStatus": "CREATE_COMPLETE"}, "pipeline": {"StackStatus": "UPDATE_COMPLETE"}},
        outputs={"Bucket": "lake"},
        bucket={"BucketRegion": "us-east-1"},
        probe={"absent": 404, "created": 200, "again": 412, "stale": 412, "replaced": 200},
        registry=registry,
        backups={
            "ContinuousBackupsDescription": {"PointInTimeRecoveryDescription": {"PointInTimeRecoveryStatus": "ENABLED"}}
        },
        queues={
            "QueueUrl": {**queue, "QueueArn": WRITES, "RedrivePolicy": policy},
            "DeadLetterUrl": {**queue, "QueueArn": DEAD_LETTERS},
        },
        functions={name: function(name) for name in FUNCTIONS},
        invocable={name: {"StatusCode": 204} for name in FUNCTIONS},
        mappings={"EventSourceMappings": [mapping]},
        machines={name: {"status": "ACTIVE", "type": "STANDARD"} for name in ("Merge", "Collect")},
        application={"releaseLabel": "emr-spark-8.0.0", "state": "CREATED", "architecture": "ARM64"},
    )


def failed_checks(facts: DeploymentFacts) -> dict[str, Check]:
    return {check.name: check for check in checks(facts) if not check.ok}


def changed(field: str, *path: Any, to: Any) -> DeploymentFacts:
    """Healthy facts with one changed value."""
    facts = healthy()
    value = deepcopy(getattr(facts, field))
    if not path:
        return replace(facts, **{field: to})
    inner = value
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = to
    return replace(facts, **{field: value})


def test_a_healthy_deployment_passes_every_check() -> None:
    assert failed_checks(healthy()) == {}


@pytest.mark.parametrize(
    ("facts", "name", "found", "remedy"),
    [
        (
            changed("caller", to=CallFailed(code="ExpiredToken", message="old")),
            "credentials",
            "ExpiredToken",
            "sso login",
        ),
        (changed("bucket", "BucketRegion", to="eu-west-1"), "region", "bucket in eu-west-1", "one region"),
        (changed("region", to="us-west-2"), "region", "ingest in us-east-1", "one region"),
        (changed("skew_seconds", to=-120.0), "clock", "120 s off", "NTP"),
        (changed("stacks", "state", "StackStatus", to="ROLLBACK_COMPLETE"), "stack state", "ROLLBACK", "events"),
        (
            changed("stacks", "pipeline", to=CallFailed(code="ValidationError", message="does not exist")),
            "stack pipeline",
            "does not exist",
            "make deploy STAGE=prod",
        ),
        (changed("bucket", to=CallFailed(code="403", message="Forbidden")), "bucket", "403", "may read it"),
        (changed("bucket", to=CallFailed(code="404", message="no")), "bucket", "404", "network"),
        (changed("probe", "absent", to=403), "absent objects", "403", "s3:ListBucket"),
        (changed("probe", "created", to=403), "conditional writes", "403", "s3:PutObject"),
        (changed("probe", "again", to=200), "conditional writes", "second create gives 200", "If-None-Match"),
        (changed("probe", "stale", to=200), "conditional writes", "stale If-Match gives 200", "If-Match"),
        (changed("registry", "KeySchema", to=[]), "registry", "key is", "pk and sk"),
        (changed("registry", "GlobalSecondaryIndexes", to=[]), "registry", "dirty", "make deploy"),
        (changed("registry", "DeletionProtectionEnabled", to=False), "registry", "protection is off", "protection"),
        (changed("registry", "Replicas", to=[{"RegionName": "x"}]), "registry", "global table", "replicas"),
        (changed("backups", to=GONE), "registry", "point-in-time recovery", "Turn it on"),
        (changed("queues", "QueueUrl", "FifoQueue", to="false"), "queue", "not a FIFO", "make deploy"),
        (changed("queues", "QueueUrl", "RedrivePolicy", to="{}"), "queue", "another queue", "make deploy"),
        (
            changed(
                "queues",
                "QueueUrl",
                "RedrivePolicy",
                to=json.dumps({"deadLetterTargetArn": DEAD_LETTERS, "maxReceiveCount": 3}),
            ),
            "queue",
            "3 receives",
            "make deploy",
        ),
        (
            changed("queues", "QueueUrl", "VisibilityTimeout", to="30"),
            "queue",
            "visibility timeout is 30 s",
            "make deploy",
        ),
        (changed("queues", "QueueUrl", "MessageRetentionPeriod", to="60"), "queue", "only 60 s", "make deploy"),
        (changed("queues", "DeadLetterUrl", "ApproximateNumberOfMessages", to="2"), "dead letters", "2", "redrive"),
        (changed("functions", "query", "Runtime", to="python3.9"), "function query", "python3.9", "3.13"),
        (changed("functions", "query", "Layers", to=[]), "function query", "no layer", "make build"),
        (changed("functions", "query", "State", to="Failed"), "function query", "Failed", "make deploy"),
        (changed("functions", "query", to=GONE), "function query", "NotFound", "make deploy"),
        (
            changed("functions", "query", "Environment", "Variables", "LANCELSM_TABLES", to="s3://other/tables"),
            "function query",
            "s3://other/tables",
            "make deploy",
        ),
        (changed("functions", "query", "Architectures", to=["x86_64"]), "function query", "x86_64", "make deploy"),
        (
            changed("invocable", "ingest", to=CallFailed(code="AccessDeniedException", message="no")),
            "invocation",
            "ingest (AccessDeniedException)",
            "lambda:InvokeFunction",
        ),
        (changed("mappings", "EventSourceMappings", to=[]), "delivery", "0 mappings", "make deploy"),
        (changed("mappings", "EventSourceMappings", 0, "State", to="Disabled"), "delivery", "Disabled", "--uuid u"),
        (changed("mappings", "EventSourceMappings", 0, "FunctionArn", to="x"), "delivery", "the alias live", "deploy"),
        (changed("mappings", "EventSourceMappings", 0, "FunctionResponseTypes", to=[]), "delivery", "whole", "deploy"),
        (changed("machines", "Merge", "status", to="DELETING"), "state machine merge", "DELETING", "make deploy"),
        (changed("machines", "Merge", "type", to="EXPRESS"), "state machine merge", "EXPRESS", "make deploy"),
        (changed("application", "releaseLabel", to="emr-6.9.0"), "Spark application", "emr-6.9.0", "emr-spark-8"),
        (changed("application", "architecture", to="X86_64"), "Spark application", "x86_64", "architecture"),
        (changed("application", "state", to="TERMINATED"), "Spark application", "terminated", "make deploy"),
        (changed("application", "initialCapacity", to={"D": {}}), "Spark application", "cost", "make deploy"),
    ],
)
def test_each_fault_is_found_and_has_a_remedy(facts: DeploymentFacts, name: str, found: str, remedy: str) -> None:
    check = failed_checks(facts)[name]

    assert found in check.found
    assert remedy in check.remedy


def test_one_fault_fails_only_one_check() -> None:
    assert set(failed_checks(changed("queues", "QueueUrl", "FifoQueue", to="false"))) == {"queue"}
    assert set(failed_checks(changed("backups", to=GONE))) == {"registry"}


def test_the_emulator_needs_no_layers_backups_or_deletion_protection() -> None:
    emulated = {"Environment": {"Variables": {"LANCELSM_STACK": "s", "AWS_ALLOW_HTTP": "true"}}, "Layers": []}
    facts = replace(healthy(), functions={name: {**function(name), **emulated} for name in FUNCTIONS})
    facts = replace(facts, registry={**facts.registry, "DeletionProtectionEnabled": False}, backups=GONE)  # type: ignore[dict-item]

    assert failed_checks(facts) == {}


@pytest.mark.parametrize(("kept", "failed"), [(True, {"registry"}), (False, set())])
def test_data_that_goes_with_its_stack_needs_no_deletion_protection(kept: bool, failed: set[str]) -> None:
    facts = changed("registry", "DeletionProtectionEnabled", to=False)
    state = {"StackStatus": "CREATE_COMPLETE", "EnableTerminationProtection": kept}

    assert set(failed_checks(replace(facts, stacks={**facts.stacks, "state": state}))) == failed


class NoAws:
    """A client without credentials: every call fails."""

    class meta:
        region_name = "us-east-1"

    def __getattr__(self, name: str) -> Any:
        def refuse(**_: Any) -> Any:
            raise NoCredentialsError

        return refuse


def test_without_credentials_every_check_fails_and_none_raises() -> None:
    facts = fetch("dev", service=lambda _: NoAws(), clock=FakeClock(), ids=SeededIds(1))

    found = failed_checks(facts)

    assert "credentials" in found
    assert all(check.remedy for check in found.values())


class Bucket:
    """S3 with one bucket, which honours the conditions of writes or ignores them."""

    def __init__(self, *, honours: bool) -> None:
        self.honours = honours
        self.objects: dict[str, bytes] = {}

    def head_bucket(self, *, Bucket: str) -> Any:
        return {"BucketRegion": "us-east-1"}

    def head_object(self, *, Bucket: str, Key: str) -> Any:
        return {"ETag": self.objects[Key].hex()}

    def get_object(self, *, Bucket: str, Key: str) -> Any:
        return self._fail(404)

    def put_object(
        self, *, Bucket: str, Key: str, Body: bytes, IfNoneMatch: str | None = None, IfMatch: str | None = None
    ) -> Any:
        stored = self.objects.get(Key)
        if self.honours and ((IfNoneMatch and stored is not None) or (IfMatch and (stored or b"").hex() != IfMatch)):
            return self._fail(412)
        self.objects[Key] = Body
        return {"ResponseMetadata": {"HTTPStatusCode": 200}}

    def _fail(self, status: int) -> Any:
        response: Any = {"Error": {"Code": str(status)}, "ResponseMetadata": {"HTTPStatusCode": status}}
        raise ClientError(response, "Any")


@pytest.mark.parametrize("honours", [True, False])
def test_the_probe_finds_out_whether_conditional_writes_are_honoured(honours: bool) -> None:
    class Aws(NoAws):
        def describe_stacks(self, *, StackName: str) -> Any:
            return {"Stacks": [{"StackStatus": "CREATE_COMPLETE", "Outputs": [_output("Bucket", "lake")]}]}

    bucket = Bucket(honours=honours)
    service: Any = lambda name: bucket if name == "s3" else Aws()  # noqa: E731
    facts = fetch("dev", service=service, clock=FakeClock(), ids=SeededIds(1))

    assert ("conditional writes" in failed_checks(facts)) is not honours
    assert "absent objects" not in failed_checks(facts)
    assert all(key.startswith("work/doctor/") for key in bucket.objects)


@pytest.mark.parametrize(("output_names", "missing"), [(("Bucket",), set()), ((), {"stack state"})])
def test_a_deployment_on_existing_resources_needs_no_state_stack(
    output_names: tuple[str, ...], missing: set[str]
) -> None:
    class Aws(NoAws):
        def describe_stacks(self, *, StackName: str) -> Any:
            if StackName == "lancelsm-dev-state":
                raise ClientError({"Error": {"Code": "ValidationError", "Message": "no such stack"}}, "DescribeStacks")
            outputs = [_output(name, "lake") for name in output_names]
            return {"Stacks": [{"StackStatus": "CREATE_COMPLETE", "Outputs": outputs}]}

    service: Any = lambda name: Bucket(honours=True) if name == "s3" else Aws()  # noqa: E731
    facts = fetch("dev", service=service, clock=FakeClock(), ids=SeededIds(1))

    assert {name for name in failed_checks(facts) if name.startswith("stack")} == missing


def _output(key: str, value: str) -> dict[str, str]:
    return {"OutputKey": key, "OutputValue": value}


def test_a_healthy_table_passes_every_check(tmp_path: Path) -> None:
    table = tables.create(tmp_path)
    table.upsert([tables.row(1)])

    assert all(check.ok for check in table_checks(table.uri))


def test_a_table_whose_appends_slow_down_needs_a_merge(tmp_path: Path) -> None:
    table = tables.create(tmp_path, settings={"pending_generations_slow": 1})
    table.upsert([tables.row(1)])
    table.flush()

    (check,) = [check for check in table_checks(table.uri) if not check.ok]

    assert "lancelsm merge" in check.remedy


def test_a_cursor_that_nobody_moves_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tables.create(tmp_path)
    table.set_cursor("used", start="earliest")
    table.set_cursor("left", start="earliest")
    table.upsert([tables.row(1)])
    table.set_cursor("used", start="latest")
    now = time.time()

    for days, wrong in ((6, []), (8, ["left has not read rows of 8 days ago, and keeps 1 entries of the log"])):
        monkeypatch.setattr("lancelsm.common.clock.SystemClock.now", lambda _, later=days: now + later * 86_400)
        failed = [check for check in table_checks(table.uri) if not check.ok]
        assert [check.found for check in failed] == wrong
    assert failed[0].remedy.endswith("--name left")


def test_the_doctor_command_exits_with_1_if_a_check_fails(run: Run, tmp_path: Path) -> None:  # noqa: F811
    done = run("doctor", tmp_path / "missing")

    assert done.code == 1
    assert "WRONG" in done.out
    assert "lancelsm init" in done.out


def test_the_doctor_command_reports_only_what_it_checked(run: Run, tmp_path: Path) -> None:  # noqa: F811
    table = lancelsm.create(tmp_path / "table", tables.COLUMNS, primary_key="id")

    last_line = run("doctor", table.uri).out.splitlines()[-1]

    assert last_line == f"All checks passed; to check all objects: lancelsm scrub {table.uri}"


def test_the_doctor_command_writes_json(as_json: Json, tmp_path: Path) -> None:  # noqa: F811
    lancelsm.create(tmp_path / "table", tables.COLUMNS, primary_key="id")

    document = as_json("doctor", tmp_path / "table")

    assert document["ok"] is True
    assert {frozenset(check) for check in document["checks"]} == {frozenset({"name", "ok", "found", "remedy"})}


def test_the_doctor_command_needs_a_table_or_a_stage(run: Run) -> None:  # noqa: F811
    assert run("doctor").code == 2


def test_a_remedy_of_many_checks_is_shown_once():
    wrong = [Check(name=f"part {number}", ok=False, found="missing", remedy="Deploy again") for number in range(5)]
    clock = Check(name="clock", ok=False, found="slow", remedy="Set it")
    assert _text([*wrong, clock], None).renderables[2:] == [
        "part 0 and 4 others: Deploy again",
        "clock: Set it",
    ]
