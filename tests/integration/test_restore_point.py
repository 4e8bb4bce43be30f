"""A table is restored as of a time, from the versions of objects that a bucket keeps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import lancelsm
from lancelsm.admin import restore_point as module
from lancelsm.admin.restore_point import restore_point
from lancelsm.common import aws
from lancelsm.errors import Corrupt, Invalid, Unavailable
from lancelsm.objects.bucket_versions import VersionedBucket
from tests.conformance.dynamodb import create_registry_table, dynamodb_client, environment_of
from tests.conformance.ministack import create_bucket, ministack, options

pytestmark = pytest.mark.rest

BEFORE = {0: "base", 1: "merged", 2: "flushed", 4: "written"}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ministack(tmp_path_factory.mktemp("ministack")) as endpoint, environment_of(endpoint):
        create_registry_table(dynamodb_client(endpoint), "registry")
        create_bucket(endpoint, "lake", versioned=True)
        yield endpoint


def second_passed() -> None:
    """Wait until S3 gives a new time to what is written."""
    time.sleep(1.1)


def rows(table: lancelsm.Table) -> dict[int, str]:
    return {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}


def write_past(name: str, endpoint: str, *, registry: str = "object") -> tuple[str, str]:
    """Create a table with rows at every level, then change all of it. Return its location and the time in between."""
    uri = f"s3://lake/{name}"
    table = lancelsm.create(
        uri,
        [{"id": n, "v": "base"} for n in range(4)],
        primary_key="id",
        regions="bucket(id, 2)",
        registry=registry,
        storage_options=options(endpoint),
    )
    table.upsert([{"id": 1, "v": "merged"}])
    table.run()
    table.upsert([{"id": 2, "v": "flushed"}])
    table.flush()
    table.upsert([{"id": 4, "v": "written"}])
    table.delete([3])
    table.snapshot("monday")
    second_passed()
    at = datetime.now(UTC).isoformat()
    second_passed()
    table.upsert([{"id": n, "v": "later"} for n in range(8)])
    table.run()
    table.drop_snapshot("monday")
    for _ in range(3):
        table.collect(yes=True, interval_seconds=0)
    return uri, at


@pytest.mark.parametrize("registry", ["object", "dynamodb:registry"])
def test_what_was_acknowledged_before_the_time_is_there(endpoint: str, registry: str) -> None:
    uri, at = write_past(f"orders-{registry[:6]}", endpoint, registry=registry)
    to = f"{uri}-restored"

    restored = restore_point(uri, to, at=at, registry="object", storage_options=options(endpoint), margin_seconds=0)

    table = lancelsm.open(to, storage_options=options(endpoint))
    assert rows(table) == BEFORE
    assert (restored.rows, restored.lost) == (4, ())
    assert table.scrub().problems == ()
    assert table.status().problems == ()
    table.upsert([{"id": 9, "v": "new"}])
    table.run()
    assert rows(table) == BEFORE | {9: "new"}
    assert rows(lancelsm.open(uri, storage_options=options(endpoint))) == dict.fromkeys(range(8), "later")


@pytest.mark.parametrize("registry", ["object", "dynamodb:registry"])
def test_a_dropped_table_is_restored_into_its_registry(endpoint: str, registry: str) -> None:
    uri, at = write_past(f"dropped-{registry[:6]}", endpoint, registry=registry)
    lancelsm.drop(uri, storage_options=options(endpoint))

    restored = restore_point(uri, f"{uri}-restored", at=at, storage_options=options(endpoint), margin_seconds=0)

    assert (restored.rows, restored.lost) == (4, None)
    assert rows(lancelsm.open(f"{uri}-restored", storage_options=options(endpoint))) == BEFORE


def test_a_restore_that_was_interrupted_at_any_copy_is_finished_by_the_same_call(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, at = write_past("interrupted", endpoint)
    copy, left = VersionedBucket.copy, [0]

    def failing(self: VersionedBucket, *arguments: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Unavailable("no answer")
        copy(self, *arguments)  # type: ignore[arg-type]

    def restore() -> int:
        found = restore_point(uri, f"{uri}-again", at=at, storage_options=options(endpoint), margin_seconds=0)
        return found.rows

    monkeypatch.setattr(VersionedBucket, "copy", failing)
    for left[0] in (0, 1, 9):
        with pytest.raises(Unavailable):
            restore()
        with pytest.raises(Invalid, match="no table at this location"):
            lancelsm.open(f"{uri}-again", storage_options=options(endpoint))
    monkeypatch.undo()
    with monkeypatch.context() as patched:
        patched.setattr(module, "rebuild", lambda handle: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            restore()
    with pytest.raises(Invalid, match="begun there"):
        restore_point(
            uri, f"{uri}-again", at=datetime.now(UTC).isoformat(), storage_options=options(endpoint), margin_seconds=0
        )
    assert restore() == 4
    assert rows(lancelsm.open(f"{uri}-again", storage_options=options(endpoint))) == BEFORE


def test_records_of_a_table_at_another_location_are_not_replaced(endpoint: str) -> None:
    uri, at = write_past("kept", endpoint, registry="dynamodb:registry")

    with pytest.raises(Invalid, match="has the records of this table at 's3://lake/kept'"):
        restore_point(uri, f"{uri}-restored", at=at, storage_options=options(endpoint), margin_seconds=0)


def test_versions_that_have_expired_are_named(endpoint: str) -> None:
    uri, at = write_past("expired", endpoint)
    client = aws.client("s3")
    for line in client.list_object_versions(Bucket="lake", Prefix="expired/data/")["Versions"]:
        if not line["IsLatest"] or line["LastModified"] < datetime.fromisoformat(at):
            client.delete_object(Bucket="lake", Key=line["Key"], VersionId=line["VersionId"])

    with pytest.raises(Corrupt, match="does not keep its version any more"):
        restore_point(uri, f"{uri}-restored", at=at, storage_options=options(endpoint), margin_seconds=0)


def test_what_can_not_be_restored_is_invalid(endpoint: str, tmp_path: Path) -> None:
    def refused(uri: str, *, to: str = "s3://lake/to", at: str = "2026-01-01T00:00:00Z") -> str:
        with pytest.raises(Invalid) as raised:
            restore_point(uri, to, at=at, storage_options=options(endpoint))
        return str(raised.value)

    create_bucket(endpoint, "plain")
    assert "keeps no versions" in refused("s3://plain/orders")
    assert "no table at this location at that time" in refused("s3://lake/nothing")
    assert "not a time with a zone" in refused("s3://lake/nothing", at="2026-01-01T00:00:00")
    assert "not a time with a zone" in refused("s3://lake/nothing", at="yesterday")
    assert "has not come yet" in refused("s3://lake/nothing", at="2126-01-01T00:00:00Z")
    assert "not a URL of S3" in refused(str(tmp_path))
