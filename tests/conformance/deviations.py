"""Where an implementation of AWS differs from AWS: tests that fail there, by a part of their name, and why.

A test in `MOTO` must fail, so that the list stays true. One in `MOTO_RACES` may fail.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from functools import cache

MOTO: Mapping[str, str] = {
    "test_random_swaps_have_the_same_outcome_as_in_memory[dynamodb": (
        "an UpdateItem that changes nothing and finds its record fails with status 500"
    ),
}
MOTO_RACES: Mapping[str, str] = {
    "racing": "two concurrent requests may both find their condition true",
}


def deviation(test: str) -> tuple[str, bool] | None:
    """Return why a test fails at the endpoint of this run, and whether it always does; None if it should pass."""
    if not _is_moto():
        return None
    found = ((why, known is MOTO) for known in (MOTO, MOTO_RACES) for part, why in known.items() if part in test)
    return next(found, None)


@cache
def _is_moto() -> bool:
    endpoint = os.environ.get("LANCELSM_TEST_ENDPOINT", "aws")
    if endpoint == "aws":
        return False
    try:
        with urllib.request.urlopen(f"{endpoint}/moto-api/", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False
