"""`ingest` and `query` move to a new version under an alarm, and code of earlier deployments stays usable."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.infra.conftest import ROOT, Stacks, synthesized

POLICY = "UpdatePolicy"


@pytest.mark.parametrize("stage", ["dev", "prod"])
def test_ingest_and_query_shift_under_an_alarm_and_go_back(stage: str, all_stacks: dict[str, Stacks]) -> None:
    stacks = all_stacks[stage]
    alarm = stacks.named("AWS::CloudWatch::Alarm", AlarmName=f"lancelsm-{stage}-broken-release")
    groups = stacks.of("AWS::CodeDeploy::DeploymentGroup")
    shifted = {
        name: one["UpdatePolicy"]["CodeDeployLambdaAliasUpdate"]
        for name, one in stacks.pipeline["Resources"].items()
        if one["Type"] == "AWS::Lambda::Alias" and "UpdatePolicy" in one
    }

    assert {name.split("Live")[0] for name in shifted} == {"FunctionsIngest", "FunctionsQuery"}
    assert {one["DeploymentGroupName"]["Ref"] for one in shifted.values()} == set(groups)
    for group in groups.values():
        assert group["DeploymentConfigName"] == "CodeDeployDefault.LambdaCanary10Percent5Minutes"
        assert group["AlarmConfiguration"] == {"Alarms": [{"Name": {"Ref": alarm}}], "Enabled": True}
        assert group["AutoRollbackConfiguration"]["Enabled"] is True
        assert set(group["AutoRollbackConfiguration"]["Events"]) == {
            "DEPLOYMENT_FAILURE",
            "DEPLOYMENT_STOP_ON_REQUEST",
            "DEPLOYMENT_STOP_ON_ALARM",
        }


def test_the_alarm_of_a_broken_release_counts_bugs_and_crashes_and_no_cold_start(prod: Stacks) -> None:
    filters = [
        one["FilterPattern"]
        for one in prod.of("AWS::Logs::MetricFilter").values()
        if one["MetricTransformations"][0]["MetricName"] == "Broken"
    ]

    def matches(line: str) -> bool:
        return any(term in line for term in re.findall(r'\\?"([^"]+)"', filters[0]))

    assert len(filters) == 2
    assert len(set(filters)) == 1
    assert all(map(matches, ('[ERROR] Internal: {"error"', "2026 id Task timed out after 30 s", "Runtime exited with")))
    assert not any(map(matches, ("INIT_START Runtime Version: python:3.13", '[ERROR] Invalid: {"kind"', "REPORT")))


@pytest.mark.rest
def test_the_context_shifts_slower_or_not_at_all(tmp_path: Path, layers: Path) -> None:
    slower = synthesized(tmp_path / "a", stage="dev", layers=str(layers), shift_minutes="30")
    at_once = synthesized(tmp_path / "b", stage="dev", layers=str(layers), shift_minutes="0")

    names = {one["DeploymentConfigName"] for one in slower.of("AWS::CodeDeploy::DeploymentGroup").values()}
    assert names == {"CodeDeployDefault.LambdaCanary10Percent30Minutes"}
    assert not at_once.of("AWS::CodeDeploy::DeploymentGroup")
    with pytest.raises(ValueError, match="shift_minutes=7: give one of 0, 5, 10, 15, 30"):
        synthesized(tmp_path / "c", stage="dev", layers=str(layers), shift_minutes="7")


def test_the_page_lists_the_kinds_of_resources_that_the_emulator_lacks(local: Stacks, prod: Stacks) -> None:
    def kinds(stacks: Stacks) -> set[str]:
        both = (*stacks.state["Resources"].values(), *stacks.pipeline["Resources"].values())
        return {one["Type"] for one in both}

    listed = re.findall(
        r"^\| `(AWS::\w+::\w+)` \|", (ROOT / "docs" / "operations" / "local.md").read_text(), re.MULTILINE
    )
    assert kinds(prod) - kinds(local) == set(listed)


def test_a_job_may_read_the_code_of_every_deployment_of_its_stage(stacks: Stacks) -> None:
    prefix = f"lancelsm-{stacks.stage}/"
    (role,) = (name for name in stacks.of("AWS::IAM::Role") if name.startswith("MergingJobRole"))
    (policy,) = (one for one in stacks.of("AWS::IAM::Policy").values() if {"Ref": role} in one["Roles"])
    code = [
        text
        for statement in policy["PolicyDocument"]["Statement"]
        if "-assets-" in (text := json.dumps(statement["Resource"]))
    ]
    (machine,) = (
        one["DefinitionSubstitutions"]
        for one in stacks.of("AWS::StepFunctions::StateMachine").values()
        if "EntryPoint" in one["DefinitionSubstitutions"]
    )

    assert len(code) == 1
    assert f"/{prefix}*" in code[0]
    assert not re.search("[0-9a-f]{64}", code[0]), "the code of one deployment only"
    assert re.search(rf"/{prefix}[0-9a-f]{{64}}\.py", json.dumps(machine["EntryPoint"]))
