"""Delete what committed rounds of a collection list: the one function whose role may delete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lancelsm.gc import collect
from lancelsm.region.handle import open_configured
from lancelsm.stack.function import Document, FunctionCall, function, parsed, place, settings

SETTINGS = settings("LANCELSM_TABLES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Which rounds, as `mark` returned them; they are committed, and their interval has passed.

    Raises:
        Invalid: one is not committed.
        Corrupt: one has something that the table needs; nothing of it was deleted.
        Unavailable: call it again.
    """

    table: str
    round: list[Any]


@function
def handler(event: Document, _call: FunctionCall) -> Document:
    asked = parsed(Input, event)
    handle = open_configured(place(asked.table, root=SETTINGS["LANCELSM_TABLES"]))
    return collect.step_document(collect.sweep(handle, asked.round))
