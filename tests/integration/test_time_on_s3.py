"""Snapshots, the change stream and copies on an object store, with both kinds of registry for URLs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.common.layout import table_key
from lancelsm.errors import Invalid
from lancelsm.region.handle import open_table
from tests.conformance.dynamodb import create_registry_table, dynamodb_client, environment_of
from tests.conformance.ministack import create_bucket, ministack, options


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ministack(tmp_path_factory.mktemp("ministack")) as endpoint:
        create_registry_table(dynamodb_client(endpoint), "registry")
        yield endpoint


@pytest.fixture
def storage_options(endpoint: str) -> Iterator[dict[str, str]]:
    """Storage options of the bucket. The environment names the endpoint of DynamoDB."""
    with environment_of(endpoint):
        yield options(endpoint)


@pytest.mark.rest
@pytest.mark.parametrize("registry", ["object", "dynamodb:registry"])
def test_a_snapshot_is_read_cloned_and_backed_up_and_changes_are_streamed(
    endpoint: str, storage_options: dict[str, str], registry: str
) -> None:
    # Given a table with rows at every level, and a snapshot of it
    def rows(table: lancelsm.Table) -> dict[int, str]:
        return {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}

    bucket = f"lake-{registry.partition(':')[0]}"
    create_bucket(endpoint, bucket)
    uri, start = f"s3://{bucket}/orders", [{"id": n, "v": "base"} for n in range(4)]
    table = lancelsm.create(
        uri, start, primary_key="id", regions="bucket(id, 2)", registry=registry, storage_options=storage_options
    )
    table.upsert([{"id": 0, "v": "generation"}])
    table.flush()
    table.upsert([{"id": 1, "v": "tail"}])
    table.delete([2])
    table.snapshot("monday", "1h")
    expected = {0: "generation", 1: "tail", 3: "base"}

    # When more is written, and the snapshot is cloned and backed up
    table.upsert([{"id": n, "v": "later"} for n in range(4)])
    table.run()
    table.collect(yes=True, interval_seconds=0)
    at = lancelsm.open(uri, at="monday", storage_options=storage_options)
    handle = open_table(uri, storage_options=storage_options)
    clone_snapshot(handle, "monday", f"s3://{bucket}/clone", registry=registry)
    lancelsm.backup(at, f"s3://{bucket}/backup", storage_options=storage_options)
    lancelsm.restore(f"s3://{bucket}/backup", f"s3://{bucket}/restored", storage_options=storage_options)
    clone = lancelsm.open(f"s3://{bucket}/clone", storage_options=storage_options)
    assert clone.scrub().problems == ()
    restored = lancelsm.open(f"s3://{bucket}/restored", storage_options=storage_options)
    clone.run()

    # Then all copies have the rows of the snapshot, and the change stream has all changes
    assert rows(at) == rows(clone) == rows(restored) == expected
    assert rows(table) == dict.fromkeys(range(4), "later")
    stream = table.changes(cursor="sink", start="earliest")
    assert sum(change.rows.num_rows for change in stream) >= 4
    stream.save()
    assert list(table.changes(cursor="sink")) == []

    # And a dropped table leaves nothing
    with pytest.raises(Invalid, match="a clone shares the table's files"):
        lancelsm.drop(uri, storage_options=storage_options)
    for location in (f"s3://{bucket}/clone", uri):
        lancelsm.drop(location, storage_options=storage_options)
        with pytest.raises(Invalid, match="there is no table at this location"):
            lancelsm.open(location, storage_options=storage_options)
    assert list(handle.context.objects.list("")) == []
    for kind in "STLC":
        assert handle.context.registry.list(f"{kind}#{handle.context.table}") == []
    assert handle.context.registry.read(table_key(handle.context.table)) is None
    assert rows(restored) == expected
