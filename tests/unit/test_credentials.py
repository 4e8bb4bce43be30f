"""Which credentials sign requests to S3, and when they are renewed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from importlib import util
from types import SimpleNamespace

import lance
import pytest

from lancelsm.common import aws
from lancelsm.common.clock import SeededIds
from lancelsm.errors import Invalid, Unavailable
from lancelsm.objects import Written
from lancelsm.objects import credentials as seam
from lancelsm.objects.cloud import CloudStore
from tests.conformance.stub import BUCKET, serving
from tests.simulation.faults import FakeClock

URL = f"s3://{BUCKET}/t"
LONG_AGO, FAR_AHEAD = 1_000_000_000.0, 4_000_000_000.0


class Credentials:
    """Credentials like botocore's. Each read returns a new key; if `broken` is set, renewal fails."""

    def __init__(self):
        self.reads = 0
        self.broken = False

    def get_frozen_credentials(self):
        if self.broken:
            raise RuntimeError("the login has expired")
        self.reads += 1
        return SimpleNamespace(access_key=f"KEY{self.reads}", secret_key="secret", token=f"token {self.reads}")


class Session:
    region_name = "eu-west-3"

    def __init__(self, credentials):
        self.credentials = credentials
        self.calls = 0

    def get_credentials(self):
        self.calls += 1
        return self.credentials


@pytest.fixture
def session(monkeypatch):
    """A boto3 session, in an environment without access keys."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SKIP_SIGNATURE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    session = Session(Credentials())
    monkeypatch.setattr(aws, "session", lambda: session)
    return session


@pytest.fixture
def stub():
    with serving() as stub:
        yield stub


def open_cloud_store(stub, *, at=FAR_AHEAD, **more):
    options = {"aws_endpoint": stub.endpoint, "allow_http": "true"} | more
    return CloudStore(URL, options, clock=FakeClock(at), ids=SeededIds(1))


def test_the_session_signs_if_no_option_or_variable_has_keys(session, stub):
    assert isinstance(open_cloud_store(stub).create("k", b"x"), Written)

    assert stub.signers == [("KEY1/eu-west-3", "token 1")]


def test_a_region_in_the_options_overrides_the_region_of_the_session(session, stub):
    open_cloud_store(stub, aws_region="us-west-1").get("k")

    assert stub.signers == [("KEY1/us-west-1", "token 1")]


def test_keys_that_are_still_valid_are_reused(session, stub):
    store = open_cloud_store(stub, at=FAR_AHEAD)
    for _ in range(5):
        store.get("k")

    assert session.credentials.reads == 1


def test_keys_that_may_have_expired_are_renewed(session, stub):
    store = open_cloud_store(stub, at=LONG_AGO)
    for _ in range(3):
        store.get("k")

    assert [signer for signer, _ in stub.signers] == ["KEY1/eu-west-3", "KEY2/eu-west-3", "KEY3/eu-west-3"]


def test_keys_expire_after_the_ten_minutes_that_botocore_promises():
    given = seam.SessionCredentials(Credentials(), region=None, clock=FakeClock(FAR_AHEAD))()

    assert given["expires_at"] == datetime.fromtimestamp(FAR_AHEAD, UTC) + timedelta(minutes=10)


def test_threads_share_one_store(session, stub):
    store = open_cloud_store(stub, at=LONG_AGO)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(store.get, [f"k{number}" for number in range(40)]))

    assert found == [None] * 40
    assert all(signer.endswith("/eu-west-3") for signer, _ in stub.signers)


def test_keys_that_cannot_be_renewed_are_unavailable_and_nothing_is_sent(session, stub):
    session.credentials.broken = True
    store = open_cloud_store(stub)

    for call in (lambda: store.get("k"), lambda: store.create("k", b"x"), lambda: list(store.list(""))):
        with pytest.raises(Unavailable, match="the login has expired") as raised:
            call()
        assert "aws sso login" in raised.value.remedy
    assert stub.requests == []


@pytest.mark.parametrize("name", ["aws_access_key_id", "access_key_id", "AWS_ACCESS_KEY_ID"])
def test_keys_in_the_options_need_no_session(session, stub, name):
    open_cloud_store(stub, **{name: "OPTION", "aws_secret_access_key": "s", "aws_region": "us-east-1"}).get("k")

    assert stub.signers == [("OPTION/us-east-1", None)]
    assert session.calls == 0


def test_keys_in_the_environment_need_no_session(session, stub, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_REGION", "us-east-2")

    open_cloud_store(stub).get("k")

    assert stub.signers == [("ENVIRONMENT/us-east-2", None)]
    assert session.calls == 0


def test_unsigned_requests_need_no_session(session, stub):
    open_cloud_store(stub, aws_skip_signature="true").get("k")

    assert stub.signers == [("", None)]
    assert session.calls == 0


@pytest.mark.parametrize("url", ["gs://bucket/t", "az://bucket/t"])
def test_stores_other_than_s3_need_no_session(session, url):
    assert seam.find_credentials(url, {}, clock=FakeClock()) is None
    assert session.calls == 0


def test_without_boto3_obstore_finds_credentials_itself(session, monkeypatch):
    monkeypatch.setattr(seam, "find_spec", lambda name: None if name == "boto3" else util.find_spec(name))

    assert seam.find_credentials(URL, {}, clock=FakeClock()) is None


def test_missing_credentials_are_invalid(session):
    session.credentials = None

    with pytest.raises(Invalid, match="no AWS credentials") as raised:
        seam.find_credentials(URL, {}, clock=FakeClock())
    assert "AWS_PROFILE" in raised.value.remedy


def test_lances_client_finds_keys_and_region_of_a_profile_itself(session, stub, monkeypatch, tmp_path):
    (tmp_path / "credentials").write_text("[mine]\naws_access_key_id = PROFILE\naws_secret_access_key = s\n")
    (tmp_path / "config").write_text("[profile mine]\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)

    with pytest.raises(ValueError, match="not found"):
        lance.dataset(URL, storage_options={"aws_endpoint": stub.endpoint, "allow_http": "true"})

    assert {signer for signer, _ in stub.signers} == {"PROFILE/eu-north-1"}
