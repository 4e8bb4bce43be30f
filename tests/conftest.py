"""Settings that every test runs with: hypothesis profiles, and the grouping of Spark tests on one worker."""

from __future__ import annotations

import pytest
from hypothesis import settings

# `make test` gives the same result every time; `make simulate` tries new seeds and prints them on failure.
# A shared machine may be slow, so examples have no deadline.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", derandomize=False, deadline=None, print_blob=True, max_examples=1_000)
settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests that share the expensive Spark session on one worker."""
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
