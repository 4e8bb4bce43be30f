"""Tests that share something expensive are run by one worker."""

from __future__ import annotations

import pytest


def test_xdist_knows_the_group_of_every_test_that_has_one(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("no workers, or tests are not kept together")

    grouped = [item for item in request.session.items if item.get_closest_marker("xdist_group")]

    assert [item.nodeid for item in grouped if "@" not in item.nodeid.rpartition("]")[2]] == []
