"""Define the merge state machine, and the EMR Serverless application that runs large merges."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_emrserverless as emr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_assets as assets
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra import grants
from infra.checks import accept_wildcards
from infra.functions import WILDCARDS, live_name, merging
from infra.grants import State, allow, objects
from infra.layers import Layers
from infra.machines import machine
from infra.network import Network
from infra.stage import ROOT, Stage

ENTRY_POINT = ROOT / "layers" / "spark" / "merge.py"
_MANAGED_RULE = "StepFunctionsGetEventsForEMRServerlessJobRule"  # notifies the state machine when a job has ended
_PACKAGES = "deps"
_LOCAL_SUBMIT = "--conf spark.driver.memory=1g"
_PYTHON = {
    # The image has several interpreters. The archive is built for this one.
    "spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON": "python3.11",
    "spark.emr-serverless.driverEnv.PYSPARK_PYTHON": "python3.11",
    "spark.executorEnv.PYSPARK_PYTHON": "python3.11",
    "spark.emr-serverless.driverEnv.PYTHONPATH": f"./{_PACKAGES}",
    "spark.executorEnv.PYTHONPATH": f"./{_PACKAGES}",
    # Lance's own client of the object store reads the region from the environment.
    "spark.emr-serverless.driverEnv.AWS_REGION": cdk.Aws.REGION,
    "spark.executorEnv.AWS_REGION": cdk.Aws.REGION,
}


class Merging(Construct):
    """The state machine of `workflows/merge.asl.json` and what it runs on. It costs nothing while no merge runs."""

    def __init__(
        self,
        scope: Construct,
        *,
        stage: Stage,
        state: State,
        merger: lambda_.Alias,
        collecting: sfn.IStateMachine,
        layers: Layers,
        network: Network | None = None,
    ) -> None:
        super().__init__(scope, "Merging")
        entry_point = assets.Asset(self, "EntryPoint", path=str(ENTRY_POINT))
        archive = layers.archive()
        self.code: s3.IBucket = entry_point.bucket
        self.submit = _submit(stage, archive) if archive else _LOCAL_SUBMIT
        self.application = _application(self, stage, network)
        self.job_role = _job_role(self, stage, state, self.code)
        self.machine = machine(
            self,
            "merge",
            stage=stage,
            tokens={
                "Merger": live_name(stage, "merger"),
                "Collect": "on" if stage.collect else "off",
                "Collector": collecting.state_machine_arn,
                "Application": self.application.attr_application_id,
                "JobRole": self.job_role.role_arn,
                "EntryPoint": entry_point.s3_object_url,
                "SparkSubmitParameters": self.submit,
                "JobLogs": job_logs(state),
            },
            grants=self._machine_grants(merger, collecting),
        )
        cdk.CfnOutput(cdk.Stack.of(self), "SparkApplication", value=self.application.attr_application_id)

    def _machine_grants(self, merger: lambda_.Alias, collecting: sfn.IStateMachine) -> list[iam.PolicyStatement]:
        """Return what the machine needs: invoke the merger, run jobs, and start collections."""
        return [
            allow(["lambda:InvokeFunction"], [merger.function_arn]),
            allow(["states:StartExecution"], [collecting.state_machine_arn]),
            *running_jobs(self, self.application, self.job_role),
        ]


def running_jobs(scope: Construct, application: emr.CfnApplication, role: iam.Role) -> list[iam.PolicyStatement]:
    """Return what a machine needs to run jobs of an application under a role, and to learn when a job ends."""
    rule = cdk.Stack.of(scope).format_arn(service="events", resource="rule", resource_name=_MANAGED_RULE)
    passing = {"StringEquals": {"iam:PassedToService": "emr-serverless.amazonaws.com"}}
    return [
        allow(["emr-serverless:StartJobRun"], [application.attr_arn]),
        allow(["emr-serverless:GetJobRun", "emr-serverless:CancelJobRun"], [f"{application.attr_arn}/jobruns/*"]),
        allow(["iam:PassRole"], [role.role_arn], conditions=passing),
        allow(["events:PutRule", "events:PutTargets", "events:DescribeRule"], [rule]),
    ]


def job_logs(state: State) -> str:
    """Return where jobs write their logs."""
    return f"s3://{state.bucket.bucket_name}/{grants.JOB_LOGS.rstrip('*')}"


def _application(scope: Construct, stage: Stage, network: Network | None) -> emr.CfnApplication:
    return emr.CfnApplication(
        scope,
        "Application",
        name=f"{stage.prefix}-merge",
        type="SPARK",
        release_label=stage.spark.release,
        architecture=stage.architecture.upper(),
        maximum_capacity=emr.CfnApplication.MaximumAllowedResourcesProperty(
            cpu=f"{stage.spark.capacity} vCPU",
            memory=f"{stage.spark.memory} GB",
            disk=f"{50 * stage.spark.runs * (1 + stage.spark.executors)} GB",
        ),
        scheduler_configuration=emr.CfnApplication.SchedulerConfigurationProperty(
            max_concurrent_runs=stage.spark.runs, queue_timeout_minutes=stage.spark.queue_minutes
        ),
        network_configuration=emr.CfnApplication.NetworkConfigurationProperty(
            subnet_ids=network.subnet_ids, security_group_ids=[network.group.security_group_id]
        )
        if network
        else None,
        auto_start_configuration=emr.CfnApplication.AutoStartConfigurationProperty(enabled=True),
        auto_stop_configuration=emr.CfnApplication.AutoStopConfigurationProperty(enabled=True, idle_timeout_minutes=5),
    )


def _job_role(scope: Construct, stage: Stage, state: State, code: s3.IBucket) -> iam.Role:
    """Define the role of a job. It merges, reads its code from the CDK's bucket, and writes its logs below `work/`."""
    role = iam.Role(
        scope,
        "JobRole",
        role_name=f"{stage.prefix}-merge-job-{cdk.Aws.REGION}",
        assumed_by=iam.ServicePrincipal("emr-serverless.amazonaws.com"),
    )
    statements = [
        *merging(state),
        *objects(state, get=[grants.JOB_LOGS], put=[grants.JOB_LOGS]),
        # Also the code of earlier deployments: a merge that runs across a deployment starts jobs with it.
        allow(["s3:GetObject"], [code.arn_for_objects(f"{stage.prefix}/*")]),
    ]
    for statement in statements:
        role.add_to_policy(statement)
    accept_wildcards(role, statements, WILDCARDS)
    return role


def _submit(stage: Stage, archive: assets.Asset) -> str:
    """Return the parameters of spark-submit as one string."""
    options = [f"--conf {name}={value}" for name, value in {**stage.spark.properties(), **_PYTHON}.items()]
    return " ".join([*options, f"--archives {archive.s3_object_url}#{_PACKAGES}"])
