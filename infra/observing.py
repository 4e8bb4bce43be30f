"""Define the dashboard and the alarms. The dashboard answers: is anything stuck, and where?"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cw
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_sns as sns
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.alarms import NAMESPACE, PERIOD, Alarm, Watched, alarms
from infra.functions import alias_arn

RUNBOOKS = "docs/operations/runbooks"


class Observing(Construct):
    """Dashboard and alarms. Alarms notify the topic that the context names; without a topic they are only shown."""

    def __init__(self, scope: Construct, *, watched: Watched) -> None:
        super().__init__(scope, "Observing")
        stage = self._stage = watched.stage
        self._watched = watched
        self._state, self._functions = watched.state, watched.functions
        topic = sns.Topic.from_topic_arn(self, "Topic", stage.alarm_topic) if stage.alarm_topic else None
        # The emulator has no alarms on expressions.
        shown = [one for one in alarms(self, watched) if not (stage.local and _is_expression(one.metric))]
        self.alarms = {one.name: self._alarm(one, topic) for one in shown}
        cw.Dashboard(
            self,
            "Dashboard",
            dashboard_name=f"{stage.prefix}-{cdk.Aws.REGION}",
            widgets=[
                [cw.AlarmStatusWidget(title="Alarms", alarms=list(self.alarms.values()), width=24, height=3)],
                *self._rows(),
                [self._tables()],
            ],
        )

    def _alarm(self, alarm: Alarm, topic: sns.ITopic | None) -> cw.Alarm:
        runbook = f"{self._stage.runbook_url or RUNBOOKS}/{alarm.runbook or alarm.name}.md"
        threshold = alarm.above if alarm.below is None else alarm.below
        assert threshold is not None
        compared, missing = cw.ComparisonOperator, cw.TreatMissingData
        made = cw.Alarm(
            self,
            alarm.name.title().replace("-", ""),
            alarm_name=f"{self._stage.prefix}-{alarm.name}",
            alarm_description=f"{alarm.description} What to do: {runbook}",
            metric=alarm.metric,
            threshold=threshold,
            evaluation_periods=alarm.periods,
            datapoints_to_alarm=alarm.periods if alarm.all_periods else 1,
            comparison_operator=(
                compared.GREATER_THAN_THRESHOLD if alarm.below is None else compared.LESS_THAN_THRESHOLD
            ),
            treat_missing_data=missing.NOT_BREACHING if alarm.below is None else missing.BREACHING,
        )
        if topic:
            made.add_alarm_action(actions.SnsAction(topic))
        return made

    def _rows(self) -> list[list[cw.IWidget]]:
        """Return the rows: what waits and where; ingest, queue, append, flush, merge, collect; what causes cost."""
        queue, dead_letters = self._state.writes, self._state.dead_letters
        running = self._watched.measured("running_merge_seconds", statistic="Maximum")
        return [
            self._waiting(),
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
            [*_machine("merge", self._watched.merging), self._metrics("merger", "Merges of tables")],
            [_graph("Spark jobs", *self._jobs()), _graph("Oldest merge that runs: seconds", running)],
            [*_machine("collection", self._watched.collecting), self._metrics("gc_sweep", "Sweeps")],
            [
                _graph("Invocations", *(one.metric_invocations() for one in self._functions.values())),
                _graph("Throttles", *(one.metric_throttles() for one in self._functions.values())),
                _graph(
                    "Registry: capacity units",
                    *(
                        self._state.registry.metric(f"Consumed{verb}CapacityUnits", statistic="Sum", period=PERIOD)
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

    def _tables(self) -> cw.IWidget:
        """Show the levels of each table, and the history of the one that waits the longest, as `report` draws it.

        Each refresh is a call by the person who looks. It is not made while somebody only moves the time range.
        """
        return cw.CustomWidget(
            title="Tables",
            function_arn=alias_arn(self, self._stage, "report"),
            update_on_time_range_change=False,
            update_on_resize=False,
            width=24,
            height=18,
        )

    def _waiting(self) -> list[cw.IWidget]:
        """Show what waits in tables, as `dispatch` measures it, and in which table and region."""
        largest = self._watched.measured
        dispatch = self._functions["dispatch"]
        return [
            _graph(
                "Oldest row that waits: seconds",
                largest("oldest_unflushed_seconds", statistic="Maximum"),
                largest("merge_lag_seconds", statistic="Maximum"),
            ),
            _graph("Largest log that waits: bytes", largest("log_bytes", statistic="Maximum")),
            _graph(
                "Most generations that wait, and runs of the schedule",
                largest("pending_generations", statistic="Maximum"),
                largest("heartbeat", statistic="Sum"),
            ),
            cw.LogQueryWidget(
                title="Where rows wait the most",
                log_group_names=[dispatch.log_group.log_group_name],
                query_lines=[
                    "filter message = 'waits'",
                    "stats latest(value) as most, latest(@timestamp) as at by measure, table, region",
                    "sort at desc",
                    "limit 20",
                ],
                width=24,
                height=6,
            ),
        ]

    def _jobs(self) -> list[cw.IMetric]:
        """Return the jobs of the Spark application by state. AWS has no metric of those that are queued."""
        application = self._watched.jobs
        dimensions = {"ApplicationId": application.attr_application_id, "ApplicationName": application.name or ""}
        return [
            cw.Metric(
                namespace="AWS/EMRServerless",
                metric_name=f"{state}Jobs",
                dimensions_map=dimensions,
                statistic="Maximum",
                period=PERIOD,
            )
            for state in ("Submitted", "Pending", "Scheduled", "Running", "Failed")
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
        """Show all metrics of a function, including errors by kind."""
        physical = self._functions[name].function_name
        search = f"SEARCH('{{{NAMESPACE},function}} function=\"{physical}\"', 'Sum', 300)"
        return _graph(title, cw.MathExpression(expression=search, label="", period=PERIOD))


def _machine(runs: str, machine: sfn.StateMachine) -> list[cw.IWidget]:
    return [
        _graph(f"{runs.title()}s", machine.metric_succeeded(), machine.metric_failed(), machine.metric_timed_out()),
        _graph(f"Time of a {runs}", machine.metric_time()),
    ]


def _is_expression(metric: cw.IMetric) -> bool:
    return isinstance(metric, cw.MathExpression)


def _graph(title: str, *metrics: cw.IMetric) -> cw.IWidget:
    return cw.GraphWidget(title=title, left=list(metrics), width=8, height=6)
