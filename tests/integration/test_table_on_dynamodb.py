"""A table on an object store with its registry in DynamoDB, written by several processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lancelsm
from tests.conformance.dynamodb import create_registry_table, dynamodb_client, environment_of
from tests.conformance.ministack import create_bucket, ministack, options

REGISTRY = "registry"
ROOT = Path(__file__).parents[2]
WRITER = """
import json, sys
import lancelsm
uri, options, name = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
table = lancelsm.open(uri, storage_options=options)
print("ready", flush=True)
sys.stdin.readline()
for turn in range(10):
    table.upsert([{"id": 0, "state": f"{name} {turn}"}, {"id": int(name) * 100 + turn, "state": "new"}])
"""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ministack(tmp_path_factory.mktemp("ministack")) as endpoint:
        create_bucket(endpoint, "lake")
        create_registry_table(dynamodb_client(endpoint), REGISTRY)
        yield endpoint


@pytest.fixture
def storage_options(endpoint: str) -> Iterator[dict[str, str]]:
    """Storage options of the bucket. The environment names the endpoint of DynamoDB."""
    with environment_of(endpoint):
        yield options(endpoint)


def _rows(table: lancelsm.Table) -> dict[int, str]:
    return {row["id"]: row["state"] for row in table.scan().to_arrow().to_pylist()}


def test_every_level_is_written_and_read(storage_options: dict[str, str]) -> None:
    # Given a table with rows in the base, in a generation and in the log
    uri = "s3://lake/orders"
    table = lancelsm.create(
        uri,
        [{"id": i, "state": "new"} for i in range(8)],
        primary_key="id",
        regions="bucket(id, 2)",
        registry=f"dynamodb:{REGISTRY}",
        storage_options=storage_options,
    )
    table.upsert([{"id": 1, "state": "paid"}, {"id": 100, "state": "new"}])
    table.delete([2])
    table.flush()
    table.upsert([{"id": 1, "state": "sent"}])
    expected = dict.fromkeys(range(8), "new") | {1: "sent", 100: "new"}
    del expected[2]

    # When it is opened by its URI and merged
    other = lancelsm.open(uri, storage_options=storage_options)
    before = _rows(other)
    merged = other.merge(engine="inprocess")

    # Then readers see every acknowledged row, before and after the merge
    assert before == _rows(table) == _rows(other) == expected
    assert merged.rows_deleted == 1
    assert other.get([1, 2]).to_pylist() == [{"id": 1, "state": "sent"}]


@pytest.mark.rest
def test_processes_share_an_epoch_and_lose_no_row(storage_options: dict[str, str]) -> None:
    # Given a table of one region
    uri = "s3://lake/shared"
    table = lancelsm.create(
        uri,
        [{"id": 0, "state": "new"}],
        primary_key="id",
        registry=f"dynamodb:{REGISTRY}",
        storage_options=storage_options,
    )

    # When two processes write to it at once while this one flushes
    command = [sys.executable, "-c", WRITER, uri, json.dumps(storage_options)]
    writers = [
        subprocess.Popen(
            [*command, name], cwd=ROOT, env=dict(os.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in ("1", "2")
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        table.flush()
        for writer in writers:
            writer.communicate(timeout=120)
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()

    # Then no entry is lost, the epoch is still the first, and the shared row has a last value of one writer
    (region,) = table.status().regions
    rows = _rows(table)
    assert [writer.returncode for writer in writers] == [0, 0]
    assert (region.next_position, region.epoch) == (21, 1)
    assert rows.pop(0) in ("1 9", "2 9")
    assert rows == {name * 100 + turn: "new" for name in (1, 2) for turn in range(10)}
