"""Decide what of a table may be deleted, check it, commit it: all steps of a collection but the sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lancelsm.function import Call, Document, function, parsed, place, settings
from lancelsm.gc import refuse

SETTINGS = settings("LANCELSM_TABLES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One step of a round: `mark` begins one, `verify` recomputes it from storage, `commit` takes it out of the table.

    Raises:
        Invalid: always, in this release.
    """

    table: str
    step: Literal["mark", "verify", "commit"]
    round: int | None = None


def work(event: Document, _call: Call) -> Document:
    asked = parsed(Input, event)
    refuse(asked.step, table=place(asked.table, root=SETTINGS["LANCELSM_TABLES"]))


handler = function(work)
