"""Collections by the state machine: merges start them, unneeded objects are deleted, and reads do not change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

import lancelsm
from lancelsm.common.layout import Position, wal_entry
from lancelsm.table import Table
from tests.integration.deployment import Deployment, rows, until

AT_ONCE = {"collect_interval_seconds": 1, "keep_versions_seconds": 1, "skew_allowance_seconds": 1}
ORPHAN = "data/of-a-merge-that-crashed.lance"


def collections(deployment: Deployment, table: Table) -> list[str]:
    """Return the executions of the collect machine for a table, oldest first."""
    pages = deployment.client("stepfunctions").get_paginator("list_executions")
    listed = pages.paginate(stateMachineArn=deployment.output("CollectMachine"))
    found = [one["executionArn"] for page in listed for one in page["executions"]]
    return sorted(arn for arn in found if arn.rpartition(":")[2].startswith(table.config.table))


def collect(deployment: Deployment, table: Table, **options: Any) -> str:
    """Start a collection and return the execution's ARN."""
    machines = deployment.client("stepfunctions")
    execution_input = json.dumps({"table": table.uri, **options})
    started = machines.start_execution(stateMachineArn=deployment.output("CollectMachine"), input=execution_input)
    return str(started["executionArn"])


def objects(table: Table, prefix: str = "") -> set[str]:
    (region, *_) = table.list_regions()
    return {found.key for found in region.context.objects.list(prefix)}


def generations(table: Table) -> set[str]:
    return {key.partition("_gen_")[0] for key in objects(table, "_mem_wal/") if "_gen_" in key}


def read_at(table: Table, name: str) -> dict[int, int]:
    return {row["id"]: row["v"] for row in lancelsm.open(table.uri, at=name).scan().to_arrow().to_pylist()}


def write_and_merge(deployment: Deployment, table: Table) -> None:
    """Write, flush and merge a table, each several times."""
    for version in (1, 2):
        for batch in (1, 2):
            table.upsert([{"id": key, "v": 10 * version + batch} for key in range(6)])
        deployment.invoke("compaction", {"table": table.uri})
        deployment.finished(deployment.start({"table": table.uri, "engine": "inprocess"}))


def scrubbed(deployment: Deployment, table: Table) -> Mapping[str, Any]:
    found: Mapping[str, Any] = deployment.invoke("scrub", {"table": table.uri})
    return found


@pytest.mark.rest
def test_merges_start_collections_and_reads_stay_the_same(deployment: Deployment) -> None:
    # Given a table with a file of a crashed merge and a snapshot that expires at once
    columns = [{"id": key, "v": 0} for key in range(8)]
    table = deployment.table("collected", columns, regions="bucket(id, 2)", settings=AT_ONCE)
    table.list_regions()[0].context.objects.create(ORPHAN, b"rows")
    table.snapshot("old", 1)
    expected = {**dict.fromkeys(range(6), 22), 6: 0, 7: 0}

    # When merges have started collections and these have ended
    write_and_merge(deployment, table)
    before = scrubbed(deployment, table)
    started = until(lambda: collections(deployment, table), lambda found: found)
    done = [deployment.finished(one) for one in started]

    # Then at most one was started per time span, and after one more only objects that readers need are left
    assert 1 <= len(started) <= 2
    swept = [*done, deployment.finished(collect(deployment, table, interval_seconds=0))]
    assert sum(one["sweep"]["deleted"] for one in swept if "sweep" in one) > 0
    assert (generations(table), ORPHAN in objects(table), table.snapshots()) == (set(), False, [])
    assert not any("/tags/" in key for key in objects(table, "_refs/"))
    after = scrubbed(deployment, table)
    assert (before["ok"], after["ok"], before["problems"], after["problems"]) == (True, True, [], [])
    assert rows(table) == expected
    assert {row["id"]: row["v"] for row in deployment.invoke("query", {"table": table.uri})["rows"]} == expected

    # And another collection deletes nothing, and writes still work
    there = objects(table)
    again = deployment.finished(collect(deployment, table, interval_seconds=0))
    assert (again, objects(table)) == ({"table": table.uri, "rounds": 0}, there)
    table.upsert([{"id": 0, "v": 99}])
    assert rows(table) == {**expected, 0: 99}


@pytest.mark.rest
def test_merges_within_one_time_span_start_one_collection_that_waits_for_its_end(deployment: Deployment) -> None:
    # Given a table whose time span for collections is ten years
    table = deployment.table("patient", [{"id": 0, "v": 0}], settings={"collect_interval_seconds": 10 * 365 * 86_400})

    # When it is merged twice
    write_and_merge(deployment, table)

    # Then one collection waits, and nothing is deleted
    (only,) = collections(deployment, table)
    assert deployment.client("stepfunctions").describe_execution(executionArn=only)["status"] == "RUNNING"
    assert generations(table) != set()


@pytest.mark.rest
def test_objects_of_a_snapshot_are_kept_until_it_is_dropped(deployment: Deployment) -> None:
    # Given a snapshot of a table with rows in the log and in a generation
    table = deployment.table("pinned", [{"id": key, "v": 0} for key in range(8)], settings={"keep_versions_seconds": 1})
    table.upsert([{"id": 0, "v": 1}])
    table.flush()
    table.upsert([{"id": 1, "v": 1}])
    table.snapshot("kept", "never")
    pinned = read_at(table, "kept")
    needed = generations(table)

    # When more is written, and the table is collected before and after the snapshot is dropped
    write_and_merge(deployment, table)
    deployment.finished(collect(deployment, table, interval_seconds=0))
    with_snapshot, kept = read_at(table, "kept"), generations(table)
    at = deployment.invoke("scrub", {"table": table.uri, "at": "kept"})
    table.drop_snapshot("kept")
    deployment.finished(collect(deployment, table, interval_seconds=0))

    # Then the snapshot read the same, and its objects were deleted afterwards
    assert with_snapshot == pinned == {**dict.fromkeys(range(8), 0), 0: 1, 1: 1}
    assert at["ok"]
    assert kept >= needed != set()  # and newer ones: the oldest generation is deleted first
    assert generations(table) == set()
    assert scrubbed(deployment, table)["ok"]


@pytest.mark.rest
def test_a_collection_with_a_damaged_region_collects_the_others_and_fails_as_corrupt(
    deployment: Deployment,
) -> None:
    # Given a table with a region whose log lacks a committed entry, and an intact region
    columns = [{"id": key, "v": 0} for key in range(8)]
    settings = {"collect_interval_seconds": 3600}
    table = deployment.table("damaged", columns, regions="bucket(id, 2)", settings=settings)
    write_and_merge(deployment, table)
    damaged, intact = table.list_regions()
    lost = wal_entry(damaged.id, Position(2))
    damaged.context.objects.delete([lost])
    there = objects(table, f"_mem_wal/{damaged.id}/")

    # When it is collected
    machines, execution = deployment.client("stepfunctions"), collect(deployment, table, interval_seconds=0)
    ended = until(lambda: machines.describe_execution(executionArn=execution), lambda one: one["status"] != "RUNNING")

    # Then the execution and scrub name the entry, and nothing of that region is deleted
    assert (ended["status"], ended["error"]) == ("FAILED", "Corrupt")
    assert json.loads(json.loads(ended["cause"])["errorMessage"])["error"]["object"] == lost
    assert lost in {problem["path"] for problem in scrubbed(deployment, table)["problems"]}
    assert objects(table, f"_mem_wal/{damaged.id}/") == there

    # And the other region is collected
    assert not [key for key in objects(table, f"_mem_wal/{intact.id}/") if "_gen_" in key]
    assert wal_entry(intact.id, Position(1)) not in objects(table)
