"""Define state machines from their files in `workflows/`, with the resource names of the deployment filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.checks import accept, accept_wildcards
from infra.stage import Stage

WORKFLOWS = Path(__file__).parent / "workflows"


def machine(
    scope: Construct, name: str, *, stage: Stage, tokens: Mapping[str, str], grants: Sequence[iam.PolicyStatement]
) -> sfn.StateMachine:
    """Define the state machine of `workflows/{name}.asl.json`, with a role of its own.

    Args:
        tokens: the replacement of each `${Token}` in the file, other than `${Partition}`.
        grants: what its tasks need.
    """
    role = iam.Role(
        scope,
        "MachineRole",
        role_name=f"{stage.prefix}-{name}-machine-{cdk.Aws.REGION}",
        assumed_by=iam.ServicePrincipal("states.amazonaws.com"),
    )
    for statement in grants:
        role.add_to_policy(statement)
    group = logs.LogGroup(
        scope,
        "MachineLog",
        log_group_name=f"/aws/vendedlogs/states/{stage.prefix}-{name}",
        retention=stage.log_retention,
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )
    made = sfn.StateMachine(
        scope,
        "Machine",
        state_machine_name=f"{stage.prefix}-{name}",
        definition_body=sfn.DefinitionBody.from_file(str(WORKFLOWS / f"{name}.asl.json")),
        definition_substitutions={"Partition": cdk.Aws.PARTITION, **tokens},
        role=role,
        tracing_enabled=stage.tracing or None,
        logs=sfn.LogOptions(destination=group, level=sfn.LogLevel.ALL, include_execution_data=False),
    )
    if not stage.tracing:
        accept(made, {"SF2": "Logs and the execution history show each step; X-Ray would add cost"})
    accept_wildcards(role, grants, "The id of a job is known only when it starts")
    accept(role, {"IAM5[Resource::*]": "Step Functions needs log delivery permissions on all resources"})
    cdk.CfnOutput(cdk.Stack.of(scope), f"{name.title()}Machine", value=made.state_machine_arn)
    return made
