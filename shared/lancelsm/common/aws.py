"""Create all clients of AWS services, so that credentials, region and endpoint have a single source.

That source is the session of botocore: environment, profile, container or instance role, `AWS_ENDPOINT_URL`.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from lancelsm.common.extras import needing
from lancelsm.errors import Invalid, Unavailable

_REFUSALS = ("AccessDenied", "NotFound", "DoesNotExist", "NoSuch", "Invalid", "Validation", "NoCredentials")


@cache
def client(service: str, *, region: str | None = None, read_seconds: int = 20) -> Any:
    """Return the client of this process for a service. It does not retry: the caller decides whether a retry is safe.

    Args:
        region: overrides the region of the session.
        read_seconds: the read timeout.

    Raises:
        Invalid: boto3 is missing, or no region is set.
    """
    current = session()
    from botocore.exceptions import NoRegionError  # noqa: PLC0415 - an extra

    try:
        return current.client(service, region_name=region, config=no_retry_config(read_seconds))
    except NoRegionError as error:
        raise Invalid("no AWS region is set", remedy="Set AWS_REGION, or a region in the profile") from error


def no_retry_config(read_seconds: int = 20) -> Any:
    """Return the configuration of a client that does not retry."""
    from botocore.config import Config  # noqa: PLC0415 - an extra

    return Config(
        # In the other modes, the last answer of DynamoDB is accepted even if its checksum is wrong.
        retries={"mode": "legacy", "total_max_attempts": 1},
        connect_timeout=3,
        read_timeout=read_seconds,
        tcp_keepalive=True,
        max_pool_connections=32,
    )


def one_thread_transfer(part_bytes: int) -> Any:
    """Return the configuration of an upload to S3 in parts of this size, one after the other."""
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(use_threads=False, multipart_threshold=part_bytes, multipart_chunksize=part_bytes)


def translated(error: Exception, *, doing: str, **where: str) -> Invalid | Unavailable:
    """Translate an error of botocore: `Invalid` if a retry would be refused too, else `Unavailable`.

    Args:
        doing: what failed, as the start of a sentence: "the merge can't be started".
    """
    answer = getattr(error, "response", {}).get("Error", {})
    code = answer.get("Code", type(error).__name__)
    if any(word in code for word in _REFUSALS):
        remedy = "Check that it exists, and check the grants of the role"
        return Invalid(f"{doing}: {code}: {answer.get('Message', '')}", remedy=remedy, **where)
    return Unavailable(f"{doing}: {code}", **where)


@cache
def session() -> Any:
    """Return the boto3 session of this process; raise `Invalid` if boto3 is not installed."""
    with needing("boto3", extra="aws"):
        import boto3

    # Lambda sets this variable, and obstore and Lance read the region from it; boto3 does not.
    return boto3.Session(region_name=os.environ.get("AWS_REGION") or None)  # noqa: TID251
