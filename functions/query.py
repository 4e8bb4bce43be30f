"""Read rows by key or by condition, as of now or of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import lancelsm
from lancelsm.errors import Invalid
from lancelsm.stack.function import Document, FunctionCall, function, parse_event, settings, table_uri
from lancelsm.stack.query import answer, count_rows, keep_in_bucket, key_rows

SETTINGS = settings("LANCELSM_TABLES", "LANCELSM_WORK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Rows of one or several keys, or a scan. A key is an object of the key columns, or the value if the key is one
    column.

    Args:
        columns: the columns to return, in this order; default all.
        where: SQL: text in 'quotes', special column names in `backticks`.
        limit: return at most this many rows.
        count: only count the rows.
        at: the name of a snapshot; default the current state.

    Returns:
        {"rows": [...]} with values like `lancelsm scan --output json`; {"count"}; or, if the rows don't fit an answer,
        {"url", "rows": the number of rows, "bytes"}: a link to JSON lines that expires after an hour.

    Raises:
        Invalid: table, column or snapshot not found, the snapshot has expired, a key or condition is not valid, or
            fields exclude each other.
        Unavailable: call it again.
        Corrupt: an object is damaged; names it.
    """

    table: str
    key: Any = None
    keys: list[Any] | None = None
    columns: list[str] | None = None
    where: str | None = None
    limit: int | None = None
    count: bool = False
    at: str | None = None


@function
def handler(event: Document, call: FunctionCall) -> Document:
    request = parse_event(Input, event)
    by_key = [name for name in ("key", "keys") if name in event]
    if len(by_key) > 1 or (by_key and {"where", "limit", "count"} & event.keys()):
        remedy = "Give key or keys, optionally with columns and at; or give where, limit and count"
        raise Invalid(f"{by_key[0]} can't be combined with the other fields", remedy=remedy, field=by_key[0])
    table = lancelsm.open(table_uri(request.table, root=SETTINGS["LANCELSM_TABLES"]), at=request.at)
    if request.count:
        return {"count": count_rows(table, columns=request.columns, where=request.where, limit=request.limit)}
    keep = partial(keep_in_bucket, uri=f"{SETTINGS['LANCELSM_WORK']}/results/{call.id}.ndjson")
    if by_key:
        wanted = [request.key] if request.keys is None else request.keys
        return answer([table.get(key_rows(wanted, table=table), columns=request.columns)], keep=keep)
    return answer(table.scan(columns=request.columns, where=request.where, limit=request.limit), keep=keep)
