"""Spark jobs of the merge machine fail or are cancelled. The next attempt succeeds, and the base stays readable."""

from __future__ import annotations

from typing import Any

import pytest

from lancelsm.common.layout import lease_key
from lancelsm.region.handle import open_table
from lancelsm.region.lease import BASE_LEASE, lease
from lancelsm.table import Table
from tests.integration.deployment import Deployment, rows, until

ACTIVE = ("SCHEDULED", "RUNNING")
ENDED = ("SUCCESS", "FAILED", "CANCELLED")


def pending(deployment: Deployment, name: str) -> Table:
    """Create a table with four keys in the base and two generations: 0 replaced, 1 deleted, 9 new."""
    table = deployment.table(name, [{"id": key, "v": 0} for key in range(4)])
    table.upsert([{"id": 0, "v": 1}, {"id": 9, "v": 1}])
    table.flush()
    table.delete([1])
    table.flush()
    return table


MERGED = {0: 1, 2: 0, 3: 0, 9: 1}


def jobs(deployment: Deployment, execution: str) -> list[dict[str, Any]]:
    """Return the jobs of an execution, in the order of attempts."""
    emr, application = deployment.client("emr-serverless"), deployment.output("SparkApplication")
    prefix = f"merge-{execution.rpartition(':')[2]}-"
    found = [one for one in emr.list_job_runs(applicationId=application)["jobRuns"] if one["name"].startswith(prefix)]
    return sorted(found, key=lambda one: one["name"])


def leased(table: Table) -> bool:
    context = open_table(table.uri).context
    found = context.registry.read(lease_key(context.table, BASE_LEASE))
    return found is not None and bool(found["holder"])


def queried(deployment: Deployment, table: Table) -> dict[int, int]:
    return {row["id"]: row["v"] for row in deployment.invoke("query", {"table": table.uri})["rows"]}


@pytest.mark.rest
def test_a_merge_succeeds_after_a_failed_and_a_cancelled_job(deployment: Deployment) -> None:
    # Given a merge whose first job fails because another merge holds the lease
    table = pending(deployment, "retried")
    with lease(open_table(table.uri).context, BASE_LEASE):
        execution = deployment.start({"table": table.uri, "engine": "spark", "retry_seconds": 1})
        until(lambda: jobs(deployment, execution), lambda found: found and found[0]["state"] == "FAILED")
        after_failure = queried(deployment, table)

    # When the second job is cancelled
    started = until(lambda: jobs(deployment, execution), lambda found: len(found) > 1 and found[1]["state"] in ACTIVE)
    deployment.client("emr-serverless").cancel_job_run(
        applicationId=deployment.output("SparkApplication"), jobRunId=started[1]["id"]
    )
    until(lambda: jobs(deployment, execution), lambda found: found[1]["state"] == "CANCELLED")
    after_cancel = queried(deployment, table)

    # Then the third job merges, once
    done = deployment.finished(execution)
    assert [one["state"] for one in jobs(deployment, execution)] == ["FAILED", "CANCELLED", "SUCCESS"]
    assert (done["engine"], done["merge"]["rows_upserted"], done["merge"]["rows_deleted"]) == ("spark", 2, 1)
    assert after_failure == after_cancel == queried(deployment, table) == rows(table) == MERGED
    assert [one.generations for one in table.status().regions] == [0]


@pytest.mark.long
def test_of_two_merges_on_capacity_for_one_job_one_waits_and_both_succeed(deployment: Deployment) -> None:
    # Given two tables whose merges start at the same time
    tables = [pending(deployment, name) for name in ("first", "second")]
    executions = [deployment.start({"table": table.uri, "engine": "spark"}) for table in tables]

    def states() -> list[str]:
        return [job["state"] for execution in executions for job in jobs(deployment, execution)]

    # When one job runs, the other waits in the queue of the application, and holds no lease
    seen = until(states, lambda found: "QUEUED" in found and set(ACTIVE) & set(found))
    assert not leased(tables[seen.index("QUEUED")])

    # Then both end, each with its first job
    done = [deployment.finished(execution) for execution in executions]
    assert [(one["engine"], one["merge"]["rows_upserted"]) for one in done] == [("spark", 2)] * 2
    assert states() == ["SUCCESS"] * 2
    assert [rows(table) for table in tables] == [MERGED] * 2


@pytest.mark.long
def test_a_merge_succeeds_after_its_job_was_cancelled_with_the_lease(deployment: Deployment) -> None:
    # Given a job that holds the lease
    table = pending(deployment, "cancelled")
    execution = deployment.start({"table": table.uri, "engine": "spark"})
    until(lambda: leased(table), lambda held: held)

    # When it is cancelled
    (job,) = jobs(deployment, execution)
    emr, application = deployment.client("emr-serverless"), deployment.output("SparkApplication")
    emr.cancel_job_run(applicationId=application, jobRunId=job["id"])
    until(lambda: jobs(deployment, execution), lambda found: found[0]["state"] in ENDED)

    # Then the next job succeeds, after the lease has expired
    between = queried(deployment, table)
    deployment.finished(execution)
    assert between == queried(deployment, table) == MERGED
    assert [one.generations for one in table.status().regions] == [0]
