"""Integration tests run on the AWS that LANCELSM_TEST_ENDPOINT names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.emulator import emulator


class Caller:
    def get_caller_identity(self) -> dict[str, str]:
        return {"Account": "222222222222"}


def test_on_aws_boto3_chooses_endpoints_credentials_and_region(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Given a session with its own credentials, in another region
    given = {"AWS_ACCESS_KEY_ID": "ASIA", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token"}
    for name, value in {**given, "AWS_DEFAULT_REGION": "eu-west-1", "LANCELSM_TEST_ENDPOINT": "aws"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with monkeypatch.context() as patched:
        patched.setattr(boto3.Session, "client", lambda *_, **__: Caller())
        with emulator(tmp_path) as aws:
            assert aws.account == "222222222222"

    client: Any = aws.client("dynamodb")
    other: Any = aws.client("s3", key="AKIA", secret="other")

    assert client.meta.endpoint_url == "https://dynamodb.eu-west-1.amazonaws.com"
    assert client._request_signer._credentials.token == "token"
    assert other._request_signer._credentials.token is None
    assert aws.environment == {**given, "AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-1"}
    assert list(tmp_path.iterdir()) == []


def test_clients_of_a_given_endpoint_use_its_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LANCELSM_TEST_ENDPOINT", "http://127.0.0.1:4599")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "333333333333")

    with emulator(tmp_path) as aws:
        client: Any = aws.client("sqs")

    assert client.meta.endpoint_url == "http://127.0.0.1:4599"
    assert (aws.account, aws.environment["AWS_ENDPOINT_URL"]) == ("333333333333", "http://127.0.0.1:4599")
