"""Deployments for tests of handlers: in a directory, and on an emulated AWS."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

import lancelsm
from lancelsm.common import aws
from lancelsm.stack import telemetry
from lancelsm.table import Table
from tests.conformance.dynamodb import create_registry_table
from tests.conformance.endpoint import RUN, serving

ROOT = Path(__file__).parents[2]
LAKE, REGISTRY = f"lake-{RUN}", f"registry-{RUN}"
FUNCTIONS = ROOT / "functions"
ORDERS = [{"id": key, "state": "paid" if key % 2 else "open"} for key in range(8)]


@dataclass(frozen=True)
class Context:
    """The part of Lambda's context that functions use."""

    aws_request_id: str = "00000000-0000-4000-8000-000000000001"
    function_name: str = "lancelsm-test-function"
    left: int = 60_000

    def get_remaining_time_in_millis(self) -> int:
        return self.left


Invoke = Callable[..., Any]


def load_function(name: str) -> Any:
    """Load the module of a function as a new environment does."""
    spec = importlib.util.spec_from_file_location(f"function_{name}", FUNCTIONS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their annotations there
    spec.loader.exec_module(module)
    for handler in telemetry._logger().handlers:  # the first test of the process created them
        handler.stream = sys.stdout  # each test has its own stdout
    return module


def event(name: str) -> Any:
    return json.loads((ROOT / "events" / f"{name}.json").read_text())


@dataclass(frozen=True)
class Deployment:
    """The locations of tables and work files, and the environment variables of the functions."""

    tables: str
    work: str
    registry: str | None
    environment: dict[str, str]

    def table(self, name: str = "orders", **options: Any) -> Table:
        """Create a table with the rows of `ORDERS` in its base."""
        arguments = {"registry": self.registry, "regions": "bucket(id, 2)", **options}
        return lancelsm.create(f"{self.tables}/{name}", ORDERS, primary_key="id", **arguments)


def _settings(tables: str, work: str) -> dict[str, str]:
    return {
        "LANCELSM_STACK": "lancelsm-test-pipeline",
        "LANCELSM_TABLES": tables,
        "LANCELSM_WORK": work,
        "LANCELSM_DISPATCH_QUEUE_URL": "http://127.0.0.1:1/111111111111/dispatch",
    }


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A deployment in a directory, for functions that only read and write tables."""
    tables, work = str(tmp_path / "tables"), str(tmp_path / "work")
    environment = _settings(tables, work)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Deployment(tables=tables, work=work, registry=None, environment=environment)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("endpoint")) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def cloud(endpoint: str) -> Iterator[Deployment]:
    """A deployment with a bucket and a registry in DynamoDB."""
    environment = {
        **_settings(f"s3://{LAKE}/tables", f"s3://{LAKE}/work"),
        "LANCELSM_REGISTRY": f"dynamodb:{REGISTRY}",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "111111111111",
        "AWS_SECRET_ACCESS_KEY": "test",  # the emulator checks links with it
        "AWS_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        aws.session.cache_clear()
        aws.client.cache_clear()
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=LAKE)
        create_registry_table(boto3.client("dynamodb", region_name="us-east-1"), REGISTRY)
        yield Deployment(
            tables=f"s3://{LAKE}/tables",
            work=f"s3://{LAKE}/work",
            registry=f"dynamodb:{REGISTRY}",
            environment=environment,
        )
    aws.session.cache_clear()
    aws.client.cache_clear()
