"""The S3, DynamoDB and SQS of a test run: an emulator that it starts, or the endpoint in LANCELSM_TEST_ENDPOINT.

Names of buckets and tables end with `RUN`, so a second run at the same endpoint finds none of the first.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.ministack import ministack

RUN = uuid.uuid4().hex[:8]


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """Yield the endpoint. An emulator that this starts has `directory` as its working directory."""
    given = os.environ.get("LANCELSM_TEST_ENDPOINT", "aws")
    if given != "aws":
        yield given
        return
    with ministack(directory) as endpoint:
        yield endpoint
