"""Define the schedules: `dispatch` starts flushes and merges that are due; `scrub` and `backup` serve each table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

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
_MINUTES = {"minute": 1, "day": 1440}
_RETRIES = 5  # of starting a scrub or a backup: the next one follows only after days


def period(stage: Stage) -> cdk.Duration:
    """Return the time between two runs."""
    return cdk.Duration.minutes(stage.schedule_minutes or _DEFAULT_MINUTES)


def jitter_minutes(minutes: int) -> int:
    """Return the time within which a run starts, so that stages don't all start at once; 0 for short periods."""
    return min(minutes // _JITTER, _MOST_JITTER_MINUTES)


class Schedules(Construct):
    """Invoke `dispatch` every `schedule_minutes` of the context. With 0 the schedule exists but is disabled.

    `scrub` is invoked every `scrub_sample_days` for a sample of each table, and every `scrub_days` for everything;
    `backup` every `backup_days`. With 0 there is no such schedule.

    A run of `dispatch` that can't be started is not repeated, since the next one follows. The event of a run that can't
    be started goes to `failed`, which has an alarm.
    """

    def __init__(
        self,
        scope: Construct,
        *,
        stage: Stage,
        state: State,
        functions: Mapping[str, lambda_.Alias],
        failed: sqs.IQueue,
    ) -> None:
        super().__init__(scope, "Schedules")
        self._prefix, self._failed = stage.prefix, failed
        role = self._role = iam.Role(
            self,
            "Role",
            role_name=f"{stage.prefix}-schedules-{cdk.Aws.REGION}",
            assumed_by=iam.ServicePrincipal(
                "scheduler.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": cdk.Aws.ACCOUNT_ID}}
            ),
        )
        invoked = [functions[name].function_arn for name in ("dispatch", *stage.rounds)]
        for statement in (allow(["lambda:InvokeFunction"], invoked), *sending(state, failed)):
            role.add_to_policy(statement)
        minutes = int(period(stage).to_minutes())
        self._schedule(
            "Dispatch",
            functions["dispatch"],
            description="Starts the flushes and merges that are due.",
            count=minutes,
            unit="minute",
            enabled=stage.schedule_minutes > 0,
        )
        rounds = (
            ("ScrubSample", "scrub", "sample", stage.scrub_sample_days, "Scrubs a sample of"),
            ("ScrubEverything", "scrub", "everything", stage.scrub_days, "Scrubs everything in"),
            ("Backup", "backup", "changed", stage.backups.days if stage.backups else 0, "Backs up"),
        )
        for name, function, scope_of_round, days, does in rounds:
            if days:
                self._schedule(
                    name,
                    functions[function],
                    description=f"{does} each table that has changed.",
                    count=days,
                    unit="day",
                    event={"scheduled": scope_of_round},
                    retries=_RETRIES,
                )

    def _schedule(
        self,
        name: str,
        target: lambda_.Alias,
        *,
        description: str,
        count: int,
        unit: str,
        event: Mapping[str, str] = {},
        enabled: bool = True,
        retries: int = 0,
    ) -> None:
        minutes = count * _MINUTES[unit]
        jitter = jitter_minutes(minutes)
        words = re.sub(r"(?<=.)([A-Z])", r"-\1", name).lower()
        schedule = scheduler.CfnSchedule(
            self,
            name,
            name=f"{self._prefix}-{words}",
            description=description,
            schedule_expression=f"rate({count} {unit}{'s' if count > 1 else ''})",
            state="ENABLED" if enabled else "DISABLED",
            flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(
                mode="FLEXIBLE" if jitter else "OFF", maximum_window_in_minutes=jitter or None
            ),
            target=scheduler.CfnSchedule.TargetProperty(
                arn=target.function_arn,
                role_arn=self._role.role_arn,
                input=json.dumps(event),
                dead_letter_config=scheduler.CfnSchedule.DeadLetterConfigProperty(arn=self._failed.queue_arn),
                retry_policy=scheduler.CfnSchedule.RetryPolicyProperty(
                    maximum_retry_attempts=retries, maximum_event_age_in_seconds=min(max(60 * minutes, 60), 86_400)
                ),
            ),
        )
        schedule.node.add_dependency(self._role)  # its policy too: the service checks the role at the creation
