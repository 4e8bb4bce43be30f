"""Define the schedule: it invokes one small function, which starts the flushes and merges that are due."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.grants import State, allow, sending
from infra.stage import Stage

_DEFAULT_MINUTES = 5  # of the disabled schedule, until somebody enables it
_JITTER = 5  # a run starts within this part of the period
_MOST_JITTER_MINUTES = 15


def period(stage: Stage) -> cdk.Duration:
    """Return the time between two runs."""
    return cdk.Duration.minutes(stage.schedule_minutes or _DEFAULT_MINUTES)


def jitter_minutes(minutes: int) -> int:
    """Return the time within which a run starts, so that stages don't all start at once; 0 for short periods."""
    return min(minutes // _JITTER, _MOST_JITTER_MINUTES)


class Schedules(Construct):
    """Invoke `dispatch` every `schedule_minutes` of the context. With 0 the schedule exists but is disabled.

    A run that can't be started is not repeated, since the next one follows. Its event goes to `failed`, which has an
    alarm.
    """

    def __init__(
        self, scope: Construct, *, stage: Stage, state: State, dispatch: lambda_.Alias, failed: sqs.IQueue
    ) -> None:
        super().__init__(scope, "Schedules")
        role = iam.Role(
            self,
            "Role",
            role_name=f"{stage.prefix}-schedules-{cdk.Aws.REGION}",
            assumed_by=iam.ServicePrincipal(
                "scheduler.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": cdk.Aws.ACCOUNT_ID}}
            ),
        )
        for statement in (allow(["lambda:InvokeFunction"], [dispatch.function_arn]), *sending(state, failed)):
            role.add_to_policy(statement)
        minutes = int(period(stage).to_minutes())
        jitter = jitter_minutes(minutes)
        schedule = scheduler.CfnSchedule(
            self,
            "Dispatch",
            name=f"{stage.prefix}-dispatch",
            description="Starts the flushes and merges that are due.",
            schedule_expression=f"rate({minutes} minute{'s' if minutes > 1 else ''})",
            state="ENABLED" if stage.schedule_minutes else "DISABLED",
            flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(
                mode="FLEXIBLE" if jitter else "OFF", maximum_window_in_minutes=jitter or None
            ),
            target=scheduler.CfnSchedule.TargetProperty(
                arn=dispatch.function_arn,
                role_arn=role.role_arn,
                input="{}",
                dead_letter_config=scheduler.CfnSchedule.DeadLetterConfigProperty(arn=failed.queue_arn),
                retry_policy=scheduler.CfnSchedule.RetryPolicyProperty(
                    maximum_retry_attempts=0, maximum_event_age_in_seconds=min(max(60 * minutes, 60), 86_400)
                ),
            ),
        )
        schedule.node.add_dependency(role)  # its policy too: the service checks the role when the schedule is created
