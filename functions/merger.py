"""Merge generations into the base: one step of the state machine, or a whole merge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from lancelsm.compaction.engine import choose_optimize_engine
from lancelsm.compaction.maintenance import merge_table, optimize_table
from lancelsm.compaction.pace import Pace
from lancelsm.errors import Corrupt, Fenced, Invalid
from lancelsm.region.handle import TableHandle, open_table
from lancelsm.stack import documents
from lancelsm.stack.dispatch import next_collection
from lancelsm.stack.function import Document, FunctionCall, function, parse_event, settings, table_uri
from lancelsm.stack.merge_request import keep_request, keep_result, plan_request, read_error, read_result
from lancelsm.stack.steps import execution_prefix, step_object

OPTIMIZE_FAILED = "an optimize failed"  # an alarm counts these lines

SETTINGS = settings("LANCELSM_TABLES", "LANCELSM_WORK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One step. Each step may be repeated: generations are not merged twice, and a plan or result is written once.

    * `merge`: {"merged": [{"region", "generation"}], "rows_upserted", "rows_deleted", "base_version"}, like `lancelsm
      merge`. If `result` is given, this document is written there, and the answer has the number of regions as
      "regions", instead of the list "merged".
    * `plan`: {"table", "engine": "none", "inprocess" or "spark", "plan", "result", "token"}: where pending generations
      are merged, the URIs of plan and result, and the token under which a job is started, followed by the attempt.
    * `optimize`: {"fragments_removed", "fragments_added", "indexes_extended", "base_version", "rows_expired", "left":
      whether to call it again, "engine": "inprocess"}. Or {"engine": "spark", "left"}: so much is to be rewritten that
      a job does it.
    * `record`: {"merge": the answer of `merge` with `result`, "collection": {"name", "at"}}: name and start time of the
      collection that takes what the merge leaves. Writes the metrics of the merge.
    * `why`: {"kind"}: why the last job failed, if another attempt may succeed; "Unknown" if it was killed.

    Args:
        engine: for `merge`, `plan` and `optimize`; `auto` decides by size. In a function, `merge` runs in process.
        execution: for `plan`: the name of the execution; by default the invocation's id.
        plan, result: URIs that `plan` returned.
        optimize: for `record`: the answer of `optimize`, or its error, which is logged and counted.

    Raises:
        Invalid: table not found, a field of this step is missing, or there is nothing at `result`.
        Contended: another merge is running.
        Ambiguous, Unavailable: call it again.
        Corrupt: an object is damaged; names it.
        Corrupt, Fenced, Invalid: from `why`: the error of the job, which another attempt would meet again.
    """

    table: str
    step: Literal["merge", "plan", "optimize", "record", "why"] = "merge"
    engine: Literal["auto", "inprocess", "spark"] = "auto"
    execution: str | None = None
    plan: str | None = None
    result: str | None = None
    optimize: dict[str, Any] | None = None


def merge(handle: TableHandle, request: Input, call: FunctionCall) -> Document:
    done = merge_table(handle, engine=request.engine)
    if request.result is not None:
        return _summary(keep_result(done, _object(request.result)))
    return _measured(documents.merged(done), handle, call)


def plan(handle: TableHandle, request: Input, call: FunctionCall) -> Document:
    execution = request.execution or call.id
    prefix = execution_prefix(SETTINGS["LANCELSM_WORK"], execution)
    uri = f"{prefix}/plan.json"
    kept = keep_request(plan_request(handle, execution=execution, engine=request.engine), uri)
    result = f"{prefix}/result.json"
    return {"table": kept.table, "engine": kept.engine, "plan": uri, "result": result, "token": kept.token}


def optimize(handle: TableHandle, request: Input, call: FunctionCall) -> Document:
    if choose_optimize_engine(handle, request.engine) == "spark":
        return {"engine": "spark", "left": False}
    done = optimize_table(handle, pace=Pace(clock=handle.context.clock, seconds=call.seconds))
    return {**documents.optimized(done), "engine": "inprocess"}


def record(handle: TableHandle, request: Input, call: FunctionCall) -> Document:
    if request.result is None:
        raise Invalid("the event lacks the field 'result'", remedy="Give the result of step `plan`", field="result")
    done = _measured(_summary(read_result(_object(request.result))), handle, call)
    context = handle.context
    if request.optimize is not None and (error := request.optimize.get("Error")) is not None:
        call.telemetry.log(OPTIMIZE_FAILED, table=context.uri, kind=str(error))
        call.telemetry.measure("optimize_failed", 1, table=context.uri)
    name, at = next_collection(context.table, settings=handle.settings, now=context.clock.now())
    return {"merge": done, "collection": {"name": name, "at": at}}


def why(_handle: TableHandle, request: Input, call: FunctionCall) -> Document:
    if request.result is None:
        raise Invalid("the event lacks the field 'result'", remedy="Give the result of step `plan`", field="result")
    error = read_error(_object(request.result))
    if isinstance(error, Corrupt | Fenced | Invalid):
        raise error
    kind = "Unknown" if error is None else error.kind
    call.telemetry.log("a job failed", result=request.result, kind=kind)
    return {"kind": kind}


STEPS: dict[str, Callable[[TableHandle, Input, FunctionCall], Document]] = {
    "merge": merge,
    "plan": plan,
    "optimize": optimize,
    "record": record,
    "why": why,
}


@function
def handler(event: Document, call: FunctionCall) -> Document:
    request = parse_event(Input, event)
    return STEPS[request.step](open_table(table_uri(request.table, root=SETTINGS["LANCELSM_TABLES"])), request, call)


def _object(uri: str) -> str:
    return step_object(SETTINGS["LANCELSM_WORK"], uri, field="result")


def _summary(document: Document) -> Document:
    """Return the document of a merge with the number of its regions. A state has no room for all of them."""
    return {**{key: value for key, value in document.items() if key != "merged"}, "regions": len(document["merged"])}


def _measured(document: Document, handle: TableHandle, call: FunctionCall) -> Document:
    for name in ("rows_upserted", "rows_deleted"):
        call.telemetry.measure(name, document[name], table=handle.context.uri)
    return document
