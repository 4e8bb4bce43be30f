"""Let other accounts read tables, and write nothing, by the policies of bucket and registry."""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3

_OBJECTS = "tables/*"


def may_read_tables(bucket: s3.Bucket, readers: Sequence[str]) -> None:
    """Let these accounts read all tables of the bucket."""
    accounts = [iam.AccountPrincipal(one) for one in readers]
    bucket.add_to_resource_policy(
        iam.PolicyStatement(principals=accounts, actions=["s3:GetObject"], resources=[bucket.arn_for_objects(_OBJECTS)])
    )
    bucket.add_to_resource_policy(
        iam.PolicyStatement(
            principals=accounts,
            actions=["s3:ListBucket"],
            resources=[bucket.bucket_arn],
            # For an absent object, S3 checks this right without a prefix.
            conditions={"StringLikeIfExists": {"s3:prefix": [_OBJECTS]}},
        )
    )


def may_read_records(stack: cdk.Stack, name: str, readers: Sequence[str]) -> iam.PolicyDocument | None:
    """Return the policy of the registry of this name that lets these accounts read it; None if there are none."""
    if not readers:
        return None
    return iam.PolicyDocument(
        statements=[
            iam.PolicyStatement(
                principals=[iam.AccountPrincipal(one) for one in readers],
                actions=["dynamodb:GetItem", "dynamodb:Query"],
                resources=[stack.format_arn(service="dynamodb", resource="table", resource_name=name)],
            )
        ]
    )


def registry_kind(registry: dynamodb.ITable, readers: Sequence[str]) -> str:
    """Return how tables name the registry.

    For readers in other accounts that is its ARN, which DynamoDB takes as a name: a name alone means their own account.
    """
    return f"dynamodb:{registry.table_arn if readers else registry.table_name}"


def key_statement(stack: cdk.Stack, readers: Sequence[str]) -> str:
    """Return the statement that the owner of the KMS key adds to its policy, so that these accounts can decrypt."""
    services = [f"{name}.{stack.region}.{stack.url_suffix}" for name in ("s3", "dynamodb")]
    statement = {
        "Effect": "Allow",
        "Principal": {"AWS": [f"arn:{stack.partition}:iam::{one}:root" for one in readers]},
        "Action": ["kms:Decrypt", "kms:DescribeKey"],
        "Resource": "*",
        "Condition": {"StringEquals": {"kms:ViaService": services}},
    }
    return stack.to_json_string(statement)
