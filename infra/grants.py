"""Build the statements of IAM policies: access to objects of tables, records of the registry, and messages.

Objects are named by patterns of keys in the bucket. A wildcard also matches slashes, since a table's
name may contain some.
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
from infra.storage import JOBS, TABLES, WORK

TABLE = f"{TABLES}/*"  # every object of a table
CONFIG = f"{TABLES}/*/_lancelsm/config.json"
LOG = f"{TABLES}/*/_mem_wal/*/wal/*"
MANIFESTS = f"{TABLES}/*/_mem_wal/*/manifest/*"
REGIONS = f"{TABLES}/*/_mem_wal/*"  # log, manifests and generations
ROUNDS = tuple(
    f"{TABLES}/*/{part}/gc/*" for part in ("_mem_wal/*", "_lancelsm")
)  # lists of rounds: of regions, of the base
# What Lance writes for a base. Automatic clean-up is off: Lance deletes only what a sweep asks it to delete.
# A commit without rows: what Lance writes, and the statement of files.
VERSIONS = tuple(f"{TABLES}/*/{part}/*" for part in ("_transactions", "_versions", "_lancelsm/files"))
BASE = (*(f"{TABLES}/*/{part}/*" for part in ("data", "_deletions", "_indices")), *VERSIONS)
TAGS = f"{TABLES}/*/_refs/tags/*"
INBOX = f"{WORK}/inbox/*"
STEPS = f"{WORK}/steps/*"  # what the steps of executions pass on
RESULTS = f"{WORK}/results/*"
JOB_LOGS = f"{WORK}/jobs/logs/*"
SCRIPTS = f"{JOBS}/*"  # of Spark jobs that are not part of the stack
# What DynamoDB does with the key of a table on behalf of a writer, in addition to what it does for a reader.
_WRITING = (
    "kms:Encrypt",
    "kms:GenerateDataKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The resources of the state stack. Roles get access to parts of them."""

    bucket: s3.IBucket
    registry: dynamodb.ITable
    writes: sqs.IQueue
    dead_letters: sqs.IQueue
    key: kms.IKey | None


def state_of(scope: Construct, stage: Stage) -> State:
    """Look up the resources of the state stack by name.

    Neither stack refers to the other, so each can be destroyed and deployed alone.
    """
    stack = cdk.Stack.of(scope)

    def queue(name: str, existing: str | None) -> sqs.IQueue:
        arn = existing or stack.format_arn(service="sqs", resource=f"{stage.prefix}-{name}.fifo")
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
    """Allow reading, writing and deleting objects that match these patterns, and listing the prefixes that may be read.

    Without the right to list, S3 answers 403 instead of 404 for an absent object, so a reader could not tell that it is
    absent. A request for an object has no prefix, so the condition applies only to requests that have one.
    """
    listed = sorted({pattern.partition("/")[0] for pattern in get})
    actions = (("s3:GetObject", get), ("s3:PutObject", put), ("s3:DeleteObject", delete))
    statements = [
        allow([action], [state.bucket.arn_for_objects(pattern) for pattern in patterns])
        for action, patterns in actions
        if patterns
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
    """Allow reading records of the registry.

    Args:
        write: also allow writing records, one at a time, each under its condition.
        delete: also allow deleting expired records.
        find: also allow scanning the index of regions that have something to flush or merge. No decision depends on it.
    """
    actions = ["dynamodb:GetItem", "dynamodb:Query"]
    actions += ["dynamodb:UpdateItem"] if write else []
    actions += ["dynamodb:DeleteItem"] if delete else []
    statements = [allow(actions, [state.registry.table_arn])]
    if find:
        index = f"{state.registry.table_arn}/index/{DIRTY}"
        statements.append(allow(["dynamodb:Scan"], [index]))
    writing = _WRITING if write or delete else ()
    return statements + (_key(state, "kms:Decrypt", "kms:DescribeKey", *writing) if state.key else [])


def advisory(state: State, partition: str) -> iam.PolicyStatement:
    """Allow writing the records of one partition, such as the position of `dispatch`, and no others."""
    only = {"ForAnyValue:StringEquals": {"dynamodb:LeadingKeys": [partition]}}
    return allow(["dynamodb:UpdateItem"], [state.registry.table_arn], conditions=only)


def sending(state: State, queue: sqs.IQueue) -> list[iam.PolicyStatement]:
    """Allow sending messages to a queue."""
    statements = [allow(["sqs:SendMessage"], [queue.queue_arn])]
    return statements + (_key(state, "kms:Decrypt", "kms:GenerateDataKey") if state.key else [])


def _key(state: State, *actions: str) -> list[iam.PolicyStatement]:
    """Allow using the KMS key, but only through S3, SQS and DynamoDB."""
    assert state.key
    services = [f"{service}.{cdk.Aws.REGION}.{cdk.Aws.URL_SUFFIX}" for service in ("s3", "sqs", "dynamodb")]
    through = {"StringEquals": {"kms:ViaService": services}}
    return [allow(actions, [state.key.key_arn], conditions=through)]
