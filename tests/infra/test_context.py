"""What the context chooses for a stage beyond sizes: network, key, boundary, tags, readers, logs, removal, replica."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from infra.network import GATEWAYS, INTERFACES
from infra.stage import PRESETS, stage_of
from lancelsm.stack.cost.from_metrics import FILTER
from tests.infra.conftest import FAR_KEY, GOVERNED, KEY, READERS, ROOT, Stacks, synthesized


@pytest.mark.rest
def test_functions_and_jobs_run_in_the_subnets_of_the_context(governed: Stacks, prod: Stacks) -> None:
    subnets = GOVERNED["subnets"].split(",")
    for function in governed.functions().values():
        assert function["VpcConfig"]["SubnetIds"] == subnets
    network = governed.one("AWS::EMRServerless::Application")["NetworkConfiguration"]
    assert network["SubnetIds"] == subnets
    assert network["SecurityGroupIds"] == governed.functions()["ingest"]["VpcConfig"]["SecurityGroupIds"]
    assert not any("VpcConfig" in function for function in prod.functions().values())


@pytest.mark.rest
def test_a_vpc_gets_the_endpoints_that_functions_call_through(governed: Stacks) -> None:
    found = governed.of("AWS::EC2::VPCEndpoint").values()
    gateways = [one for one in found if "RouteTableIds" in one]
    interfaces = [one for one in found if one.get("VpcEndpointType") == "Interface"]

    def services(endpoints: list[Any]) -> set[str]:
        return {re.split(r"[.\"]", json.dumps(one["ServiceName"]).rstrip('"]} '))[-1] for one in endpoints}

    assert services(gateways) == set(GATEWAYS)
    assert services(interfaces) == set(INTERFACES)
    assert all(one["RouteTableIds"] == [GOVERNED["route_tables"]] for one in gateways)
    assert all(one["SubnetIds"] == GOVERNED["subnets"].split(",") and one["PrivateDnsEnabled"] for one in interfaces)
    (ingress,) = governed.of("AWS::EC2::SecurityGroupIngress").values()
    assert (ingress["FromPort"], ingress["ToPort"], ingress["SourceSecurityGroupId"]) == (443, 443, ingress["GroupId"])


@pytest.mark.rest
def test_a_boundary_bounds_every_role(governed: Stacks) -> None:
    assert {one.get("PermissionsBoundary") for one in governed.of("AWS::IAM::Role").values()} == {
        GOVERNED["permissions_boundary"]
    }


@pytest.mark.rest
def test_tags_are_on_every_resource_that_has_tags(governed: Stacks) -> None:
    wanted = {"lancelsm:stage": "team-a", "team": "data", "cost-center": "42 a"}
    tagged = [
        one["Tags"] if isinstance(one["Tags"], dict) else {tag["Key"]: tag["Value"] for tag in one["Tags"]}
        for template in (governed.state, governed.pipeline)
        for one in (resource.get("Properties", {}) for resource in template["Resources"].values())
        if "Tags" in one
    ]
    assert len(tagged) > 20
    assert all(wanted.items() <= tags.items() for tags in tagged)


@pytest.mark.rest
def test_s3_counts_requests_if_the_context_asks_for_it(governed: Stacks, prod: Stacks) -> None:
    counting = [one.one("AWS::S3::Bucket").get("MetricsConfigurations") for one in (governed, prod)]
    assert counting == [[{"Id": FILTER}], None]


@pytest.mark.rest
def test_logs_are_kept_for_the_days_of_the_context(governed: Stacks, all_stacks: dict[str, Stacks]) -> None:
    def days(stacks: Stacks) -> set[int]:
        return {one["RetentionInDays"] for one in stacks.of("AWS::Logs::LogGroup").values()}

    assert [days(one) for one in (governed, all_stacks["prod"], all_stacks["dev"])] == [{365}, {90}, {14}]


@pytest.mark.rest
def test_data_may_be_deleted_with_its_stack_if_the_context_asks_for_it(governed: Stacks) -> None:
    kept = ("AWS::S3::Bucket", "AWS::DynamoDB::Table", "AWS::SQS::Queue")
    found = [one for one in governed.state["Resources"].values() if one["Type"] in kept]
    assert {one["DeletionPolicy"] for one in found} == {"Delete"}
    assert governed.one("AWS::DynamoDB::Table")["DeletionProtectionEnabled"] is False


def _statements(policy: Any) -> list[dict[str, Any]]:
    return [one for one in policy["Statement"] if "AWS" in one.get("Principal", {}) and one["Effect"] == "Allow"]


@pytest.mark.rest
def test_reader_accounts_may_read_tables_and_records_and_write_nothing(governed: Stacks) -> None:
    accounts = json.dumps(READERS)
    bucket = _statements(governed.one("AWS::S3::BucketPolicy")["PolicyDocument"])
    registry = _statements(governed.one("AWS::DynamoDB::Table")["ResourcePolicy"]["PolicyDocument"])

    assert [one["Action"] for one in bucket] == ["s3:GetObject", "s3:ListBucket"]
    assert json.dumps(bucket[0]["Resource"]).endswith('"/tables/*"]]}')
    assert bucket[1]["Condition"] == {"StringLikeIfExists": {"s3:prefix": ["tables/*"]}}
    assert [one["Action"] for one in registry] == [["dynamodb:GetItem", "dynamodb:Query"]]
    for statement in (*bucket, *registry):
        found = re.findall(r"\d{12}", json.dumps(statement["Principal"]))
        assert json.dumps(found) == accounts
    key = json.dumps(governed.state["Outputs"]["KeyStatement"])
    assert re.findall(r"kms:\w+", key) == ["kms:Decrypt", "kms:DescribeKey", "kms:ViaService"]
    assert re.findall(r"::(\d{12}):root", key) == list(READERS)


@pytest.mark.rest
def test_for_readers_of_other_accounts_a_table_names_the_registry_with_its_account(governed: Stacks) -> None:
    name = json.dumps(governed.pipeline["Outputs"]["RegistryName"])
    assert re.search(r'"dynamodb:arn:".*":table/lancelsm-team-a-registry"', name)


@pytest.mark.rest
def test_every_table_is_copied_to_the_replica_with_its_deletions(governed: Stacks) -> None:
    configuration = governed.one("AWS::S3::Bucket")["ReplicationConfiguration"]
    (rule,) = configuration["Rules"]

    assert (rule["Status"], rule["Filter"]) == ("Enabled", {"Prefix": "tables/"})
    assert rule["DeleteMarkerReplication"] == {"Status": "Enabled"}
    assert rule["Destination"] == {
        "Bucket": GOVERNED["replica_bucket"],
        "EncryptionConfiguration": {"ReplicaKmsKeyID": FAR_KEY},
    }
    assert rule["SourceSelectionCriteria"] == {"SseKmsEncryptedObjects": {"Status": "Enabled"}}
    (role,) = configuration["Role"]["Fn::GetAtt"][:1]
    policies = [one for one in governed.of("AWS::IAM::Policy").values() if {"Ref": role} in one["Roles"]]
    actions = {
        action
        for one in policies[0]["PolicyDocument"]["Statement"]
        for action in ([one["Action"]] if isinstance(one["Action"], str) else one["Action"])
    }
    assert actions == {
        "kms:Decrypt",
        "kms:Encrypt",
        "s3:GetObjectVersionAcl",
        "s3:GetObjectVersionForReplication",
        "s3:GetObjectVersionTagging",
        "s3:GetReplicationConfiguration",
        "s3:ListBucket",
        "s3:ReplicateDelete",
        "s3:ReplicateObject",
        "s3:ReplicateTags",
    }


@pytest.mark.parametrize(
    ("context", "text"),
    [
        ({"log_days": "15"}, "-c log_days=15: give one of 1, 3, 5, 7, 14, "),
        ({"removal": "snapshot"}, "-c removal=snapshot: give one of retain, destroy"),
        ({"tags": "team"}, "'team' has no value; give KEY=VALUE"),
        ({"tags": "aws:team=data"}, "aws:team begins with a reserved word"),
        ({"tags": "team=a;b"}, "a character that no tag may have"),
        ({"tags": f"{'k' * 129}=a"}, "longer than 128"),
        ({"tags": ",".join(f"k{number}=v" for number in range(41))}, "41 tags are more than 40"),
        ({"permissions_boundary": "bound"}, "arn:PARTITION:iam::ACCOUNT:policy/NAME"),
        ({"kms_key": "arn:aws:kms:us-east-1:111111111111:alias/lake"}, "arn:PARTITION:kms:REGION:ACCOUNT:key/ID"),
        ({"alarm_topic": "pager"}, "arn:PARTITION:sns:REGION:ACCOUNT:NAME"),
        ({"queue": "arn:aws:sqs:us-east-1:111111111111:in"}, "arn:PARTITION:sqs:REGION:ACCOUNT:NAME.fifo"),
        ({"readers": "12"}, "-c readers: 12 is not the id of an account"),
        ({"readers": "222222222222,222222222222"}, "a value is there twice"),
        ({"readers": "222222222222", "bucket": "lake"}, "change no policy of an existing bucket or registry"),
        ({"vpc": "10.0.0.0/16"}, "is not an id such as vpc-0a1b2c3d"),
        ({"vpc": "vpc-0a1b2c3d"}, "give subnets of it too"),
        ({"vpc": "vpc-0a1b2c3d", "subnets": "subnet-0a1b2c3d"}, "give the route tables of the subnets too"),
        ({"subnets": "subnet-0a1b2c3d"}, "-c subnets: give the VPC too"),
        ({"endpoints": "off"}, "-c endpoints: give the VPC too"),
        ({"scrub_days": "366"}, "-c scrub_days=366: give a whole number from 0 to 365"),
        ({"scrub_sample_days": "daily"}, "-c scrub_sample_days=daily: give a whole number from 0 to 365"),
        ({"request_metrics": "true", "bucket": "lake"}, "-c request_metrics: the stacks change no existing bucket"),
        ({"backup_days": "7"}, "-c backup_days: give the other one too: -c backup_uri=s3://BUCKET/PREFIX"),
        ({"backup_uri": "s3://vault"}, "-c backup_uri: give the other one too: -c backup_days=DAYS"),
        ({"backup_days": "7", "backup_uri": "vault"}, "-c backup_uri=vault: give s3://BUCKET/PREFIX"),
        ({"backup_days": "7", "backup_uri": "s3://lake/a", "bucket": "lake"}, "this is the bucket of the tables"),
        ({"backup_days": "7", "backup_uri": "s3://lancelsm-local-111111111111-eu-1/a"}, "this is the bucket of the"),
        ({"replica_bucket": "far-lake"}, "arn:PARTITION:s3:::BUCKET"),
        ({"replica_bucket": "arn:aws:s3:::far-lake", "kms_key": KEY}, "give -c replica_kms_key=ARN too"),
        ({"replica_kms_key": FAR_KEY}, "give replica_bucket too"),
        ({"replica_kms_key": FAR_KEY, "replica_bucket": "arn:aws:s3:::far-lake"}, "give kms_key, the key of the orig"),
        ({"replica_bucket": "arn:aws:s3:::far-lake", "bucket": "lake"}, "change no existing bucket"),
        ({"bucket": "s3://lake"}, "-c bucket=s3://lake: give the name of a bucket, without s3://"),
        ({"registry": "dynamodb:heads"}, "-c registry=dynamodb:heads: give the name of a DynamoDB table"),
        ({"log_day": "30"}, "-c log_day: there is no such value. Did you mean log_days?"),
        ({"LANCELSM_NONE": "30"}, "-c LANCELSM_NONE: there is no such value"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(context: dict[str, str], text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        synthesized(tmp_path, stage="local", **context)


def test_lists_and_tags_may_be_lists_and_mappings_in_cdk_json() -> None:
    given = {"readers": list(READERS), "tags": {"team": "data"}, "schedule_minutes": 0, "stage": "prod", "mine": 1}
    stage = stage_of(_Node(given))
    assert (stage.readers, stage.tags, stage.schedule_minutes) == (READERS, {"team": "data"}, 0)


class _Node:
    """The part of a construct's node that is read, which records the names of the values."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self.names: set[str] = set()

    def get_all_context(self) -> dict[str, Any]:
        return self._given

    def try_get_context(self, name: str) -> Any:
        self.names.add(name)
        return self._given.get(name)


def test_the_page_lists_every_value_of_the_context_and_no_other() -> None:
    node = _Node({})
    stage_of(node)
    text = (ROOT / "docs" / "operations" / "deploy.md").read_text()

    listed = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == {name for name in node.names if not name.startswith("LANCELSM_")}
    for name, presets in PRESETS.items():
        assert f"| {name} | {' | '.join(map(str, presets.values()))} |" in text


def test_the_page_lists_every_endpoint_of_a_vpc() -> None:
    text = (ROOT / "docs" / "operations" / "deploy.md").read_text()
    assert set(re.findall(r"^\| (\w+) \| (?:gateway|interface) \|", text, re.MULTILINE)) == {*GATEWAYS, *INTERFACES}
