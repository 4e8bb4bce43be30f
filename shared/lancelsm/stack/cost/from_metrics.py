"""Compare the estimate with what a deployment counted: metrics of our functions, of DynamoDB, and of S3.

S3 counts requests only if request metrics are on for the bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any, Final, Literal

from lancelsm.common import aws
from lancelsm.common.settings import Settings
from lancelsm.errors import Invalid, Unavailable
from lancelsm.stack.cost import CostItem, prices, total
from lancelsm.stack.cost.per_row import (
    MONTH_SECONDS,
    MeasuredWork,
    Workload,
    maintenance,
    measured_bill,
    monthly_bill,
)
from lancelsm.stack.telemetry import NAMESPACE

_PERIOD_SECONDS = 3600
Statistic = Literal["Sum", "SampleCount"]
# By field of `Counts`: function, metric, statistic. A function writes a metric once for each invocation.
_OURS: Final[Mapping[str, tuple[str, str, Statistic]]] = {
    "requests": ("ingest", "rows", "SampleCount"),
    "rows": ("writer_flush", "rows", "Sum"),
    "writes": ("writer_flush", "rows", "SampleCount"),
    "flushes": ("compaction", "generations_flushed", "SampleCount"),
    "generations": ("compaction", "generations_flushed", "Sum"),
    "merges": ("merger", "rows_upserted", "SampleCount"),
}
_DYNAMODB: Final = {
    "record_reads": "ConsumedReadCapacityUnits",
    "record_writes": "ConsumedWriteCapacityUnits",
}
# By field of `Counts`. The ids of queries have a number behind it.
_S3: Final = {
    "object_writes": ("PutRequests", "PostRequests", "ListRequests"),
    "object_reads": ("GetRequests", "HeadRequests"),
}
FILTER: Final = "EntireBucket"  # the id of the bucket's request metrics, also in the console of AWS
SWITCH_ON: Final = (
    "deploy with -c request_metrics=true, or add request metrics with the filter id EntireBucket to an existing bucket"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of one deployment in some time.

    Attributes:
        requests: invocations of `ingest`.
        rows: rows that `writer_flush` has written, in `writes` invocations.
        flushes: invocations that flushed, which wrote `generations`.
        record_reads, record_writes: units of the registry, without its index.
        object_writes, object_reads: requests to the bucket, by their two prices; None if S3 has counted none. Counted
            are all requests, also those of queries and collections, which the estimate does not have.
    """

    requests: float
    rows: float
    writes: float
    flushes: float
    generations: float
    merges: float
    record_reads: float
    record_writes: float
    object_writes: float | None
    object_reads: float | None

    def __mul__(self, times: float) -> Counts:
        return Counts(**{name: number and times * number for name, number in asdict(self).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Counts and cost of a month: as counted, and as estimated for the same rate of rows.

    The cost is that of rows on their way to the base, without costs at rest and collection.
    """

    counted: Counts
    estimated: Counts
    counted_usd: float
    estimated_usd: float


def read_counts(stage: str, registry: str, bucket: str, *, seconds: float, now: float, client: Any) -> Counts:
    """Read the counts of the time before now.

    Args:
        registry: the name of the DynamoDB table.
        bucket: its name.
        client: a client of CloudWatch.

    Raises:
        Invalid: the caller may not read metrics.
        Unavailable: CloudWatch did not answer.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - optional dependency

    found: dict[str, list[float]] = {name: [] for name in (*_OURS, *_DYNAMODB, *_S3)}
    end = datetime.fromtimestamp(now, UTC)
    asked = {
        "MetricDataQueries": list(_queries(stage, registry, bucket)),
        "StartTime": end - timedelta(seconds=seconds),
        "EndTime": end,
    }
    try:
        for page in client.get_paginator("get_metric_data").paginate(**asked):
            for result in page["MetricDataResults"]:
                if (status := result.get("StatusCode", "Complete")) in ("InternalError", "Forbidden"):
                    raise Unavailable(f"CloudWatch gives not all values of {result['Id']}: {status}", stage=stage)
                found[result["Id"].rstrip("0123456789")] += result["Values"]
    except (BotoCoreError, ClientError) as error:
        raise aws.translated(error, doing="the metrics can't be read", stage=stage) from error
    writes, reads = (sum(found[name]) if found[name] else None for name in ("object_writes", "object_reads"))
    counted = {name: sum(found[name]) for name in (*_OURS, *_DYNAMODB)}
    return Counts(**counted, object_writes=writes, object_reads=reads)


def _queries(stage: str, registry: str, bucket: str) -> Iterator[dict[str, Any]]:
    for name, (function, metric, statistic) in _OURS.items():
        yield _query(name, NAMESPACE, metric, {"function": f"lancelsm-{stage}-{function}"}, statistic)
    for name, metric in _DYNAMODB.items():
        yield _query(name, "AWS/DynamoDB", metric, {"TableName": registry}, "Sum")
    for name, metrics in _S3.items():
        for number, metric in enumerate(metrics):
            yield _query(f"{name}{number}", "AWS/S3", metric, {"BucketName": bucket, "FilterId": FILTER}, "Sum")


def _query(
    name: str, namespace: str, metric: str, dimensions: Mapping[str, str], statistic: Statistic
) -> dict[str, Any]:
    given = [{"Name": key, "Value": value} for key, value in dimensions.items()]
    stat = {
        "Metric": {"Namespace": namespace, "MetricName": metric, "Dimensions": given},
        "Period": _PERIOD_SECONDS,
        "Stat": statistic,
    }
    return {"Id": name, "MetricStat": stat}


def compare(counts: Counts, *, seconds: float, row_bytes: int, settings: Settings) -> Compared:
    """Compare the counts of some time with the estimate for a stream of that many rows, batches and bytes.

    Raises:
        Invalid: no rows were written in this time.
    """
    if not counts.rows or not counts.writes:
        raise Invalid("no rows were written in this time", remedy="Give more --days, or another --stage")
    month = counts * (MONTH_SECONDS / seconds)
    work = Workload(
        rows_per_second=counts.rows / seconds,
        row_bytes=row_bytes,
        batch=max(1, round(counts.rows / counts.writes)),
        path="queue" if counts.requests else "direct",
    )
    items = [item for item in monthly_bill(work, settings) if item.part in ("queue", "write", "flush", "merge")]
    expected = maintenance(work, settings)
    estimated = Counts(
        requests=work.calls if work.path == "queue" else 0.0,
        rows=work.rows,
        writes=work.calls,
        flushes=expected.flushes,
        generations=expected.generations,
        merges=expected.merges,
        record_reads=_quantity(items, prices.RECORD_READ),
        record_writes=_quantity(items, prices.RECORD_WRITE),
        object_writes=_quantity(items, prices.OBJECT_WRITE),
        object_reads=_quantity(items, prices.OBJECT_READ),
    )
    return Compared(
        counted=month, estimated=estimated, counted_usd=total(_measured(month, row_bytes)), estimated_usd=total(items)
    )


def _measured(month: Counts, row_bytes: int) -> list[CostItem]:
    done = MeasuredWork(
        rows=ceil(month.rows),
        row_bytes=row_bytes,
        requests=ceil(month.requests),
        messages=ceil(month.writes) if month.requests else 0,
        entries=ceil(month.writes),
        flushes=ceil(month.flushes),
        generations=ceil(month.generations),
        merges=ceil(month.merges),
        jobs=0,
        merged_rows=0,
    )
    return [item for item in measured_bill(done) if item.part != "keep"]


def _quantity(items: list[CostItem], price: prices.Price) -> float:
    return sum(item.quantity for item in items if item.price == price)
