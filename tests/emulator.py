"""Give integration tests an AWS: an emulator that the tests start, or the endpoint in LANCELSM_TEST_ENDPOINT.

Clients come from localstack_client, so the same tests also run on LocalStack: set LANCELSM_TEST_ENDPOINT to its
endpoint, and AWS_ACCESS_KEY_ID to one of its accounts. With LANCELSM_TEST_ENDPOINT=aws the tests run on AWS itself,
with the endpoints, credentials and region that boto3 finds.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local import ACCOUNT, REGION, SECRET, server

AWS = "aws"  # the value of LANCELSM_TEST_ENDPOINT that stands for AWS itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulator:
    """An endpoint and the credentials of its callers. The endpoint is None on AWS itself, where boto3 finds it."""

    endpoint: str | None
    account: str
    region: str
    key: str
    secret: str
    token: str | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables that point a process to this endpoint."""
        found = {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_REGION": self.region,
            "AWS_SECRET_ACCESS_KEY": self.secret,
        }
        if self.token is not None:
            found |= {"AWS_SESSION_TOKEN": self.token}
        if self.endpoint is not None:
            local = {"AWS_ALLOW_HTTP": "true", "AWS_EC2_METADATA_DISABLED": "true"}
            found |= {**local, "AWS_ENDPOINT_URL": self.endpoint}
        return found

    def client(self, service: str, **credentials: str) -> Any:
        """Create a client without retries. `credentials` (key, secret, token) replace the credentials of the tests."""
        from botocore.config import Config

        given = credentials or {"key": self.key, "secret": self.secret, "token": self.token}
        identity = {
            "aws_access_key_id": given["key"],
            "aws_secret_access_key": given["secret"],
            "aws_session_token": given.get("token"),
            "region_name": self.region,
        }
        once = Config(retries={"total_max_attempts": 1}, read_timeout=120, signature_version=_signature(service))
        if self.endpoint is None:
            import boto3

            return boto3.Session(**identity).client(service, config=once)
        from localstack_client.session import Session

        token = {"aws_session_token": identity.pop("aws_session_token")}
        session = Session(**identity, localstack_host=self.endpoint.partition("://")[2])
        return session.client(service, config=once, **token)


@contextmanager
def emulator(directory: Path) -> Iterator[Emulator]:
    """Use LANCELSM_TEST_ENDPOINT if it is set; otherwise run an emulator process until the block ends.

    The process keeps its files in `directory`.
    """
    given = os.environ.get("LANCELSM_TEST_ENDPOINT")
    if given == AWS:
        yield aws()
        return
    if given:
        key, secret = os.environ.get("AWS_ACCESS_KEY_ID", ACCOUNT), os.environ.get("AWS_SECRET_ACCESS_KEY", SECRET)
        yield Emulator(endpoint=given, account=key, region=REGION, key=key, secret=secret)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = server.start(directory, port=port)
    try:
        yield Emulator(endpoint=endpoint, account=ACCOUNT, region=REGION, key=ACCOUNT, secret=SECRET)
    finally:
        server.stop(directory)


def aws() -> Emulator:
    """AWS itself, with the credentials and region that boto3 finds. They must stay valid as long as the tests run."""
    import boto3

    session = boto3.Session()
    found = session.get_credentials()
    assert found is not None, "boto3 finds no credentials"
    assert session.region_name, "boto3 finds no region: set AWS_REGION"
    now = found.get_frozen_credentials()
    account = session.client("sts").get_caller_identity()["Account"]
    return Emulator(
        endpoint=None, account=account, region=session.region_name, key=now.access_key, secret=now.secret_key,
        token=now.token,
    )  # fmt: skip


def _signature(service: str) -> str | None:
    """Ask for S3 signature version 4: the boto3 default for presigned URLs fails with temporary credentials."""
    return "s3v4" if service == "s3" else None
