"""Decide what of a table may be deleted, check it, commit it: all steps of a collection but the sweep."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from lancelsm.errors import Invalid
from lancelsm.gc import collect
from lancelsm.region.handle import open_configured
from lancelsm.stack.function import Document, FunctionCall, function, parsed, place, settings

SETTINGS = settings("LANCELSM_TABLES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One step: `mark` begins a round of each region and of the base, or gives the committed one that waits for its
    sweep; `verify` recomputes them from storage, `commit` takes what they delete out of the table.

    `round` is what the step before returned: a step leaves out where something is wrong, which `failure` tells, and
    where others are at work. `mark` also says `interval_seconds`, for which the table waits between `commit` and sweep.

    Raises:
        Corrupt: something is missing or wrong, or a round would delete what is needed, and no round is left.
        Invalid: a round takes more of the log than its share; or the event is wrong.
        Contended, Ambiguous, Unavailable: call it again; after `Contended` by `verify` begin with `mark`.
    """

    table: str
    step: Literal["mark", "verify", "commit"]
    round: list[Any] | None = None


@function
def handler(event: Document, call: FunctionCall) -> Document:
    asked = parsed(Input, event)
    if (asked.round is None) != (asked.step == "mark"):
        raise Invalid(f"{asked.step} takes {'no' if asked.step == 'mark' else 'a'} round", field="round")
    handle = open_configured(place(asked.table, root=SETTINGS["LANCELSM_TABLES"]))
    match asked.step:
        case "mark":
            done = collect.mark(handle)
        case "verify":
            done = collect.verify(handle, asked.round or ())
        case "commit":
            done = collect.commit(handle, asked.round or ())
    for error in done.corrupt:
        call.telemetry.failed(error)
    document = collect.step_document(done)
    if asked.step == "mark":
        document["interval_seconds"] = ceil(handle.settings.collect_interval_seconds)
    return document
