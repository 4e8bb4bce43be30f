"""Payloads that exceed an invocation: put rows into the bucket, and fetch query results behind a URL."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from lancelsm.client.invoke import Service
from lancelsm.errors import Invalid, Unavailable

Fetch = Callable[[str], bytes]
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
    client = service("cloudformation")  # first: it names the extra if boto3 is missing
    from botocore.exceptions import ClientError  # noqa: PLC0415 - optional dependency

    try:
        (found,) = client.describe_stacks(StackName=stack)["Stacks"]
    except ClientError as error:
        raise Invalid(f"the stack {stack} can't be read: {error}", remedy=remedy) from error
    return {output["OutputKey"]: output["OutputValue"] for output in found.get("Outputs", ())}


def put(work: str, key: str, body: bytes, *, service: Service) -> None:
    """Write an object below `work`. Raises `Unavailable`; nothing refers to the object then."""
    client = service("s3", read_seconds=_SECONDS)
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    location = urlsplit(work)
    bucket, full_key = location.netloc, f"{location.path.strip('/')}/{key}"
    try:
        client.put_object(Bucket=bucket, Key=full_key, Body=body)
    except (BotoCoreError, ClientError) as error:
        raise Unavailable(
            f"rows could not be put into the bucket: {error}", object=f"s3://{bucket}/{full_key}"
        ) from error


def fetch(url: str) -> bytes:
    """Fetch an answer behind a presigned URL. Raises `Unavailable` if it can't be read whole."""
    if urlsplit(url).scheme not in ("https", "http"):
        raise Invalid("the URL in the answer is not an HTTP URL", url=url)
    try:
        with urlopen(url, timeout=_SECONDS) as reply:
            body: bytes = reply.read()
            return body
    except (HTTPException, OSError, ValueError) as error:
        raise Unavailable(f"the rows at the answer's URL could not be read: {error}") from error


def decode_lines(body: bytes, *, rows: int) -> list[dict[str, Any]]:
    """Decode JSON lines. Raises `Unavailable` unless there are so many rows."""
    try:
        found = [json.loads(line) for line in body.splitlines()]
    except ValueError as error:
        raise Unavailable(f"the rows at the answer's URL are not JSON lines: {error}") from error
    _check_count(len(found), rows)
    return found


def decode_file(body: bytes, *, rows: int) -> Any:
    """Decode an Arrow IPC file to a `pyarrow.Table`. Raises `Unavailable` unless it has so many rows."""
    try:
        import pyarrow as pa  # noqa: PLC0415 - an app without pyarrow reads dicts
    except ModuleNotFoundError as error:
        raise Invalid("pyarrow is not installed", remedy="Install it, or read dicts with query or search") from error
    try:
        found = pa.ipc.open_file(pa.py_buffer(body)).read_all()
    except pa.ArrowException as error:
        raise Unavailable(f"the rows at the answer's URL are not an Arrow file: {error}") from error
    _check_count(found.num_rows, rows)
    return found


def _check_count(found: int, wanted: int) -> None:
    if found != wanted:
        raise Unavailable(f"the answer's URL has {found} rows, not {wanted}", remedy="Repeat the call")
