"""Define the registry: one DynamoDB table of small records. Every commit is a conditional write of a record."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_kms as kms
from constructs import Construct

from infra.sharing import may_read_records
from infra.stage import Stage

DIRTY = "dirty"


class Registry(Construct):
    """The table, unless the context names an existing one. It is in one AWS region: commits need consistent reads."""

    def __init__(self, scope: Construct, *, stage: Stage, key: kms.IKey | None) -> None:
        super().__init__(scope, "Registry")
        if stage.registry:
            return
        string = dynamodb.AttributeType.STRING
        table = dynamodb.Table(
            self,
            "Table",
            table_name=stage.registry_name,
            partition_key=dynamodb.Attribute(name="pk", type=string),
            sort_key=dynamodb.Attribute(name="sk", type=string),
            resource_policy=may_read_records(cdk.Stack.of(self), stage.registry_name, stage.readers),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            encryption=dynamodb.TableEncryption.CUSTOMER_MANAGED if key else None,
            encryption_key=key,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            deletion_protection=stage.keeps_data,
            removal_policy=stage.removal_policy,
        )
        # Only heads with something to flush or merge have this attribute, so the index holds only pending work.
        table.add_global_secondary_index(
            index_name=DIRTY,
            partition_key=dynamodb.Attribute(name=DIRTY, type=string),
            projection_type=dynamodb.ProjectionType.KEYS_ONLY,
        )
