"""Read rows as of now or of a snapshot: by key, or those for which a condition is true."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import lancelsm
from lancelsm.errors import Invalid
from lancelsm.stack.function import Document, FunctionCall, function, parsed, place, settings
from lancelsm.stack.query import answer, count_rows, keep_in_bucket, key_rows

SETTINGS = settings("LANCELSM_TABLES", "LANCELSM_WORK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Rows of one key or several, or a scan. A key is an object of the key columns, or the value of a single one.

    Args:
        columns: which ones, in this order; default all.
        where: SQL: text in 'quotes', odd column names in `backticks`.
        limit: at most so many rows.
        count: only how many there are.
        at: the name of a snapshot, to read the table as that keeps it; default as of now.

    Returns:
        {"rows": [...]}, values as `lancelsm scan --output json` writes them; {"count"}; or, if the rows don't fit an
        answer, {"url", "rows": how many, "bytes"}: a link to JSON lines that is good for an hour.

    Raises:
        Invalid: no such table, column or condition; a key does not fit; fields that exclude each other; the snapshot is
            not there, or has expired.
        Unavailable: do it again. Corrupt: names the object.
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
    asked = parsed(Input, event)
    by_key = [name for name in ("key", "keys") if name in event]
    if len(by_key) > 1 or (by_key and {"where", "limit", "count"} & event.keys()):
        remedy = "Give one of key and keys, perhaps with columns and at, or where, limit and count"
        raise Invalid(f"{by_key[0]} does not go with the other fields", remedy=remedy, field=by_key[0])
    table = lancelsm.open(place(asked.table, root=SETTINGS["LANCELSM_TABLES"]), at=asked.at)
    if asked.count:
        return {"count": count_rows(table, columns=asked.columns, where=asked.where, limit=asked.limit)}
    keep = partial(keep_in_bucket, uri=f"{SETTINGS['LANCELSM_WORK']}/results/{call.id}.ndjson")
    if by_key:
        wanted = [asked.key] if asked.keys is None else asked.keys
        return answer([table.get(key_rows(wanted, table=table), columns=asked.columns)], keep=keep)
    return answer(table.scan(columns=asked.columns, where=asked.where, limit=asked.limit), keep=keep)
