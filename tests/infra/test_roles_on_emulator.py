"""The emulator, with AUTH on, allows one permitted request of each role and denies one forbidden request."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.emulator import Emulator, emulator
from tests.infra.conftest import Stacks
from tests.infra.roles import ACCOUNT, MAY, MAY_NOT, REGISTRY, Request, Roles

pytestmark = pytest.mark.skipif(
    "LANCELSM_TEST_ENDPOINT" in os.environ, reason="it creates roles, and needs an account of its own that checks them"
)
DENIED = {"AccessDenied", "AccessDeniedException", "403"}
Clients = Callable[[str], Any]


def _location(arn: str) -> dict[str, str]:
    bucket, _, key = arn.removeprefix("arn:aws:s3:::").partition("/")
    return {"Bucket": bucket, "Key": key}


def _table(arn: str) -> dict[str, str]:
    return {"TableName": arn.partition("table/")[2].partition("/")[0]}


_KEY = {"pk": {"S": "T"}, "sk": {"S": "none"}}
# The request for each action. An absent resource is not a denial.
CALLS: Mapping[str, Callable[[Clients, str], Any]] = {
    "s3:GetObject": lambda of, arn: of("s3").get_object(**_location(arn)),
    "s3:PutObject": lambda of, arn: of("s3").put_object(**_location(arn), Body=b""),
    "s3:DeleteObject": lambda of, arn: of("s3").delete_object(**_location(arn)),
    "dynamodb:GetItem": lambda of, arn: of("dynamodb").get_item(**_table(arn), Key=_KEY),
    "dynamodb:UpdateItem": lambda of, arn: of("dynamodb").update_item(**_table(arn), Key=_KEY),
    "lambda:InvokeFunction": lambda of, arn: of("lambda").invoke(FunctionName=arn),
    "states:StartExecution": lambda of, arn: of("stepfunctions").start_execution(stateMachineArn=arn),
}


@pytest.fixture(scope="module")
def account(all_stacks: Mapping[str, Stacks], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An account with the roles, bucket and registry of stage local. Unlike there, the tests may assume the roles."""
    stacks = all_stacks["local"]
    trust = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, "Action": "sts:AssumeRole"}
    with emulator(tmp_path_factory.mktemp("emulator")) as running:
        iam = running.client("iam")
        for name, policies in Roles(stacks).documents().items():
            iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps({"Statement": [trust]}))
            for number, document in enumerate(policies):
                iam.put_role_policy(RoleName=name, PolicyName=str(number), PolicyDocument=json.dumps(document))
        running.client("s3").create_bucket(Bucket=f"lancelsm-local-{ACCOUNT}-us-east-1")
        schema = stacks.one("AWS::DynamoDB::Table")
        running.client("dynamodb").create_table(
            **_table(REGISTRY),
            KeySchema=schema["KeySchema"],
            AttributeDefinitions=[one for one in schema["AttributeDefinitions"] if one["AttributeName"] in _KEY],
            BillingMode="PAY_PER_REQUEST",
        )
        yield running


def _first(requests: list[Request]) -> Request:
    return next(one for one in requests if one[0] in CALLS)


def _denied(account: Emulator, role: str, request: Request) -> bool:
    arn = f"arn:aws:iam::{ACCOUNT}:role/{role}"
    session = account.client("sts").assume_role(RoleArn=arn, RoleSessionName="test")["Credentials"]
    credentials = {
        "key": session["AccessKeyId"],
        "secret": session["SecretAccessKey"],
        "token": session["SessionToken"],
    }
    action, resource = request
    try:
        CALLS[action](lambda service: account.client(service, **credentials), resource)
    except ClientError as error:
        return error.response["Error"]["Code"] in DENIED
    return False


@pytest.mark.rest
@pytest.mark.parametrize("role", sorted(name for name in MAY if any(action in CALLS for action, _ in MAY[name])))
def test_the_emulator_allows_what_a_role_may_do_and_denies_the_rest(role: str, account: Emulator) -> None:
    assert not _denied(account, role, _first(MAY[role]))
    assert _denied(account, role, _first(MAY_NOT[role]))
