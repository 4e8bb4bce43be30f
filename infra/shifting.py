"""Let CodeDeploy move callers to a new version: first some of them, then all, or back if an alarm is raised."""

from __future__ import annotations

from collections.abc import Mapping

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cw
from aws_cdk import aws_codedeploy as codedeploy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra.checks import accept
from infra.stage import Stage

SHIFTED = ("ingest", "query")  # callers wait for their answers; other functions may fail and are called again
_Canary = codedeploy.LambdaDeploymentConfig
_CANARIES = {
    5: _Canary.CANARY_10_PERCENT_5_MINUTES,
    10: _Canary.CANARY_10_PERCENT_10_MINUTES,
    15: _Canary.CANARY_10_PERCENT_15_MINUTES,
    30: _Canary.CANARY_10_PERCENT_30_MINUTES,
}


class Shifting(Construct):
    """A deployment group for each of the functions that shift. A tenth of the calls gets the new version first.

    A canary of `ingest` runs while `writer_flush` is old or new: a message carries its format, and an older release
    leaves a newer one in the queue (`lancelsm.stack.delivery.message`).
    """

    def __init__(
        self, scope: Construct, *, stage: Stage, functions: Mapping[str, lambda_.Alias], alarm: cw.IAlarm
    ) -> None:
        super().__init__(scope, "Shifting")
        role = iam.Role(
            self,
            "Role",
            role_name=f"{stage.prefix}-shifting-{cdk.Aws.REGION}",
            assumed_by=iam.ServicePrincipal("codedeploy.amazonaws.com"),
        )
        application = codedeploy.LambdaApplication(self, "Application", application_name=stage.prefix)
        for name in SHIFTED:
            codedeploy.LambdaDeploymentGroup(
                self,
                name.title(),
                application=application,
                deployment_group_name=name,
                role=role,
                alias=functions[name],
                alarms=[alarm],
                deployment_config=_CANARIES[stage.shift_minutes],
                auto_rollback=codedeploy.AutoRollbackConfig(
                    failed_deployment=True, stopped_deployment=True, deployment_in_alarm=True
                ),
            )
        policy = "Policy::arn:<AWS::Partition>:iam::aws:policy/service-role/AWSCodeDeployRoleForLambdaLimited"
        accept(role, {f"IAM4[{policy}]": "AWS keeps what CodeDeploy needs to move an alias up to date"})
