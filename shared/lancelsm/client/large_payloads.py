"""Payloads that exceed an invocation: put rows into the bucket, and fetch query results behind a URL."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from lancelsm.client.invoke import Service
from lancelsm.errors import Invalid, Unavailable

Fetch = Callable[[str], list[dict[str, Any]]]
_SECONDS = 60


def work_location(stage: str, *, service: Service) -> str:
    """Return `s3://BUCKET/work` of a stage, from the outputs of its stack."""
    name = f"lancelsm-{stage}-pipeline"
    remedy = "Give the client `work`, s3://BUCKET/work"
    found = outputs(name, service=service, remedy=remedy)
    if "Bucket" not in found:
        raise Invalid(f"the outputs of stack {name} have no bucket", remedy=remedy)
    return f"s3://{found['Bucket']}/work"


def outputs(stack: str, *, service: Service, remedy: str = "Deploy it, or name another stage") -> dict[str, str]:
    """Return the outputs of a stack by name. Raises `Invalid` if the stack can't be read."""
    from botocore.exceptions import ClientError  # noqa: PLC0415 - optional dependency

    try:
        (found,) = service("cloudformation").describe_stacks(StackName=stack)["Stacks"]
    except ClientError as error:
        raise Invalid(f"the stack {stack} can't be read: {error}", remedy=remedy) from error
    return {output["OutputKey"]: output["OutputValue"] for output in found.get("Outputs", ())}


def put(work: str, key: str, body: bytes, *, service: Service) -> None:
    """Write an object below `work`. Raises `Unavailable`; nothing refers to the object then."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    location = urlsplit(work)
    bucket, full_key = location.netloc, f"{location.path.strip('/')}/{key}"
    try:
        service("s3", read_seconds=_SECONDS).put_object(Bucket=bucket, Key=full_key, Body=body)
    except (BotoCoreError, ClientError) as error:
        raise Unavailable(
            f"rows could not be put into the bucket: {error}", object=f"s3://{bucket}/{full_key}"
        ) from error


def fetch_rows(url: str) -> list[dict[str, Any]]:
    """Fetch the rows behind a presigned URL, one JSON object per line."""
    if urlsplit(url).scheme not in ("https", "http"):
        raise Invalid("the URL in the answer is not an HTTP URL", url=url)
    try:
        with urlopen(url, timeout=_SECONDS) as reply:
            return [json.loads(line) for line in reply]
    except (URLError, OSError, ValueError) as error:
        raise Unavailable(f"the rows at the answer's URL could not be read: {error}") from error
