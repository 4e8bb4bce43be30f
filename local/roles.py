"""Check the policies of roles where MiniStack does not: for calls inside its own process.

MiniStack checks HTTP requests itself (AUTH=true), so functions, which have the credentials of their role, need nothing
here. A state machine, a schedule and an event source mapping act without a request. Their roles are checked here.
"""

from __future__ import annotations

import contextvars
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from local import ACCOUNT, REGION

_log = logging.getLogger("lancelsm.local")

Handle = Callable[..., Awaitable[Any]]

# The state machine execution that runs in this thread.
execution: contextvars.ContextVar[str] = contextvars.ContextVar("execution")

_DELIVERY = {"lambda": "lambda:InvokeFunction", "states": "states:StartExecution", "sqs": "sqs:SendMessage"}
_POLLING = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")


def denial(role: str, action: str, resource: str, context: Mapping[str, str] | None = None) -> str | None:
    """Return why a role may not do something, as AWS words it; None if its policies allow it.

    Args:
        role: ARN of the role. A role that does not exist may do nothing.
        context: further condition keys, such as `iam:PassedToService`.
    """
    from ministack.core import iam_evaluator as iam  # noqa: PLC0415 - it reads its settings on import

    name = role.rsplit("/", 1)[-1]
    principal = f"arn:aws:sts::{ACCOUNT}:assumed-role/{name}/local"
    request = iam.EvalContext(
        principal_arn=principal,
        principal_type="AssumedRole",
        principal_account=ACCOUNT,
        action=action,
        resource_arn=resource,
        region=REGION,
        service_context={key.lower(): value for key, value in (context or {}).items()},
    )
    if iam.evaluate(request, iam._gather_role_policies(name, ACCOUNT)).decision == "Allow":
        return None
    return f"User: {principal} is not authorized to perform: {action} on resource: {resource}"


def credentials(role: str, session: str) -> dict[str, str]:
    """Return environment variables with which a process acts as a role, in a session of that name."""
    from ministack.services import sts  # noqa: PLC0415

    name = role.rsplit("/", 1)[-1]
    digest = hashlib.sha256(f"{role}:{session}".encode()).hexdigest()
    key, secret, token = f"ASIA{digest[:16].upper()}", digest[16:56], digest
    principal = f"arn:aws:sts::{ACCOUNT}:assumed-role/{name}/{session}"
    sts.register_session(
        key, {"Arn": principal, "UserId": f"{name}:{session}", "SecretAccessKey": secret, "SessionToken": token}
    )
    return {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": token}


def machine_role() -> str:
    """Return the ARN of the role of the state machine that runs in this thread."""
    from ministack.services import stepfunctions as machines  # noqa: PLC0415

    machine = machines._executions[execution.get()]["stateMachineArn"]
    role: str = machines._state_machines[machine]["roleArn"]
    return role


def executing(run: Callable[[str], None]) -> Callable[[str], None]:
    """Wrap the run of an execution so that its tasks know which execution they belong to."""

    def running(arn: str) -> None:
        execution.set(arn)
        run(arn)

    return running


def invoking(invoke: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """Wrap a task of a state machine: it may invoke a function or start another machine only if its role allows it.

    If another machine is not started, the error has the name that Step Functions uses for it.
    """

    def invoked(resource: str, data: Any) -> Any:
        from ministack.services.stepfunctions import _ExecutionError  # noqa: PLC0415

        function, starting = _function(resource, data), "states:::states:startExecution" in resource
        targets = {"lambda:InvokeFunction": function, "states:StartExecution": starting and data.get("StateMachineArn")}
        for action, target in targets.items():
            denied = denial(machine_role(), action, str(target)) if target and execution.get(None) else None
            if denied:
                service = "StepFunctions.AWSStepFunctions" if starting else "Lambda.AWSLambda"
                raise _ExecutionError(f"{service}Exception", denied)
        try:
            return invoke(resource, data)
        except _ExecutionError as error:
            if starting and error.error == "ExecutionAlreadyExists":
                raise _ExecutionError("StepFunctions.ExecutionAlreadyExistsException", error.cause) from error
            raise

    return invoked


def delivering(deliver: Callable[..., None]) -> Callable[..., None]:
    """Wrap the delivery of an event: a target with a role gets it only if the role allows it."""

    def delivered(target: dict[str, Any], *rest: Any) -> None:
        arn, role = target.get("Arn", ""), target.get("RoleArn")
        action = _DELIVERY.get(arn.split(":")[2] if arn.count(":") >= 5 else "")
        denied = denial(role, action, arn) if role and action else None
        if denied:
            _log.error("an event was not delivered: %s", denied)
            return
        deliver(target, *rest)

    return delivered


def polling(run: Callable[..., None]) -> Callable[..., None]:
    """Wrap the delivery of a batch: a function gets it only if its role may read the queue."""

    def ran(mapping: dict[str, Any], function: dict[str, Any], *rest: Any) -> None:
        role = (function.get("config") or function).get("Role", "")
        denied = next(filter(None, (denial(role, action, mapping["EventSourceArn"]) for action in _POLLING)), None)
        if denied:
            mapping["LastProcessingResult"] = f"PROBLEM: {denied}"
            _log.error("a batch was not delivered: %s", denied)
            return
        run(mapping, function, *rest)

    return ran


def hiding_absent_objects(handle: Handle) -> Handle:
    """Wrap reads of objects: as in S3, only a caller that may list the bucket learns that an object is absent."""

    async def handled(method: str, path: str, headers: Any, body: bytes, query: Any) -> Any:
        answer = await handle(method, path, headers, body, query)
        bucket, _, key = path.lstrip("/").partition("/")
        if answer[0] != 404 or method not in ("GET", "HEAD") or not key:
            return answer
        from ministack.core import iam_actions, iam_evaluator, router  # noqa: PLC0415

        access_key = router.extract_access_key_id(headers, query)
        denied = iam_evaluator.enforce(access_key, "s3:ListBucket", "s3", REGION, resource_arn=f"arn:aws:s3:::{bucket}")
        if not isinstance(denied, iam_evaluator.EvalResult):
            return answer
        return iam_actions.access_denied_response("s3", "s3:ListBucket", denied.principal_arn, "", headers=headers)

    return handled


def treating_as_secure(pin: Callable[[str, bool], None]) -> Callable[[str, bool], None]:
    """Treat every request as encrypted, which bucket policies demand. Requests never leave the machine."""

    def pinned(source: str, secure: bool) -> None:
        del secure
        pin(source, True)

    return pinned


def naming_actions(name: Callable[..., str | None]) -> Callable[..., str | None]:
    """Name the actions that IAM checks, where MiniStack names others.

    These are batch requests of SQS, for which IAM checks the action of a single message, and reads of one mapping.
    """

    def named(service: str, method: str, path: str, *rest: Any) -> str | None:
        action = name(service, method, path, *rest)
        if action == "lambda:ListEventSourceMappings" and re.search("/event-source-mappings/[^/]", path):
            return "lambda:GetEventSourceMapping"
        return action.removesuffix("Batch") if action and service == "sqs" else action

    return named


def naming_leading_keys(name: Callable[[bytes], dict[str, Any]]) -> Callable[[bytes], dict[str, Any]]:
    """Add the partition that a request of DynamoDB is about, if it is about one record, as a condition of policies."""

    def named(body: bytes) -> dict[str, Any]:
        from ministack.services import dynamodb  # noqa: PLC0415 - only when the emulator runs

        context = name(body)
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # the request itself is refused later
            request = json.loads(body)
            schema = dynamodb._tables[request["TableName"].rpartition("/")[2]]["KeySchema"]
            (partition,) = (one["AttributeName"] for one in schema if one["KeyType"] == "HASH")
            (value,) = (request.get("Key") or request["Item"])[partition].values()
            context = {**context, "dynamodb:LeadingKeys": [value]}
        return context

    return named


def naming_emr_resources(name: Callable[..., str]) -> Callable[..., str]:
    """Add the resource names of EMR Serverless, which are the paths of requests. MiniStack does not know them."""

    def named(service: str, method: str, path: str, *rest: Any) -> str:
        if service != "emr-serverless":
            return name(service, method, path, *rest)
        if path.startswith("/tags/"):
            return unquote(path.removeprefix("/tags/"))
        found = re.match(r"/applications/[^/]+(/jobruns/[^/]+)?", path)
        return f"arn:aws:emr-serverless:{REGION}:{ACCOUNT}:{found[0] if found else '/*'}"

    return named


def _function(resource: str, data: Any) -> str | None:
    """Return the ARN of the function, version or alias that a task invokes; None if it invokes no function."""
    if "states:::lambda:invoke" in resource:
        name = str(data.get("FunctionName", ""))
    elif resource.startswith("arn:aws:lambda:"):
        name = resource
    else:
        return None
    if name.startswith("arn:"):
        return name
    return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}"
