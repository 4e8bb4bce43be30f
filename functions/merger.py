"""Merge generations into the base: the steps of the state machine, or all at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from lancelsm.compaction.maintenance import merge_table, optimize_table
from lancelsm.errors import Invalid
from lancelsm.region.handle import TableHandle, open_table
from lancelsm.stack import documents
from lancelsm.stack.dispatch import next_collection
from lancelsm.stack.function import Document, FunctionCall, function, parsed, place, settings
from lancelsm.stack.merge_request import folder, keep_request, keep_result, plan_request, read_result

SETTINGS = settings("LANCELSM_TABLES", "LANCELSM_WORK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One step. Each may be repeated: what is merged is not merged twice, and a plan or result is written once.

    `merge`: {"merged": [{"region", "generation"}], "rows_upserted", "rows_deleted", "base_version"}, as `lancelsm
    merge`; kept at `result` too, if that is given.
    `plan`: {"table", "engine": "none", "inprocess" or "spark", "plan", "result", "token"}: what is pending, where it is
    to be merged, the URIs of both objects, and the name under which a job is started, with the attempt behind it.
    `optimize`: {"fragments_removed", "fragments_added", "indexes_extended", "base_version"}.
    `record`: {"merge": the document of the merge that `result` has, "collection": {"name", "at"}}: under which name,
    and when, what the merge has left is to be collected. Writes the metrics of the merge.

    Args:
        engine: for `merge` and `plan`; `auto` decides by size. In a function `merge` runs in process.
        execution: for `plan`: names this run; by default the invocation's id.
        plan, result: URIs, as `plan` gave them.

    Raises:
        Invalid: no such table; a field is missing for this step; nothing at `result`.
        Contended: another merge is under way. Ambiguous, Unavailable: do it again.
        Corrupt: names the object.
    """

    table: str
    step: Literal["merge", "plan", "optimize", "record"] = "merge"
    engine: Literal["auto", "inprocess", "spark"] = "auto"
    execution: str | None = None
    plan: str | None = None
    result: str | None = None


def merge(handle: TableHandle, asked: Input, call: FunctionCall) -> Document:
    done = merge_table(handle, engine=asked.engine)
    if asked.result is not None:
        return keep_result(done, _object(asked.result))
    return _measured(documents.merged(done), handle, call)


def plan(handle: TableHandle, asked: Input, call: FunctionCall) -> Document:
    execution = asked.execution or call.id
    place_of = folder(SETTINGS["LANCELSM_WORK"], execution)
    uri = f"{place_of}/plan.json"
    kept = keep_request(plan_request(handle, execution=execution, engine=asked.engine), uri)
    result = f"{place_of}/result.json"
    return {"table": kept.table, "engine": kept.engine, "plan": uri, "result": result, "token": kept.token}


def optimize(handle: TableHandle, _asked: Input, _call: FunctionCall) -> Document:
    return documents.optimized(optimize_table(handle))


def record(handle: TableHandle, asked: Input, call: FunctionCall) -> Document:
    if asked.result is None:
        raise Invalid("the event lacks the field 'result'", remedy="Give what the step `plan` gave", field="result")
    done = _measured(read_result(_object(asked.result)), handle, call)
    context = handle.context
    name, at = next_collection(context.table, settings=handle.settings, now=context.clock.now())
    return {"merge": done, "collection": {"name": name, "at": at}}


STEPS: dict[str, Callable[[TableHandle, Input, FunctionCall], Document]] = {
    "merge": merge,
    "plan": plan,
    "optimize": optimize,
    "record": record,
}


@function
def handler(event: Document, call: FunctionCall) -> Document:
    asked = parsed(Input, event)
    return STEPS[asked.step](open_table(place(asked.table, root=SETTINGS["LANCELSM_TABLES"])), asked, call)


def _object(uri: str) -> str:
    return place(uri, root=f"{SETTINGS['LANCELSM_WORK']}/merge")


def _measured(document: Document, handle: TableHandle, call: FunctionCall) -> Document:
    for name in ("rows_upserted", "rows_deleted"):
        call.telemetry.measure(name, document[name], table=handle.context.uri)
    return document
