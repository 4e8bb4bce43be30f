"""Alarms, their runbooks, and the dashboard: whether anything is stuck, and where."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lancelsm.stack.backlog import UNITS
from tests.infra.conftest import ROOT, RUNBOOK_URL, TOPIC, Stacks, synthesized

RUNBOOKS = ROOT / "docs" / "operations" / "runbooks"
WITHOUT_ALARM = {RUNBOOKS / f"{name}.md" for name in ("index", "restore", "long-queue")}
OF_BACKUPS = RUNBOOKS / "backup-failures.md"  # only with `backup_days`: tests/infra/test_schedules.py
LARGEST = ("lancelsm", "Maximum", 300)

# Metric, namespace, statistic, period in seconds; threshold; periods, and how many of them raise the alarm
BACKLOG = {
    "oldest-unflushed": ("oldest_unflushed_seconds", *LARGEST, 60 + 900 + 900, 3, 1),
    "log-bytes": ("log_bytes", *LARGEST, 1 << 30, 3, 1),
    "pending-generations": ("pending_generations", *LARGEST, 63, 3, 1),
    "merge-lag": ("merge_lag_seconds", *LARGEST, 900 + 900 + 7200, 3, 1),
    "waiting-jobs": ("running_merge_seconds", *LARGEST, 7200 + 900, 3, 1),
    "no-heartbeat": ("heartbeat", "lancelsm", "Sum", 900, 1, 1, 1),
}
FAILURES = {
    "run-failures": ("FailedRuns", "lancelsm/prod"),
    "throttles": ("Throttles", "AWS/Lambda"),
    "merge-failures": ("ExecutionsFailed", "AWS/States"),
    "merge-timeouts": ("ExecutionsTimedOut", "AWS/States"),
    "optimize-failures": ("OptimizeFailed", "lancelsm/prod"),
    "collect-failures": ("ExecutionsFailed", "AWS/States"),
}
EXPECTED: dict[str, tuple[Any, ...]] = {
    **BACKLOG,
    **{name: (*metric, "Sum", 300, 0, 3, 1) for name, metric in FAILURES.items()},
    "oldest-message": ("ApproximateAgeOfOldestMessage", "AWS/SQS", "Maximum", 300, 900, 1, 1),
    "dead-letters": ("ApproximateNumberOfMessagesVisible", "AWS/SQS", "Maximum", 300, 0, 1, 1),
    "failed-events": ("ApproximateNumberOfMessagesVisible", "AWS/SQS", "Maximum", 300, 0, 1, 1),
    "function-errors": ("Errors", "lancelsm/prod", "Sum", 300, 5, 3, 3),
    "broken-release": ("Broken", "lancelsm/prod", "Sum", 60, 0, 1, 1),
    "corrupt": ("Corrupt", "lancelsm/prod", "Sum", 300, 0, 1, 1),
}


def alarms(stacks: Stacks) -> dict[str, Any]:
    """Return the properties of the alarms by name without the prefix."""
    found = stacks.of("AWS::CloudWatch::Alarm").values()
    return {one["AlarmName"].removeprefix(f"lancelsm-{stacks.stage}-"): one for one in found}


def test_the_alarms_are_these(prod: Stacks) -> None:
    found = alarms(prod)
    on_expression = found.pop("queue-not-read")

    assert {
        name: (
            one["MetricName"],
            one["Namespace"],
            one["Statistic"],
            one["Period"],
            one["Threshold"],
            one["EvaluationPeriods"],
            one["DatapointsToAlarm"],
        )
        for name, one in found.items()
    } == EXPECTED
    below = {name for name, one in found.items() if one["ComparisonOperator"] != "GreaterThanThreshold"}
    breaching = {name for name, one in found.items() if one["TreatMissingData"] == "breaching"}
    assert below == breaching == {"no-heartbeat"}
    assert found["no-heartbeat"]["ComparisonOperator"] == "LessThanThreshold"
    metrics = {one["Id"]: one for one in on_expression["Metrics"]}
    names = {name: one["MetricStat"]["Metric"]["MetricName"] for name, one in metrics.items() if "MetricStat" in one}
    assert names == {"age": "ApproximateAgeOfOldestMessage", "invocations": "Invocations"}
    assert [one["Expression"] for one in metrics.values() if "Expression" in one] == [
        "IF(FILL(invocations, 0) == 0, age, 0)"
    ]
    assert (on_expression["Threshold"], on_expression["ComparisonOperator"]) == (300, "GreaterThanThreshold")


def test_alarms_on_measures_watch_what_dispatch_writes(prod: Stacks) -> None:
    watched = {name: alarms(prod)[name] for name in BACKLOG}

    assert {one["MetricName"] for one in watched.values()} == {*UNITS, "running_merge_seconds", "heartbeat"}
    for one in watched.values():
        (dimension,) = one["Dimensions"]
        assert dimension["Name"] == "function"
        assert dimension["Value"]["Ref"].startswith("FunctionsDispatch")
    code = (ROOT / "functions" / "dispatch.py").read_text()
    assert '"heartbeat"' in code
    assert '"running_merge_seconds"' in code


def test_a_merge_runs_for_too_long_if_it_takes_longer_than_an_attempt_of_a_job(prod: Stacks) -> None:
    states = json.loads((ROOT / "infra" / "workflows" / "merge.asl.json").read_text())["States"]
    minutes = states["MergeOnSpark"]["Parameters"]["ExecutionTimeoutMinutes"]
    assert alarms(prod)["waiting-jobs"]["Threshold"] == 60 * minutes + 900


def test_a_heartbeat_is_missed_only_where_the_schedule_is_on(prod: Stacks, local: Stacks) -> None:
    assert alarms(prod).keys() - alarms(local).keys() == {"no-heartbeat", "queue-not-read"}, "no expressions there"


@pytest.mark.rest
def test_the_schedule_and_settings_of_the_context_move_the_thresholds(tmp_path: Path, layers: Path) -> None:
    context = {"LANCELSM_FLUSH_AGE_SECONDS": "600", "LANCELSM_MERGE_AGE_SECONDS": "7200", "schedule_minutes": "600"}
    slow = alarms(synthesized(tmp_path, stage="slow", layers=str(layers), **context))

    assert slow["oldest-unflushed"]["Threshold"] == 600 + 3 * 36_000 + 900
    assert slow["merge-lag"]["Threshold"] == 7200 + 3 * 36_000 + 7200
    assert {slow[name]["Period"] for name in BACKLOG if name != "no-heartbeat"} == {36_000}, "of one run"
    heart = slow["no-heartbeat"]
    assert heart["Period"] == 86_400, "the longest period of an alarm"
    assert (heart["EvaluationPeriods"], heart["DatapointsToAlarm"]) == (2, 2), "three runs are 30 hours"


def test_filters_count_the_lines_of_these_functions(prod: Stacks) -> None:
    optimize = re.search(r'^OPTIMIZE_FAILED = "(.+)" ', (ROOT / "functions" / "merger.py").read_text(), re.MULTILINE)
    assert optimize
    filters: dict[str, dict[str, str]] = {}
    for one in prod.of("AWS::Logs::MetricFilter").values():
        (transformation,) = one["MetricTransformations"]
        assert transformation["MetricNamespace"] == "lancelsm/prod"
        group = one["LogGroupName"]["Ref"].removeprefix("Functions").partition("Log")[0]
        filters.setdefault(transformation["MetricName"], {})[group] = one["FilterPattern"]

    names = {name.title().replace("_", "") for name in prod.functions()}
    assert {name: set(groups) for name, groups in filters.items()} == {
        "Errors": names,
        "Broken": {"Ingest", "Query"},
        "Corrupt": names,
        "FailedRuns": {"Dispatch", "Compaction"},
        "OptimizeFailed": {"Merger"},
    }
    assert (
        filters["FailedRuns"]["Dispatch"]
        == filters["Errors"]["Dispatch"]
        == '?"[ERROR]" ?"Task timed out" ?"Runtime exited"'
    )
    assert optimize[1] in filters["OptimizeFailed"]["Merger"]
    assert set(filters["Corrupt"].values()) == {'{ $.kind = "Corrupt" }'}


def test_every_alarm_has_a_runbook_and_every_runbook_an_alarm(prod: Stacks) -> None:
    linked = {ROOT / one["AlarmDescription"].rpartition("What to do: ")[2] for one in alarms(prod).values()}
    assert linked == set(RUNBOOKS.glob("*.md")) - WITHOUT_ALARM - {OF_BACKUPS}


def test_alarms_notify_the_topic_and_name_the_url_of_the_context(chosen: Stacks) -> None:
    for one in alarms(chosen).values():
        assert one["AlarmActions"] == [TOPIC]
        url = one["AlarmDescription"].rpartition("What to do: ")[2]
        assert url.startswith(f"{RUNBOOK_URL}/")
        assert (RUNBOOKS / url.removeprefix(f"{RUNBOOK_URL}/")).is_file()


def test_the_context_asks_for_metrics_of_each_table(chosen: Stacks, prod: Stacks) -> None:
    def asking(stacks: Stacks) -> set[str | None]:
        return {one["Environment"]["Variables"].get("LANCELSM_TABLE_METRICS") for one in stacks.functions().values()}

    assert (asking(chosen), asking(prod)) == ({"true"}, {None})


def test_the_context_asks_for_traces_of_functions_and_state_machines(chosen: Stacks, prod: Stacks) -> None:
    functions, roles = chosen.functions(), chosen.of("AWS::IAM::Policy").values()
    granting = [one for one in roles if "xray:PutTraceSegments" in json.dumps(one["PolicyDocument"])]
    machines = chosen.of("AWS::StepFunctions::StateMachine")

    assert {one["TracingConfig"]["Mode"] for one in functions.values()} == {"Active"}
    assert {one["Environment"]["Variables"]["LANCELSM_TRACING"] for one in functions.values()} == {"true"}
    assert len(granting) == len(functions) + len(machines)
    assert all(one["TracingConfiguration"] == {"Enabled": True} for one in machines.values())
    text = json.dumps(prod.pipeline)
    assert [word for word in ("TracingConfig", "LANCELSM_TRACING", "xray") if word in text] == []


WIDGETS = {
    "Alarms": set(),
    "Tables": set(),
    "Oldest row that waits: seconds": {"oldest_unflushed_seconds", "merge_lag_seconds"},
    "Largest log that waits: bytes": {"log_bytes"},
    "Most generations that wait, and runs of the schedule": {"pending_generations", "heartbeat"},
    "Where rows wait the most": set(),
    "Queue": {
        "NumberOfMessagesSent", "ApproximateNumberOfMessagesVisible", "ApproximateNumberOfMessagesNotVisible",
    },
    "Age of the oldest message": {"ApproximateAgeOfOldestMessage"},
    "Dead letters": {"ApproximateNumberOfMessagesVisible"},
    **{f"{name}: calls": {"Invocations", "Errors"} for name in ("ingest", "writer_flush", "compaction")},
    **{f"{name}: time": {"Duration"} for name in ("ingest", "writer_flush", "compaction")},
    **{key: set() for key in ("Rows accepted", "Appends", "Flushes", "Merges of tables", "Sweeps")},
    **{key: {"ExecutionsSucceeded", "ExecutionsFailed", "ExecutionsTimedOut"} for key in ("Merges", "Collections")},
    **{key: {"ExecutionTime"} for key in ("Time of a merge", "Time of a collection")},
    "Spark jobs": {f"{state}Jobs" for state in ("Submitted", "Pending", "Scheduled", "Running", "Failed")},
    "Oldest merge that runs: seconds": {"running_merge_seconds"},
    "Invocations": {"Invocations"},
    "Throttles": {"Throttles"},
    "Registry: capacity units": {"ConsumedReadCapacityUnits", "ConsumedWriteCapacityUnits"},
    "Bucket: bytes": {"BucketSizeBytes"},
}  # fmt: skip


def test_the_dashboard_shows_these_metrics(prod: Stacks) -> None:
    body = prod.one("AWS::CloudWatch::Dashboard")["DashboardBody"]
    text = "".join(part if isinstance(part, str) else "REFERENCE" for part in body["Fn::Join"][1])
    widgets = {one["properties"]["title"]: one["properties"] for one in json.loads(text)["widgets"]}

    shown = {
        title: {
            name for metric in one.get("metrics", ()) if isinstance(name := metric[1] if len(metric) > 1 else None, str)
        }
        for title, one in widgets.items()
    }
    assert shown == WIDGETS
    assert len(widgets["Alarms"]["alarms"]) == len(alarms(prod))
    assert widgets["Tables"]["endpoint"].endswith(":function:lancelsm-prod-report:live")
    assert prod.functions()["report"]["Environment"]["Variables"]["LANCELSM_REPORT"]["Fn::Join"][1][-1].endswith(
        ":function:lancelsm-prod-report:live"
    )
    query = widgets["Where rows wait the most"]["query"]
    assert "filter message = 'waits'" in query
    assert "by measure, table, region" in query
    for title in ("Invocations", "Throttles"):
        assert len(widgets[title]["metrics"]) == len(prod.functions())
