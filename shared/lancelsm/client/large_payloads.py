"""What exceeds an invocation: rows that travel by the bucket, answers behind a URL."""

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


def work_of(stage: str, *, service: Service) -> str:
    """`s3://BUCKET/work` of a stage, from the outputs of its stack."""
    name = f"lancelsm-{stage}-pipeline"
    remedy = "Give the client `work`, s3://BUCKET/work"
    found = outputs(name, service=service, remedy=remedy)
    if "Bucket" not in found:
        raise Invalid(f"the stack {name} names no bucket", remedy=remedy)
    return f"s3://{found['Bucket']}/work"


def outputs(stack: str, *, service: Service, remedy: str = "Deploy it, or name another stage") -> dict[str, str]:
    """The outputs of a stack by name; raises `Invalid` if it can't be read."""
    from botocore.exceptions import ClientError  # noqa: PLC0415 - an extra

    try:
        (found,) = service("cloudformation").describe_stacks(StackName=stack)["Stacks"]
    except ClientError as error:
        raise Invalid(f"the stack {stack} can't be read: {error}", remedy=remedy) from error
    return {output["OutputKey"]: output["OutputValue"] for output in found.get("Outputs", ())}


def put(work: str, key: str, body: bytes, *, service: Service) -> None:
    """Write an object below `work`. Raises `Unavailable`; nothing refers to it then."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    place = urlsplit(work)
    whole = f"{place.path.strip('/')}/{key}"
    try:
        service("s3", read_seconds=_SECONDS).put_object(Bucket=place.netloc, Key=whole, Body=body)
    except (BotoCoreError, ClientError) as error:
        raise Unavailable(
            f"rows could not be put into the bucket: {error}", object=f"s3://{place.netloc}/{whole}"
        ) from error


def fetched(url: str) -> list[dict[str, Any]]:
    """The rows behind a presigned URL: one JSON object a line."""
    if urlsplit(url).scheme not in ("https", "http"):
        raise Invalid("the answer names no URL of HTTP", url=url)
    try:
        with urlopen(url, timeout=_SECONDS) as reply:
            return [json.loads(line) for line in reply]
    except (URLError, OSError, ValueError) as error:
        raise Unavailable(f"the rows behind the answer's URL could not be read: {error}") from error
