"""One set of templates serves the partitions aws, aws-us-gov and aws-cn. What a partition lacks is refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from infra.machines import WORKFLOWS
from infra.partitions import LACKING, check_partition, partition_of
from tests.infra.conftest import Stacks, synthesized

# The names of services as principals are the same in every partition.
PRINCIPALS = {f"{name}.amazonaws.com" for name in ("codedeploy", "emr-serverless", "lambda", "scheduler", "states")}
KEY = "arn:{}:kms:{}:111111111111:key/6b2c1f0e-3d52-4a4e-9a55-0d4a3a0f5c11"


@pytest.mark.parametrize("name", ["merge", "collect", "spark"])
def test_a_state_machine_names_no_partition(name: str, stacks: Stacks) -> None:
    assert "arn:aws" not in (WORKFLOWS / f"{name}.asl.json").read_text()
    machines = stacks.of("AWS::StepFunctions::StateMachine").values()
    assert {str(one["DefinitionSubstitutions"]["Partition"]) for one in machines} == {str({"Ref": "AWS::Partition"})}


def test_a_template_without_a_region_names_no_partition(stacks: Stacks) -> None:
    assert "arn:aws" not in json.dumps([stacks.state, stacks.pipeline])


@pytest.mark.rest
@pytest.mark.parametrize(("region", "partition"), [("us-gov-west-1", "aws-us-gov"), ("cn-north-1", "aws-cn")])
def test_a_stage_of_another_partition_names_no_other(region: str, partition: str, tmp_path: Path, layers: Path) -> None:
    key = KEY.format(partition, region)
    stage = synthesized(tmp_path, layers=str(layers), region=region, kms_key=key)
    text = json.dumps([stage.state, stage.pipeline])

    assert "arn:aws:" not in text
    assert f"arn:{partition}:" in text
    assert {part for part in ("aws-us-gov", "aws-cn") if f"arn:{part}:" in text} == {partition}
    assert set(re.findall(r"[^\"]*amazonaws[^\"]*", text)) == PRINCIPALS, "hosts end in the suffix of the partition"


@pytest.mark.parametrize("value", sorted(LACKING["aws-cn"]))
def test_what_a_partition_lacks_is_refused_by_name(value: str) -> None:
    with pytest.raises(ValueError, match=f"-c {value}: the partition aws-cn of cn-north-1 has no "):
        check_partition("cn-north-1", chosen={value: True})
    check_partition("us-gov-west-1", chosen={value: True})


def test_the_region_of_the_credentials_decides_what_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CDK_DEFAULT_REGION", "cn-northwest-1")
    with pytest.raises(ValueError, match="has no URLs of functions"):
        synthesized(tmp_path, stage="local", function_url="true")


@pytest.mark.parametrize(
    ("region", "text"), [("mars", "the name of an AWS region"), ("us-iso-east-1", "aws-iso is not one of aws, ")]
)
def test_an_unknown_region_is_refused(region: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        partition_of(region)
