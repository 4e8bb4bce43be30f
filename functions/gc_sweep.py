"""Delete the objects of committed rounds. Only this function's role may delete objects."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.gc import collect
from lancelsm.region.handle import open_configured
from lancelsm.stack.function import Document, FunctionCall, function, parse_event, settings, table_uri

SETTINGS = settings("LANCELSM_TABLES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The rounds, as `mark` returned them. They must be committed and their interval must be over.

    Raises:
        Invalid: a round is not committed.
        Corrupt: a round lists objects that the table needs; nothing of the round was deleted.
        Unavailable: call it again.
    """

    table: str
    round: list[str]


@function
def handler(event: Document, _call: FunctionCall) -> Document:
    request = parse_event(Input, event)
    handle = open_configured(table_uri(request.table, root=SETTINGS["LANCELSM_TABLES"]))
    return collect.step_document(collect.sweep(handle, request.round))
