"""Read everything that a table consists of, and name what is missing or damaged."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.common import aws
from lancelsm.common.clock import SystemClock, SystemIds
from lancelsm.compaction.pace import Pace
from lancelsm.errors import Invalid
from lancelsm.region.handle import open_configured
from lancelsm.registry.dynamodb import DynamoRegistry
from lancelsm.scrubbing.report import Report
from lancelsm.scrubbing.table import scrub_location
from lancelsm.stack import documents
from lancelsm.stack.fan_out import send_bodies
from lancelsm.stack.function import (
    Document,
    FunctionCall,
    function,
    parse_event,
    queued_body,
    setting,
    settings,
    table_uri,
)
from lancelsm.stack.scheduled_tables import start_round
from lancelsm.stack.scrub_round import KIND, Scope, Wanted, decode_wanted, scrub_changed

SETTINGS = settings("LANCELSM_TABLES")
CLOCK = SystemClock()
_REGISTRY, _QUEUE = "LANCELSM_REGISTRY", "LANCELSM_SCRUB_QUEUE_URL"  # only in a deployment with a schedule
_NO_SCHEDULE = "Give scrub_sample_days or scrub_days in the context, and deploy the stack again"
_SHOWN = 10  # problems in one line of the log


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The table; optionally only one region (its id or the start of it), or what one snapshot, `at`, needs.

    `limit` is the largest number of objects to read. Damage is not an error: `ok` is false then.

    Instead of a table, a schedule sends `scheduled`: `sample` or `everything`. Then all tables go to a queue, and the
    answer is {"queued": their number}. A message of this queue is input too, as an SQS event {"Records": [...]} with
    one record. Its table is scrubbed if it has changed since it was last found intact.

    Raises:
        Invalid: table, region or snapshot not found, or the deployment has no schedule of scrubs.
        Unavailable: call it again.
    """

    table: str | None = None
    region: str | None = None
    at: str | None = None
    limit: int | None = None
    scheduled: Scope | None = None


@function
def handler(event: Document, call: FunctionCall) -> Document:
    if (body := queued_body(event)) is not None:
        return _scrub_next(decode_wanted(body), call)
    request = parse_event(Input, event)
    if request.scheduled is not None:
        if (request.table, request.region, request.at, request.limit) != (None, None, None, None):
            raise Invalid("a scheduled scrub is of all tables", remedy="Leave out the other fields", field="scheduled")
        url = setting(_QUEUE, without=_NO_SCHEDULE)
        queued = start_round(
            _registry(),
            KIND,
            request.scheduled,
            root=SETTINGS["LANCELSM_TABLES"],
            send=lambda bodies: send_bodies(url, bodies),
        )
        return {"queued": queued}
    if request.table is None:
        raise Invalid("the event lacks the field 'table'", field="table")
    uri = table_uri(request.table, root=SETTINGS["LANCELSM_TABLES"])
    return documents.scrubbed(scrub_location(uri, region=request.region, at=request.at, limit=request.limit))


def _scrub_next(wanted: Wanted, call: FunctionCall) -> Document:
    pace = Pace(clock=CLOCK, seconds=call.seconds)
    done = scrub_changed(_registry(), wanted, open_table=open_configured, has_time=lambda: pace.has_time(1, 1))
    if done is None:
        return {"dropped": True}
    if done.report is None:
        call.telemetry.log("unchanged since its last scrub", table=done.uri, scope=wanted.scope)
        return {"table": done.uri, "unchanged": True}
    _tell(done.uri, wanted.scope, done.report, call, out_of_time=pace.stopped, noted=done.noted)
    return {"table": done.uri, "ok": done.report.ok, "checked": done.report.checked, "complete": done.report.complete}


def _tell(uri: str, scope: Scope, report: Report, call: FunctionCall, **more: bool) -> None:
    """Log the result in one line. The line of a table with problems raises the alarm `corrupt`."""
    counts = {"checked": report.checked, "complete": report.complete, **more}
    if report.ok:
        call.telemetry.log("scrubbed", table=uri, scope=scope, **counts)
        return
    paths = [problem.path for problem in report.problems[:_SHOWN]]
    call.telemetry.measure("scrub_problems", len(report.problems), table=uri)
    call.telemetry.log(
        "a scrub found problems",
        kind="Corrupt",
        table=uri,
        scope=scope,
        problems=len(report.problems),
        paths=paths,
        remedy=f"Run lancelsm scrub {uri}",
        **counts,
    )


def _registry() -> DynamoRegistry:
    name = setting(_REGISTRY, without=_NO_SCHEDULE).removeprefix("dynamodb:")
    return DynamoRegistry(name, client=aws.client("dynamodb"), clock=CLOCK, ids=SystemIds())
