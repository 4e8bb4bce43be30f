"""Decide what of a table may be deleted, check it, commit it: all steps of a collection but the sweep."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from lancelsm.errors import Invalid
from lancelsm.function import Call, Document, function, parsed, place, settings
from lancelsm.gc import collect
from lancelsm.opening import open_configured

SETTINGS = settings("LANCELSM_TABLES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One step: `mark` begins a round of each region and of the base, or gives the committed one that waits for its
    sweep; `verify` recomputes them from storage, `commit` takes what they delete out of the table.

    `round` is the list that `mark` returned. `mark` also says `interval_seconds`, for which the table waits between
    `commit` and sweep.

    Raises:
        Corrupt: something is missing or wrong, or a round would delete what is needed.
        Contended, Ambiguous, Unavailable: call it again; after `Contended` by `verify` begin with `mark`.
    """

    table: str
    step: Literal["mark", "verify", "commit"]
    round: list | None = None


@function
def handler(event: Document, _call: Call) -> Document:
    asked = parsed(Input, event)
    if (asked.round is None) != (asked.step == "mark"):
        raise Invalid(f"{asked.step} takes {'no' if asked.round else 'a'} round", field="round")
    opened = open_configured(place(asked.table, root=SETTINGS["LANCELSM_TABLES"]))
    if asked.step == "mark":
        interval = ceil(opened.settings.collect_interval_seconds)
        return {**collect.step_document(collect.mark(opened)), "interval_seconds": interval}
    act = collect.verify if asked.step == "verify" else collect.commit
    return collect.step_document(act(opened, asked.round or ()))
