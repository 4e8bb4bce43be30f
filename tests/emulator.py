"""The AWS that integration tests run on: an emulator of their own, or what LANCELSM_TEST_ENDPOINT names.

The clients come from localstack_client, so that the same tests run on LocalStack: set LANCELSM_TEST_ENDPOINT to its
endpoint, and AWS_ACCESS_KEY_ID to an account that it knows.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lancelsm.local import ACCOUNT, REGION, SECRET, server


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulator:
    """A running emulator: its endpoint, and the environment in which a process finds it."""

    endpoint: str
    account: str
    secret: str

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": self.account,
            "AWS_ALLOW_HTTP": "true",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_SECRET_ACCESS_KEY": self.secret,
        }

    def client(self, service: str, **credentials: str) -> Any:
        """A client that tries once; of the account's root, or of other credentials (key, secret, token)."""
        from botocore.config import Config
        from localstack_client.session import Session

        session = Session(
            aws_access_key_id=credentials.get("key", self.account),
            aws_secret_access_key=credentials.get("secret", self.secret),
            region_name=REGION,
            localstack_host=self.endpoint.partition("://")[2],
        )
        once = Config(retries={"total_max_attempts": 1}, read_timeout=120, signature_version=_signature(service))
        token = {"aws_session_token": credentials["token"]} if "token" in credentials else {}
        return session.client(service, config=once, **token)


@contextmanager
def emulator(directory: Path) -> Iterator[Emulator]:
    """Run one in a process of its own, with its files in `directory`, until the block ends."""
    given = os.environ.get("LANCELSM_TEST_ENDPOINT")
    if given:
        key, secret = os.environ.get("AWS_ACCESS_KEY_ID", ACCOUNT), os.environ.get("AWS_SECRET_ACCESS_KEY", SECRET)
        yield Emulator(endpoint=given, account=key, secret=secret)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = server.start(directory, port=port)
    try:
        yield Emulator(endpoint=endpoint, account=ACCOUNT, secret=SECRET)
    finally:
        server.stop(directory)


def _signature(service: str) -> str | None:
    """boto3 presigns for S3 in the old way, which no temporary credentials of a role fit, unless told otherwise."""
    return "s3v4" if service == "s3" else None
