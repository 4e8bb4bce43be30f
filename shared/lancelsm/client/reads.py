"""The reads of a client: by key, by condition and by search, through the function `query`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from lancelsm.client.encoding import to_json_value, to_list
from lancelsm.client.invoke import Document, Functions
from lancelsm.client.large_payloads import Fetch, decode_file, decode_lines
from lancelsm.common.argument_checks import checked
from lancelsm.common.clock import Budget, Clock, Ids
from lancelsm.common.row_types import KeyRow, Vector
from lancelsm.errors import Invalid

if TYPE_CHECKING:  # an app without pyarrow reads dicts
    import pyarrow as pa

LONGEST_SECONDS: Final = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """The live rows of some keys, and the token of the read."""

    rows: list[dict[str, Any]]
    token: str


class ClientReads:
    """The reads of a `Client`.

    Args:
        functions: invokes the functions of the deployment.
        fetch: reads an object of the bucket by its signed URL.
        retry_seconds: the time for all attempts of one call.
    """

    def __init__(self, *, functions: Functions, fetch: Fetch, retry_seconds: float, clock: Clock, ids: Ids) -> None:
        self._functions = functions
        self._fetch = fetch
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._ids = ids

    @checked
    def get(self, table: str, keys: Iterable[KeyRow], *, columns: Iterable[str] | None = None) -> ReadRows:
        """Read the rows of some keys, with a token for `apply(rows, if_unchanged=token)`.

        Args:
            keys: values for a key of one column, tuples for a key of several, or dicts of the key columns.
            columns: the columns to return; all by default.

        Raises:
            Invalid: a column, key or condition is not valid, or snapshot not found.
            Corrupt: an object is missing or damaged.
            Unavailable: no reply.
        """
        request = {"keys": list(keys), "columns": None if columns is None else list(columns), "token": True}
        document = self._read(table, request)
        return ReadRows(rows=self._rows(document), token=document["token"])

    @checked
    def query(
        self,
        table: str,
        *,
        keys: Iterable[KeyRow] | None = None,
        columns: Iterable[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        at: str | None = None,
    ) -> list[dict[str, Any]]:
        """Read rows. All rows acknowledged before this call are included.

        Args:
            keys: the keys of the rows to get: values for a key of one column, tuples for a key of several, or dicts of
                the key columns; by default all rows that match `where`.
            columns: the columns to return; all by default.
            where: an SQL condition.
            limit: return at most this many rows.
            at: the name of a snapshot to read.

        Raises:
            Invalid: a column, key or condition is not valid, or snapshot not found.
            Corrupt: an object is missing or damaged.
            Unavailable: no reply.
        """
        request = {
            "keys": None if keys is None else list(keys),
            "columns": None if columns is None else list(columns),
            "where": where,
            "limit": limit,
            "at": at,
        }
        return self._rows(self._read(table, request))

    @checked
    def search(
        self,
        table: str,
        query: Vector | str | None = None,
        *,
        vector: Vector | None = None,
        text: str | None = None,
        column: str | None = None,
        text_columns: Iterable[str] | None = None,
        k: int = 10,
        where: str | None = None,
        columns: Iterable[str] | None = None,
        metric: str | None = None,
        nprobes: int | None = None,
        refine_factor: int | None = None,
        at: str | None = None,
    ) -> list[dict[str, Any]]:
        """Find the best rows by vector, by text or by both, best first. All acknowledged rows take part.

        Args:
            query: an array for `vector`, or text for `text`.
            vector: numbers as a list or an array; a list of vectors is several searches.
            text: words, of which a row has at least one.
            column: the column with the vectors; may be left out if only one fits.
            text_columns: the columns with the text; by default all that have a text index.
            k: the number of rows to return, at most 10,000.
            where: an SQL condition that all returned rows match.
            columns: the columns to return, in this order; by default all, then the scores.
            metric: `l2`, `cosine`, `dot` or `hamming`; by default that of the index.
            nprobes: how many partitions of the index to search; by default 20.
            refine_factor: compare this many times `k` rows exactly; by default 1 to 10 times, by the kind of the index.
            at: the name of a snapshot to search.

        Raises:
            Invalid: the table has no such column or index, or the query or another argument doesn't fit it.
            Corrupt: an object is missing or damaged.
            Unavailable: no reply.
        """
        if query is not None:
            name = "text" if isinstance(query, str) else "vector"
            if (text if name == "text" else vector) is not None:
                raise Invalid(f"the search has two queries of {name}", remedy="Give one of them", field=name)
            if isinstance(query, str):
                text = query
            else:
                vector = query
        if text is None and vector is None:
            raise Invalid("a search needs a vector or a text", remedy="Give a query", table=table, field="query")
        request = {
            "vector": to_list(vector),
            "text": text,
            "column": column,
            "text_columns": None if text_columns is None else list(text_columns),
            "k": k,
            "where": where,
            "columns": None if columns is None else list(columns),
            "metric": metric,
            "nprobes": nprobes,
            "refine_factor": refine_factor,
            "at": at,
        }
        return self._rows(self._read(table, request))

    @checked
    def query_arrow(self, table: str, **fields: object) -> pa.Table:
        """Read or search like `query` or `search`, but return a `pyarrow.Table` with the types of the table.

        The rows come through an object in the bucket, so they may be many.

        Args:
            fields: those of the function `query`: `keys`, or `where` and `limit`, or `vector`, `text`, `k` and the
                others of a search; also `columns` and `at`.

        Raises:
            Invalid: a field is not valid, or pyarrow is not installed.
            Corrupt: an object is missing or damaged.
            Unavailable: no reply.
        """
        request = {**fields, "vector": to_list(fields.get("vector")), "format": "arrow"}
        document = self._read(table, request)
        return decode_file(self._fetch(document["url"]), rows=document["rows"])

    @checked
    def count(self, table: str, *, where: str | None = None, at: str | None = None) -> int:
        """Count the rows that match a condition, now or in the snapshot `at`.

        Raises:
            Invalid: a column, key or condition is not valid, or snapshot not found.
            Corrupt: an object is missing or damaged.
            Unavailable: no reply.
        """
        return int(self._read(table, {"where": where, "count": True, "at": at})["count"])

    def _rows(self, document: Document) -> list[dict[str, Any]]:
        if "url" in document:
            return decode_lines(self._fetch(document["url"]), rows=document["rows"])
        return cast("list[dict[str, Any]]", document["rows"])

    def _read(self, table: str, request: Mapping[str, object]) -> Document:
        given = {name: value for name, value in request.items() if value is not None}
        try:
            payload = json.dumps({"table": table, **to_json_value(given)}, ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:
            raise Invalid(
                f"a field can't be encoded as JSON: {error}", remedy="Give values that JSON has", table=table
            ) from error
        return self._functions.answer(
            "query", payload, attempts=self._attempts(), read_seconds=LONGEST_SECONDS, table=table
        )

    def _attempts(self) -> Iterable[int]:
        return Budget(clock=self._clock, ids=self._ids, seconds=self._retry_seconds).attempts()
