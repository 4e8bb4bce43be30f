"""Run a collection step of a table except the sweep: mark, verify or commit."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from lancelsm.errors import Invalid
from lancelsm.gc import collect
from lancelsm.region.handle import open_configured
from lancelsm.stack.function import Document, FunctionCall, function, parse_event, settings, table_uri

SETTINGS = settings("LANCELSM_TABLES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One step of a collection.

    `mark` starts a round of each region and of the base, or returns a committed round that waits for its sweep.
    `verify` recomputes the rounds from storage. `commit` removes from the table what the rounds delete.

    `round` is the value that the previous step returned. A step leaves out regions that are damaged (`failure` has the
    first error) and regions where another collector works. `mark` also returns `interval_seconds`, the table's time
    between `commit` and sweep.

    Raises:
        Corrupt: an object is missing or damaged, or a round would delete needed objects, and no round is left.
        Invalid: a round takes more of the log than its share, or the event is not valid.
        Contended, Ambiguous, Unavailable: call it again; after `Contended` by `verify`, start with `mark`.
    """

    table: str
    step: Literal["mark", "verify", "commit"]
    round: list[str] | None = None


@function
def handler(event: Document, call: FunctionCall) -> Document:
    request = parse_event(Input, event)
    if (request.round is None) != (request.step == "mark"):
        raise Invalid(f"{request.step} takes {'no' if request.step == 'mark' else 'a'} round", field="round")
    handle = open_configured(table_uri(request.table, root=SETTINGS["LANCELSM_TABLES"]))
    match request.step:
        case "mark":
            done = collect.mark(handle)
        case "verify":
            done = collect.verify(handle, request.round or ())
        case "commit":
            done = collect.commit(handle, request.round or ())
    for error in done.corrupt:
        call.telemetry.failed(error)
    document = collect.step_document(done)
    if request.step == "mark":
        document["interval_seconds"] = ceil(handle.settings.collect_interval_seconds)
    return document
