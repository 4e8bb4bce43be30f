"""The cost model: it charges the requests that operations really send, and prices every resource of a deployment."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from benchmarks import tables
from benchmarks.queues import KeptQueue
from benchmarks.s3 import Server, serving
from lancelsm.common.clock import SystemClock
from lancelsm.common.settings import Settings
from lancelsm.compaction.maintenance import optimize_table
from lancelsm.compaction.optimize import Optimized
from lancelsm.dataset.optimize import TARGET_ROWS
from lancelsm.errors import Invalid
from lancelsm.gc import collect
from lancelsm.record.normalize import upserts
from lancelsm.region.handle import Ports
from lancelsm.scrubbing.report import Report
from lancelsm.stack.backlog import UNITS
from lancelsm.stack.cost import at_rest, per_row, prices, requests, total
from lancelsm.stack.cost.at_rest import Inventory, inventory
from lancelsm.stack.cost.per_row import Workload
from lancelsm.stack.cost.prices import Price
from lancelsm.stack.cost.requests import Requests
from lancelsm.stack.delivery import apply
from lancelsm.stack.delivery.request import write
from lancelsm.stack.delivery.send import send
from lancelsm.stack.delivery.table_cache import Tables
from lancelsm.stack.scrub_round import Wanted, scrub_changed
from lancelsm.table import Table
from tests.cli.conftest import as_json, run  # noqa: F401 - fixtures
from tests.cli.console import Json, Run
from tests.unit.counting import CountingRegistry

ROOT = Path(__file__).parents[2]
_PRICE_OF = {"PUT": "object_writes", "POST": "object_writes", "LIST": "object_writes", "GET": "object_reads"}
_BASE, _ROWS = 20_000, 2_000  # smaller files take fewer requests; larger files take as many


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    with serving() as found:
        yield found


class CountedTable:
    """A table on S3 and DynamoDB that counts the requests to both by price category."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._registry = CountingRegistry()
        self._seed = 0
        ports = Ports(registry=lambda kind, **_: self._registry)
        self.table: Table = lancelsm.create.on(ports)(
            "s3://bucket/table",
            tables.base_rows(_BASE),
            primary_key="id",
            storage_options=server.options,
        )
        self.append()  # creates the region and sets its dirty mark
        self.tables = Tables("s3://bucket", storage_options=server.options, ports=ports)
        self.handle = self.tables.open("table")

    def append(self) -> None:
        self._seed += 1
        self.table.upsert(tables.changes(_BASE, _ROWS, seed=self._seed))

    def rows(self) -> pa.Table:
        return upserts(tables.changes(_BASE, 100, seed=0), schema=self.handle.config.schema)

    def write(self) -> None:
        """Write as the `writer_flush` function does when it is invoked directly."""
        write(self.rows(), handle=self.handle, seconds=30)

    def during(self, act: Callable[[], Any]) -> Requests:
        before = Counter(self._server.requests), Counter(self._registry.units)
        act()
        sent = Counter(self._registry.units) - before[1]
        for method, count in (Counter(self._server.requests) - before[0]).items():
            if method != "DELETE":  # DELETE is free
                sent[_PRICE_OF.get(method, "object_reads")] += count
        return Requests(**sent)


def test_a_direct_write_sends_the_requests_that_are_charged(server: Server) -> None:
    counted = CountedTable(server)

    assert counted.during(counted.write) == requests.WRITE


def test_a_write_through_the_queue_sends_the_requests_that_are_charged(server: Server) -> None:
    counted, queue = CountedTable(server), KeptQueue()
    inbox: Any = None

    def ingest() -> None:
        send(counted.rows(), handle=counted.handle, queue=queue, inbox=inbox, producer="p", sequence=0, seconds=30)

    def apply_batch() -> None:
        (delivery,) = queue.deliveries()
        ports = apply.BatchPorts(tables=counted.tables, inbox=inbox, dead_letters=queue, source="q")  # type: ignore[arg-type]
        assert apply.apply([delivery], ports=ports, seconds=30).entries

    assert counted.during(ingest) == requests.INGEST
    assert counted.during(apply_batch) == requests.WRITE


@pytest.mark.parametrize("entries", [2, 4])
def test_a_flush_sends_the_requests_that_are_charged(server: Server, entries: int) -> None:
    counted = CountedTable(server)
    for _ in range(entries - 1):
        counted.append()

    sent = counted.during(counted.table.flush)

    assert sent == requests.FLUSH + requests.FLUSH_ENTRY * entries


@pytest.mark.one_case
@pytest.mark.parametrize("generations", [1, 4])
def test_a_merge_sends_the_requests_that_are_charged(server: Server, generations: int) -> None:
    counted = CountedTable(server)
    counted.append()
    counted.table.flush()
    for _ in range(generations - 1):
        counted.append()
        counted.append()
        counted.table.flush()

    sent = counted.during(lambda: counted.table.merge(engine="inprocess"))

    assert sent == requests.MERGE + requests.MERGE_GENERATION * generations
    assert counted.during(counted.write) == requests.WRITE + requests.WRITE_FIRST


@pytest.mark.rest
def test_an_optimize_sends_the_requests_that_are_charged(server: Server) -> None:
    counted, merges = CountedTable(server), 4

    def optimize(small_fragments: int) -> Optimized:
        settings = replace(
            counted.handle.settings, optimize_small_fragments=small_fragments, optimize_deleted_percent=100
        )
        return optimize_table(replace(counted.handle, settings=settings))

    for _ in range(merges):
        counted.append()
        counted.table.flush()
        counted.table.merge(engine="inprocess")

    assert counted.during(lambda: optimize(1000)) == requests.OPTIMIZE
    rewritten = requests.OPTIMIZE + requests.REWRITE + requests.REWRITE_FRAGMENT * (merges + 1)
    assert counted.during(lambda: optimize(merges)) == rewritten


class StoppedClock(SystemClock):
    """A clock that stands still, so that versions of the base do not age during the test."""

    def __init__(self) -> None:
        self._moment = super().now()

    def now(self) -> float:
        return self._moment


@pytest.mark.rest
@pytest.mark.parametrize(("old", "young"), [(7, 1), (8, 2)])
def test_a_collection_sends_the_requests_that_are_charged(server: Server, old: int, young: int) -> None:
    counted, cycles = CountedTable(server), 0

    def merge() -> None:
        nonlocal cycles
        for _ in range(2 if cycles else 0):  # the first cycle has one entry already
            counted.append()
        counted.table.flush()
        counted.table.merge(engine="inprocess")
        cycles += 1

    for _ in range(old):
        merge()
    between = SystemClock().now()
    for _ in range(young):
        merge()
    clock = StoppedClock()
    settings = replace(counted.handle.settings, keep_versions_seconds=clock.now() - between)
    handle = replace(counted.handle, settings=settings, context=replace(counted.handle.context, clock=clock))

    def collected() -> None:
        rounds = collect.mark(handle).rounds
        assert len(rounds) == 2, "one of the region and one of the base"
        for act in (collect.verify, collect.commit, collect.sweep):
            act(handle, rounds)

    assert counted.during(collected) == (
        requests.COLLECT
        + requests.COLLECT_ENTRY * (2 * cycles - 1)
        + requests.COLLECT_GENERATION * cycles
        + requests.COLLECT_KEPT * young
        + requests.COLLECT_GONE * old
    )


def test_a_scheduled_scrub_of_an_unchanged_table_sends_the_requests_that_the_page_names(server: Server) -> None:
    counted = CountedTable(server)
    wanted = Wanted(table=counted.handle.config.table, scope="everything")
    answers: list[Any] = []

    def scrub() -> None:
        answers.append(
            scrub_changed(
                counted._registry,
                wanted,
                open_table=lambda _: counted.tables.open("table", fresh=True),
                has_time=lambda: True,
                scrub=lambda uri, **_: Report(checked=1, problems=(), orphans=0, complete=True),
            )
        )

    scrub()
    assert counted.during(scrub) == requests.SCRUB_UNCHANGED
    assert [one.report is None for one in answers] == [False, True]


def cost(**more: Any) -> dict[str, float]:
    work = Workload(**{"rows_per_second": 1000, "row_bytes": 1000, "batch": 1000, "path": "direct", **more})
    return per_row.usd_per_million_rows(work, per_row.monthly_bill(work, Settings()))


def test_a_million_rows_of_a_kilobyte_cost_at_most_a_cent_on_the_direct_path() -> None:
    assert cost()["acknowledged"] <= 0.01


def test_the_queue_costs_less_than_three_times_the_direct_path() -> None:
    assert cost()["acknowledged"] < cost(path="queue")["acknowledged"] < 3 * cost()["acknowledged"]


def test_larger_batches_cost_less() -> None:
    figures = [cost(batch=batch)["acknowledged"] for batch in (1, 10, 100, 1000)]

    assert figures == sorted(figures, reverse=True)
    assert figures[0] > 50 * figures[-1]


def test_with_few_rows_the_schedule_determines_the_cost_of_compaction() -> None:
    assert cost(rows_per_second=1)["merged"] > 5 * cost()["merged"]


def test_a_collection_costs_extra_and_more_if_more_versions_of_the_base_are_kept() -> None:
    def dollars(**settings: float) -> float:
        work = Workload(rows_per_second=10, row_bytes=1000, batch=1000, path="direct")
        items = per_row.monthly_bill(work, Settings(**settings))  # type: ignore[arg-type]
        return total(item for item in items if item.part == "collect")

    assert cost()["merged"] < cost()["collected"]
    assert 0 < dollars(keep_versions_seconds=0) < dollars() / 3
    assert dollars(collect_interval_seconds=36_000) < dollars() / 3


def test_readme_and_cost_page_show_the_computed_figures() -> None:
    page, readme = ((ROOT / name).read_text() for name in ("docs/operations/cost.md", "README.md"))
    rows = re.findall(r"^\| \*\*until .*\| \*\*\$([\d.]+)\*\* \| \*\*\$([\d.]+)\*\* \|$", page, re.MULTILINE)
    direct, queue = (cost(rows_per_second=250, path=path).values() for path in ("direct", "queue"))

    assert rows == [(f"{one:.4f}", f"{other:.4f}") for one, other in zip(direct, queue, strict=True)]
    assert all(f"${one:.3f}" in readme and f"(${other:.3f}" in readme for one, other in zip(direct, queue, strict=True))


def bill(*parts: str, **more: Any) -> dict[str, float]:
    """Return quantities by item of these parts of a bill."""
    given = {"rows_per_second": 250, "row_bytes": 1000, "batch": 1000, "path": "direct", **more}
    items = per_row.monthly_bill(Workload(**given), Settings())
    return {item.item: item.quantity for item in items if item.part in parts}


def test_compactions_of_the_base_are_charged_by_the_bytes_that_they_write_again() -> None:
    assert per_row._TARGET_ROWS == TARGET_ROWS
    often, once = (bill("merge", rows_per_second=rate) for rate in (1, 250))
    assert often["base compaction"] > once["base compaction"] / 250, "more often for small merges"
    assert "base compaction" not in bill("merge", rows_per_second=1000), "fragments that are large at once stay"


def test_deleted_objects_are_charged_as_long_as_the_bucket_keeps_them() -> None:
    month = 250 * per_row.MONTH_SECONDS * 1000 / 1e9
    assert bill("keep")["deleted objects"] == pytest.approx(3 * month * 7 / 30.4, rel=0.01)
    assert bill("keep", rows_per_second=1000)["deleted objects"] == pytest.approx(4 * 2 * month * 7 / 30.4, rel=0.01)


def test_starts_of_containers_are_charged_at_most_once_a_call() -> None:
    def starts(function: str, **more: Any) -> float:
        charged = bill("queue", "write", "flush", "merge", "collect", path="queue", **more)[f"starts of {function}"]
        return charged / (per_row._INIT_SECONDS[function] * per_row.MEMORY_MB[function] / 1024)

    every_two_hours = per_row.MONTH_SECONDS / 7200
    assert starts("merger") == pytest.approx(every_two_hours)
    assert starts("writer_flush", rows_per_second=1, batch=10_000) == pytest.approx(per_row.MONTH_SECONDS / 10_000)
    assert starts("writer_flush", rows_per_second=100_000) > 5 * every_two_hours, "many at the same time"


def test_merges_too_large_for_a_function_are_charged_as_jobs() -> None:
    def charged(rows_per_second: float) -> set[Price]:
        work = Workload(rows_per_second=rows_per_second, row_bytes=100, batch=1000, path="direct")
        return {item.price for item in per_row.monthly_bill(work, Settings())}

    assert prices.VCPU_HOUR not in charged(1000)
    assert prices.VCPU_HOUR in charged(20_000)


def test_measured_work_costs_as_much_as_the_same_continuous_workload() -> None:
    # given the rows of a month, flushed and merged as often as the schedule does
    work = Workload(rows_per_second=10, row_bytes=1000, batch=1000, path="queue")
    calls, folds = round(work.calls), round(per_row.MONTH_SECONDS / per_row.SCHEDULE_SECONDS)
    merges = round(per_row.MONTH_SECONDS / Settings().merge_age_seconds)

    done = per_row.MeasuredWork(
        rows=round(work.rows), row_bytes=1000, requests=calls, messages=calls, entries=calls, flushes=folds,
        generations=folds, merges=merges, jobs=0, merged_rows=0,
    )  # fmt: skip

    figures = per_row.usd_per_million_rows(work, per_row.measured_bill(done))
    stream = per_row.usd_per_million_rows(work, per_row.monthly_bill(work, Settings()))
    assert {until: figures[until] for until in ("acknowledged", "merged")} == pytest.approx(
        {until: stream[until] for until in ("acknowledged", "merged")}
    )


def test_a_job_is_charged_in_addition_to_merges_in_the_function() -> None:
    def dollars(**more: int) -> float:
        counted = dict.fromkeys(("requests", "messages", "entries", "flushes", "generations"), 10)
        return total(per_row.measured_bill(per_row.MeasuredWork(rows=10_000, row_bytes=100, **counted, **more)))

    in_function = dollars(merges=2, jobs=0, merged_rows=0)
    assert dollars(merges=1, jobs=1, merged_rows=5_000) > in_function + 0.02


@pytest.mark.parametrize("field", ["rows_per_second", "row_bytes", "batch"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 1e308])
def test_a_workload_without_rows_or_without_end_is_refused(field: str, value: float) -> None:
    with pytest.raises(Invalid, match=field):
        cost(**{field: value})


def test_readme_and_cost_page_show_the_cost_at_rest() -> None:
    dev, prod = (round(total(at_rest.bill_at_rest(at_rest.AT_REST[stage])), 1) for stage in ("dev", "prod"))
    alarms = [prices.ALARM.usd * at_rest.AT_REST[stage].alarms for stage in ("prod", "dev")]

    assert f"At rest a deployment costs about ${prod:.2f} a month" in (ROOT / "README.md").read_text()
    page = (ROOT / "docs" / "operations" / "cost.md").read_text()
    assert f"About ${prod:.2f} a month remain in `prod`, and ${dev:.2f} in `dev`" in page
    assert "alarms ${:.2f} and ${:.2f}".format(*alarms) in page


def template(kind: str, **properties: Any) -> dict[str, Any]:
    return {"Resources": {"It": {"Type": kind, "Properties": properties}}}


def test_the_priced_resources_of_a_template_are_counted() -> None:
    schedule = template("AWS::Scheduler::Schedule", ScheduleExpression="rate(5 minutes)", State="ENABLED")
    idle = template("AWS::Scheduler::Schedule", ScheduleExpression="rate(1 hour)", State="DISABLED")

    held = inventory([template("AWS::CloudWatch::Alarm"), template("AWS::S3::Bucket"), schedule, idle])

    assert held == Inventory(alarms=1, runs=8760, metrics=1)

    gateway = template("AWS::EC2::VPCEndpoint", VpcEndpointType="Gateway")
    interface = template("AWS::EC2::VPCEndpoint", VpcEndpointType="Interface", SubnetIds=["a", "b"])
    (endpoints,) = at_rest.bill_at_rest(inventory([gateway, interface, template("AWS::EC2::SecurityGroup")]))
    assert endpoints.usd == pytest.approx(2 * 7.30)


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        (template("AWS::EC2::NatGateway"), "NatGateway has no price"),
        (template("AWS::EMRServerless::Application", InitialCapacity=[{}]), "InitialCapacity"),
        (template("AWS::DynamoDB::Table", BillingMode="PROVISIONED"), "provisioned"),
        (template("AWS::Scheduler::Schedule", ScheduleExpression="cron(0 0 * * ? *)", State="ENABLED"), "cron"),
        (template("AWS::Lambda::Function", SnapStart={"ApplyOn": "PublishedVersions"}), "SnapStart"),
    ],
)
def test_a_resource_without_a_pricing_rule_is_refused(resource: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        inventory([resource])


def test_the_cost_command_lists_every_item(as_json: Json) -> None:  # noqa: F811
    document = as_json("cost", "--rows-per-second", 1000, "--path", "queue")

    assert document["prices_checked"] == prices.CHECKED
    assert document["usd_per_month"] == pytest.approx(sum(item["usd"] for item in document["items"]))
    parts = {item["part"] for item in document["items"]}
    assert parts == {"queue", "write", "flush", "merge", "collect", "keep", "at rest"}
    assert document["usd_per_million_rows"]["acknowledged"] == pytest.approx(cost(path="queue")["acknowledged"])


def test_the_cost_command_shows_the_cost_at_rest(run: Run) -> None:  # noqa: F811
    done = run("cost", "--at-rest", "--stage", "dev")

    assert done.code == 0
    assert "alarms" in done.out
    assert "per month" in done.out


def test_the_metrics_of_a_written_table_are_counted_and_those_of_each_table_on_request() -> None:
    for name, metrics in per_row.METRICS.items():
        code = (ROOT / "functions" / f"{name}.py").read_text()
        assert [one for one in metrics if f'"{one}"' not in code and one not in UNITS] == []
    assert set(UNITS) < set(per_row.METRICS["dispatch"])

    by_queue = Workload(rows_per_second=1, row_bytes=1000, batch=1000, path="queue")
    counts = [
        {item.item: item.quantity for item in per_row.monthly_bill(work, Settings()) if item.price == prices.METRIC}
        for work in (by_queue, replace(by_queue, table_metrics=True), replace(by_queue, path="direct"))
    ]
    assert counts == [
        {"metrics of the functions": 11},
        {"metrics of the functions": 11, "metrics of the table": 11},
        {"metrics of the functions": 10},
    ]


def test_the_cost_command_needs_a_rate_or_at_rest(run: Run) -> None:  # noqa: F811
    assert run("cost").code == 2
