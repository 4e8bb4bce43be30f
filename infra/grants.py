"""What a role may do, in the words of the store: objects by their place in a table, records, messages.

A place is a pattern below the bucket. A star crosses slashes, since a table's name may hold some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.registry import DIRTY
from infra.stage import Stage
from infra.storage import TABLES, WORK

TABLE = f"{TABLES}/*"  # all of a table
CONFIG = f"{TABLES}/*/_lancelsm/config.json"
LOG = f"{TABLES}/*/_mem_wal/*/wal/*"
MANIFESTS = f"{TABLES}/*/_mem_wal/*/manifest/*"
REGIONS = f"{TABLES}/*/_mem_wal/*"  # log, manifests and generations
ROUNDS = tuple(f"{TABLES}/*/{part}/gc/*" for part in ("_mem_wal/*", "_lancelsm"))  # of regions, of the base
# What Lance writes of a base. It deletes nothing, unless a sweep asks it to: automatic cleanup is off.
VERSIONS = tuple(f"{TABLES}/*/{part}/*" for part in ("_transactions", "_versions"))  # a commit without rows
BASE = (*(f"{TABLES}/*/{part}/*" for part in ("data", "_deletions", "_indices")), *VERSIONS)
TAGS = f"{TABLES}/*/_refs/tags/*"
INBOX = f"{WORK}/inbox/*"
MERGES = f"{WORK}/merge/*"
RESULTS = f"{WORK}/results/*"
JOB_LOGS = f"{WORK}/jobs/logs/*"
# What DynamoDB does with the key of a table in the name of who writes there, beside what it does for readers.
_CHANGING = (
    "kms:Encrypt",
    "kms:GenerateDataKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What lasts, and is granted piece by piece."""

    bucket: s3.IBucket
    registry: dynamodb.ITable
    writes: sqs.IQueue
    dead_letters: sqs.IQueue
    key: kms.IKey | None


def kept(scope: Construct, stage: Stage) -> State:
    """What lasts, by name: neither stack refers to the other, so that each can go and come alone."""
    stack = cdk.Stack.of(scope)

    def queue(name: str, given: str | None) -> sqs.IQueue:
        arn = given or stack.format_arn(service="sqs", resource=f"{stage.prefix}-{name}.fifo")
        return sqs.Queue.from_queue_arn(scope, name.title().replace("-", ""), arn)

    return State(
        bucket=s3.Bucket.from_bucket_name(scope, "Bucket", stage.bucket_name),
        registry=dynamodb.Table.from_table_name(scope, "Registry", stage.registry_name),
        writes=queue("writes", stage.queue),
        dead_letters=queue("dead-letters", stage.dead_letters),
        key=kms.Key.from_key_arn(scope, "Key", stage.kms_key) if stage.kms_key else None,
    )


def allow(
    actions: Sequence[str], resources: Sequence[str], *, conditions: Mapping[str, Any] | None = None
) -> iam.PolicyStatement:
    return iam.PolicyStatement(actions=list(actions), resources=list(resources), conditions=conditions)


def objects(
    state: State, *, get: Sequence[str] = (), put: Sequence[str] = (), delete: Sequence[str] = ()
) -> list[iam.PolicyStatement]:
    """Reading, writing and deleting of objects in places, and listing of the places that are read.

    Without the right to list, S3 answers 403 instead of 404 for an object that is absent, and nobody could tell what is
    gone. A request for an object carries no prefix, so the condition is only on requests that do.
    """
    listed = sorted({place.partition("/")[0] for place in get})
    verbs = (("s3:GetObject", get), ("s3:PutObject", put), ("s3:DeleteObject", delete))
    statements = [
        allow([verb], [state.bucket.arn_for_objects(place) for place in places]) for verb, places in verbs if places
    ]
    if listed:
        prefixes = {"s3:prefix": [f"{top}/*" for top in listed]}
        statements.append(
            allow(["s3:ListBucket"], [state.bucket.bucket_arn], conditions={"StringLikeIfExists": prefixes})
        )
    return statements + (_key(state, "kms:Decrypt", "kms:GenerateDataKey") if state.key else [])


def records(
    state: State, *, write: bool = False, delete: bool = False, find: bool = False
) -> list[iam.PolicyStatement]:
    """Records of the registry.

    Args:
        write: one at a time, each under its condition.
        delete: those that ran out.
        find: what waits to be folded, through the index; nothing is decided from that.
    """
    verbs = ["dynamodb:GetItem", "dynamodb:Query"]
    verbs += ["dynamodb:UpdateItem"] if write else []
    verbs += ["dynamodb:DeleteItem"] if delete else []
    statements = [allow(verbs, [state.registry.table_arn])]
    if find:
        index = f"{state.registry.table_arn}/index/{DIRTY}"
        statements.append(allow(["dynamodb:Scan"], [index]))
    changing = _CHANGING if write or delete else ()
    return statements + (_key(state, "kms:Decrypt", "kms:DescribeKey", *changing) if state.key else [])


def sending(state: State, queue: sqs.IQueue) -> list[iam.PolicyStatement]:
    sent = [allow(["sqs:SendMessage"], [queue.queue_arn])]
    return sent + (_key(state, "kms:Decrypt", "kms:GenerateDataKey") if state.key else [])


def _key(state: State, *verbs: str) -> list[iam.PolicyStatement]:
    """The key, as those services use it for whoever asks them."""
    assert state.key
    services = [f"{service}.{cdk.Aws.REGION}.amazonaws.com" for service in ("s3", "sqs", "dynamodb")]
    through = {"StringEquals": {"kms:ViaService": services}}
    return [allow(verbs, [state.key.key_arn], conditions=through)]
