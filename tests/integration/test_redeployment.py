"""The pipeline stack holds no data: it can be destroyed and deployed again. A merge that runs meanwhile ends well."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.deployment import ROOT, Deployment, rows, until
from tests.integration.test_merges_on_spark import ACTIVE, MERGED, jobs, pending

PARTS = (".cfnlintrc", "Makefile", "app.py", "cdk.json", "package.json", "package-lock.json", "pyproject.toml")
DIRECTORIES = ("functions", "infra", "layers/spark", "requirements", "shared/lancelsm")


@pytest.mark.rest
def test_a_pipeline_destroyed_and_deployed_again_loses_no_row(deployment: Deployment) -> None:
    # Given rows in the base, in a generation, in the log and in the queue
    table = deployment.table("redeployed", [{"id": 0, "v": 0}])
    table.upsert([{"id": 1, "v": 1}])
    table.flush()
    table.upsert([{"id": 2, "v": 2}])
    application = deployment.output("SparkApplication")
    with deployment.paused():
        deployment.invoke("ingest", {"table": table.uri, "upserts": [{"id": 3, "v": 3}]})

        # When the pipeline stack is destroyed and deployed again
        deployment.make("destroy", "deploy")

    # Then no row is lost, the queued row is applied, and writes continue at the next position
    until(lambda: rows(table), lambda found: 3 in found)
    written = deployment.invoke("writer_flush", {"table": table.uri, "upserts": [{"id": 4, "v": 4}]})
    found = deployment.invoke("query", {"table": table.uri})["rows"]
    assert deployment.output("SparkApplication") != application
    assert {row["id"]: row["v"] for row in found} == {key: key for key in range(5)}
    assert [one["position"] for one in written["entries"]] == [4]
    assert [one.epoch for one in table.status().regions] == [1]


def next_release(directory: Path) -> Path:
    """Return a checkout with the code of the next release, whose Spark jobs fail at once."""
    for name in DIRECTORIES:
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in PARTS:
        shutil.copy2(ROOT / name, directory / name)
    for name in (".venv", "node_modules"):
        (directory / name).symlink_to(ROOT / name)
    (directory / "layers" / "spark" / "merge.py").write_text('raise SystemExit("the code of the next release")\n')
    return directory


@contextmanager
def no_capacity(deployment: Deployment) -> Iterator[None]:
    """Let all other jobs wait in the queue of the application."""
    emr, application = deployment.client("emr-serverless"), deployment.output("SparkApplication")
    script = f"{deployment.output('Bucket')}/work/steps/sleep.py"
    bucket, _, key = script.partition("/")
    deployment.client("s3").put_object(Bucket=bucket, Key=key, Body=b"import time; time.sleep(900)")
    job = emr.start_job_run(
        applicationId=application,
        name="takes-all-capacity",
        executionRoleArn=f"arn:aws:iam::{deployment.aws.account}:role/lancelsm-local-merge-job-{deployment.aws.region}",
        jobDriver={"sparkSubmit": {"entryPoint": f"s3://{script}"}},
    )["jobRunId"]
    until(
        lambda: emr.get_job_run(applicationId=application, jobRunId=job)["jobRun"]["state"], lambda one: one in ACTIVE
    )
    try:
        yield
    finally:
        emr.cancel_job_run(applicationId=application, jobRunId=job)


@pytest.mark.long
def test_a_merge_that_runs_across_a_deployment_ends_with_its_own_code_on_the_emulator(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Its execution keeps the old definition, and a job that starts after the deployment finds the old code."""
    emr, application = deployment.client("emr-serverless"), deployment.output("SparkApplication")

    def entry_point(job: str) -> str:
        found = emr.get_job_run(applicationId=application, jobRunId=job)["jobRun"]
        return str(found["jobDriver"]["sparkSubmit"]["entryPoint"])

    # Given a merge whose job waits for capacity
    table = pending(deployment, "across")
    try:
        with no_capacity(deployment):
            execution = deployment.start({"table": table.uri, "engine": "spark", "retry_seconds": 1})
            (first,) = until(
                lambda: jobs(deployment, execution), lambda found: [one["state"] for one in found] == ["QUEUED"]
            )

            # When the next release is deployed, and the job is lost
            deployment.make("deploy", source=next_release(tmp_path))
            emr.cancel_job_run(applicationId=application, jobRunId=first["id"])
            _, second = until(lambda: jobs(deployment, execution), lambda found: len(found) == 2)

        # Then another job with the old code does the work
        done = deployment.finished(execution)
        machine = deployment.client("stepfunctions").describe_state_machine(
            stateMachineArn=deployment.output("MergeMachine")
        )
    finally:
        deployment.make("deploy")
    assert (done["engine"], done["merge"]["rows_upserted"]) == ("spark", 2)
    assert rows(table) == MERGED
    assert entry_point(second["id"]) == entry_point(first["id"])
    assert entry_point(first["id"]) not in json.dumps(machine["definition"])
