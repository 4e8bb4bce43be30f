"""The emulated EMR Serverless: the states of applications and jobs, and what delays or refuses a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from lancelsm.common.clock import SeededIds
from lancelsm.errors import Invalid
from local.emr import EmrServerless
from local.emr_parameters import Capacity, spark_properties, workers
from local.emr_runner import last_lines, log_uri, submission
from local.emr_states import ApiError, Application, JobResult, JobRun

ROLE = "arn:aws:iam::111111111111:role/job"


class ManualClock:
    """A clock that advances only when a test moves it."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


class ManualRun:
    """A run that ends when a test sets its result or stops it."""

    def __init__(self) -> None:
        self.end: JobResult | None = None

    def outcome(self) -> JobResult | None:
        return self.end

    def stop(self) -> None:
        self.end = JobResult(succeeded=False, details="stopped")


class Environment:
    """EMR Serverless with one application, a manual clock and runs that tests end."""

    def __init__(self, **application: object) -> None:
        self.clock = ManualClock()
        self.runs: list[ManualRun] = []
        self.emr = EmrServerless(runner=self, clock=self.clock, ids=SeededIds(1))
        created = self.emr.create_application(
            {"clientToken": "a", "name": "merge", "releaseLabel": "emr-spark-8.0.0", "type": "SPARK", **application}
        )
        self.application = created["applicationId"]

    def start(self, job: JobRun, application: Application) -> ManualRun:
        assert (job.state, application.id) == ("SCHEDULED", self.application)
        self.runs.append(ManualRun())
        return self.runs[-1]

    def submit(self, token: str, parameters: str = "", **more: object) -> str:
        request = {
            "applicationId": self.application,
            "clientToken": token,
            "executionRoleArn": ROLE,
            "jobDriver": {"sparkSubmit": {"entryPoint": "s3://b/job.py", "sparkSubmitParameters": parameters}},
        }
        return str(self.emr.start_job_run(request | more)["jobRunId"])

    def job(self, run: str) -> dict[str, object]:
        return self.emr.get_job_run({"applicationId": self.application, "jobRunId": run})["jobRun"]

    def state(self, run: str) -> object:
        return self.job(run)["state"]

    def application_state(self) -> object:
        return self.emr.get_application({"applicationId": self.application})["application"]["state"]

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.emr.step()

    def cancel(self, run: str) -> None:
        self.emr.cancel_job_run({"applicationId": self.application, "jobRunId": run})


def test_a_job_starts_its_application_and_goes_through_every_state() -> None:
    # Given a job of an application that never started
    environment = Environment()
    job = environment.submit("t")

    # When its state is read after every step, and its run ends
    seen = [(environment.application_state(), environment.state(job))]
    for _ in range(12):
        environment.step()
        seen.append((environment.application_state(), environment.state(job)))
        if environment.runs:
            environment.runs[0].end = JobResult(succeeded=True)

    # Then it went through every state
    applications, jobs = (list(dict.fromkeys(column)) for column in zip(*seen, strict=True))
    assert applications == ["CREATING", "CREATED", "STARTING", "STARTED"]
    assert jobs == ["SUBMITTED", "PENDING", "SCHEDULED", "RUNNING", "SUCCESS"]


def test_a_repeated_client_token_starts_no_second_job() -> None:
    environment = Environment()

    first, again = environment.submit("t"), environment.submit("t")

    assert first == again
    assert len(environment.emr.list_job_runs({"applicationId": environment.application})["jobRuns"]) == 1


def test_a_client_token_with_other_parameters_is_a_conflict() -> None:
    environment = Environment()
    environment.submit("t")

    with pytest.raises(ApiError) as refused:
        environment.submit("t", name="another")

    assert (refused.value.name, refused.value.status) == ("ConflictException", 409)


def test_a_failing_job_is_tried_as_often_as_its_retry_policy_allows() -> None:
    # Given a job with two attempts
    environment = Environment()
    job = environment.submit("t", retryPolicy={"maxAttempts": 2})

    # When both fail
    for attempt in (1, 2):
        environment.step(8)
        assert (len(environment.runs), environment.job(job)["attempt"]) == (attempt, attempt)
        environment.runs[-1].end = JobResult(succeeded=False, details=f"exit code {attempt}")
    environment.step(8)

    # Then the job failed with the details of the last attempt
    assert (environment.state(job), environment.job(job)["stateDetails"], len(environment.runs)) == (
        "FAILED",
        "exit code 2",
        2,
    )


def test_a_job_is_cancelled_through_cancelling_and_its_run_is_stopped() -> None:
    environment = Environment()
    job = environment.submit("t")
    environment.step(8)

    environment.cancel(job)
    between = environment.state(job)
    environment.step()

    assert (between, environment.state(job)) == ("CANCELLING", "CANCELLED")
    assert environment.runs[0].end is not None


def test_a_waiting_job_is_cancelled_without_running() -> None:
    environment = Environment()
    job = environment.submit("t")

    environment.cancel(job)
    environment.step(8)

    assert (environment.state(job), environment.runs) == ("CANCELLED", [])


def test_a_job_in_a_final_state_cannot_be_cancelled() -> None:
    environment = Environment()
    job = environment.submit("t")
    environment.cancel(job)
    environment.step()

    with pytest.raises(ApiError, match="CANCELLED"):
        environment.cancel(job)


def test_a_job_that_exceeds_its_time_limit_is_cancelled() -> None:
    # Given a running job with a limit of two minutes
    environment = Environment()
    job = environment.submit("t", executionTimeoutMinutes=2)
    environment.step(8)

    # When one minute passes, then another
    environment.clock.at += 60
    environment.step(2)
    before = environment.state(job)
    environment.clock.at += 60
    environment.step(2)

    # Then it is cancelled only after the second
    assert (before, environment.state(job)) == ("RUNNING", "CANCELLED")
    assert "2 min" in str(environment.job(job)["stateDetails"])


def test_jobs_beyond_the_maximum_capacity_are_queued_in_order() -> None:
    # Given a capacity of 16 vCPU, and jobs of 8, 16 and 8 vCPU
    environment = Environment(maximumCapacity={"cpu": "16 vCPU", "memory": "999 GB"})
    first = environment.submit("1")
    large = environment.submit("2", "--conf spark.driver.cores=8 --conf spark.executor.cores=8")
    small = environment.submit("3")

    # When the first job runs and ends
    environment.step(8)
    together = [environment.state(job) for job in (first, large, small)]
    environment.runs[0].end = JobResult(succeeded=True)
    environment.step(8)

    # Then the large job runs next, although the small one would have fitted beside the first
    assert together == ["RUNNING", "QUEUED", "QUEUED"]
    assert [environment.state(job) for job in (first, large, small)] == ["SUCCESS", "RUNNING", "QUEUED"]


def test_a_job_larger_than_the_maximum_capacity_fails() -> None:
    environment = Environment(maximumCapacity={"cpu": "4 vCPU", "memory": "999 GB"})
    job = environment.submit("t")

    environment.step(3)

    assert (environment.state(job), environment.runs) == ("FAILED", [])


def test_no_more_jobs_run_at_once_than_the_application_allows() -> None:
    environment = Environment(schedulerConfiguration={"maxConcurrentRuns": 1})
    first, second = environment.submit("1"), environment.submit("2")

    environment.step(8)

    assert (environment.state(first), environment.state(second)) == ("RUNNING", "QUEUED")


def test_an_application_stops_after_its_idle_timeout() -> None:
    environment = Environment(autoStopConfiguration={"enabled": True, "idleTimeoutMinutes": 1})
    environment.step()
    environment.emr.start_application({"applicationId": environment.application})
    environment.step(3)
    started = environment.application_state()

    environment.clock.at += 60
    environment.step(2)

    assert (started, environment.application_state()) == ("STARTED", "STOPPED")


def test_only_a_stopped_application_can_be_deleted() -> None:
    environment = Environment()
    environment.step()
    environment.emr.start_application({"applicationId": environment.application})

    with pytest.raises(ApiError, match="CREATED or STOPPED"):
        environment.emr.delete_application({"applicationId": environment.application})
    environment.step()
    environment.emr.stop_application({"applicationId": environment.application})
    environment.step()
    environment.emr.delete_application({"applicationId": environment.application})

    with pytest.raises(ApiError) as gone:
        environment.emr.get_application({"applicationId": environment.application})
    assert gone.value.status == 404


def test_removing_an_application_cancels_its_jobs() -> None:
    environment = Environment()
    job = environment.submit("t")
    environment.step(8)

    environment.emr.remove(environment.application)
    environment.step()

    assert environment.state(job) == "CANCELLED"
    assert environment.runs[0].end is not None


def test_spark_options_override_the_default_properties() -> None:
    request = {
        "jobDriver": {
            "sparkSubmit": {"sparkSubmitParameters": "--archives s3://b/d.zip#deps --conf 'a=b c' --conf x=1"}
        },
        "configurationOverrides": {
            "applicationConfiguration": [{"classification": "spark-defaults", "properties": {"x": "0", "y": "2"}}]
        },
    }

    assert spark_properties(request) == {"spark.archives": "s3://b/d.zip#deps", "a": "b c", "x": "1", "y": "2"}


def test_an_unsupported_spark_submit_option_is_refused_at_submission() -> None:
    environment = Environment()

    with pytest.raises(ApiError, match="--master") as refused:
        environment.submit("t", "--master yarn")

    assert refused.value.name == "ValidationException"


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, (8.0, 30.8)),
        ({"spark.executor.instances": "3", "spark.executor.cores": "2", "spark.executor.memory": "2g"}, (10.0, 22.0)),
        ({"spark.dynamicAllocation.enabled": "false"}, (16.0, 61.6)),
        ({"spark.driver.memory": "1024m", "spark.executor.memory": "1g"}, (8.0, 2.2)),
    ],
)
def test_a_job_takes_the_capacity_of_its_driver_and_initial_executors(
    properties: dict[str, str], expected: tuple[float, float]
) -> None:
    taken = workers(properties)

    assert (taken.cpu, taken.memory) == pytest.approx(expected)
    assert taken.fits(Capacity(cpu=taken.cpu, memory=taken.memory))


def test_an_unreadable_amount_of_memory_is_invalid() -> None:
    with pytest.raises(Invalid, match="much"):
        workers({"spark.driver.memory": "much"})


def test_worker_sizes_and_interpreters_are_left_out_of_the_local_command() -> None:
    properties = {
        "spark.executor.memory": "14g",
        "spark.executorEnv.PYSPARK_PYTHON": "./deps/bin/python",
        "spark.executorEnv.PYTHONPATH": "./deps",
        "spark.emr-serverless.driverEnv.PYTHONPATH": "./deps",
        "spark.sql.shuffle.partitions": "4",
    }

    command = submission(Path("/job.py"), ["--table", "s3://b/t"], properties, [])

    assert command[1:3] == ["--master", "local[2]"]
    assert [one for one in command if one.startswith(("spark.sql", "spark.exec", "spark.emr"))] == [
        "spark.executorEnv.PYTHONPATH=./deps",
        "spark.sql.shuffle.partitions=4",
    ]
    assert command[-3:] == ["/job.py", "--table", "s3://b/t"]


def test_logs_have_the_same_keys_as_in_the_service() -> None:
    monitoring = {"monitoringConfiguration": {"s3MonitoringConfiguration": {"logUri": "s3://b/logs/"}}}
    job = JobRun(
        id="j",
        application="a",
        request={"configurationOverrides": monitoring},
        release="r",
        state="RUNNING",
        created=0,
        updated=0,
    )
    application = Application(id="a", request={}, state="STARTED", created=0, updated=0)

    assert log_uri(job, application) == "s3://b/logs/applications/a/jobs/j"


def test_the_last_lines_of_a_job_leave_out_spark_log_lines() -> None:
    log = "Traceback\nValueError: no\n26/11/28 02:11:37 INFO ShutdownHookManager: Shutdown hook called\n"

    assert last_lines(log) == "Traceback ValueError: no"
