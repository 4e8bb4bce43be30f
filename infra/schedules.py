"""Define the schedule: it invokes one small function, which starts the flushes and merges that are due."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra.stage import Stage

EVERY = cdk.Duration.minutes(5)


class Schedules(Construct):
    """Invoke `dispatch` every 5 minutes at stage prod. At other stages the rule exists but is disabled."""

    def __init__(self, scope: Construct, *, stage: Stage, dispatch: lambda_.IFunction) -> None:
        super().__init__(scope, "Schedules")
        events.Rule(
            self,
            "Dispatch",
            rule_name=f"{stage.prefix}-dispatch",
            schedule=events.Schedule.rate(EVERY),
            enabled=stage.name == "prod",
            targets=[
                targets.LambdaFunction(
                    dispatch,
                    event=events.RuleTargetInput.from_object({}),
                    retry_attempts=0,  # the next invocation follows soon
                )
            ],
        )
