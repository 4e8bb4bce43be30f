"""Write what depends on the rows that are there: conditional and partial upserts, updates, deletes by a condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import lancelsm
from lancelsm.stack.conditional_write import conditional_write
from lancelsm.stack.delivery.table_cache import Inbox
from lancelsm.stack.function import Document, FunctionCall, function, parse_event, settings, table_uri

SETTINGS = settings("LANCELSM_TABLES", "LANCELSM_WORK")
INBOX = Inbox.below(SETTINGS["LANCELSM_WORK"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One write to one table, which reads rows first. It is durable and visible when the function returns.

    Args:
        op: `upsert` takes rows in one form: `upserts`; `arrow`, a base64 Arrow IPC stream; or `object`, the key of such
            a stream below work/inbox. `update` takes `set` and `where`, `delete` takes `where`. `changes` takes
            `events` and the options of `Table.apply_changes`, which docs/how-to/cdc.md explains.
        if_absent: write only rows whose keys have no row.
        if_newer: a column; write only rows with a greater value in it than the row that is there.
        if_unchanged: the token of the function `query`; write only if no row of these keys was written since.
        partial: columns that the rows leave out keep their values.
        set: an SQL expression by column, such as {"n": "n + 1"}.
        where: an SQL condition; `true` matches every row.

    Returns:
        {"rows", "entries": [{"region", "position", "rows"}], "skipped"}. `skipped` is the number of rows that their
        condition left out. For `changes`: {"written", "deleted", "late", "skipped", "rejected", "offset"}.

    Raises:
        Invalid: a row, column, condition, expression or token is not valid, or fields exclude each other. Nothing was
            written.
        Contended: nothing was written to a region. Call it again; with `if_unchanged`, read the rows again.
        Fenced: another owner holds a region.
        Ambiguous: the rows of a region may be written. Read, then decide.
        Unavailable: call it again.
        Corrupt: an object is damaged; names it.
    """

    table: str
    op: Literal["upsert", "update", "delete", "changes"] = "upsert"
    upserts: list[dict[str, Any]] | None = None
    arrow: str | None = None
    object: str | None = None
    if_absent: bool = False
    if_newer: str | None = None
    if_unchanged: str | None = None
    partial: bool = False
    set: dict[str, str] | None = None
    where: str | None = None
    events: list[Any] | None = None
    format: Literal["debezium", "flattened", "rows"] | None = None
    sequence_by: list[str] | dict[str, str] | None = None
    apply_as_deletes: str | None = None
    column_list: list[str] | None = None
    except_column_list: list[str] | None = None
    ignore_null_updates: bool = False
    source: str | None = None
    offset: int | list[int] | None = None
    on_bad_row: Literal["fail", "skip"] | None = None


@function
def handler(event: Document, call: FunctionCall) -> Document:
    request = parse_event(Input, event)
    table = lancelsm.open(table_uri(request.table, root=SETTINGS["LANCELSM_TABLES"]))
    document = conditional_write(request, table=table, inbox=INBOX)
    rows = document["written"] + document["deleted"] if request.op == "changes" else document["rows"]
    call.telemetry.measure("rows", rows, table=table.uri)
    return document
