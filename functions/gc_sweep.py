"""Delete what a committed round of a collection lists: the one function whose role may delete."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.function import Call, Document, function, parsed, place, settings
from lancelsm.gc import refuse

SETTINGS = settings("LANCELSM_TABLES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Which round; it is committed, and its interval has passed.

    Raises:
        Invalid: always, in this release.
    """

    table: str
    round: int


def work(event: Document, _call: Call) -> Document:
    asked = parsed(Input, event)
    refuse("sweep", table=place(asked.table, root=SETTINGS["LANCELSM_TABLES"]))


handler = function(work)
