"""Define the dashboard, in the order of the pipeline, and the alarms, each with a runbook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cw
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.grants import State
from infra.stage import Stage

RUNBOOKS = "docs/runbooks"
NAMESPACE = "lancelsm"  # as in lancelsm.stack.telemetry
_PERIOD = cdk.Duration.minutes(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A condition that a person has to look at. Its runbook is `docs/runbooks/{runbook or name}.md`."""

    name: str
    description: str
    metric: cw.IMetric
    above: float
    periods: int = 1
    runbook: str | None = None


class Observing(Construct):
    """Dashboard and alarms. Alarms notify the topic that the context names; without a topic they are only shown."""

    def __init__(
        self,
        scope: Construct,
        *,
        stage: Stage,
        state: State,
        functions: Mapping[str, lambda_.Function],
        merging: sfn.StateMachine,
        collecting: sfn.StateMachine,
        failed_events: sqs.IQueue,
    ) -> None:
        super().__init__(scope, "Observing")
        self._stage, self._state, self._functions = stage, state, functions
        self._merging, self._collecting, self._failed_events = merging, collecting, failed_events
        topic = sns.Topic.from_topic_arn(self, "Topic", stage.alarm_topic) if stage.alarm_topic else None
        # The emulator has no alarms on expressions.
        alarms = [self._alarm(one, topic) for one in self._alarms() if not (stage.local and _is_expression(one.metric))]
        cw.Dashboard(
            self,
            "Dashboard",
            dashboard_name=f"{stage.prefix}-{cdk.Aws.REGION}",
            widgets=[[cw.AlarmStatusWidget(title="Alarms", alarms=alarms, width=24, height=3)], *self._rows()],
        )

    def _alarm(self, alarm: Alarm, topic: sns.ITopic | None) -> cw.Alarm:
        made = cw.Alarm(
            self,
            alarm.name.title().replace("-", ""),
            alarm_name=f"{self._stage.prefix}-{alarm.name}",
            alarm_description=f"{alarm.description} What to do: {RUNBOOKS}/{alarm.runbook or alarm.name}.md",
            metric=alarm.metric,
            threshold=alarm.above,
            evaluation_periods=alarm.periods,
            comparison_operator=cw.ComparisonOperator.GREATER_THAN_THRESHOLD,
            treat_missing_data=cw.TreatMissingData.NOT_BREACHING,
        )
        if topic:
            made.add_alarm_action(actions.SnsAction(topic))
        return made

    def _alarms(self) -> Sequence[Alarm]:
        failed = self._log_count("Errors", logs.FilterPattern.any_term("[ERROR]", "Task timed out", "Runtime exited"))
        corrupt = self._log_count("Corrupt", logs.FilterPattern.string_value("$.kind", "=", "Corrupt"))
        return [
            Alarm(
                name="oldest-message",
                description="Writes wait in the queue for more than 15 minutes.",
                metric=self._state.writes.metric_approximate_age_of_oldest_message(period=_PERIOD, statistic="Maximum"),
                above=900,
            ),
            Alarm(
                name="queue-not-read",
                description="Writes wait in the queue for more than 5 minutes, and nothing reads them.",
                metric=self._age_without_reader(),
                above=300,
                runbook="oldest-message",
            ),
            Alarm(
                name="dead-letters",
                description="Rows that can't be written are in the dead-letter queue.",
                metric=self._state.dead_letters.metric_approximate_number_of_messages_visible(
                    period=_PERIOD, statistic="Maximum"
                ),
                above=0,
            ),
            Alarm(
                name="function-errors",
                description="Functions fail repeatedly.",
                metric=failed,
                above=5,
                periods=3,
            ),
            Alarm(
                name="failed-events",
                description="A flush or a run of the schedule failed, or its event was dropped.",
                metric=self._failed_events.metric_approximate_number_of_messages_visible(
                    period=_PERIOD, statistic="Maximum"
                ),
                above=0,
            ),
            Alarm(
                name="merge-failures",
                description="A merge failed.",
                metric=self._merging.metric_failed(period=_PERIOD),
                above=0,
            ),
            Alarm(
                name="merge-timeouts",
                description="A merge timed out.",
                metric=self._merging.metric_timed_out(period=_PERIOD),
                above=0,
                runbook="merge-failures",
            ),
            Alarm(
                name="optimize-failures",
                description="The merges of a table succeed, but its base is not optimized.",
                metric=self._log_count(
                    "OptimizeFailed",
                    logs.FilterPattern.string_value("$.message", "=", "an optimize failed"),
                    functions=[self._functions["merger"]],
                ),
                above=0,
            ),
            Alarm(
                name="collect-failures",
                description="A collection failed: objects that are no longer needed are not deleted.",
                metric=self._collecting.metric_failed(period=_PERIOD),
                above=0,
            ),
            Alarm(
                name="corrupt",
                description="A function found corrupt data in storage.",
                metric=corrupt,
                above=0,
            ),
        ]

    def _age_without_reader(self) -> cw.IMetric:
        """Return the age of the oldest message while `writer_flush` is not invoked, else 0: its mapping can't start."""
        return cw.MathExpression(
            expression="IF(FILL(invocations, 0) == 0, age, 0)",
            label="Age of the oldest message, without a reader",
            using_metrics={
                "age": self._state.writes.metric_approximate_age_of_oldest_message(statistic="Maximum"),
                "invocations": self._functions["writer_flush"].metric_invocations(statistic="Sum"),
            },
            period=_PERIOD,
        )

    def _log_count(
        self, name: str, pattern: logs.IFilterPattern, *, functions: Sequence[lambda_.Function] = ()
    ) -> cw.IMetric:
        """Count matching log lines of these functions, by default all, in one metric. Ten alarms would cost more."""
        namespace = f"{NAMESPACE}/{self._stage.name}"
        for function in functions or self._functions.values():
            logs.MetricFilter(
                self,
                f"{function.node.id}{name}",
                log_group=function.log_group,
                filter_pattern=pattern,
                metric_namespace=namespace,
                metric_name=name,
                metric_value="1",
            )
        return cw.Metric(namespace=namespace, metric_name=name, statistic="Sum", period=_PERIOD)

    def _rows(self) -> list[list[cw.IWidget]]:
        """Return the rows of the dashboard: ingest, queue, append, flush, merge, collect, and what causes cost."""
        queue, dead_letters = self._state.writes, self._state.dead_letters
        return [
            [*self._function("ingest"), self._metrics("ingest", "Rows accepted")],
            [
                _graph(
                    "Queue",
                    queue.metric_number_of_messages_sent(),
                    queue.metric_approximate_number_of_messages_visible(),
                    queue.metric_approximate_number_of_messages_not_visible(),
                ),
                _graph("Age of the oldest message", queue.metric_approximate_age_of_oldest_message()),
                _graph("Dead letters", dead_letters.metric_approximate_number_of_messages_visible()),
            ],
            [*self._function("writer_flush"), self._metrics("writer_flush", "Appends")],
            [*self._function("compaction"), self._metrics("compaction", "Flushes")],
            [*_machine("merge", self._merging), self._metrics("merger", "Merges")],
            [*_machine("collection", self._collecting), self._metrics("gc_sweep", "Sweeps")],
            [
                _graph("Invocations", *(one.metric_invocations() for one in self._functions.values())),
                _graph(
                    "Registry: capacity units",
                    *(
                        self._state.registry.metric(f"Consumed{verb}CapacityUnits", statistic="Sum", period=_PERIOD)
                        for verb in ("Read", "Write")
                    ),
                ),
                _graph(
                    "Bucket: bytes",
                    cw.Metric(
                        namespace="AWS/S3",
                        metric_name="BucketSizeBytes",
                        dimensions_map={"BucketName": self._state.bucket.bucket_name, "StorageType": "StandardStorage"},
                        statistic="Average",
                        period=cdk.Duration.days(1),
                    ),
                ),
            ],
        ]

    def _function(self, name: str) -> list[cw.IWidget]:
        function = self._functions[name]
        return [
            _graph(f"{name}: calls", function.metric_invocations(), function.metric_errors()),
            _graph(
                f"{name}: time", function.metric_duration(statistic="p50"), function.metric_duration(statistic="p99")
            ),
        ]

    def _metrics(self, name: str, title: str) -> cw.IWidget:
        """Show all metrics of a function by table, including errors by kind."""
        physical = self._functions[name].function_name
        search = f"SEARCH('{{{NAMESPACE},function,table}} function=\"{physical}\"', 'Sum', 300)"
        return _graph(title, cw.MathExpression(expression=search, label="", period=_PERIOD))


def _machine(runs: str, machine: sfn.StateMachine) -> list[cw.IWidget]:
    return [
        _graph(f"{runs.title()}s", machine.metric_succeeded(), machine.metric_failed(), machine.metric_timed_out()),
        _graph(f"Time of a {runs}", machine.metric_time()),
    ]


def _is_expression(metric: cw.IMetric) -> bool:
    return isinstance(metric, cw.MathExpression)


def _graph(title: str, *metrics: cw.IMetric) -> cw.IWidget:
    return cw.GraphWidget(title=title, left=list(metrics), width=8, height=6)
