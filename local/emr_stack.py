"""EMR Serverless in stacks and state machines: `AWS::EMRServerless::Application` and the task `startJobRun(.sync)`.

Both write members with a capital where the API has none; the API's model says which words are members and which are
data.
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
# Set when the state that waits has given up, since MiniStack leaves its thread running.
_given_up: contextvars.ContextVar[threading.Event] = contextvars.ContextVar("given_up")


class Stacks:
    """The resource type, as a provisioner of MiniStack."""

    def __init__(self, emr: EmrServerless, *, ids: Ids) -> None:
        self._emr = emr
        self._ids = ids

    def handler(self) -> dict[str, Callable[..., Any]]:
        return {"create": self.create, "update": self.update, "delete": self.delete}

    def create(self, logical: str, properties: Document, stack: str) -> tuple[str, Document]:
        request = {"name": f"{stack}-{logical}"} | self._request(properties)
        request["clientToken"] = self._ids.nonce()
        checked(request, service_model().operation_model("CreateApplication").input_shape)
        made = self._emr.create_application(request)
        return made["applicationId"], {"ApplicationId": made["applicationId"], "Arn": made["arn"]}

    def update(self, physical: str, old: Document, new: Document, stack: str) -> tuple[str, Document]:
        del old, stack
        application = self._emr.revise(physical, self._request(new))
        return physical, {"ApplicationId": physical, "Arn": application.arn}

    def delete(self, physical: str, properties: Document) -> None:
        del properties
        try:
            self._emr.remove(physical)
        except ApiError:
            return  # gone already

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
    """The task of a state machine, which its execution's thread calls."""

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
                return raised(started, "StartJobRunResponse")
            return self._result(started)
        except ApiError as refused:
            raise _failed(f"EMRServerless.{refused.name}", str(refused)) from refused

    def _result(self, started: Document) -> Document:
        """Wait for a job: what the state results in, or its failure. Who stops waiting cancels the job."""
        job = {name: started[name] for name in ("applicationId", "jobRunId")}
        while True:
            document = self._emr.get_job_run(job)["jobRun"]
            if document["state"] in FINAL:
                break
            if _abandoned():
                self._emr.cancel_job_run(job)
                return {}
            self._clock.sleep(_POLL_SECONDS)
        shown = raised(document, "JobRun")
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
        for why in filter(None, denied):
            raise ApiError("AccessDeniedException", why)


def giving_up(invoke: Callable[[str, Any, float], Any]) -> Callable[[str, Any, float], Any]:
    """Do a task under a time limit; when that is over, what waits for a job learns it."""

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
    """A value as the API wants it: members of structures without the capital, numbers and truth values not as text.

    Keys of maps stay as they are.

    Raises:
        ApiError: a member is none of the shape's, or a text is no number.
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
            raise invalid(f"{value!r} is no number") from error
    return value == "true" if shape.type_name == "boolean" and isinstance(value, str) else value


def raised(document: Document, shape: str) -> Document:
    """A document of the API with the capitals of Step Functions."""

    def up(value: Any, of: Any) -> Any:
        if of.type_name == "structure":
            return {name[:1].upper() + name[1:]: up(one, of.members[name]) for name, one in value.items()}
        if of.type_name == "list":
            return [up(one, of.member) for one in value]
        if of.type_name == "map":
            return {name: up(one, of.value) for name, one in value.items()}
        return value

    shown: Document = up(document, service_model().shape_for(shape))
    return shown


def _abandoned() -> bool:
    from ministack.services import stepfunctions as machines  # noqa: PLC0415 - reads its settings while it is imported

    over = _given_up.get(None)
    running: bool = machines._executions[roles.execution.get()]["status"] == "RUNNING"
    return not running or (over is not None and over.is_set())


def _failed(error: str, cause: str) -> Exception:
    from ministack.services.stepfunctions import _ExecutionError  # noqa: PLC0415

    failed: Exception = _ExecutionError(error, cause)
    return failed
