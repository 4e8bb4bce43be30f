"""`cost --from-metrics` compares the estimate with recorded answers of CloudWatch."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from lancelsm.common import aws
from lancelsm.common.settings import Settings
from lancelsm.errors import Invalid, Unavailable
from lancelsm.stack.cost import from_metrics, per_row
from lancelsm.stack.cost.from_metrics import Counts, compare, read_counts
from tests.cli.conftest import as_json, run  # noqa: F401 - fixtures
from tests.cli.console import Json, Run

DAY = 86_400.0
# A day with 10 rows a second through the queue, in batches of 1,000: the sums of hours, in two pages.
RECORDED = {
    "requests": [[432.0, 0.0], [432.0]],
    "rows": [[432_000.0], [432_000.0]],
    "writes": [[432.0], [432.0]],
    "flushes": [[144.0], [144.0]],
    "generations": [[144.0], [144.0]],
    "merges": [[48.0], [48.0]],
    "record_reads": [[4_000.0], [3_500.0]],
    "record_writes": [[1_000.0], [900.0]],
    "object_writes0": [[3_000.0], [3_000.0]],
    "object_writes1": [[], []],
    "object_writes2": [[40.0], [60.0]],
    "object_reads0": [[5_000.0], [5_000.0]],
    "object_reads1": [[7.0], []],
}


class CloudWatch:
    """Gives recorded answers, and keeps the questions."""

    def __init__(self, recorded: dict[str, list[list[float]]], *, last_status: str = "Complete") -> None:
        self.recorded = recorded
        self.statuses = ("PartialData", last_status)
        self.asked: dict[str, Any] = {}

    def get_paginator(self, name: str) -> CloudWatch:
        assert name == "get_metric_data"
        return self

    def paginate(self, **asked: Any) -> list[Any]:
        self.asked = asked
        names = [one["Id"] for one in asked["MetricDataQueries"]]
        return [
            {
                "MetricDataResults": [
                    {"Id": name, "Values": self.recorded[name][page], "StatusCode": status} for name in names
                ]
            }
            for page, status in enumerate(self.statuses)
        ]

    # The stack, for the command line
    def describe_stacks(self, *, StackName: str) -> Any:
        assert StackName == "lancelsm-team-a-pipeline"
        outputs = {"RegistryName": "dynamodb:heads", "Bucket": "lake"}
        return {"Stacks": [{"Outputs": [{"OutputKey": key, "OutputValue": one} for key, one in outputs.items()]}]}


def counts(recorded: dict[str, list[list[float]]] = RECORDED) -> Counts:
    return read_counts("team-a", "heads", "lake", seconds=DAY, now=DAY * 20_000, client=CloudWatch(recorded))


def test_values_that_cloudwatch_could_not_read_are_not_taken_for_none() -> None:
    client = CloudWatch(RECORDED, last_status="InternalError")
    with pytest.raises(Unavailable, match="not all values of requests: InternalError"):
        read_counts("team-a", "heads", "lake", seconds=DAY, now=DAY * 20_000, client=client)


def test_the_counts_are_those_of_the_metrics_that_the_functions_write() -> None:
    client = CloudWatch(RECORDED)
    found = read_counts("team-a", "heads", "lake", seconds=DAY, now=DAY * 20_000, client=client)

    assert (found.rows, found.writes, found.record_writes) == (864_000, 864, 1_900)
    asked = {one["Id"]: one["MetricStat"] for one in client.asked["MetricDataQueries"]}
    assert {one["Period"] for one in asked.values()} == {3600}
    for name, (function, metric, statistic) in from_metrics._OURS.items():
        assert metric in per_row.METRICS[function]
        dimension = {"Name": "function", "Value": f"lancelsm-team-a-{function}"}
        assert asked[name]["Metric"] == {"Namespace": "lancelsm", "MetricName": metric, "Dimensions": [dimension]}
        assert asked[name]["Stat"] == statistic
    assert asked["record_reads"]["Metric"]["Dimensions"] == [{"Name": "TableName", "Value": "heads"}]
    assert (found.object_writes, found.object_reads) == (6_100, 10_007)
    assert asked["object_reads1"]["Metric"] == {
        "Namespace": "AWS/S3",
        "MetricName": "HeadRequests",
        "Dimensions": [{"Name": "BucketName", "Value": "lake"}, {"Name": "FilterId", "Value": "EntireBucket"}],
    }


def test_a_stream_that_the_model_describes_costs_what_is_estimated() -> None:
    done = compare(counts(), seconds=DAY, row_bytes=1000, settings=Settings())

    assert done.counted.rows == pytest.approx(done.estimated.rows)
    for name in ("requests", "writes", "flushes", "generations", "merges"):
        assert getattr(done.counted, name) == pytest.approx(getattr(done.estimated, name), rel=0.01), name
    assert done.counted_usd == pytest.approx(done.estimated_usd, rel=0.01)


def test_what_was_counted_more_often_than_estimated_shows_and_costs_more() -> None:
    many = {**RECORDED, "merges": [[480.0], [480.0]], "record_writes": [[9_000.0], [9_000.0]]}

    plain, more = (compare(counts(one), seconds=DAY, row_bytes=1000, settings=Settings()) for one in (RECORDED, many))

    assert more.counted.merges == 10 * plain.counted.merges > 9 * more.estimated.merges
    assert more.counted.record_writes > 4 * more.estimated.record_writes
    assert more.counted_usd > plain.counted_usd
    assert more.estimated == plain.estimated


def test_rows_that_were_written_directly_are_compared_with_the_direct_path() -> None:
    direct = {**RECORDED, "requests": [[], []]}
    done = compare(counts(direct), seconds=DAY, row_bytes=1000, settings=Settings())
    assert (done.counted.requests, done.estimated.requests) == (0, 0)
    assert done.counted_usd == pytest.approx(done.estimated_usd, rel=0.01)


def test_less_than_one_write_in_a_month_has_a_cost() -> None:
    rare = {**{name: [[], []] for name in RECORDED}, "rows": [[1.0], []], "writes": [[1.0], []]}
    done = compare(counts(rare), seconds=455 * DAY, row_bytes=1000, settings=Settings())
    assert done.counted_usd > 0


def test_a_time_without_rows_and_a_refused_call_are_named() -> None:
    with pytest.raises(Invalid, match="no rows were written"):
        compare(counts({name: [[], []] for name in RECORDED}), seconds=DAY, row_bytes=1000, settings=Settings())

    class Refusing(CloudWatch):
        def paginate(self, **asked: Any) -> list[Any]:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetMetricData")

    with pytest.raises(Invalid, match="metrics can't be read"):
        read_counts("team-a", "heads", "lake", seconds=DAY, now=DAY, client=Refusing(RECORDED))


def test_the_command_compares_a_stage(as_json: Json, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    client = CloudWatch(RECORDED)
    monkeypatch.setattr(aws, "client", lambda name, **_: client)

    document = as_json("cost", "--from-metrics", "--stage", "team-a", "--days", "1")

    assert document["counted"]["rows"] == pytest.approx(864_000 * 730 / 24)
    assert document["counted"]["object_reads"] == pytest.approx(10_007 * 730 / 24)
    assert document["estimated"]["object_reads"] > 0
    shown = run("cost", "--from-metrics", "--stage", "team-a", "--days", "1").out
    assert "record writes" in shown
    assert "until rows are in the base" in shown
    assert "not counted" not in shown


def test_the_command_says_that_s3_counts_no_requests_and_how_to_change_that(
    as_json: Json,  # noqa: F811
    run: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = CloudWatch({name: [[], []] if name.startswith("object") else one for name, one in RECORDED.items()})
    monkeypatch.setattr(aws, "client", lambda name, **_: client)

    assert as_json("cost", "--from-metrics", "--stage", "team-a")["counted"]["object_writes"] is None
    shown = " ".join(run("cost", "--from-metrics", "--stage", "team-a").out.split())
    assert shown.count("not counted") == 2
    assert "-c request_metrics=true" in shown


def test_the_command_names_a_stage_that_does_not_exist(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    class Empty(CloudWatch):
        def describe_stacks(self, *, StackName: str) -> Any:
            text = f"Stack with id {StackName} does not exist"
            raise ClientError({"Error": {"Code": "ValidationError", "Message": text}}, "DescribeStacks")

    monkeypatch.setattr(aws, "client", lambda name, **_: Empty(RECORDED))
    gone = run("cost", "--from-metrics", "--stage", "gone")
    assert (gone.code, "lancelsm-gone-pipeline" in gone.err) == (1, True)
    assert "presets of dev" in run("cost", "--at-rest", "--stage", "team-a").out
    assert "is no name of a stage" in run("cost", "--at-rest", "--stage", "Prod!").err
