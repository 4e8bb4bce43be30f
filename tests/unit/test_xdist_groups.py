"""Tests that share an expensive session run on one xdist worker."""

from __future__ import annotations

import pytest


def test_xdist_knows_the_group_of_every_grouped_test(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("runs without xdist workers, or without --dist loadgroup")

    grouped = [item for item in request.session.items if item.get_closest_marker("xdist_group")]

    assert [item.nodeid for item in grouped if "@" not in item.nodeid.rpartition("]")[2]] == []
