"""Deploy the stacks once, for all tests that use them, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lancelsm.common import aws
from tests.integration.deployment import Deployment, deployed


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests that use the stacks in one worker, so that they are deployed only once."""
    for item in items:
        if item.path.parent == Path(__file__).parent and "stacks" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("deployment"))


@pytest.fixture(scope="session")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("deployment")) as deployment:
        yield deployment


@pytest.fixture
def deployment(stacks: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """The stacks. AWS clients of this process use the account that they are deployed in."""
    for name, value in stacks.aws.environment.items():
        monkeypatch.setenv(name, value)
    aws.session.cache_clear()
    aws.client.cache_clear()
    stacks.clear()
    yield stacks
    aws.session.cache_clear()
    aws.client.cache_clear()
