"""Emulate EMR Serverless: its API calls, and the state changes of applications and job runs.

Each `step` of `EmrServerless` moves each record by one state, so that a polling client sees every state, as on AWS. A
runner does the work. `emr_http` decodes requests; `emr_stack` has the CloudFormation type and the Step Functions task.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from lancelsm.common.clock import Budget, Clock, Ids
from lancelsm.errors import Invalid
from local.emr_states import (
    FINAL,
    IDLE_MINUTES,
    RUNNABLE,
    TIMEOUT_MINUTES,
    WAITING,
    ApiError,
    Application,
    Document,
    JobResult,
    JobRun,
    Request,
    invalid,
    summary,
)

_CLOSE_SECONDS = 10.0


class Run(Protocol):
    """A running attempt of a job."""

    def outcome(self) -> JobResult | None:
        """Return the result; None while it runs."""
        ...

    def stop(self) -> None:
        """End the attempt with every process that it started. Returns at once."""
        ...


class JobRunner(Protocol):
    def start(self, job: JobRun, application: Application) -> Run: ...


class EmrServerless:
    """All applications and jobs of the account. Any thread may call it, but only one calls `step`."""

    def __init__(self, *, runner: JobRunner, clock: Clock, ids: Ids) -> None:
        self._runner = runner
        self._clock = clock
        self._ids = ids
        self._lock = threading.RLock()
        self._applications: dict[str, Application] = {}
        self._jobs: dict[str, JobRun] = {}  # in the order of submission
        self._runs: dict[str, Run] = {}
        self._tokens: dict[tuple[str, str], tuple[Request, str]] = {}
        self._idle_since: dict[str, float] = {}

    def create_application(self, request: Request) -> Document:
        with self._lock:
            application_id = self._once("application", request, lambda: self._created(request))
            application = self._applications[application_id]
            return {"applicationId": application_id, "name": request.get("name", ""), "arn": application.arn}

    def get_application(self, request: Request) -> Document:
        with self._lock:
            return {"application": self._application(request["applicationId"]).document()}

    def list_applications(self, request: Request) -> Document:
        with self._lock:
            states = request.get("states") or ()
            found = [one for one in self._applications.values() if not states or one.state in states]
            return {"applications": [summary(one.document(), "applicationId") for one in found]}

    def update_application(self, request: Request) -> Document:
        with self._lock:
            application = self._application(request["applicationId"])
            if application.state not in ("CREATED", "STOPPED"):
                raise invalid(f"Application {application.id} must be in CREATED or STOPPED state to be updated")
            return {"application": self.revise(application.id, request).document()}

    def revise(self, application_id: str, request: Request) -> Application:
        """Change the properties of an application, in any state."""
        with self._lock:
            application = self._application(application_id)
            kept = {name: value for name, value in request.items() if name not in ("applicationId", "clientToken")}
            changed = replace(application, request={**application.request, **kept}, updated=self._clock.now())
            self._applications[application.id] = changed
            return changed

    def start_application(self, request: Request) -> Document:
        with self._lock:
            application = self._application(request["applicationId"])
            if application.state in ("CREATED", "STOPPED"):
                self._set(application, "STARTING")
            elif application.state not in ("STARTING", "STARTED"):
                raise invalid(f"Application {application.id} is {application.state} and can't be started")
            return {}

    def stop_application(self, request: Request) -> Document:
        with self._lock:
            application = self._application(request["applicationId"])
            if any(job.state not in FINAL for job in self._of(application.id)):
                raise invalid(f"Application {application.id} has job runs that are not in a final state")
            if application.state in ("STARTING", "STARTED"):
                self._set(application, "STOPPING")
            return {}

    def delete_application(self, request: Request) -> Document:
        with self._lock:
            application = self._application(request["applicationId"])
            if application.state not in ("CREATED", "STOPPED"):
                raise invalid(f"Application {application.id} must be in CREATED or STOPPED state to be deleted")
            self._set(application, "TERMINATED")
            return {}

    def remove(self, application_id: str) -> None:
        """Delete an application as a stack does: cancel its jobs, then delete it."""
        with self._lock:
            application = self._application(application_id)
            for job in self._of(application_id):
                if job.state not in FINAL and job.state != "CANCELLING":
                    self._cancel(job, "The application is deleted")
            self._set(application, "TERMINATED")

    def start_job_run(self, request: Request) -> Document:
        with self._lock:
            application = self._application(request["applicationId"])
            if "sparkSubmit" not in request["jobDriver"]:
                raise invalid("jobDriver must be sparkSubmit")
            automatic = application.request.get("autoStartConfiguration", {}).get("enabled", True)
            if application.state not in ("STARTED", "STARTING") and not automatic:
                raise invalid(f"Application {application.id} is {application.state} and does not start automatically")
            job_id = self._once(application.id, request, lambda: self._submitted(application, request))
            job = self._jobs[job_id]
            return {"applicationId": application.id, "jobRunId": job_id, "arn": job.arn}

    def get_job_run(self, request: Request) -> Document:
        with self._lock:
            return {"jobRun": self._job(request).document()}

    def list_job_runs(self, request: Request) -> Document:
        with self._lock:
            states = request.get("states") or ()
            found = [one for one in self._of(request["applicationId"]) if not states or one.state in states]
            return {"jobRuns": [summary(one.document(), "jobRunId") for one in found]}

    def cancel_job_run(self, request: Request) -> Document:
        with self._lock:
            job = self._job(request)
            if job.state in FINAL:
                raise invalid(f"Job run {job.id} is in the final state {job.state}")
            if job.state != "CANCELLING":
                self._cancel(job, "Cancelled by a call")
            return {"applicationId": job.application, "jobRunId": job.id}

    def list_tags_for_resource(self, request: Request) -> Document:
        with self._lock:
            return {"tags": dict(self._tagged(request["resourceArn"]).tags)}

    def tag_resource(self, request: Request) -> Document:
        with self._lock:
            self._retag(request["resourceArn"], lambda tags: {**tags, **request["tags"]})
            return {}

    def untag_resource(self, request: Request) -> Document:
        with self._lock:
            removed = set(request["tagKeys"])
            self._retag(request["resourceArn"], lambda tags: {k: v for k, v in tags.items() if k not in removed})
            return {}

    def step(self) -> None:
        """Move every application and job by at most one state."""
        with self._lock:
            before = dict(self._applications)
            for application in before.values():
                self._step_application(application)
            blocked: set[str] = set()  # applications whose oldest waiting job does not fit yet
            for job in list(self._jobs.values()):
                if job.state not in FINAL:
                    self._step_job(job, before[job.application], blocked)

    def close(self) -> None:
        """End the processes of every job. Returns when they have ended, or after a few seconds."""
        with self._lock:
            for run in self._runs.values():
                run.stop()
            budget = Budget(clock=self._clock, ids=self._ids, seconds=_CLOSE_SECONDS)
            any(all(run.outcome() for run in self._runs.values()) for _ in budget.attempts())

    def _step_application(self, application: Application) -> None:
        next_state = {"CREATING": "CREATED", "STARTING": "STARTED", "STOPPING": "STOPPED"}.get(application.state)
        if next_state:
            self._set(application, next_state)
        if application.state != "STARTED" or any(job.state not in FINAL for job in self._of(application.id)):
            self._idle_since.pop(application.id, None)
            return
        stop = application.request.get("autoStopConfiguration", {})
        since = self._idle_since.setdefault(application.id, self._clock.now())
        limit = 60 * int(stop.get("idleTimeoutMinutes", IDLE_MINUTES))
        if stop.get("enabled", True) and self._clock.now() - since >= limit:
            self._set(application, "STOPPING")

    def _step_job(self, job: JobRun, application: Application, blocked: set[str]) -> None:
        if job.state in WAITING:
            self._admit(job, application, blocked)
        elif job.state == "PENDING":
            self._move(job, "SCHEDULED")
        elif job.state == "SCHEDULED":
            self._runs[job.id] = self._runner.start(job, application)
            self._move(job, "RUNNING")
        elif job.state == "RUNNING":
            self._watch(job)
        elif job.state == "CANCELLING":
            run = self._runs.get(job.id)
            if run is None or run.outcome() is not None:
                self._runs.pop(job.id, None)
                self._move(job, "CANCELLED", job.details)

    def _admit(self, job: JobRun, application: Application, blocked: set[str]) -> None:
        maximum = application.maximum
        if maximum is not None and not job.needs().fits(maximum):
            self._move(job, "FAILED", "The workers of the job exceed the maximum capacity of the application")
        elif application.state != "STARTED":
            if application.state in ("CREATED", "STOPPED"):
                self._set(application, "STARTING")
        elif application.id not in blocked and self._has_room(job, application):
            self._move(job, "PENDING")
        else:
            blocked.add(application.id)  # a smaller job that came later does not overtake it
            if job.state == "SUBMITTED":
                self._move(job, "QUEUED")

    def _has_room(self, job: JobRun, application: Application) -> bool:
        holding = [one for one in self._of(application.id) if one.state in RUNNABLE]
        if application.concurrency is not None and len(holding) >= application.concurrency:
            return False
        maximum = application.maximum
        return maximum is None or sum((one.needs() for one in holding), job.needs()).fits(maximum)

    def _watch(self, job: JobRun) -> None:
        outcome = self._runs[job.id].outcome()
        if outcome is None:
            if job.deadline is not None and self._clock.now() >= job.deadline:
                self._cancel(job, f"Ran longer than {job.request.get('executionTimeoutMinutes', TIMEOUT_MINUTES)} min")
            return
        del self._runs[job.id]
        if outcome.succeeded:
            self._move(job, "SUCCESS")
        elif job.attempt < job.attempts:
            self._move(job, "PENDING", outcome.details)
        else:
            self._move(job, "FAILED", outcome.details)

    def _cancel(self, job: JobRun, why: str) -> None:
        if job.id in self._runs:
            self._runs[job.id].stop()
        self._move(job, "CANCELLING", why)

    def _move(self, job: JobRun, state: str, details: str = "") -> None:
        self._jobs[job.id] = job.moved(state, now=self._clock.now(), details=details)

    def _set(self, application: Application, state: str) -> None:
        self._applications[application.id] = replace(application, state=state, updated=self._clock.now())

    def _created(self, request: Request) -> str:
        now = self._clock.now()
        application_id = self._id("00f")
        tags = request.get("tags", {})
        self._applications[application_id] = Application(
            id=application_id, request=request, state="CREATING", created=now, updated=now, tags=tags
        )
        return application_id

    def _submitted(self, application: Application, request: Request) -> str:
        now = self._clock.now()
        job_id = self._id("00j")
        job = JobRun(
            id=job_id,
            application=application.id,
            request=request,
            release=application.request["releaseLabel"],
            state="SUBMITTED",
            created=now,
            updated=now,
            attempt_created=now,
            tags=request.get("tags", {}),
        )
        try:
            job.needs()
        except Invalid as error:
            raise invalid(str(error)) from error
        self._jobs[job_id] = job
        return job_id

    def _once(self, scope: str, request: Request, create: Callable[[], str]) -> str:
        """Return the id that belongs to a client token. A repeated request creates nothing."""
        key = (scope, request["clientToken"])
        if key not in self._tokens:
            self._tokens[key] = (request, create())
        first_request, created_id = self._tokens[key]
        if first_request != request:
            raise ApiError(
                "ConflictException", f"The client token {key[1]} was used with other parameters: {created_id}"
            )
        return created_id

    def _id(self, prefix: str) -> str:
        return prefix + self._ids.nonce()[:13]

    def _application(self, application_id: str) -> Application:
        application = self._applications.get(application_id)
        if application is None or application.state == "TERMINATED":
            raise ApiError("ResourceNotFoundException", f"Application {application_id} does not exist")
        return application

    def _job(self, request: Request) -> JobRun:
        job = self._jobs.get(request["jobRunId"])
        if job is None or job.application != request["applicationId"]:
            raise ApiError("ResourceNotFoundException", f"Job run {request['jobRunId']} does not exist")
        return job

    def _of(self, application_id: str) -> list[JobRun]:
        return [job for job in self._jobs.values() if job.application == application_id]

    def _tagged(self, arn: str) -> Application | JobRun:
        known: list[Application | JobRun] = [*self._applications.values(), *self._jobs.values()]
        for one in known:
            if one.arn == arn:
                return one
        raise ApiError("ResourceNotFoundException", f"Resource {arn} does not exist")

    def _retag(self, arn: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        found = self._tagged(arn)
        if isinstance(found, Application):
            self._applications[found.id] = replace(found, tags=change(found.tags))
        else:
            self._jobs[found.id] = replace(found, tags=change(found.tags))
