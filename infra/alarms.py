"""List the alarms: what a person has to look at. Each has a runbook.

An alarm on a failed run, or on what a run has measured, lasts for three periods: the next run is often better, and
somebody should still see it. AWS charges each metric of an alarm. So where log lines tell it, one metric counts those
of several functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cw
from aws_cdk import aws_emrserverless as emr
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sqs as sqs
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.grants import State
from infra.schedules import period
from infra.shifting import SHIFTED
from infra.stage import Stage
from lancelsm.common.settings import resolve

NAMESPACE = "lancelsm"  # as in lancelsm.stack.telemetry
PERIOD = cdk.Duration.minutes(5)
_PERIODS = 3
_BROKEN = ("[ERROR] Internal:", "Runtime.ImportModuleError", "Runtime exited", "Task timed out")
_FAILED = logs.FilterPattern.any_term("[ERROR]", "Task timed out", "Runtime exited")
_DAY_MINUTES = 1440  # the longest period of an alarm
_LOG_BYTES = 1 << 30
_RUN_SECONDS, _MERGE_SECONDS = 900, 7200  # what a flush and a merge may take
_JOB_SECONDS = 7200  # the limit of one attempt of a job, in the state machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A condition that a person has to look at. Its runbook is `docs/operations/runbooks/{runbook or name}.md`.

    Args:
        above: the alarm is raised if the metric is above this value in one of the last `periods` periods; with
            `all_periods` in all of them.
        below: the same for values below it; then a missing value counts as well.
    """

    name: str
    description: str
    metric: cw.IMetric
    above: float | None = None
    below: float | None = None
    periods: int = 1
    all_periods: bool = False
    runbook: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The resources that alarms and dashboard show."""

    stage: Stage
    state: State
    functions: Mapping[str, lambda_.Function]
    merging: sfn.StateMachine
    jobs: emr.CfnApplication
    collecting: sfn.StateMachine
    failed_events: sqs.IQueue

    def measured(self, name: str, *, statistic: str, over: cdk.Duration = PERIOD) -> cw.Metric:
        """Return a metric that `dispatch` writes (`lancelsm.stack.backlog`)."""
        dimensions = {"function": self.functions["dispatch"].function_name}
        return cw.Metric(
            namespace=NAMESPACE, metric_name=name, dimensions_map=dimensions, statistic=statistic, period=over
        )


def alarms(scope: Construct, watched: Watched) -> list[Alarm]:
    """Return all alarms. Their metric filters become children of the scope."""
    return [*_backlog(watched), *_queues(watched), *_log_lines(scope, watched), *_services(watched)]


def _backlog(watched: Watched) -> Iterator[Alarm]:
    """Yield alarms on what waits in tables, and on the run that measures it."""
    stage = watched.stage
    settings = resolve(table={}, environment=stage.settings)
    runs = 3 * period(stage).to_seconds()
    facts = (
        (
            "oldest-unflushed", "oldest_unflushed_seconds", settings.flush_age_seconds + runs + _RUN_SECONDS,
            "stuck-flush", "Rows of a region wait in its log for much longer than a flush takes.",
        ),
        (
            "log-bytes", "log_bytes", _LOG_BYTES,
            "stuck-flush", "The log of a region has more than 1 GiB that is not flushed.",
        ),
        (
            "pending-generations", "pending_generations", settings.pending_generations_slow - 1,
            "merge-lag", "A region has so many generations that wait for a merge that its writers slow down.",
        ),
        (
            "merge-lag", "merge_lag_seconds", settings.merge_age_seconds + runs + _MERGE_SECONDS,
            None, "Rows wait in generations for much longer than a merge takes.",
        ),
        (
            "waiting-jobs", "running_merge_seconds", _JOB_SECONDS + _RUN_SECONDS,
            None, "A merge runs for longer than a job may: its job waits for capacity, or fails again and again.",
        ),
    )  # fmt: skip
    over = cdk.Duration.minutes(max(5, stage.schedule_minutes))
    for name, measure, above, runbook, description in facts:
        metric = watched.measured(measure, statistic="Maximum", over=over)
        yield Alarm(name=name, description=description, metric=metric, above=above, periods=_PERIODS, runbook=runbook)
    if stage.schedule_minutes:
        # Three runs: a window of one period may have no run, since runs are not on time to the second.
        minutes = 3 * stage.schedule_minutes
        window = min(minutes, _DAY_MINUTES)
        yield Alarm(
            name="no-heartbeat",
            description="The schedule starts no flushes and merges: `dispatch` has not run to its end.",
            metric=watched.measured("heartbeat", statistic="Sum", over=cdk.Duration.minutes(window)),
            below=1,
            periods=ceil(minutes / window),
            all_periods=True,
        )


def _queues(watched: Watched) -> Iterator[Alarm]:
    queue = watched.state.writes
    age = queue.metric_approximate_age_of_oldest_message(period=PERIOD, statistic="Maximum")
    facts = (
        ("oldest-message", age, 900, None, "Writes wait in the queue for more than 15 minutes."),
        (
            "queue-not-read", _age_without_reader(watched), 300,
            "oldest-message", "Writes wait in the queue for more than 5 minutes, and nothing reads them.",
        ),
        (
            "dead-letters", _visible(watched.state.dead_letters), 0,
            None, "Rows that can't be written are in the dead-letter queue.",
        ),
        (
            "failed-events", _visible(watched.failed_events), 0,
            None, "A flush or a run of the schedule failed, or its event was dropped.",
        ),
    )  # fmt: skip
    for name, metric, above, runbook, description in facts:
        yield Alarm(name=name, description=description, metric=metric, above=above, runbook=runbook)


def _log_lines(scope: Construct, watched: Watched) -> Iterator[Alarm]:
    """Yield alarms on log lines: on functions that fail, and on what their lines say of tables."""

    def line(field: str, value: str) -> logs.IFilterPattern:
        return logs.FilterPattern.string_value(f"$.{field}", "=", value)

    def count(name: str, pattern: logs.IFilterPattern, *functions: str) -> cw.Metric:
        return _log_count(scope, name, pattern, watched, functions)

    yield Alarm(
        name="function-errors",
        description="Functions fail repeatedly.",
        metric=count("Errors", _FAILED),
        above=5,
        periods=_PERIODS,
        all_periods=True,
    )
    broken = logs.FilterPattern.any_term(*_BROKEN)
    facts = [
        (
            "broken-release", _log_count(scope, "Broken", broken, watched, SHIFTED, over=cdk.Duration.minutes(1)), 1,
            "upgrade",
            "A call of ingest or query ended with a bug, a timeout or a crash. A running deployment goes back.",
        ),
        (
            "run-failures", count("FailedRuns", _FAILED, "dispatch", "compaction"), _PERIODS,
            None, "A run of the schedule, a flush or a compaction of generations failed.",
        ),
        (
            "optimize-failures", count("OptimizeFailed", line("message", "an optimize failed"), "merger"), _PERIODS,
            None, "The merges of a table succeed, but its base is not optimized.",
        ),
        (
            "corrupt", count("Corrupt", line("kind", "Corrupt")), 1,
            None, "A function found corrupt data in storage.",
        ),
    ]  # fmt: skip
    if watched.stage.backups:
        failed = count("BackupFailed", _FAILED, "backup")
        old = "A scheduled backup of a table failed: its last backup gets old."
        facts.append(("backup-failures", failed, _PERIODS, None, old))
    for name, metric, periods, runbook, description in facts:
        yield Alarm(name=name, description=description, metric=metric, above=0, periods=periods, runbook=runbook)


def _services(watched: Watched) -> Iterator[Alarm]:
    """Yield alarms on metrics of the state machines and of Lambda."""
    facts = (
        ("merge-failures", watched.merging.metric_failed(period=PERIOD), None, "A merge failed."),
        ("merge-timeouts", watched.merging.metric_timed_out(period=PERIOD), "merge-failures", "A merge timed out."),
        (
            "collect-failures", watched.collecting.metric_failed(period=PERIOD), None,
            "A collection failed: objects that are no longer needed are not deleted.",
        ),
        (
            # Nothing here reserves concurrency, so all functions share what the account has. Its sum is one metric.
            "throttles", lambda_.Function.metric_all_throttles(period=PERIOD, statistic="Sum"), "throttling",
            "Lambda throttles functions in this account and AWS region: the account has no free concurrency.",
        ),
    )  # fmt: skip
    for name, metric, runbook, description in facts:
        yield Alarm(name=name, description=description, metric=metric, above=0, periods=_PERIODS, runbook=runbook)


def _visible(queue: sqs.IQueue) -> cw.IMetric:
    return queue.metric_approximate_number_of_messages_visible(period=PERIOD, statistic="Maximum")


def _age_without_reader(watched: Watched) -> cw.IMetric:
    """Return the age of the oldest message while `writer_flush` is not invoked, else 0: its mapping can't start."""
    return cw.MathExpression(
        expression="IF(FILL(invocations, 0) == 0, age, 0)",
        label="Age of the oldest message, without a reader",
        using_metrics={
            "age": watched.state.writes.metric_approximate_age_of_oldest_message(statistic="Maximum"),
            "invocations": watched.functions["writer_flush"].metric_invocations(statistic="Sum"),
        },
        period=PERIOD,
    )


def _log_count(
    scope: Construct,
    name: str,
    pattern: logs.IFilterPattern,
    watched: Watched,
    functions: Sequence[str] = (),
    *,
    over: cdk.Duration = PERIOD,
) -> cw.Metric:
    """Count matching log lines of functions in one metric. An alarm for each function would cost more.

    Args:
        functions: their names; by default all functions.
    """
    namespace = f"{NAMESPACE}/{watched.stage.name}"
    for function in [watched.functions[one] for one in functions or watched.functions]:
        logs.MetricFilter(
            scope,
            f"{function.node.id}{name}",
            log_group=function.log_group,
            filter_pattern=pattern,
            metric_namespace=namespace,
            metric_name=name,
            metric_value="1",
        )
    return cw.Metric(namespace=namespace, metric_name=name, statistic="Sum", period=over)
