"""Read everything that a table consists of, and name what is missing or wrong."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.function import Call, Document, function, parsed, place, settings
from lancelsm.gc import refuse

SETTINGS = settings("LANCELSM_TABLES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Which table.

    Raises:
        Invalid: always, in this release.
    """

    table: str


def work(event: Document, _call: Call) -> Document:
    refuse("scrub", table=place(parsed(Input, event).table, root=SETTINGS["LANCELSM_TABLES"]))


handler = function(work)
