"""Delete the objects of committed rounds. Only this function's role may delete objects."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.region.handle import open_configured
from lancelsm.stack import collection_steps
from lancelsm.stack.function import Document, FunctionCall, function, parse_event, settings, table_uri
from lancelsm.stack.steps import step_object

SETTINGS = settings("LANCELSM_TABLES", "LANCELSM_WORK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Rounds that are committed, and whose interval is over. `round` is the URI that `commit` returned.

    Raises:
        Invalid: a round is not committed.
        Corrupt: a round lists objects that the table needs; nothing of the round was deleted.
        Unavailable: call it again.
    """

    table: str
    round: str


@function
def handler(event: Document, _call: FunctionCall) -> Document:
    request = parse_event(Input, event)
    handle = open_configured(table_uri(request.table, root=SETTINGS["LANCELSM_TABLES"]))
    return collection_steps.sweep(handle, step_object(SETTINGS["LANCELSM_WORK"], request.round, field="round"))
