"""Compare the estimate with what a deployment counted: metrics of our functions, and of DynamoDB.

S3 counts requests only if request metrics are on for the bucket, so they are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any, Final, Literal

from lancelsm.common import aws
from lancelsm.common.settings import Settings
from lancelsm.errors import Invalid
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of one deployment in some time.

    Attributes:
        requests: invocations of `ingest`.
        rows: rows that `writer_flush` has written, in `writes` invocations.
        flushes: invocations that flushed, which wrote `generations`.
        record_reads, record_writes: units of the registry, without its index.
    """

    requests: float
    rows: float
    writes: float
    flushes: float
    generations: float
    merges: float
    record_reads: float
    record_writes: float

    def __mul__(self, times: float) -> Counts:
        return Counts(**{name: times * number for name, number in asdict(self).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Counts and cost of a month: as counted, and as estimated for the same rate of rows.

    The cost is that of rows on their way to the base, without costs at rest and collection.
    """

    counted: Counts
    estimated: Counts
    counted_usd: float
    estimated_usd: float


def read_counts(stage: str, registry: str, *, seconds: float, now: float, client: Any) -> Counts:
    """Read the counts of the time before now.

    Args:
        registry: the name of the DynamoDB table.
        client: a client of CloudWatch.

    Raises:
        Invalid: the caller may not read metrics.
        Unavailable: CloudWatch did not answer.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - optional dependency

    found = dict.fromkeys((*_OURS, *_DYNAMODB), 0.0)
    end = datetime.fromtimestamp(now, UTC)
    asked = {
        "MetricDataQueries": list(_queries(stage, registry)),
        "StartTime": end - timedelta(seconds=seconds),
        "EndTime": end,
    }
    try:
        for page in client.get_paginator("get_metric_data").paginate(**asked):
            for result in page["MetricDataResults"]:
                found[result["Id"]] += sum(result["Values"])
    except (BotoCoreError, ClientError) as error:
        raise aws.translated(error, doing="the metrics can't be read", stage=stage) from error
    return Counts(**found)


def _queries(stage: str, registry: str) -> Iterator[dict[str, Any]]:
    for name, (function, metric, statistic) in _OURS.items():
        yield _query(name, NAMESPACE, metric, {"function": f"lancelsm-{stage}-{function}"}, statistic)
    for name, metric in _DYNAMODB.items():
        yield _query(name, "AWS/DynamoDB", metric, {"TableName": registry}, "Sum")


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
