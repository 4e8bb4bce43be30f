"""Define what becomes of events of functions that are invoked without waiting for an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_lambda_destinations as destinations
from aws_cdk import aws_lambda_event_sources as sources
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.checks import accept
from infra.stage import Stage

_AGE_SECONDS = range(60, 21_601)  # of an event: what Lambda allows
_RECEIVES = 3
_DISPATCHES = 5  # invocations of `dispatch` for chunks at the same time
_TABLES = 5  # invocations of `scrub` or `backup` at the same time
_TABLE_RECEIVES = 2  # a message is delivered again if a store did not answer


class Events(Construct):
    """Standard queues. They hold names and counters, no rows.

    `failed` has a record of each event that failed, or that Lambda dropped. Only an alarm watches it. `chunks` has
    chunks of tables for `dispatch`; a chunk that fails repeatedly goes to `failed`. `rounds` has a queue of tables for
    each function that a schedule runs for each table, by its name.

    Args:
        seconds: returns the timeout of a function.
    """

    def __init__(
        self, scope: Construct, *, stage: Stage, key: kms.IKey | None, seconds: Callable[[str, Stage], int]
    ) -> None:
        super().__init__(scope, "Events")

        def queue(name: str, **options: Any) -> sqs.Queue:
            made = sqs.Queue(
                self,
                name.title().replace("-", ""),
                queue_name=f"{stage.prefix}-{name}",
                retention_period=cdk.Duration.days(14),
                encryption=sqs.QueueEncryption.KMS if key else sqs.QueueEncryption.SQS_MANAGED,
                encryption_master_key=key,
                enforce_ssl=not stage.local,  # the emulator uses HTTP
                removal_policy=cdk.RemovalPolicy.DESTROY,
                **options,
            )
            if stage.local:
                accept(made, {"SQS4": "The emulator uses HTTP"})
            return made

        failed = queue("failed-events")
        accept(failed, {"SQS3": "Its messages are records of failures, which nothing consumes"})

        def work(name: str, receives: int) -> sqs.Queue:
            return queue(
                name,
                visibility_timeout=cdk.Duration.seconds(6 * seconds(name, stage)),
                dead_letter_queue=sqs.DeadLetterQueue(queue=failed, max_receive_count=receives),
            )

        def known(made: sqs.Queue) -> sqs.IQueue:
            """Return the queue without the key: the CDK would grant more of it than `infra.grants.sending` does."""
            return sqs.Queue.from_queue_attributes(
                self, f"{made.node.id}Known", queue_arn=made.queue_arn, queue_url=made.queue_url
            )

        self.failed, self.chunks = known(failed), known(work("dispatch", _RECEIVES))
        self.rounds = {name: known(work(name, _TABLE_RECEIVES)) for name in stage.rounds}

    def consume(self, functions: Mapping[str, lambda_.IFunction]) -> None:
        """Pass chunks of tables to `dispatch`, and tables to the functions that run for each table."""
        most = {"dispatch": (self.chunks, _DISPATCHES), **{name: (one, _TABLES) for name, one in self.rounds.items()}}
        for name, (queue, concurrency) in most.items():
            functions[name].add_event_source(sources.SqsEventSource(queue, batch_size=1, max_concurrency=concurrency))

    def keep_failures(self, functions: Iterable[lambda_.IFunction], *, period: cdk.Duration) -> None:
        """Keep events of these functions that fail. An event is not repeated: the next period finds the same work.

        It is dropped after one period, at most 6 hours, so that events do not pile up while functions are throttled.

        Args:
            period: the time between two runs of the schedule.
        """
        age = min(max(period.to_seconds(), _AGE_SECONDS[0]), _AGE_SECONDS[-1])
        for function in functions:
            function.configure_async_invoke(
                retry_attempts=0,
                max_event_age=cdk.Duration.seconds(age),
                on_failure=destinations.SqsDestination(self.failed),
            )
