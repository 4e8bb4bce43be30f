"""Define the write queue and its dead-letter queue. Both are FIFO, with one message group per region."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.checks import accept
from infra.stage import Stage

_RETENTION = cdk.Duration.days(14)
_LAST_RESORT = 1000  # receives; a region that can't proceed waits and skips no message


class Queues(Construct):
    """Both queues, unless the context names existing ones.

    Args:
        visibility: how long a batch is hidden from other consumers. AWS recommends six times the function's timeout.
    """

    def __init__(self, scope: Construct, *, stage: Stage, key: kms.IKey | None, visibility: cdk.Duration) -> None:
        super().__init__(scope, "Queues")
        if stage.queue:
            return

        def queue(name: str, **options: Any) -> sqs.Queue:
            created = sqs.Queue(
                self,
                name,
                fifo=True,
                deduplication_scope=sqs.DeduplicationScope.MESSAGE_GROUP,
                fifo_throughput_limit=sqs.FifoThroughputLimit.PER_MESSAGE_GROUP_ID,
                retention_period=_RETENTION,
                encryption=sqs.QueueEncryption.KMS if key else sqs.QueueEncryption.SQS_MANAGED,
                encryption_master_key=key,
                enforce_ssl=not stage.local,  # the emulator uses HTTP
                removal_policy=stage.removal_policy,
                **options,
            )
            if stage.local:
                accept(created, {"SQS4": "The emulator uses HTTP"})
            return created

        dead_letters = queue("DeadLetters", queue_name=f"{stage.prefix}-dead-letters.fifo")
        queue(
            "Writes",
            queue_name=f"{stage.prefix}-writes.fifo",
            visibility_timeout=visibility,
            dead_letter_queue=sqs.DeadLetterQueue(queue=dead_letters, max_receive_count=_LAST_RESORT),
        )
