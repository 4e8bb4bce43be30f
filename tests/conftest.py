"""Settings that every test runs with: hypothesis profiles, the group of Spark tests, and the cases of `one_case`."""

from __future__ import annotations

import pytest
from hypothesis import settings

# `make test` gives the same result every time; `make simulate` tries new seeds and prints them on failure.
# A shared machine may be slow, so examples have no deadline.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", derandomize=False, deadline=None, print_blob=True, max_examples=1_000)
settings.load_profile("repeatable")


_LONGEST_NAME = 60


def pytest_make_parametrize_id(val: object) -> str | None:
    """Cut long texts in the name of a case. Pytest numbers equal names."""
    text = val.decode("latin-1") if isinstance(val, bytes) else val
    long = isinstance(text, str) and len(text) > _LONGEST_NAME
    return f"{ascii(text[:_LONGEST_NAME])[1:-1]}..." if long else None  # type: ignore[index]


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker, and before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests that share the Spark session on one worker; mark all cases but the first of a `one_case` test."""
    met: set[str] = set()
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
        if item.get_closest_marker("one_case") and not item.get_closest_marker("long"):
            function = item.nodeid.partition("[")[0]
            if function in met:
                item.add_marker(pytest.mark.rest)
            met.add(function)
