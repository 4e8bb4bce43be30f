"""Choose where scheduled backups go, and what the function that makes them may do there."""

from __future__ import annotations

import re
from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_iam as iam

from infra.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Backups:
    """Backups every `days`, below a prefix of an existing bucket."""

    days: int
    uri: str
    bucket: str
    prefix: str  # of their keys: empty, or it ends with a slash


def backups_of(context: Context, *, own: str) -> Backups | None:
    """Read `backup_days` and `backup_uri` of the context; None if there are no backups.

    Args:
        own: a regular expression for the name of the bucket of the tables.

    Raises:
        ValueError: a value has a wrong form, one is missing, or the bucket is that of the tables.
    """
    days = context.number("backup_days", range(366)) or 0
    uri = context.name("backup_uri", "s3://BUCKET/PREFIX", r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w.=-]+)*")
    if bool(days) != bool(uri):
        given, missing = ("days", "uri=s3://BUCKET/PREFIX") if days else ("uri", "days=DAYS")
        raise ValueError(f"-c backup_{given}: give the other one too: -c backup_{missing}")
    if not days or uri is None:
        return None
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    if re.fullmatch(own, bucket):
        raise ValueError(f"-c backup_uri={uri}: this is the bucket of the tables. Give another one: both may be lost")
    return Backups(days=days, uri=uri, bucket=bucket, prefix=f"{prefix}/" if prefix else "")


def copying(backups: Backups) -> list[iam.PolicyStatement]:
    """Allow writing backups, and reading them back."""
    bucket = f"arn:{cdk.Aws.PARTITION}:s3:::{backups.bucket}"
    prefixes = {"StringLikeIfExists": {"s3:prefix": [f"{backups.prefix}*"]}}
    return [
        iam.PolicyStatement(actions=["s3:GetObject", "s3:PutObject"], resources=[f"{bucket}/{backups.prefix}*"]),
        iam.PolicyStatement(actions=["s3:ListBucket"], resources=[bucket], conditions=prefixes),
    ]
