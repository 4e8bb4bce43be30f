"""Define what becomes of events of functions that are invoked without waiting for an answer."""

from __future__ import annotations

from collections.abc import Iterable

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_lambda_destinations as destinations
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.checks import accept
from infra.stage import Stage

_SHORTEST = cdk.Duration.seconds(60)  # the minimum of Lambda


class FailedEvents(Construct):
    """A queue with a record of each event that failed, or that Lambda dropped. Only an alarm watches it.

    An event is not repeated: the next period finds the same work. It is dropped after one period, so that events do not
    pile up while functions are throttled.

    Args:
        functions: the functions that are invoked this way.
        period: the time between two runs of the schedule.
    """

    def __init__(
        self,
        scope: Construct,
        *,
        stage: Stage,
        functions: Iterable[lambda_.Function],
        period: cdk.Duration,
    ) -> None:
        super().__init__(scope, "FailedEvents")
        self.queue = sqs.Queue(
            self,
            "Queue",
            queue_name=f"{stage.prefix}-failed-events",
            retention_period=cdk.Duration.days(14),
            encryption=sqs.QueueEncryption.SQS_MANAGED,  # names and counters, no rows
            enforce_ssl=not stage.local,  # the emulator uses HTTP
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        accept(self.queue, {"SQS3": "Its messages are records of failures, which nothing consumes"})
        if stage.local:
            accept(self.queue, {"SQS4": "The emulator uses HTTP"})
        for function in functions:
            function.configure_async_invoke(
                retry_attempts=0,
                max_event_age=max(_SHORTEST, period, key=lambda one: one.to_seconds()),
                on_failure=destinations.SqsDestination(self.queue),
            )
