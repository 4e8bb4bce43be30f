"""The schedules of scrubs and backups: jitter, a queue for runs that can't start, one of tables; none by default."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.stage import stage_of
from tests.infra.conftest import ROOT, Stacks


def _schedules(stacks: Stacks) -> dict[str, Any]:
    return {one["Name"]: one for one in stacks.of("AWS::Scheduler::Schedule").values()}


@pytest.mark.rest
@pytest.mark.parametrize(
    ("name", "rate", "event"),
    [
        ("scrub-sample", "rate(1 day)", "sample"),
        ("scrub-everything", "rate(30 days)", "everything"),
        ("backup", "rate(7 days)", "changed"),
    ],
)
def test_scrubs_and_backups_run_on_the_schedules_of_the_context(
    name: str, rate: str, event: str, governed: Stacks
) -> None:
    schedule = _schedules(governed)[f"lancelsm-team-a-{name}"]
    failed = governed.named("AWS::SQS::Queue", QueueName="lancelsm-team-a-failed-events")
    target = schedule["Target"]
    alias = governed.of("AWS::Lambda::Alias")[target["Arn"]["Ref"]]

    assert (schedule["ScheduleExpression"], schedule["State"]) == (rate, "ENABLED")
    assert schedule["FlexibleTimeWindow"] == {"Mode": "FLEXIBLE", "MaximumWindowInMinutes": 15}
    assert json.loads(target["Input"]) == {"scheduled": event}
    assert target["DeadLetterConfig"] == {"Arn": {"Fn::GetAtt": [failed, "Arn"]}}
    assert target["RetryPolicy"] == {"MaximumRetryAttempts": 5, "MaximumEventAgeInSeconds": 86_400}
    function = name.partition("-")[0].title()
    assert alias["FunctionName"] == {
        "Ref": next(key for key in governed.of("AWS::Lambda::Function") if function in key)
    }
    assert target["RoleArn"] == _schedules(governed)["lancelsm-team-a-dispatch"]["Target"]["RoleArn"]
    assert (
        target["Arn"] in _statements(governed, target["RoleArn"]["Fn::GetAtt"][0])["lambda:InvokeFunction"]["Resource"]
    )


def _statements(stacks: Stacks, role: str) -> dict[str, Any]:
    """Return the statements of a role by their actions."""
    policies = (one for one in stacks.of("AWS::IAM::Policy").values() if {"Ref": role} in one["Roles"])
    return {str(one["Action"]): one for policy in policies for one in policy["PolicyDocument"]["Statement"]}


@pytest.mark.rest
@pytest.mark.parametrize("name", ["scrub", "backup"])
def test_a_few_invocations_serve_the_tables_of_a_queue(name: str, governed: Stacks) -> None:
    queue = governed.named("AWS::SQS::Queue", QueueName=f"lancelsm-team-a-{name}")
    properties = governed.of("AWS::SQS::Queue")[queue]
    failed = governed.named("AWS::SQS::Queue", QueueName="lancelsm-team-a-failed-events")
    function = governed.functions()[name]
    mappings = governed.of("AWS::Lambda::EventSourceMapping").values()
    (mapping,) = (one for one in mappings if one["EventSourceArn"] == {"Fn::GetAtt": [queue, "Arn"]})
    statements = _statements(governed, function["Role"]["Fn::GetAtt"][0])
    kept = governed.of("AWS::Lambda::EventInvokeConfig").values()

    assert (mapping["BatchSize"], mapping["ScalingConfig"]) == (1, {"MaximumConcurrency": 5})
    assert properties["VisibilityTimeout"] == 6 * function["Timeout"]
    assert properties["RedrivePolicy"] == {"deadLetterTargetArn": {"Fn::GetAtt": [failed, "Arn"]}, "maxReceiveCount": 2}
    variables = function["Environment"]["Variables"]
    assert variables[f"LANCELSM_{name.upper()}_QUEUE_URL"] == {"Ref": queue}
    assert "LANCELSM_REGISTRY" in variables
    assert statements["dynamodb:UpdateItem"]["Condition"] == {
        "ForAnyValue:StringEquals": {"dynamodb:LeadingKeys": ["scrub"]}
    }
    sending = [one["Resource"] for actions, one in statements.items() if "sqs:SendMessage" in actions]
    assert f'["{queue}", "Arn"]' in json.dumps(sending)
    assert [one["MaximumRetryAttempts"] for one in kept if name.title() in json.dumps(one)] == [0]


@pytest.mark.rest
def test_backups_go_to_another_bucket_and_their_role_writes_nothing_else(governed: Stacks) -> None:
    function = governed.functions()["backup"]
    statements = _statements(governed, function["Role"]["Fn::GetAtt"][0])
    vault = {"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, ":s3:::vault"]]}
    alarm = governed.named("AWS::CloudWatch::Alarm", AlarmName="lancelsm-team-a-backup-failures")

    assert function["Environment"]["Variables"]["LANCELSM_BACKUPS"] == "s3://vault/of/lancelsm"
    written = [one["Resource"] for actions, one in statements.items() if "s3:PutObject" in actions]
    assert [json.dumps(one).rpartition(":s3:::")[2].rstrip('"]}') for one in written] == ["vault/of/lancelsm/*"]
    assert not [actions for actions in statements if "s3:Delete" in actions or "dynamodb:Delete" in actions]
    listed = [one["Condition"] for actions, one in statements.items() if one["Resource"] == vault]
    assert listed == [{"StringLikeIfExists": {"s3:prefix": ["of/lancelsm/*"]}}]
    description = governed.of("AWS::CloudWatch::Alarm")[alarm]["AlarmDescription"]
    assert (ROOT / description.rpartition("What to do: ")[2]).is_file()


class _Node:
    def try_get_context(self, name: str) -> Any:
        return {"stage": "prod"}.get(name)

    def get_all_context(self) -> dict[str, Any]:
        return {"stage": "prod"}


def test_no_stage_scrubs_or_backs_up_unless_the_context_says_so() -> None:
    assert stage_of(_Node()).rounds == ()  # type: ignore[arg-type]
