"""Define the bucket: tables below `tables/`, scripts of Spark jobs below `jobs/`, temporary objects below `work/`."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.checks import accept
from infra.replication import replicate
from infra.sharing import may_read_tables
from infra.stage import Stage
from lancelsm.stack.cost.from_metrics import FILTER

TABLES = "tables"
JOBS = "jobs"
WORK = "work"
WORK_DAYS = 14  # as long as a queued message, which may name an object here


class Storage(Construct):
    """One private bucket, unless the context names an existing one.

    It keeps what was deleted or replaced for `noncurrent_days`, so that a deletion can be undone, and a table restored
    as of a time (`lancelsm restore-point`). No function may delete a version. An existing bucket keeps its settings;
    those below are recommended for it.
    """

    def __init__(self, scope: Construct, *, stage: Stage, key: kms.IKey | None) -> None:
        super().__init__(scope, "Storage")
        if stage.bucket:
            return
        bucket = s3.Bucket(
            self,
            "Bucket",
            bucket_name=stage.bucket_name,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            encryption=s3.BucketEncryption.KMS if key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=key,
            bucket_key_enabled=True if key else None,
            versioned=True,
            metrics=[s3.BucketMetrics(id=FILTER)] if stage.request_metrics else None,
            enforce_ssl=not stage.local,  # the emulator uses HTTP
            removal_policy=stage.removal_policy,
            lifecycle_rules=[
                s3.LifecycleRule(
                    id="abandoned-uploads", abort_incomplete_multipart_upload_after=cdk.Duration.days(1), enabled=True
                ),
                s3.LifecycleRule(
                    id="work",
                    prefix=f"{WORK}/",
                    expiration=cdk.Duration.days(WORK_DAYS),
                    noncurrent_version_expiration=cdk.Duration.days(1),
                    enabled=True,
                ),
                s3.LifecycleRule(
                    id="noncurrent",
                    noncurrent_version_expiration=cdk.Duration.days(stage.noncurrent_days),
                    expired_object_delete_marker=True,
                    enabled=True,
                ),
            ],
        )
        accept(
            bucket,
            {"S1": "Access logs cost more than the requests; CloudTrail data events log requests on demand"},
        )
        if stage.local:
            accept(bucket, {"S10": "The emulator uses HTTP"})
        if stage.readers:
            may_read_tables(bucket, stage.readers)
        if stage.replica:
            role_name = f"{stage.prefix}-replication-{cdk.Aws.REGION}"
            replicate(self, bucket, stage.replica, role_name=role_name, bucket_name=stage.bucket_name, key=key)
