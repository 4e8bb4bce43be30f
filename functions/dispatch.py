"""Start flushes and merges that are due in tables with new writes."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.common import aws
from lancelsm.common.clock import SystemClock, SystemIds
from lancelsm.compaction.pace import Pace
from lancelsm.errors import LsmError
from lancelsm.region.handle import open_configured
from lancelsm.registry.dynamodb import DynamoRegistry
from lancelsm.stack.backlog import emit
from lancelsm.stack.delivery.mapping import UNKNOWN, is_delivering, mapping_state
from lancelsm.stack.dispatch import AwsWork, dispatch
from lancelsm.stack.fan_out import SqsChunks, decode, start_run
from lancelsm.stack.function import Document, FunctionCall, function, parse_event, queued_body, settings

SETTINGS = settings(
    "LANCELSM_REGISTRY",
    "LANCELSM_COMPACTION",
    "LANCELSM_MERGE_MACHINE",
    "LANCELSM_DISPATCH_QUEUE_URL",
    "LANCELSM_WRITE_MAPPING",
)
CLOCK = SystemClock()
REGISTRY = DynamoRegistry(
    SETTINGS["LANCELSM_REGISTRY"].removeprefix("dynamodb:"),
    client=aws.client("dynamodb"),
    clock=CLOCK,
    ids=SystemIds(),
)
QUEUE = SqsChunks(SETTINGS["LANCELSM_DISPATCH_QUEUE_URL"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Empty, as the schedule sends it; or the URI of one table to check.

    If many tables are dirty, they go to a queue in chunks. A message of this queue is input too, as an SQS event
    {"Records": [...]} with one record.

    Returns:
        {"flushed": [URIs of tables whose flush was started], "merges": [ARNs of executions], "queued": number of tables
        that another invocation serves}. A merge that an earlier call started is listed again, not started again, if
        nothing new was written. For an empty event also "delivery": the state of the event source mapping of the write
        queue, such as Enabled. In other states messages wait, so the log names them.

    Raises:
        The error of the first table that failed, after the other tables were served; the log has all errors.
        Unavailable: call it again.
    """

    table: str | None = None


@function
def handler(event: Document, call: FunctionCall) -> Document:
    pace = Pace(clock=CLOCK, seconds=call.seconds)
    work = AwsWork(compaction=SETTINGS["LANCELSM_COMPACTION"], machine=SETTINGS["LANCELSM_MERGE_MACHINE"])
    body = queued_body(event)
    if body is not None:
        dirty, only, queued = decode(body), None, 0
    else:
        request = parse_event(Input, event)
        only = None if request.table is None else request.table.rstrip("/")
        dirty, queued = start_run(REGISTRY, QUEUE, pace=pace, at_once=only is not None)
    scheduled = body is None and only is None
    delivery = {"delivery": _delivery(call)} if scheduled else {}
    done = dispatch(REGISTRY, dirty, open_table=open_configured, work=work, only=only, pace=pace)
    emit(done.waiting, call.telemetry)
    if (seconds := work.longest_merge(now=CLOCK.now())) > 0:
        call.telemetry.measure("running_merge_seconds", seconds, unit="Seconds", largest=True)
    if scheduled:
        call.telemetry.measure("heartbeat", 1)  # the schedule runs, even if some tables fail
    if done.left:
        QUEUE.send([done.left])
    for table in done.flushed:
        call.telemetry.measure("flushes_started", 1, table=table)
    for table in done.compacted:
        call.telemetry.measure("compactions_started", 1, table=table)
    for table, error in done.failed.items():
        call.telemetry.log("a table failed", table=table, kind=getattr(error, "kind", type(error).__name__))
    if done.failed:
        first = next(iter(done.failed.values()))
        if isinstance(first, LsmError):
            first.where.setdefault("tables_failed", len(done.failed))
        raise first
    started = {"flushed": list(done.flushed), "merges": list(done.merges)}
    return {**started, "queued": queued + len(done.left), **delivery}


def _delivery(call: FunctionCall) -> str:
    """Return the state of the mapping that delivers messages of the write queue."""
    state = mapping_state(SETTINGS["LANCELSM_WRITE_MAPPING"])
    if state == UNKNOWN:
        call.telemetry.log("the state of the event source mapping can't be read")
    elif not is_delivering(state):
        call.telemetry.log(f"the event source mapping is {state}: messages of the write queue wait", state=state)
    return state
