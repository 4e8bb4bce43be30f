"""Run a collection step of a table except the sweep: mark, verify or commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lancelsm.errors import Invalid
from lancelsm.gc.collect import Collected, step_document
from lancelsm.objects.open import open_store
from lancelsm.region import config as configs
from lancelsm.region.handle import open_configured
from lancelsm.stack import collection_steps
from lancelsm.stack.function import Document, FunctionCall, function, parse_event, settings, table_uri
from lancelsm.stack.steps import execution_prefix, step_object

SETTINGS = settings("LANCELSM_TABLES", "LANCELSM_WORK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One step of a collection.

    `mark` starts a round of each region and of the base, or returns a committed round that waits for its sweep.
    `verify` recomputes the rounds from storage. `commit` removes from the table what the rounds delete.

    Each step writes its rounds to an object below work/steps. A step leaves out regions that are damaged (`failure` has
    the first error) and regions where another collector works.

    Args:
        round: for `verify` and `commit`: the URI that the step before returned.
        execution: for `mark`: the name of the execution; by default the invocation's id. If a step of an execution is
            repeated, it returns what the first attempt wrote.
        attempt: for `mark`: how many times the execution has marked, this time included.
        interval_seconds: for `mark`: the time between `commit` and sweep, by default the table's; at most 7 days.
        at: for `mark`: when the execution was to begin, if a merge started it. If the table was dropped since, there is
            nothing to collect: the phase is `idle`.

    Returns:
        {"round": the URI, "rounds": their number, "phase", "candidates", "bytes", "kept", "deleted": numbers,
        "failure"}; from `mark` also {"interval_seconds"}.

    Raises:
        Corrupt: an object is missing or damaged, or a round would delete needed objects, and no round is left.
        Invalid: a round takes more of the log than its share, or the event or the interval is not valid.
        Contended, Ambiguous, Unavailable: call it again; after `Contended` by `verify`, start with `mark`.
    """

    table: str
    step: Literal["mark", "verify", "commit"]
    round: str | None = None
    execution: str | None = None
    attempt: int = 1
    interval_seconds: int | None = None
    at: str | None = None


@function
def handler(event: Document, call: FunctionCall) -> Document:
    request = parse_event(Input, event)
    if (request.round is None) != (request.step == "mark"):
        raise Invalid(f"{request.step} takes {'no' if request.step == 'mark' else 'a'} round", field="round")
    uri = table_uri(request.table, root=SETTINGS["LANCELSM_TABLES"])
    if request.at is not None and configs.read(open_store(uri), uri=uri) is None:
        call.telemetry.log("the table was dropped", table=uri)
        return {**step_document(Collected(rounds=(), phase="idle")), "round": "", "rounds": 0, "interval_seconds": 0}
    handle = open_configured(uri)
    match request.step:
        case "mark":
            document, done = collection_steps.mark(
                handle,
                prefix=execution_prefix(SETTINGS["LANCELSM_WORK"], request.execution or call.id),
                attempt=request.attempt,
                interval_seconds=request.interval_seconds,
            )
        case "verify":
            document, done = collection_steps.verify(handle, _object(request))
        case "commit":
            document, done = collection_steps.commit(handle, _object(request))
    for error in done.corrupt if done else ():
        call.telemetry.failed(error)
    return document


def _object(request: Input) -> str:
    return step_object(SETTINGS["LANCELSM_WORK"], request.round or "", field="round")
