"""The state stack: bucket, registry and queues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.infra.conftest import Stacks, synthesized

DATA = ("AWS::S3::Bucket", "AWS::DynamoDB::Table", "AWS::SQS::Queue")


def _policies(stacks: Stacks) -> dict[str, set[str]]:
    return {
        kind: {one["DeletionPolicy"] for one in stacks.state["Resources"].values() if one["Type"] == kind}
        for kind in DATA
    }


def test_data_outlives_its_stack(prod: Stacks) -> None:
    assert _policies(prod) == {kind: {"Retain"} for kind in DATA}
    assert prod.one("AWS::DynamoDB::Table")["DeletionProtectionEnabled"] is True


def test_stage_local_keeps_no_data(local: Stacks) -> None:
    assert _policies(local) == {kind: {"Delete"} for kind in DATA}


def test_the_pipeline_stack_holds_no_data(stacks: Stacks) -> None:
    found = {name: one["Type"] for name, one in stacks.pipeline["Resources"].items() if one["Type"] in DATA}
    assert set(found.values()) == {"AWS::SQS::Queue"}
    assert all(name.startswith("Events") for name in found), "names of tables and records of failures are no data"


def test_neither_stack_refers_to_the_other(stacks: Stacks) -> None:
    text = str([stacks.state, stacks.pipeline])
    assert "Fn::ImportValue" not in text
    assert "Fn::GetStackOutput" not in text


def test_the_bucket_is_private_and_expires_temporary_objects(prod: Stacks) -> None:
    bucket = prod.one("AWS::S3::Bucket")

    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    rules = {rule["Id"]: rule for rule in bucket["LifecycleConfiguration"]["Rules"]}
    assert rules["work"]["ExpirationInDays"] == 14
    assert rules["work"]["Prefix"] == "work/"
    assert rules["abandoned-uploads"]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    assert rules["work"]["NoncurrentVersionExpiration"] == {"NoncurrentDays": 1}


def test_the_bucket_keeps_what_was_deleted_for_some_days(prod: Stacks) -> None:
    bucket = prod.one("AWS::S3::Bucket")

    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    (rule,) = (rule for rule in bucket["LifecycleConfiguration"]["Rules"] if rule["Id"] == "noncurrent")
    assert rule["NoncurrentVersionExpiration"] == {"NoncurrentDays": 7}
    assert rule["ExpiredObjectDeleteMarker"] is True
    assert "Prefix" not in rule


def test_no_role_deletes_a_version(stacks: Stacks) -> None:
    text = str(stacks.pipeline)

    assert "DeleteObjectVersion" not in text
    assert "s3:Delete*" not in text
    assert "s3:*" not in text


def test_the_days_of_deleted_objects_come_from_the_context(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="noncurrent_days=0: give a whole number from 1 to 3650"):
        synthesized(tmp_path, stage="local", noncurrent_days="0")


def test_the_registry_has_the_keys_that_its_adapter_writes(prod: Stacks) -> None:
    table = prod.one("AWS::DynamoDB::Table")

    assert table["TableName"] == "lancelsm-prod-registry"
    assert table["KeySchema"] == [
        {"AttributeName": "pk", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"},
    ]
    (index,) = table["GlobalSecondaryIndexes"]
    assert index["IndexName"] == "dirty"
    assert index["Projection"] == {"ProjectionType": "KEYS_ONLY"}
    assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert table["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}


def _queues(stacks: Stacks) -> dict[str, Any]:
    return {one["QueueName"].rpartition("-")[2]: one for one in stacks.of("AWS::SQS::Queue").values()}


def test_a_batch_is_hidden_for_six_times_the_timeout_of_its_function(stacks: Stacks) -> None:
    writes = _queues(stacks)["writes.fifo"]
    assert writes["VisibilityTimeout"] == 6 * stacks.functions()["writer_flush"]["Timeout"]


def test_queues_keep_messages_for_two_weeks_and_redrive_late(stacks: Stacks) -> None:
    queues = {name: one for name, one in _queues(stacks).items() if name.endswith(".fifo")}

    assert set(queues) == {"writes.fifo", "letters.fifo"}
    for queue in queues.values():
        assert queue["FifoQueue"] is True
        assert queue["MessageRetentionPeriod"] == 14 * 24 * 3600
        assert queue["DeduplicationScope"] == "messageGroup"
        assert queue["FifoThroughputLimit"] == "perMessageGroupId"
    assert queues["writes.fifo"]["RedrivePolicy"]["maxReceiveCount"] == 1000


def test_outputs_name_what_clients_need(stacks: Stacks) -> None:
    outputs = stacks.state["Outputs"]
    assert set(outputs) == {"Bucket", "RegistryName", "QueueUrl", "DeadLetterUrl"}
    assert {name: stacks.pipeline["Outputs"][name] for name in outputs} == outputs


def test_existing_resources_are_used_and_not_created(chosen: Stacks) -> None:
    assert not chosen.state["Resources"]
    assert chosen.pipeline["Outputs"]["Bucket"] == {"Value": "lake"}
    assert chosen.pipeline["Outputs"]["RegistryName"] == {"Value": "dynamodb:heads"}
    environment = chosen.functions()["writer_flush"]["Environment"]["Variables"]
    assert environment["LANCELSM_TABLES"] == "s3://lake/tables"
    assert environment["LANCELSM_QUEUE_URL"]["Fn::Join"][1][-1] == "/111111111111/in.fifo"


def test_an_existing_queue_needs_its_dead_letter_queue(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dead_letters"):
        synthesized(tmp_path, stage="local", queue="arn:aws:sqs:us-east-1:111111111111:in.fifo")


def _kms_actions(stacks: Stacks, function: str) -> set[str]:
    """Return what the role of a function may do with keys."""
    name, _ = stacks.functions()[function]["Role"]["Fn::GetAtt"]
    policies = [one for one in stacks.of("AWS::IAM::Policy").values() if {"Ref": name} in one["Roles"]]
    statements = [statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]]
    actions = [action for one in statements for action in _as_list(one["Action"])]
    return {action for action in actions if action.startswith("kms:")}


def _as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else value


@pytest.mark.rest
def test_a_customer_key_encrypts_everything_and_is_granted_through_the_services_only(tmp_path: Path) -> None:
    arn = "arn:aws:kms:us-east-1:111111111111:key/6b2c1f0e-3d52-4a4e-9a55-0d4a3a0f5c11"
    encrypted = synthesized(tmp_path, stage="local", kms_key=arn)

    (rule,) = encrypted.one("AWS::S3::Bucket")["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"]["KMSMasterKeyID"] == arn
    assert encrypted.one("AWS::DynamoDB::Table")["SSESpecification"]["KMSMasterKeyId"] == arn
    assert {queue["KmsMasterKeyId"] for queue in encrypted.of("AWS::SQS::Queue").values()} == {arn}
    statements = [
        statement
        for policy in encrypted.of("AWS::IAM::Policy").values()
        for statement in policy["PolicyDocument"]["Statement"]
        if any(action.startswith("kms:") for action in _as_list(statement["Action"]))
    ]
    # What DynamoDB demands of readers and of writers of a table with a customer key.
    assert _kms_actions(encrypted, "scrub") >= {"kms:Decrypt", "kms:DescribeKey"}
    writing = {"kms:Encrypt", "kms:ReEncryptFrom", "kms:ReEncryptTo"}
    assert not _kms_actions(encrypted, "scrub") & writing
    for name in ("writer_flush", "apply", "region_claim", "compaction", "merger", "gc", "gc_sweep"):
        assert _kms_actions(encrypted, name) >= {"kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKey", *writing}
    assert statements
    assert all("kms:ViaService" in statement["Condition"]["StringEquals"] for statement in statements)
