"""Hold those to their roles that MiniStack serves inside its own process, where it asks no policy.

What comes in over HTTP it checks by itself (AUTH=true), so a function, which has credentials of its role, needs nothing
here. A state machine, a schedule and an event source mapping act without a request: they are asked here.
"""

from __future__ import annotations

import contextvars
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import unquote

from local import ACCOUNT, REGION

_log = logging.getLogger("lancelsm.local")

Handle = Callable[..., Awaitable[Any]]

# The execution of a state machine that runs in this thread.
execution: contextvars.ContextVar[str] = contextvars.ContextVar("execution")

_DELIVERY = {"lambda": "lambda:InvokeFunction", "states": "states:StartExecution", "sqs": "sqs:SendMessage"}
_POLLING = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")


def denial(role: str, action: str, resource: str, context: Mapping[str, str] | None = None) -> str | None:
    """Why a role may not do something, in the words of AWS; None if its policies allow it.

    Args:
        role: ARN of the role. One that does not exist may do nothing.
        context: further condition keys, as `iam:PassedToService`.
    """
    from ministack.core import iam_evaluator as iam  # noqa: PLC0415 - reads its settings while it is imported

    name = role.rsplit("/", 1)[-1]
    principal = f"arn:aws:sts::{ACCOUNT}:assumed-role/{name}/local"
    asked = iam.EvalContext(
        principal_arn=principal,
        principal_type="AssumedRole",
        principal_account=ACCOUNT,
        action=action,
        resource_arn=resource,
        region=REGION,
        service_context={key.lower(): value for key, value in (context or {}).items()},
    )
    if iam.evaluate(asked, iam._gather_role_policies(name, ACCOUNT)).decision == "Allow":
        return None
    return f"User: {principal} is not authorized to perform: {action} on resource: {resource}"


def credentials(role: str, session: str) -> dict[str, str]:
    """Environment variables that make a process act as a role, in a session of that name."""
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
    """ARN of the role of the state machine whose execution runs in this thread."""
    from ministack.services import stepfunctions as machines  # noqa: PLC0415

    of = machines._executions[execution.get()]["stateMachineArn"]
    role: str = machines._state_machines[of]["roleArn"]
    return role


def executing(run: Callable[[str], None]) -> Callable[[str], None]:
    """Run an execution so that its tasks know whose it is."""

    def running(arn: str) -> None:
        execution.set(arn)
        run(arn)

    return running


def invoking(invoke: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """Do a task of a state machine; a function is invoked, or another machine started, only if its role may.

    What Step Functions says of a machine that is not started, it says under its own names.
    """

    def invoked(resource: str, data: Any) -> Any:
        from ministack.services.stepfunctions import _ExecutionError  # noqa: PLC0415

        function, starting = _function(resource, data), "states:::states:startExecution" in resource
        asked = {"lambda:InvokeFunction": function, "states:StartExecution": starting and data.get("StateMachineArn")}
        for action, target in asked.items():
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
    """Deliver an event to a target; one that names a role only if that role may."""

    def delivered(target: dict[str, Any], *more: Any) -> None:
        arn, role = target.get("Arn", ""), target.get("RoleArn")
        action = _DELIVERY.get(arn.split(":")[2] if arn.count(":") >= 5 else "")
        denied = denial(role, action, arn) if role and action else None
        if denied:
            _log.error("an event is not delivered: %s", denied)
            return
        deliver(target, *more)

    return delivered


def polling(run: Callable[..., None]) -> Callable[..., None]:
    """Hand a batch of a queue to a function only if the function's role may read that queue."""

    def ran(mapping: dict[str, Any], function: dict[str, Any], *more: Any) -> None:
        role = (function.get("config") or function).get("Role", "")
        denied = next(filter(None, (denial(role, action, mapping["EventSourceArn"]) for action in _POLLING)), None)
        if denied:
            mapping["LastProcessingResult"] = f"PROBLEM: {denied}"
            _log.error("a batch is not delivered: %s", denied)
            return
        run(mapping, function, *more)

    return ran


def hiding_absence(handle: Handle) -> Handle:
    """Answer a read of an absent object as S3 does: only who may list the bucket learns that it is absent."""

    async def handled(method: str, path: str, headers: Any, body: bytes, query: Any) -> Any:
        answer = await handle(method, path, headers, body, query)
        bucket, _, key = path.lstrip("/").partition("/")
        if answer[0] != 404 or method not in ("GET", "HEAD") or not key:
            return answer
        from ministack.core import iam_actions, iam_evaluator, router  # noqa: PLC0415

        asked = router.extract_access_key_id(headers, query)
        denied = iam_evaluator.enforce(asked, "s3:ListBucket", "s3", REGION, resource_arn=f"arn:aws:s3:::{bucket}")
        if not isinstance(denied, iam_evaluator.EvalResult):
            return answer
        return iam_actions.access_denied_response("s3", "s3:ListBucket", denied.principal_arn, "", headers=headers)

    return handled


def asking_as_secure(pin: Callable[[str, bool], None]) -> Callable[[str, bool], None]:
    """Count a request as encrypted, which policies of deployed buckets demand: it never leaves the machine."""

    def pinned(source: str, secure: bool) -> None:
        del secure
        pin(source, True)

    return pinned


def naming_batches(name: Callable[..., str | None]) -> Callable[..., str | None]:
    """Name what a request does. A batch of SQS is no action of its own: it needs what one message needs."""

    def named(service: str, *more: Any) -> str | None:
        action = name(service, *more)
        return action.removesuffix("Batch") if action and service == "sqs" else action

    return named


def naming_jobs(name: Callable[..., str]) -> Callable[..., str]:
    """Name the resource of a request; MiniStack knows none of EMR Serverless, where the path is the name."""

    def named(service: str, method: str, path: str, *more: Any) -> str:
        if service != "emr-serverless":
            return name(service, method, path, *more)
        if path.startswith("/tags/"):
            return unquote(path.removeprefix("/tags/"))
        found = re.match(r"/applications/[^/]+(/jobruns/[^/]+)?", path)
        return f"arn:aws:emr-serverless:{REGION}:{ACCOUNT}:{found[0] if found else '/*'}"

    return named


def _function(resource: str, data: Any) -> str | None:
    """ARN of the function that a task invokes, without version; None if it invokes none."""
    if "states:::lambda:invoke" in resource:
        name = str(data.get("FunctionName", ""))
    elif resource.startswith("arn:aws:lambda:"):
        name = resource
    else:
        return None
    if name.startswith("arn:"):
        return ":".join(name.split(":")[:7])
    return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name.split(':')[0]}"
