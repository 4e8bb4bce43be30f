"""Fixtures for the backends: `described` returns how to open a backend in this process or in another one.

`LANCELSM_TEST_DYNAMODB` may hold the endpoint of another DynamoDB, such as DynamoDB Local's `http://127.0.0.1:8000`.
Its tables are created there and not removed. Without the variable the backend `dynamodb-other` is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.backends import Description
from tests.conformance.deviations import deviation
from tests.conformance.dynamodb import Proxy, create_registry_table, dynamodb_client, proxied
from tests.conformance.endpoint import RUN, serving
from tests.conformance.ministack import create_bucket, options

BUCKET = f"conformance-{RUN}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect the failures that are known of the implementation at the endpoint."""
    for item in items:
        if item.path.parent == Path(__file__).parent and (found := deviation(item.name)):
            item.add_marker(pytest.mark.xfail(reason=found[0], strict=found[1]))


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("endpoint")) as endpoint:
        create_bucket(endpoint, BUCKET)
        create_bucket(endpoint, f"versioned-{BUCKET}", versioned=True)
        yield endpoint


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[Proxy]:
    """A DynamoDB with scripted failures."""
    with proxied(s3_endpoint) as proxy:
        yield proxy


@pytest.fixture
def described(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Description]:
    """A function from the name of a backend to the description of a new, empty table in it."""

    def describe(backend: str) -> Description:
        if backend.endswith("memory"):
            return {"backend": backend}
        if backend.endswith("s3"):
            endpoint = request.getfixturevalue("s3_endpoint")
            uri = f"s3://{'versioned-' * backend.startswith('versioned')}{BUCKET}/{tmp_path.name}"
            return {"backend": backend, "uri": uri, "options": options(endpoint)}
        if backend.startswith("dynamodb"):
            endpoint = _dynamodb(backend, request)
            table = create_registry_table(dynamodb_client(endpoint), f"{tmp_path.name}-{RUN}")
            return {"backend": backend, "endpoint": endpoint, "table": table}
        return {"backend": backend, "uri": str(tmp_path / "table")}

    return describe


def _dynamodb(backend: str, request: pytest.FixtureRequest) -> str:
    if backend == "dynamodb-other":
        endpoint = os.environ.get("LANCELSM_TEST_DYNAMODB")
        if not endpoint:  # not included: the licence of DynamoDB Local forbids redistribution
            pytest.skip("LANCELSM_TEST_DYNAMODB is not set")
        return endpoint
    if backend == "dynamodb-stale-replica":
        return str(request.getfixturevalue("proxy").endpoint)
    return str(request.getfixturevalue("s3_endpoint"))
