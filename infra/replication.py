"""Copy the tables of the bucket to a bucket in another AWS region, where a table can be restored from them."""

from __future__ import annotations

from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.checks import accept_wildcards
from infra.context import Context

_PREFIX = "tables/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """Where the copies go.

    Args:
        bucket: ARN of an existing bucket with versioning.
        kms_key: ARN of the key that encrypts the copies; needed if `kms_key` encrypts the originals, else not allowed.
    """

    bucket: str
    kms_key: str | None


def replica_of(context: Context, *, kms_key: str | None) -> Replica | None:
    """Read `replica_bucket` and `replica_kms_key` of the context; None without `replica_bucket`.

    Args:
        kms_key: the key of the originals.

    Raises:
        ValueError: a value has a wrong form, or one is missing.
    """
    bucket = context.arn("replica_bucket", "s3:::BUCKET", r"s3:::[a-z0-9][a-z0-9.-]{2,62}")
    key = context.arn("replica_kms_key", "kms:REGION:ACCOUNT:key/ID", "kms:REGION:ACCOUNT:key/[a-z0-9-]+")
    if key and not (bucket and kms_key):
        missing = "kms_key, the key of the originals," if bucket else "replica_bucket"
        raise ValueError(f"-c replica_kms_key: give {missing} too")
    if kms_key and bucket and not key:
        raise ValueError(
            "-c replica_bucket: S3 copies objects that kms_key encrypts only with a key of the other AWS region: "
            "give -c replica_kms_key=ARN too"
        )
    return Replica(bucket=bucket, kms_key=key) if bucket else None


def replicate(
    scope: Construct, bucket: s3.Bucket, replica: Replica, *, role_name: str, bucket_name: str, key: kms.IKey | None
) -> None:
    """Copy every object below `tables/`, and every deletion, to the bucket of the replica."""
    originals = f"arn:{cdk.Aws.PARTITION}:s3:::{bucket_name}"
    role = iam.Role(scope, "ReplicaRole", role_name=role_name, assumed_by=iam.ServicePrincipal("s3.amazonaws.com"))
    reading = ["s3:GetObjectVersionForReplication", "s3:GetObjectVersionAcl", "s3:GetObjectVersionTagging"]
    writing = ["s3:ReplicateObject", "s3:ReplicateDelete", "s3:ReplicateTags"]
    grants = [
        (["s3:GetReplicationConfiguration", "s3:ListBucket"], originals),
        (reading, f"{originals}/{_PREFIX}*"),
        (writing, f"{replica.bucket}/{_PREFIX}*"),
        *([(["kms:Decrypt"], key.key_arn)] if key else []),
        *([(["kms:Encrypt"], replica.kms_key)] if replica.kms_key else []),
    ]
    statements = [iam.PolicyStatement(actions=actions, resources=[resource]) for actions, resource in grants]
    for statement in statements:
        role.add_to_policy(statement)
    accept_wildcards(role, statements, "Wildcards stand for objects of tables, which are created at run time")
    enabled = s3.CfnBucket.SseKmsEncryptedObjectsProperty(status="Enabled")
    rule = s3.CfnBucket.ReplicationRuleProperty(
        id="tables",
        priority=1,
        status="Enabled",
        filter=s3.CfnBucket.ReplicationRuleFilterProperty(prefix=_PREFIX),
        delete_marker_replication=s3.CfnBucket.DeleteMarkerReplicationProperty(status="Enabled"),
        destination=s3.CfnBucket.ReplicationDestinationProperty(
            bucket=replica.bucket,
            encryption_configuration=s3.CfnBucket.EncryptionConfigurationProperty(replica_kms_key_id=replica.kms_key)
            if replica.kms_key
            else None,
        ),
        source_selection_criteria=s3.CfnBucket.SourceSelectionCriteriaProperty(sse_kms_encrypted_objects=enabled)
        if replica.kms_key
        else None,
    )
    resource = bucket.node.default_child
    assert isinstance(resource, s3.CfnBucket)
    resource.replication_configuration = s3.CfnBucket.ReplicationConfigurationProperty(role=role.role_arn, rules=[rule])
