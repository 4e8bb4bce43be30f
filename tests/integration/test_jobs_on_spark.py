"""The machine `spark` starts a job of the caller, which reads tables, joins them and writes back under its own role."""

from __future__ import annotations

import json

import pytest

from tests.integration.deployment import ROOT, Deployment


@pytest.mark.rest
def test_a_job_reads_joins_and_writes_back(deployment: Deployment) -> None:
    # Given orders in each level, and the example as a script in the bucket
    orders = deployment.table("orders", [{"id": n, "customer": n % 2, "total": n, "state": "paid"} for n in range(4)])
    orders.upsert([{"id": 3, "customer": 1, "total": 30, "state": "paid"}])
    orders.flush()
    orders.upsert([{"id": 2, "customer": 0, "total": 20, "state": "new"}])
    customers = deployment.table("customers", [{"id": 0, "name": "a"}, {"id": 1, "name": "b"}])
    totals = deployment.table("totals", [{"id": 9, "name": "z", "total": 0}])
    bucket = deployment.output("Bucket")
    deployment.client("s3").upload_file(str(ROOT / "examples" / "spark_orders.py"), bucket, "jobs/spark_orders.py")

    # When the machine runs it
    script, arguments = f"s3://{bucket}/jobs/spark_orders.py", [orders.uri, customers.uri, totals.uri, "20240131"]
    started = deployment.client("stepfunctions").start_execution(
        stateMachineArn=deployment.output("SparkMachine"),
        input=json.dumps({"entry_point": script, "arguments": arguments}),
    )
    deployment.finished(started["executionArn"])

    # Then sums of the newest rows are in the log, and the job has pinned what it read
    (change,) = totals.changes(start="earliest")
    assert sorted(row["total"] for row in change.rows.to_pylist()) == [0, 31]
    assert totals.scan().to_arrow().sort_by("id")["total"].to_pylist() == [0, 31, 0]
    assert [pin.name for pin in orders.snapshots()] == ["spark-0"]
