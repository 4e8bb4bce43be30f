"""Snapshots, the change stream and copies on an object store, with the registry beside the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lancelsm
from lancelsm.backup import back_up, restore
from lancelsm.clone import clone_snapshot
from lancelsm.dropping import drop_table
from lancelsm.errors import Invalid
from lancelsm.opening import open_table
from tests.conformance.ministack import make_bucket, ministack, options


@pytest.fixture(scope="module")
def storage_options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    directory: Path = tmp_path_factory.mktemp("ministack")
    with ministack(directory) as endpoint:
        make_bucket(endpoint, "lake")
        yield options(endpoint)


def test_a_snapshot_is_read_followed_cloned_backed_up_and_dropped(storage_options: dict[str, str]) -> None:
    # Given a table with rows at every level, and a snapshot of it
    def rows(table: lancelsm.Table) -> dict[int, str]:
        return {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}

    uri, start = "s3://lake/orders", [{"id": n, "v": "base"} for n in range(4)]
    table = lancelsm.create(uri, start, primary_key="id", regions="bucket(id, 2)", storage_options=storage_options)
    table.upsert([{"id": 0, "v": "generation"}])
    table.flush()
    table.upsert([{"id": 1, "v": "tail"}])
    table.delete([2])
    table.snapshot("monday", "1h")
    expected = {0: "generation", 1: "tail", 3: "base"}

    # When the table goes on, and the snapshot is cloned and backed up
    table.upsert([{"id": n, "v": "later"} for n in range(4)])
    table.run()
    table.collect(yes=True, interval_seconds=0)
    at = lancelsm.open(uri, at="monday", storage_options=storage_options)
    opened = open_table(uri, storage_options=storage_options)
    clone_snapshot(opened, "monday", "s3://lake/clone", storage_options=storage_options)
    back_up(at, "s3://lake/backup", storage_options=storage_options)
    restore("s3://lake/backup", "s3://lake/restored", storage_options=storage_options)
    clone = lancelsm.open("s3://lake/clone", storage_options=storage_options)
    restored = lancelsm.open("s3://lake/restored", storage_options=storage_options)
    clone.run()

    # Then each of them has the rows of the snapshot, and the stream the rows in their order
    assert rows(at) == rows(clone) == rows(restored) == expected
    assert rows(table) == dict.fromkeys(range(4), "later")
    stream = table.changes(cursor="sink", start="earliest")
    assert sum(change.rows.num_rows for change in stream) >= 4
    stream.save()
    assert list(table.changes(cursor="sink")) == []

    # And what is dropped leaves nothing
    with pytest.raises(Invalid, match="a clone shares its files"):
        drop_table(uri, storage_options=storage_options)
    for place in ("s3://lake/clone", uri):
        drop_table(place, storage_options=storage_options)
        with pytest.raises(Invalid, match="no table is there"):
            lancelsm.open(place, storage_options=storage_options)
    assert list(opened.storage.objects.list("")) == []
    assert rows(restored) == expected
