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
    """A condition that a person has to look at. Its runbook is `docs/runbooks/{runbook or name}.md`.

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
    return [
        *_backlog(watched),
        *_queues(watched),
        *_function_failures(scope, watched),
        *_table_failures(scope, watched),
    ]


def _backlog(watched: Watched) -> Iterator[Alarm]:
    """Yield alarms on what waits in tables, and on the run that measures it."""
    stage = watched.stage
    settings = resolve(table={}, environment=stage.settings)
    runs = 3 * period(stage).to_seconds()

    def largest(name: str) -> cw.Metric:
        return watched.measured(name, statistic="Maximum", over=cdk.Duration.minutes(max(5, stage.schedule_minutes)))

    yield Alarm(
        name="oldest-unflushed",
        description="Rows of a region wait in its log for much longer than a flush takes.",
        metric=largest("oldest_unflushed_seconds"),
        above=settings.flush_age_seconds + runs + _RUN_SECONDS,
        periods=_PERIODS,
        runbook="stuck-flush",
    )
    yield Alarm(
        name="log-bytes",
        description="The log of a region has more than 1 GiB that is not flushed.",
        metric=largest("log_bytes"),
        above=_LOG_BYTES,
        periods=_PERIODS,
        runbook="stuck-flush",
    )
    yield Alarm(
        name="pending-generations",
        description="A region has so many generations that wait for a merge that its writers slow down.",
        metric=largest("pending_generations"),
        above=settings.pending_generations_slow - 1,
        periods=_PERIODS,
        runbook="merge-lag",
    )
    yield Alarm(
        name="merge-lag",
        description="Rows wait in generations for much longer than a merge takes.",
        metric=largest("merge_lag_seconds"),
        above=settings.merge_age_seconds + runs + _MERGE_SECONDS,
        periods=_PERIODS,
    )
    yield Alarm(
        name="waiting-jobs",
        description="A merge runs for longer than a job may: its job waits for capacity, or fails again and again.",
        metric=largest("running_merge_seconds"),
        above=_JOB_SECONDS + _RUN_SECONDS,
        periods=_PERIODS,
    )
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
    yield Alarm(
        name="oldest-message",
        description="Writes wait in the queue for more than 15 minutes.",
        metric=queue.metric_approximate_age_of_oldest_message(period=PERIOD, statistic="Maximum"),
        above=900,
    )
    yield Alarm(
        name="queue-not-read",
        description="Writes wait in the queue for more than 5 minutes, and nothing reads them.",
        metric=_age_without_reader(watched),
        above=300,
        runbook="oldest-message",
    )
    yield Alarm(
        name="dead-letters",
        description="Rows that can't be written are in the dead-letter queue.",
        metric=_visible(watched.state.dead_letters),
        above=0,
    )
    yield Alarm(
        name="failed-events",
        description="A flush or a run of the schedule failed, or its event was dropped.",
        metric=_visible(watched.failed_events),
        above=0,
    )


def _function_failures(scope: Construct, watched: Watched) -> Iterator[Alarm]:
    yield Alarm(
        name="function-errors",
        description="Functions fail repeatedly.",
        metric=_log_count(scope, "Errors", _FAILED, watched),
        above=5,
        periods=3,
        all_periods=True,
    )
    yield Alarm(
        name="broken-release",
        description="A call of ingest or query ended with a bug, a timeout or a crash. A running deployment goes back.",
        metric=_log_count(
            scope, "Broken", logs.FilterPattern.any_term(*_BROKEN), watched, SHIFTED, over=cdk.Duration.minutes(1)
        ),
        above=0,
        runbook="upgrade",
    )
    yield Alarm(
        name="run-failures",
        description="A run of the schedule, a flush or a compaction of generations failed.",
        metric=_log_count(scope, "FailedRuns", _FAILED, watched, ("dispatch", "compaction")),
        above=0,
        periods=_PERIODS,
    )
    yield Alarm(
        name="throttles",
        description="Lambda throttles functions in this account and AWS region: the account has no free concurrency.",
        # Nothing here reserves concurrency, so all functions share what the account has. Its sum is one metric.
        metric=lambda_.Function.metric_all_throttles(period=PERIOD, statistic="Sum"),
        above=0,
        periods=_PERIODS,
        runbook="throttling",
    )


def _table_failures(scope: Construct, watched: Watched) -> Iterator[Alarm]:
    """Yield alarms on merges, optimizes and collections of tables, and on damage."""
    yield Alarm(
        name="merge-failures",
        description="A merge failed.",
        metric=watched.merging.metric_failed(period=PERIOD),
        above=0,
        periods=_PERIODS,
    )
    yield Alarm(
        name="merge-timeouts",
        description="A merge timed out.",
        metric=watched.merging.metric_timed_out(period=PERIOD),
        above=0,
        periods=_PERIODS,
        runbook="merge-failures",
    )
    optimize = logs.FilterPattern.string_value("$.message", "=", "an optimize failed")
    yield Alarm(
        name="optimize-failures",
        description="The merges of a table succeed, but its base is not optimized.",
        metric=_log_count(scope, "OptimizeFailed", optimize, watched, ("merger",)),
        above=0,
        periods=_PERIODS,
    )
    yield Alarm(
        name="collect-failures",
        description="A collection failed: objects that are no longer needed are not deleted.",
        metric=watched.collecting.metric_failed(period=PERIOD),
        above=0,
        periods=_PERIODS,
    )
    if watched.stage.backups:
        yield Alarm(
            name="backup-failures",
            description="A scheduled backup of a table failed: its last backup gets old.",
            metric=_log_count(scope, "BackupFailed", _FAILED, watched, ("backup",)),
            above=0,
            periods=_PERIODS,
        )
    yield Alarm(
        name="corrupt",
        description="A function found corrupt data in storage.",
        metric=_log_count(scope, "Corrupt", logs.FilterPattern.string_value("$.kind", "=", "Corrupt"), watched),
        above=0,
    )


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
