"""Emulate EMR Serverless for stacks and state machines: `AWS::EMRServerless::Application` and `startJobRun(.sync)`.

Both capitalize the names of members, unlike the API. The model of the API distinguishes names of members from data.
"""

from __future__ import annotations

import contextvars
import json
import threading
from collections.abc import Callable
from typing import Any

from lancelsm.common.clock import Clock, Ids
from local import ACCOUNT, REGION, roles
from local.emr import EmrServerless
from local.emr_http import checked, service_model
from local.emr_states import FINAL, ApiError, Document, invalid

TASK = "arn:aws:states:::emr-serverless:startJobRun"
TYPE = "AWS::EMRServerless::Application"

_POLL_SECONDS = 0.2
_RULE = f"arn:aws:events:{REGION}:{ACCOUNT}:rule/StepFunctionsGetEventsForEMRServerlessJobRule"
_RULE_ACTIONS = ("events:PutTargets", "events:PutRule", "events:DescribeRule")
# Set when a state of a state machine stops waiting, since MiniStack leaves its thread running.
_given_up: contextvars.ContextVar[threading.Event] = contextvars.ContextVar("given_up")


class Stacks:
    """The resource type, as a MiniStack provisioner."""

    def __init__(self, emr: EmrServerless, *, ids: Ids) -> None:
        self._emr = emr
        self._ids = ids

    def handler(self) -> dict[str, Callable[..., Any]]:
        return {"create": self.create, "update": self.update, "delete": self.delete}

    def create(self, logical: str, properties: Document, stack: str) -> tuple[str, Document]:
        request = {"name": f"{stack}-{logical}"} | self._request(properties)
        request["clientToken"] = self._ids.nonce()
        checked(request, service_model().operation_model("CreateApplication").input_shape)
        created = self._emr.create_application(request)
        return created["applicationId"], {"ApplicationId": created["applicationId"], "Arn": created["arn"]}

    def update(self, physical: str, old: Document, new: Document, stack: str) -> tuple[str, Document]:
        del old, stack
        application = self._emr.revise(physical, self._request(new))
        return physical, {"ApplicationId": physical, "Arn": application.arn}

    def delete(self, physical: str, properties: Document) -> None:
        del properties
        try:
            self._emr.remove(physical)
        except ApiError:
            return  # already deleted

    def _request(self, properties: Document) -> Document:
        shape = service_model().operation_model("CreateApplication").input_shape
        listed = dict(properties)
        if "Tags" in listed:
            listed["Tags"] = {one["Key"]: one["Value"] for one in listed["Tags"]}
        if "InitialCapacity" in listed:
            listed["InitialCapacity"] = {one["Key"]: one["Value"] for one in listed["InitialCapacity"]}
        request: Document = members(listed, shape)
        return request


class Task:
    """The task of a state machine. The thread of the execution calls it."""

    def __init__(self, emr: EmrServerless, *, clock: Clock, ids: Ids) -> None:
        self._emr = emr
        self._clock = clock
        self._ids = ids

    def __call__(self, resource: str, data: Document) -> Document:
        shape = service_model().operation_model("StartJobRun").input_shape
        try:
            request = members(data, shape)
            request.setdefault("clientToken", self._ids.nonce())
            checked(request, shape)
            self._permit(request, waits=resource.endswith(".sync"))
            started = self._emr.start_job_run(request)
            if not resource.endswith(".sync"):
                return capitalized(started, "StartJobRunResponse")
            return self._result(started)
        except ApiError as refused:
            raise _failed(f"EMRServerless.{refused.name}", str(refused)) from refused

    def _result(self, started: Document) -> Document:
        """Wait for a job, then return the result of the state or raise its failure. Cancel it if the state ends."""
        job = {name: started[name] for name in ("applicationId", "jobRunId")}
        while True:
            document = self._emr.get_job_run(job)["jobRun"]
            if document["state"] in FINAL:
                break
            if _abandoned():
                self._emr.cancel_job_run(job)
                return {}
            self._clock.sleep(_POLL_SECONDS)
        shown = capitalized(document, "JobRun")
        if document["state"] != "SUCCESS":
            raise _failed("States.TaskFailed", json.dumps(shown))
        return shown

    def _permit(self, request: Document, *, waits: bool) -> None:
        role = roles.machine_role()
        application = f"arn:aws:emr-serverless:{REGION}:{ACCOUNT}:/applications/{request['applicationId']}"
        passed = {"iam:PassedToService": "emr-serverless.amazonaws.com"}
        denied = [
            roles.denial(role, "emr-serverless:StartJobRun", application),
            roles.denial(role, "iam:PassRole", request["executionRoleArn"], passed),
        ]
        if waits:
            jobs = f"{application}/jobruns/*"
            denied += [roles.denial(role, f"emr-serverless:{action}", jobs) for action in ("GetJobRun", "CancelJobRun")]
            denied += [roles.denial(role, action, _RULE) for action in _RULE_ACTIONS]
        for reason in filter(None, denied):
            raise ApiError("AccessDeniedException", reason)


def giving_up(invoke: Callable[[str, Any, float], Any]) -> Callable[[str, Any, float], Any]:
    """Wrap a task with a time limit, so that a task that waits for a job learns when the limit has passed."""

    def invoked(resource: str, data: Any, timeout: float) -> Any:
        over = threading.Event()
        token = _given_up.set(over)
        try:
            return invoke(resource, data, timeout)
        finally:
            over.set()
            _given_up.reset(token)

    return invoked


def members(value: Any, shape: Any) -> Any:
    """Convert a value to the form of the API: names of members not capitalized, numbers and booleans not as text.

    Keys of maps do not change.

    Raises:
        ApiError: a member is unknown, or a text is not a number.
    """
    if shape.type_name == "structure":
        named = {name[:1].lower() + name[1:]: one for name, one in value.items()}
        unknown = named.keys() - shape.members.keys()
        if unknown:
            raise invalid(f"{shape.name} has no {', '.join(sorted(unknown))}")
        return {name: members(one, shape.members[name]) for name, one in named.items()}
    if shape.type_name == "list":
        return [members(one, shape.member) for one in value]
    if shape.type_name == "map":
        return {name: members(one, shape.value) for name, one in value.items()}
    if shape.type_name in ("integer", "long"):
        try:
            return int(value)
        except ValueError as error:
            raise invalid(f"{value!r} is not a number") from error
    return value == "true" if shape.type_name == "boolean" and isinstance(value, str) else value


def capitalized(document: Document, shape: str) -> Document:
    """Return a document of the API with the capitalized names of Step Functions."""

    def convert(value: Any, of: Any) -> Any:
        if of.type_name == "structure":
            return {name[:1].upper() + name[1:]: convert(one, of.members[name]) for name, one in value.items()}
        if of.type_name == "list":
            return [convert(one, of.member) for one in value]
        if of.type_name == "map":
            return {name: convert(one, of.value) for name, one in value.items()}
        return value

    converted: Document = convert(document, service_model().shape_for(shape))
    return converted


def _abandoned() -> bool:
    from ministack.services import stepfunctions as machines  # noqa: PLC0415 - it reads its settings on import

    over = _given_up.get(None)
    running: bool = machines._executions[roles.execution.get()]["status"] == "RUNNING"
    return not running or (over is not None and over.is_set())


def _failed(error: str, cause: str) -> Exception:
    from ministack.services.stepfunctions import _ExecutionError  # noqa: PLC0415

    failed: Exception = _ExecutionError(error, cause)
    return failed
