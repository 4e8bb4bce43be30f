"""Estimate the cost of rows: the acknowledged write, flush and merge into the base, and collection.

`monthly_bill` is for a steady stream and the stack's schedule, `measured_bill` for work that was done once.

Requests are measured. Durations are assumed, from CPU time on one core and the latency of S3 and DynamoDB within a
region. Compare them with the `REPORT` lines of the functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

from lancelsm.common.settings import Settings
from lancelsm.errors import Invalid
from lancelsm.stack.cost import CostItem, prices, requests, total
from lancelsm.stack.cost.prices import Price
from lancelsm.stack.cost.requests import Requests

Path = Literal["direct", "queue"]

MONTH_SECONDS: Final = 730 * 3600
MEMORY_MB: Final = {
    "ingest": 1024,
    "writer_flush": 1769,
    "compaction": 3008,
    "merger": 3008,
    "gc": 3008,
    "gc_sweep": 3008,
    "dispatch": 512,
    "scrub": 3008,  # and `backup`
}
SCHEDULE_SECONDS: Final = 300
STEPS_OF_A_MERGE: Final = 10  # state transitions; tests/infra counts them in the state machines
STEPS_OF_A_COLLECTION: Final = 12
CHUNK_BYTES: Final = 64 << 10  # SQS charges one request per chunk

_CORE_MB = 1769
_WAIT_SECONDS = {"ingest": 0.03, "writer_flush": 0.06, "compaction": 1.5, "merger": 5.0}
_CPU_SECONDS_PER_KB = {"ingest": 8e-6, "writer_flush": 12e-6, "compaction": 15e-6, "merger": 15e-6}
_STEP_SECONDS = 2.0  # each step of a merge (plan, optimize, record) and of a collection, without the time for reads
_READ_SECONDS, _READS_AT_ONCE = 0.03, 16
_COMPRESSED = 0.5 * 4 / 3  # the size of a message relative to its rows: zstd, then base64
# Lambda charges the start of a container too. AWS replaces a container after about two hours, also if it is busy.
_INIT_SECONDS = {"ingest": 0.5, "writer_flush": 0.5, "dispatch": 0.5, "compaction": 2.0, "merger": 2.0, "gc": 2.0}
_CONTAINER_SECONDS = 7200
_TARGET_ROWS = 1_048_576  # of a fragment that a compaction of the base writes: `dataset.optimize.TARGET_ROWS`
_SMALL_SHARE = 4  # a fragment below this part of it is small: `compaction.optimize`
_KEPT_DAYS = 7  # `-c noncurrent_days`: how long the bucket keeps deleted objects
_LOG_BYTES = 1200  # per invocation: the lines of Lambda, our lines, the metrics
METRICS: Final = {  # those that a table causes that is written to through the queue
    "ingest": ("rows",),
    "writer_flush": ("rows",),
    "compaction": ("generations_flushed", "rows_flushed"),
    "merger": ("rows_upserted", "rows_deleted"),
    "dispatch": (
        "flushes_started",
        "oldest_unflushed_seconds",
        "log_bytes",
        "pending_generations",
        "merge_lag_seconds",
    ),
}
_JOB_VCPUS, _JOB_GB = 16, 64
_MOST = 10**18
_JOB_SECONDS, _JOB_SECONDS_PER_MILLION_ROWS = 150, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A steady stream of rows into one table with one region.

    Attributes:
        row_bytes: the size of a row in Arrow format.
        batch: rows per invocation.
        table_metrics: whether the deployment has `-c table_metrics=true`.
    """

    rows_per_second: float
    row_bytes: int
    batch: int
    path: Path
    table_metrics: bool = False

    def __post_init__(self) -> None:
        for name in ("rows_per_second", "row_bytes", "batch"):
            if not 0 < getattr(self, name) <= _MOST:  # also of what is no number
                raise Invalid(f"{name} is {getattr(self, name)}", remedy=f"Give a number up to {_MOST:,}", field=name)

    @property
    def rows(self) -> float:
        """Rows per month."""
        return self.rows_per_second * MONTH_SECONDS

    @property
    def calls(self) -> float:
        return self.rows / self.batch


def monthly_bill(work: Workload, settings: Settings) -> list[CostItem]:
    """Return the bill of a month with only this workload."""
    due = maintenance(work, settings)
    return [
        *_arrival(work),
        *_flushed_and_merged(work, settings, due),
        *_rewritten(work.rows, work.row_bytes, due.merges, settings),
        *_collected(work, settings, due),
        *_observability(work),
        kept_after_deletion(work, settings),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWork:
    """Work that was done once through the queue, as counted. Merges run in the function or in jobs.

    Attributes:
        rows: rows sent to `ingest`, in `requests` requests and `messages` messages.
        row_bytes: the size of a row in Arrow format.
        merged_rows: rows merged by jobs.
    """

    rows: int
    row_bytes: float
    requests: int
    messages: int
    entries: int
    flushes: int
    generations: int
    merges: int
    jobs: int
    merged_rows: int


def measured_bill(done: MeasuredWork) -> list[CostItem]:
    """Return the bill of such work, without costs at rest.

    Each entry is charged as one invocation, although an invocation may write several entries.
    """
    kilobytes = done.rows * done.row_bytes / 1000
    return [
        *(_queued(done.requests, messages=done.messages, kilobytes=kilobytes) if done.requests else ()),
        *_written(done.entries, kilobytes=kilobytes),
        *_flushed(done.flushes, generations=done.generations, entries=done.entries, kilobytes=kilobytes),
        *_merged(
            done.merges,
            jobs=done.jobs,
            job_rows=done.merged_rows,
            generations=done.generations,
            kilobytes=kilobytes - done.merged_rows * done.row_bytes / 1000,
        ),
        *_rewritten(done.rows - done.merged_rows, done.row_bytes, done.merges, Settings()),
        _logs(done.requests + done.entries),
    ]


def _arrival(work: Workload) -> Iterator[CostItem]:
    kilobytes = work.rows * work.row_bytes / 1000
    if work.path == "queue":
        yield from _queued(work.calls, messages=work.calls, kilobytes=kilobytes)
    yield from _written(work.calls, kilobytes=kilobytes)


def _queued(requests_made: float, *, messages: float, kilobytes: float) -> Iterator[CostItem]:
    part = "queue"
    chunks = ceil(1000 * kilobytes / messages * _COMPRESSED / CHUNK_BYTES)
    yield from _invocations(part, "ingest", requests_made, kilobytes / requests_made)
    yield from _requests(part, "heads", requests.INGEST * requests_made)
    yield CostItem(part=part, item="messages sent", quantity=messages * chunks, price=prices.QUEUE_REQUEST)
    yield CostItem(part=part, item="messages received", quantity=messages * chunks, price=prices.QUEUE_REQUEST)
    yield CostItem(part=part, item="messages deleted", quantity=messages, price=prices.QUEUE_REQUEST)


def _written(entries: float, *, kilobytes: float) -> Iterator[CostItem]:
    part = "write"
    yield from _invocations(part, "writer_flush", entries, kilobytes / entries)
    yield from _requests(part, "entries", requests.WRITE * entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """Flushes, generations and merges per month that the schedule causes for a stream."""

    flushes: float
    generations: float
    merges: float


def maintenance(work: Workload, settings: Settings) -> Maintenance:
    """Return what the schedule does for a stream, with these settings of the table."""
    generation_rows = min(settings.flush_rows, settings.flush_bytes / work.row_bytes)
    flushes = min(MONTH_SECONDS / SCHEDULE_SECONDS, work.calls)
    generations = flushes * ceil(work.rows / flushes / generation_rows)
    often = min(settings.merge_age_seconds, settings.merge_generations * MONTH_SECONDS / generations)
    merges = min(flushes, MONTH_SECONDS / (SCHEDULE_SECONDS * ceil(often / SCHEDULE_SECONDS)))
    return Maintenance(flushes=flushes, generations=generations, merges=merges)


def _flushed_and_merged(work: Workload, settings: Settings, due: Maintenance) -> Iterator[CostItem]:
    kilobytes = work.rows * work.row_bytes / 1000
    generations, merges = due.generations, due.merges
    yield from _flushed(due.flushes, generations=generations, entries=work.calls, kilobytes=kilobytes)

    rows = work.rows / merges
    few, small = settings.merge_inprocess_delta_rows, settings.merge_inprocess_delta_bytes
    on_spark = rows >= few or rows * work.row_bytes >= small
    yield from _merged(
        0 if on_spark else merges,
        jobs=merges if on_spark else 0,
        job_rows=work.rows,
        generations=generations,
        kilobytes=kilobytes,
    )


def _rewritten_rows(rows: float, merges: float, settings: Settings) -> float:
    """Return how many rows the compactions of the base write again, if no row replaces another.

    They write a row again until its fragment has the target size. A merge of that many rows writes such fragments.
    """
    of_a_merge = rows / merges if merges else _TARGET_ROWS
    if of_a_merge >= _TARGET_ROWS / _SMALL_SHARE:
        return 0.0
    return rows * (1 + ceil(_TARGET_ROWS / (settings.optimize_small_fragments * of_a_merge))) / 2


def _rewritten(rows: float, row_bytes: float, merges: float, settings: Settings) -> Iterator[CostItem]:
    """Yield the cost of compactions of the base in the function, by the bytes that they write again."""
    part, again = "merge", _rewritten_rows(rows, merges, settings)
    if again:
        cpu = _CPU_SECONDS_PER_KB["merger"] * again * row_bytes / 1000
        charged = cpu * MEMORY_MB["merger"] / 1024
        yield CostItem(part=part, item="base compaction", quantity=charged, price=prices.ARM_GB_SECOND)
        made = requests.REWRITE * (merges / settings.optimize_small_fragments) + requests.REWRITE_FRAGMENT * merges
        yield from _requests(part, "base compaction", made)


def _collected(work: Workload, settings: Settings, due: Maintenance) -> Iterator[CostItem]:
    """Yield the cost of rounds. Merges start one in each span of twice the interval; it reads all kept versions."""
    part, merges = "collect", due.merges
    rounds = min(merges, MONTH_SECONDS / (2 * settings.collect_interval_seconds))
    kept = merges * settings.keep_versions_seconds / MONTH_SECONDS
    made = (
        requests.COLLECT * rounds
        + requests.COLLECT_ENTRY * work.calls
        + requests.COLLECT_GENERATION * due.generations
        + requests.COLLECT_KEPT * (kept * rounds)
        + requests.COLLECT_GONE * merges
    )
    seconds = 4 * rounds * _STEP_SECONDS + made.object_reads * _READ_SECONDS / _READS_AT_ONCE
    yield CostItem(part=part, item="gc, gc_sweep", quantity=4 * rounds, price=prices.INVOCATION)
    yield CostItem(
        part=part, item="gc, gc_sweep", quantity=seconds * MEMORY_MB["gc"] / 1024, price=prices.ARM_GB_SECOND
    )
    yield _starts(part, "gc", 4 * rounds, seconds / (4 * rounds))
    yield CostItem(part=part, item="state machine", quantity=STEPS_OF_A_COLLECTION * rounds, price=prices.STEP)
    yield from _requests(part, "rounds", made)


def _flushed(flushes: float, *, generations: float, entries: float, kilobytes: float) -> Iterator[CostItem]:
    part = "flush"
    if flushes:
        yield from _invocations(part, "compaction", flushes, kilobytes / flushes)
    yield from _requests(part, "generations", requests.FLUSH * generations + requests.FLUSH_ENTRY * entries)


def _merged(
    in_function: float, *, jobs: float, job_rows: float, generations: float, kilobytes: float
) -> Iterator[CostItem]:
    """Yield the cost of merges: `kilobytes` in the function, `job_rows` in jobs."""
    part, merges = "merge", in_function + jobs
    if in_function:
        yield from _invocations(part, "merger", in_function, kilobytes / in_function)
    if jobs:
        hours = (_JOB_SECONDS * jobs + _JOB_SECONDS_PER_MILLION_ROWS * job_rows / 1e6) / 3600
        yield CostItem(part=part, item="job", quantity=_JOB_VCPUS * hours, price=prices.VCPU_HOUR)
        yield CostItem(part=part, item="job", quantity=_JOB_GB * hours, price=prices.MEMORY_HOUR)
    others = 3 * merges * _STEP_SECONDS * MEMORY_MB["merger"] / 1024
    yield CostItem(part=part, item="plan, optimize, record", quantity=3 * merges, price=prices.INVOCATION)
    yield CostItem(part=part, item="plan, optimize, record", quantity=others, price=prices.ARM_GB_SECOND)
    yield CostItem(part=part, item="state machine", quantity=STEPS_OF_A_MERGE * merges, price=prices.STEP)
    made = (
        (requests.MERGE + requests.OPTIMIZE) * merges
        + requests.MERGE_GENERATION * generations
        + requests.WRITE_FIRST * merges
    )
    yield from _requests(part, "merges", made)


def _observability(work: Workload) -> Iterator[CostItem]:
    yield _logs(work.calls * (2 if work.path == "queue" else 1))
    count = sum(len(names) for name, names in METRICS.items() if work.path == "queue" or name != "ingest")
    yield CostItem(part="keep", item="metrics of the functions", quantity=count, price=prices.METRIC)
    if work.table_metrics:
        yield CostItem(part="keep", item="metrics of the table", quantity=count, price=prices.METRIC)


def _logs(invocations: float) -> CostItem:
    return CostItem(
        part="keep", item="logs of the functions", quantity=invocations * _LOG_BYTES / 1e9, price=prices.LOGS
    )


def usd_per_million_rows(work: Workload, items: Iterable[CostItem]) -> dict[str, float]:
    """Return US dollars per million rows until they are acknowledged, merged and collected, without fixed costs."""
    millions = work.rows / 1e6
    moved = [item for item in items if item.price not in (prices.METRIC, prices.OBJECT_STORAGE)]
    after = {"acknowledged": ("flush", "merge", "collect"), "merged": ("collect",), "collected": ()}
    return {until: total(item for item in moved if item.part not in parts) / millions for until, parts in after.items()}


def kept_after_deletion(work: Workload, settings: Settings) -> CostItem:
    """Return what the bucket keeps of deleted objects: logs, generations, and fragments that were written again."""
    merges = maintenance(work, settings).merges
    gigabytes = (2 * work.rows + _rewritten_rows(work.rows, merges, settings)) * work.row_bytes / 1e9
    quantity = gigabytes * _KEPT_DAYS * 86_400 / MONTH_SECONDS
    return CostItem(part="keep", item="deleted objects", quantity=quantity, price=prices.OBJECT_STORAGE)


def storage(work: Workload) -> CostItem:
    """Return the monthly storage cost of one month's rows, if no row replaces another."""
    gigabytes = work.rows * work.row_bytes / 1e9
    return CostItem(part="keep", item="rows of one month", quantity=gigabytes, price=prices.OBJECT_STORAGE)


def _starts(part: str, function: str, calls: float, seconds: float) -> CostItem:
    """Return the cost of starts of containers. There are at least as many containers as calls at the same time."""
    containers = max(1.0, calls * seconds / MONTH_SECONDS)
    starts = min(calls, containers * MONTH_SECONDS / _CONTAINER_SECONDS)
    charged = starts * _INIT_SECONDS[function] * MEMORY_MB[function] / 1024
    return CostItem(part=part, item=f"starts of {function}", quantity=charged, price=prices.ARM_GB_SECOND)


def _invocations(part: str, function: str, calls: float, kilobytes: float) -> Iterator[CostItem]:
    memory = MEMORY_MB[function]
    cpu = _CPU_SECONDS_PER_KB[function] * kilobytes / min(1.0, memory / _CORE_MB)
    seconds = _WAIT_SECONDS[function] + cpu
    yield CostItem(part=part, item=function, quantity=calls, price=prices.INVOCATION)
    yield CostItem(part=part, item=function, quantity=calls * seconds * memory / 1024, price=prices.ARM_GB_SECOND)
    yield _starts(part, function, calls, seconds)


def _requests(part: str, item: str, made: Requests) -> Iterator[CostItem]:
    priced: tuple[tuple[float, Price], ...] = (
        (made.object_writes, prices.OBJECT_WRITE),
        (made.object_reads, prices.OBJECT_READ),
        (made.record_writes, prices.RECORD_WRITE),
        (made.record_reads, prices.RECORD_READ),
    )
    for quantity, price in priced:
        if quantity:
            yield CostItem(part=part, item=item, quantity=quantity, price=price)
