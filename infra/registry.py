"""The registry: one DynamoDB table of small records, which every commit is conditioned on."""

from __future__ import annotations

from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_kms as kms
from constructs import Construct

from infra.stage import Stage

DIRTY = "dirty"


class Registry(Construct):
    """The table, unless the context names one that exists. One AWS region: commits need strongly consistent reads."""

    def __init__(self, scope: Construct, *, stage: Stage, key: kms.IKey | None) -> None:
        super().__init__(scope, "Registry")
        if stage.registry:
            return
        text = dynamodb.AttributeType.STRING
        table = dynamodb.Table(
            self,
            "Table",
            table_name=stage.registry_name,
            partition_key=dynamodb.Attribute(name="pk", type=text),
            sort_key=dynamodb.Attribute(name="sk", type=text),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            encryption=dynamodb.TableEncryption.CUSTOMER_MANAGED if key else None,
            encryption_key=key,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            deletion_protection=not stage.local,
            removal_policy=stage.removal,
        )
        # Only heads with something to fold carry the attribute: the index is as large as the work that waits.
        table.add_global_secondary_index(
            index_name=DIRTY,
            partition_key=dynamodb.Attribute(name=DIRTY, type=text),
            projection_type=dynamodb.ProjectionType.KEYS_ONLY,
        )
