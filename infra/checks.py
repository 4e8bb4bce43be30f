"""cdk-nag over every stack; what it finds and we accept is accepted where it is made, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import aws_cdk as cdk
import cdk_nag
from aws_cdk import aws_iam as iam
from constructs import IConstruct


def check(app: cdk.App) -> None:
    """Let synthesis fail for whatever AWS Solutions' rules find."""
    cdk.Validations.of(app).add_plugins(cdk_nag.AwsSolutionsChecks(app))


def accept(construct: IConstruct, reasons: Mapping[str, str]) -> None:
    """Accept findings on a construct and below it: the number of the rule, and why it doesn't apply."""
    cdk.Validations.of(construct).acknowledge(
        *(cdk.Acknowledgment(id=f"AwsSolutions-{rule}", reason=reason) for rule, reason in reasons.items())
    )


def accept_stars(role: iam.Role, statements: Sequence[iam.PolicyStatement], reason: str) -> None:
    """Accept the stars in resources of these statements, each by its name in cdk-nag, and no others of the role."""
    stack = cdk.Stack.of(role)
    named = {_written(stack.resolve(resource)) for statement in statements for resource in statement.resources}
    accept(role, {f"IAM5[Resource::{name}]": reason for name in sorted(named) if "*" in name})


def _written(resource: Any) -> str:
    """A resource as cdk-nag writes it: references in angle brackets."""
    match resource:
        case {"Fn::Join": [between, parts]}:
            return str(between).join(_written(part) for part in parts)
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": path}:
            return f"<{'.'.join(path)}>"
        case _:
            return str(resource)
