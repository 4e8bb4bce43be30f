"""What every test runs under."""

from __future__ import annotations

import pytest
from hypothesis import settings

# `make test` gives the same answer twice; `make simulate` looks further with new seeds (printed on failure).
# A shared machine may take any time for an example, so none has a deadline.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", derandomize=False, deadline=None, print_blob=True, max_examples=1_000)
settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)  # before xdist looks at groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that share one expensive process-wide session on one worker."""
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
