"""Check every stack with cdk-nag. A finding that we accept is acknowledged beside its resource, with a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import aws_cdk as cdk
import cdk_nag
from aws_cdk import aws_iam as iam
from constructs import IConstruct


def check(app: cdk.App) -> None:
    """Make synthesis fail on any finding of the AWS Solutions rules."""
    cdk.Validations.of(app).add_plugins(cdk_nag.AwsSolutionsChecks(app))


def accept(construct: IConstruct, reasons: Mapping[str, str]) -> None:
    """Accept findings on a construct and everything below it.

    Args:
        reasons: why each rule does not apply, by the number of the rule.
    """
    cdk.Validations.of(construct).acknowledge(
        *(cdk.Acknowledgment(id=f"AwsSolutions-{rule}", reason=reason) for rule, reason in reasons.items())
    )


def accept_wildcards(role: iam.Role, statements: Sequence[iam.PolicyStatement], reason: str) -> None:
    """Accept the wildcards in the resources of these statements, one by one, and no other wildcard of the role."""
    stack = cdk.Stack.of(role)
    names = {_resource_name(stack.resolve(resource)) for statement in statements for resource in statement.resources}
    accept(role, {f"IAM5[Resource::{name}]": reason for name in sorted(names) if "*" in name})


def _resource_name(resource: Any) -> str:
    """Return a resource as cdk-nag writes it, with references in angle brackets."""
    match resource:
        case {"Fn::Join": [separator, parts]}:
            return str(separator).join(_resource_name(part) for part in parts)
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": path}:
            return f"<{'.'.join(path)}>"
        case {"Fn::Sub": text}:
            return str(text).replace("${", "<").replace("}", ">")
        case _:
            return str(resource)
