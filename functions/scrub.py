"""Read everything that a table consists of, and name what is missing or wrong."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.errors import Invalid
from lancelsm.function import Call, Document, function, parsed, place, settings

SETTINGS = settings("LANCELSM_TABLES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Which table.

    Raises:
        Invalid: always, in this release.
    """

    table: str


@function
def handler(event: Document, _call: Call) -> Document:
    table = place(parsed(Input, event).table, root=SETTINGS["LANCELSM_TABLES"])
    raise Invalid("this release does not scrub yet", remedy="Leave its schedule off", table=table)
