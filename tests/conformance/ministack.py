"""Run a MiniStack on a free port of the loopback interface. Its S3 behaves as specified."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3

_SETTINGS = {"BIND_HOST": "127.0.0.1", "SFTP_ENABLED": "0", "IOT_MTLS_ENABLED": "0"}


@contextmanager
def ministack(directory: Path) -> Iterator[str]:
    """Run MiniStack with `directory` as its working directory. Yields its endpoint."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    log = directory / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "ministack.app"],
            env=os.environ | _SETTINGS | {"GATEWAY_PORT": str(port)},
            cwd=directory,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_until_ready(server, endpoint, log)
        yield endpoint
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def create_bucket(endpoint: str, bucket: str, *, versioned: bool = False) -> None:
    known = options(endpoint)
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=known["aws_region"],
        aws_access_key_id=known["aws_access_key_id"],
        aws_secret_access_key=known["aws_secret_access_key"],
    )
    client.create_bucket(Bucket=bucket)
    if versioned:
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})


def options(endpoint: str) -> dict[str, str]:
    """Return storage options as a user would write them."""
    return {
        "aws_access_key_id": "000000000000",
        "aws_secret_access_key": "secret",
        "aws_region": "us-east-1",
        "aws_endpoint": endpoint,
        "allow_http": "true",
    }


def _wait_until_ready(server: subprocess.Popen[bytes], endpoint: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{endpoint}/_localstack/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise AssertionError(f"MiniStack did not start: {log.read_text(errors='replace')[-2000:]}")
