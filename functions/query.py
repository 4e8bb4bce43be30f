"""Read rows by key or by condition, or search them by vector or text, as of now or of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import lancelsm
from lancelsm.errors import Invalid
from lancelsm.stack.function import Document, FunctionCall, function, parse_event, settings, table_uri
from lancelsm.stack.query import ARROW_FILE, answer, arrow_answer, count_rows, keep_in_bucket, key_rows
from lancelsm.table import Table

SETTINGS = settings("LANCELSM_TABLES", "LANCELSM_WORK")
MOST_FOUND = 10_000  # a search holds its rows in memory
QUERIES = ("vector", "text")
SEARCH = ("column", "text_columns", "k", "metric", "nprobes", "refine_factor")
SCAN = ("limit", "count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Rows of one or several keys, a scan, or a search. A key is an object of the key columns, or the value if the key
    is one column.

    Args:
        columns: the columns to return, in this order; default all, and the scores of a search.
        where: SQL: text in 'quotes', special column names in `backticks`.
        limit: return at most this many rows.
        count: only count the rows.
        vector: search for the rows with the nearest vectors: a list of numbers, or a list of such lists. With `text`
            it is a hybrid search.
        text: search for the rows with the best texts: words, of which a row has at least one.
        column, text_columns, metric, nprobes, refine_factor: of a search, see `Table.search`.
        k: the number of rows that a search returns, at most 10,000; default 10.
        format: `arrow` answers by reference, with a link to an Arrow IPC file.
        at: the name of a snapshot; default the current state.
        token: with `key` or `keys`, also answer {"token"}, for `if_unchanged` of the function `apply`.

    Returns:
        {"rows": [...]} with values like `lancelsm scan --output json`, the best row of a search first; {"count"}; or,
        if the rows don't fit an answer, {"url", "rows": the number of rows, "bytes"}: a link to JSON lines that expires
        after an hour. With the format arrow always such a link, and "format".

    Raises:
        Invalid: table, column or snapshot not found, the snapshot has expired, a key, condition, vector or text is not
            valid, or fields exclude each other.
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
    vector: list[Any] | None = None
    text: str | None = None
    column: str | None = None
    text_columns: list[str] | None = None
    k: int = 10
    metric: str | None = None
    nprobes: int | None = None
    refine_factor: int | None = None
    format: Literal["json", "arrow"] = "json"
    at: str | None = None
    token: bool = False


@function
def handler(event: Document, call: FunctionCall) -> Document:
    request = parse_event(Input, event)
    by_key, is_search = _kind(request, event)
    table = lancelsm.open(table_uri(request.table, root=SETTINGS["LANCELSM_TABLES"]), at=request.at)
    token: Document = {}
    if request.count:
        return {"count": count_rows(table, columns=request.columns, where=request.where, limit=request.limit)}
    if by_key:
        wanted = [request.key] if request.keys is None else request.keys
        keys = key_rows(wanted, table=table)
        rows: Any
        if request.token:
            read = table.get(keys, columns=request.columns, with_token=True)
            rows, token = read.rows, {"token": read.token}
        else:
            rows = table.get(keys, columns=request.columns)
    elif is_search:
        rows = _found(table, request)
    else:
        rows = table.scan(columns=request.columns, where=request.where, limit=request.limit)
    results = f"{SETTINGS['LANCELSM_WORK']}/results/{call.id}"
    if request.format == "arrow":
        keep = partial(keep_in_bucket, uri=f"{results}.arrow", content_type=ARROW_FILE)
        return {**arrow_answer(rows, keep=keep), **token}
    return {**answer([rows] if by_key else rows, keep=partial(keep_in_bucket, uri=f"{results}.ndjson")), **token}


def _kind(request: Input, event: Document) -> tuple[bool, bool]:
    """Return whether the event reads by key, and whether it searches. Raises `Invalid` if its fields don't fit."""
    by_key = [name for name in ("key", "keys") if name in event]
    queries = [name for name in QUERIES if getattr(request, name) is not None]
    of_search = [*queries, *(name for name in SEARCH if name in event)]
    if len(by_key) > 1 or (by_key and (of_search or {"where", *SCAN} & event.keys())):
        remedy = "Give key or keys, optionally with columns, format and at; or give the fields of a scan or a search"
        raise Invalid(f"{by_key[0]} can't be combined with the other fields", remedy=remedy, field=by_key[0])
    if of_search and not queries:
        raise Invalid(f"{of_search[0]} is for a search", remedy="Give vector or text with it", field=of_search[0])
    if queries and (extra := [name for name in SCAN if name in event]):
        raise Invalid(f"a search takes no {extra[0]}", remedy="Give k, the number of rows", field=extra[0])
    if queries and not 1 <= request.k <= MOST_FOUND:
        raise Invalid(f"k is {request.k}", remedy=f"Give a whole number from 1 to {MOST_FOUND:,}", field="k")
    if request.token and not by_key:
        raise Invalid("a token is of a read by key", remedy="Give key or keys, or leave out token", field="token")
    if request.count and request.format == "arrow":
        raise Invalid("a count has no format", remedy="Leave out count or format", field="format")
    return bool(by_key), bool(queries)


def _found(table: Table, request: Input) -> lancelsm.Rows:
    return table.search(
        vector=request.vector,
        text=request.text,
        column=request.column,
        text_columns=request.text_columns,
        k=request.k,
        where=request.where,
        columns=request.columns,
        metric=request.metric,
        nprobes=request.nprobes,
        refine_factor=request.refine_factor,
    )
