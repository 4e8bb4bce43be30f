"""Check a query object of Lance on a small dataset of our own, before it meets files that may be damaged.

Lance reports a wrong query and a damaged file by the same kinds of errors, and finds no rows in a column without an
index. The dataset has the indexed columns alone, with indexes of the same options, so what fails on it is the query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lancelsm.common.error_text import did_you_mean
from lancelsm.dataset.native import USER, read_errors, text_of
from lancelsm.dataset.search_reads import SCORE, Searched, indexed_rows
from lancelsm.errors import Corrupt, Invalid
from lancelsm.record.casts import nulls
from lancelsm.record.schema import TableSchema

_NO_COLUMN = "does not exist in the dataset schema"
_NO_POSITIONS = "position is not found"


class QueryCheck:
    """Indexes of the same options as those of a table, on one row of nulls."""

    def __init__(self, schema: TableSchema, text_indexes: Mapping[str, Mapping[str, Any]]) -> None:
        """Build the indexes. Raises: see `search_reads.indexed_rows`."""
        self._indexes = text_indexes
        fields = [pa.field(name, schema.columns.field(name).type) for name in text_indexes]
        row = pa.Table.from_arrays([nulls(1, field.type) for field in fields], schema=pa.schema(fields))
        self._tried: Searched = indexed_rows(row, schema, text_indexes=text_indexes)

    def check(self, query: Any, *, uri: str) -> None:
        """Raise `Invalid` if Lance can't run the query on these indexes; `uri` is that of the table."""
        try:
            with read_errors("the query can't be run", object=self._tried.uri):
                self._tried.dataset.scanner(columns=[SCORE], full_text_query=query, limit=1).to_table()
        except Corrupt as error:
            raise self._invalid(text_of(error.__cause__ or error), uri) from error.__cause__
        # An object that was not built as lance.query does it. Lance's error `NotSupported` is NotImplementedError here.
        except (TypeError, AttributeError, NotImplementedError) as cause:
            raise self._invalid(text_of(cause), uri) from cause

    def _invalid(self, problem: str, uri: str) -> Invalid:
        what, remedy = USER.sub("", problem), "Correct the query object"
        if _NO_COLUMN in problem:
            name = problem.partition("'")[2].partition("'")[0]
            what = f"the column {name!r} of the query has no text index"
            remedy = did_you_mean(name, list(self._indexes), what="These have one")
        elif _NO_POSITIONS in problem:
            without = [name for name, options in self._indexes.items() if not options.get("with_position")]
            what = f"a phrase needs the positions of words, which the index on {' or '.join(map(repr, without))} lacks"
            remedy = "Create it again: table.create_index(COLUMN, kind='INVERTED', replace=True, with_position=True)"
        return Invalid(f"the query can't be run: {what}", remedy=remedy, table=uri, field="text")
