"""Define the state machine that runs a Spark job of the caller: it reads tables, and writes to their logs.

The job runs on the application of merges, with the archive of the layer `spark`, under a role of its own.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra import grants
from infra.checks import accept_wildcards
from infra.functions import WILDCARDS
from infra.grants import State, allow, objects, records
from infra.machines import machine
from infra.merging import Merging, job_logs, running_jobs
from infra.stage import Stage


class SparkJobs(Construct):
    """The state machine of `workflows/spark.asl.json`, whose input names a script, and the role of its jobs."""

    def __init__(self, scope: Construct, *, stage: Stage, state: State, merging: Merging) -> None:
        super().__init__(scope, "SparkJobs")
        role = _job_role(self, stage, state, merging)
        self.machine = machine(
            self,
            "spark",
            stage=stage,
            tokens={
                "Application": merging.application.attr_application_id,
                "JobRole": role.role_arn,
                "SparkSubmitParameters": merging.submit,
                "JobLogs": job_logs(state),
            },
            grants=running_jobs(self, merging.application, role),
        )


def _job_role(scope: Construct, stage: Stage, state: State, merging: Merging) -> iam.Role:
    """Define the role of a job: it reads tables and its code, pins what it reads, appends, and writes its logs.

    It writes no base, flushes nothing and deletes nothing.
    """
    role = iam.Role(
        scope,
        "JobRole",
        role_name=f"{stage.prefix}-spark-job-{cdk.Aws.REGION}",
        assumed_by=iam.ServicePrincipal("emr-serverless.amazonaws.com"),
    )
    statements = [
        *objects(
            state,
            get=[grants.TABLE, grants.SCRIPTS, grants.JOB_LOGS],
            put=[grants.LOG, grants.MANIFESTS, grants.TAGS, grants.JOB_LOGS],
        ),
        *records(state, write=True),
        allow(["s3:GetObject"], [merging.code.arn_for_objects(f"{stage.prefix}/*")]),
    ]
    for statement in statements:
        role.add_to_policy(statement)
    accept_wildcards(role, statements, WILDCARDS)
    return role
