"""One deployment for all tests that use it, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lancelsm.common import aws
from tests.integration.deployment import Deployment, deployed


@pytest.hookimpl(tryfirst=True)  # before xdist looks at groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker deploys, once."""
    for item in items:
        if item.path.parent == Path(__file__).parent and "stacks" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("deployment"))


@pytest.fixture(scope="session")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("deployment")) as made:
        yield made


@pytest.fixture
def deployment(stacks: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """The stacks, with this process as one of the account's own tools."""
    for name, value in stacks.aws.environment.items():
        monkeypatch.setenv(name, value)
    aws.session.cache_clear()
    aws.client.cache_clear()
    stacks.clear()
    yield stacks
    aws.session.cache_clear()
    aws.client.cache_clear()
