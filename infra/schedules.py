"""Define the schedule: it invokes one small function, which starts the flushes and merges that are due."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra.stage import Stage

_DEFAULT_MINUTES = 5  # of the disabled rule, until somebody enables it


def period(stage: Stage) -> cdk.Duration:
    """Return the time between two runs."""
    return cdk.Duration.minutes(stage.schedule_minutes or _DEFAULT_MINUTES)


class Schedules(Construct):
    """Invoke `dispatch` every `schedule_minutes` of the context. With 0 the rule exists but is disabled."""

    def __init__(self, scope: Construct, *, stage: Stage, dispatch: lambda_.IFunction) -> None:
        super().__init__(scope, "Schedules")
        events.Rule(
            self,
            "Dispatch",
            rule_name=f"{stage.prefix}-dispatch",
            schedule=events.Schedule.rate(period(stage)),
            enabled=bool(stage.schedule_minutes),
            targets=[
                targets.LambdaFunction(
                    dispatch,
                    event=events.RuleTargetInput.from_object({}),
                    retry_attempts=0,  # the next invocation follows soon
                )
            ],
        )
