"""Back up the tables of the deployment on a schedule. Only a deployment with `backup_days` has this function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lancelsm.common import aws
from lancelsm.region.handle import Ports
from lancelsm.registry.dynamodb import DynamoRegistry
from lancelsm.stack.backup_round import CHANGED, KIND, back_up_changed, decode_wanted
from lancelsm.stack.fan_out import send_bodies
from lancelsm.stack.function import Document, FunctionCall, function, parse_event, queued_body, settings
from lancelsm.stack.scheduled_tables import start_round

SETTINGS = settings("LANCELSM_TABLES", "LANCELSM_BACKUPS", "LANCELSM_REGISTRY", "LANCELSM_BACKUP_QUEUE_URL")
PORTS = Ports()


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A schedule sends `scheduled`. Then all tables go to a queue, and the answer is {"queued": their number}.

    A message of this queue is input too, as an SQS event {"Records": [...]} with one record. Its table is backed up
    to a directory of its own below LANCELSM_BACKUPS, if it has changed since its last backup there.

    Raises:
        Invalid: the table needs more time than a function has.
        Corrupt: the table is damaged.
        Contended, Unavailable: call it again.
    """

    scheduled: Literal["changed"]


@function
def handler(event: Document, call: FunctionCall) -> Document:
    if (body := queued_body(event)) is not None:
        return _back_up_next(body, call)
    parse_event(Input, event)
    url, root = SETTINGS["LANCELSM_BACKUP_QUEUE_URL"], SETTINGS["LANCELSM_TABLES"]
    queued = start_round(_registry(), KIND, CHANGED, root=root, send=lambda bodies: send_bodies(url, bodies))
    return {"queued": queued}


def _back_up_next(body: str, call: FunctionCall) -> Document:
    done = back_up_changed(
        _registry(),
        decode_wanted(body),
        root=SETTINGS["LANCELSM_TABLES"],
        to=SETTINGS["LANCELSM_BACKUPS"],
        seconds=call.seconds,
        ports=PORTS,
    )
    if done is None:
        return {"dropped": True}
    if done.rows is None:
        call.telemetry.log("unchanged since its last backup", table=done.uri, backup=done.at)
        return {"table": done.uri, "backup": done.at, "unchanged": True}
    call.telemetry.measure("rows_backed_up", done.rows, table=done.uri)
    call.telemetry.log("backed up", table=done.uri, backup=done.at, rows=done.rows, noted=done.noted)
    return {"table": done.uri, "backup": done.at, "rows": done.rows}


def _registry() -> DynamoRegistry:
    name = SETTINGS["LANCELSM_REGISTRY"].removeprefix("dynamodb:")
    return DynamoRegistry(name, client=aws.client("dynamodb"), clock=PORTS.clock, ids=PORTS.ids)
