"""Records of EMR Serverless applications and job runs, and the permitted state changes of a job. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from local import ACCOUNT, REGION
from local.emr_parameters import Capacity, capacity, spark_properties, workers

Request = Mapping[str, Any]
Document = dict[str, Any]

RUNNABLE = ("PENDING", "SCHEDULED", "RUNNING", "CANCELLING")  # hold capacity
WAITING = ("SUBMITTED", "QUEUED")
FINAL = ("SUCCESS", "FAILED", "CANCELLED")
MOVES = {
    "SUBMITTED": ("QUEUED", "PENDING", "FAILED", "CANCELLING"),
    "QUEUED": ("PENDING", "CANCELLING"),
    "PENDING": ("SCHEDULED", "CANCELLING"),
    "SCHEDULED": ("RUNNING", "CANCELLING"),
    "RUNNING": ("SUCCESS", "FAILED", "PENDING", "CANCELLING"),
    "CANCELLING": ("CANCELLED",),
}

_LISTED = {
    "applicationId": ("architecture", "arn", "createdAt", "name", "releaseLabel", "state", "type", "updatedAt"),
    "jobRunId": (
        *("applicationId", "arn", "attempt", "attemptCreatedAt", "attemptUpdatedAt", "createdAt", "createdBy"),
        *("executionRole", "mode", "name", "releaseLabel", "state", "stateDetails", "updatedAt"),
    ),
}
TIMEOUT_MINUTES = 720  # of a job that sets no timeout
IDLE_MINUTES = 15


class ApiError(Exception):
    """A call that AWS would refuse, with the name of its error and the HTTP status."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        self.status = {"ResourceNotFoundException": 404, "ConflictException": 409}.get(name, 400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """One application. `request` has the properties that it was created and updated with."""

    id: str
    request: Request
    state: str
    created: float
    updated: float
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def arn(self) -> str:
        return f"arn:aws:emr-serverless:{REGION}:{ACCOUNT}:/applications/{self.id}"

    @property
    def maximum(self) -> Capacity | None:
        return capacity(self.request["maximumCapacity"]) if self.request.get("maximumCapacity") else None

    @property
    def concurrency(self) -> int | None:
        runs: int | None = self.request.get("schedulerConfiguration", {}).get("maxConcurrentRuns")
        return runs

    def document(self) -> Document:
        shown = {name: value for name, value in self.request.items() if name != "clientToken"}
        defaults = {
            "architecture": "X86_64",
            "autoStartConfiguration": {"enabled": True},
            "autoStopConfiguration": {"enabled": True, "idleTimeoutMinutes": IDLE_MINUTES},
        }
        own = {"applicationId": self.id, "arn": self.arn, "state": self.state, "tags": dict(self.tags)}
        return defaults | shown | own | {"createdAt": self.created, "updatedAt": self.updated}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One job run. `request` is the input of its StartJobRun call."""

    id: str
    application: str
    request: Request
    release: str
    state: str
    created: float
    updated: float
    details: str = ""
    attempt: int = 1
    attempt_created: float = 0.0
    started: float | None = None  # when the current attempt started to run
    ended: float | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def arn(self) -> str:
        return f"arn:aws:emr-serverless:{REGION}:{ACCOUNT}:/applications/{self.application}/jobruns/{self.id}"

    @property
    def attempts(self) -> int:
        attempts: int = self.request.get("retryPolicy", {}).get("maxAttempts", 1)
        return attempts

    @property
    def deadline(self) -> float | None:
        """When the running attempt is cancelled; None for never."""
        minutes = self.request.get("executionTimeoutMinutes", TIMEOUT_MINUTES)
        return self.started + 60 * minutes if self.started is not None and minutes else None

    def needs(self) -> Capacity:
        return workers(spark_properties(self.request))

    def moved(self, state: str, *, now: float, details: str = "") -> JobRun:
        """Return the job in its next state. Every attempt after the first starts at PENDING."""
        if state not in MOVES[self.state]:
            raise AssertionError(f"a job can't move from {self.state} to {state}")
        job = replace(self, state=state, updated=now, details=details)
        if state == "RUNNING":
            return replace(job, started=now)
        if state in FINAL:
            return replace(job, ended=now)
        if state == "PENDING" and self.state == "RUNNING":
            return replace(job, attempt=self.attempt + 1, attempt_created=now, started=None)
        return job

    def document(self) -> Document:
        request = self.request
        shown = {name: request[name] for name in ("name", "configurationOverrides", "retryPolicy") if name in request}
        times = {"createdAt": self.created, "updatedAt": self.updated, "attemptCreatedAt": self.attempt_created}
        times |= {"attemptUpdatedAt": self.updated}
        if self.started is not None:
            times["startedAt"] = self.started
        if self.ended is not None:
            times["endedAt"] = self.ended
        return (
            shown
            | times
            | {
                "applicationId": self.application,
                "jobRunId": self.id,
                "arn": self.arn,
                "createdBy": f"arn:aws:iam::{ACCOUNT}:root",
                "executionRole": request["executionRoleArn"],
                "executionTimeoutMinutes": request.get("executionTimeoutMinutes", TIMEOUT_MINUTES),
                "jobDriver": request["jobDriver"],
                "mode": request.get("mode", "BATCH"),
                "releaseLabel": self.release,
                "state": self.state,
                "stateDetails": self.details,
                "attempt": self.attempt,
                "totalExecutionDurationSeconds": int((self.ended or self.updated) - (self.started or self.updated)),
                "tags": dict(self.tags),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How an attempt of a job ended."""

    succeeded: bool
    details: str = ""


def invalid(message: str) -> ApiError:
    return ApiError("ValidationException", message)


def summary(document: Document, key: str) -> Document:
    """Return the list entry of an application or job run. Its id, at `key`, is called `id` there."""
    return {"id": document[key]} | {name: document[name] for name in _LISTED[key] if name in document}
