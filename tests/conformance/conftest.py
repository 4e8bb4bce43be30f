"""The backends as fixtures: `described` says how to open one, in this process or in another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.backends import Description
from tests.conformance.ministack import make_bucket, ministack, options

BUCKET = "conformance"


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ministack(tmp_path_factory.mktemp("ministack")) as endpoint:
        make_bucket(endpoint, BUCKET)
        yield endpoint


@pytest.fixture
def described(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Description]:
    """From a backend's name to a description of a new, empty table in it."""

    def describe(backend: str) -> Description:
        if backend.endswith("memory"):
            return {"backend": backend}
        if backend.endswith("s3"):
            endpoint = request.getfixturevalue("s3_endpoint")
            uri = f"s3://{BUCKET}/{tmp_path.name}"
            return {"backend": backend, "uri": uri, "options": options(endpoint)}
        return {"backend": backend, "uri": str(tmp_path / "table")}

    return describe
