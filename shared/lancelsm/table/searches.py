"""The method of a table that searches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from lancelsm.common.argument_checks import checked
from lancelsm.common.row_types import LanceQuery, Vector
from lancelsm.history.at import At
from lancelsm.read.freshness import Consistency
from lancelsm.read.pruning.region_pruning import pruned_view, regions_for
from lancelsm.read.result import Rows
from lancelsm.read.view import View
from lancelsm.table.open_table import OpenTable

if TYPE_CHECKING:  # a process that only reads or writes rows does not load these
    from lancelsm.read.search.search import SearchRequest


class TableSearch(OpenTable):
    """Search by vector, by text or by both."""

    @checked
    def search(
        self,
        query: Vector | str | LanceQuery | None = None,
        *,
        vector: Vector | None = None,
        text: str | LanceQuery | None = None,
        column: str | None = None,
        text_columns: Sequence[str] | None = None,
        k: int = 10,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        metric: str | None = None,
        nprobes: int | None = None,
        refine_factor: int | None = None,
        rerank: Literal["rrf"] | Callable[[pa.Table, pa.Table], pa.Table] = "rrf",
        at: At | None = None,
        consistency: Consistency = "strong",
        max_staleness: float | None = None,
    ) -> Rows:
        """Find the best rows by vector, by text or by both, as of now. All rows acknowledged before the call take part.

        A stale or deleted row is never returned, and takes no place among the results. A search without an index reads
        all vectors; a text search needs an index (`create_index`).

        Args:
            query: an array for `vector`, or text for `text`.
            vector: numbers, as many as each vector of the column has. A list of vectors is several searches, whose rows
                have their number in `query_index`; on a column with several vectors per row it is one search.
            text: words, of which a row has at least one; or a query object of `lance.query`. Lance ends the process if
                `BooleanQuery` or `BoostQuery` is nested some hundred times. Nothing can tell how deep an object is, so
                don't nest it by input that you don't trust.
            column: the column with the vectors; may be left out if only one fits.
            text_columns: the columns with the text, for plain words; by default all that have a text index. A query
                object names its own columns.
            k: the number of rows to return, at most 1,000,000.
            where: an SQL condition that all returned rows match.
            columns: the columns to return, in this order; by default all, then `_distance` for a vector, `_score` for
                text, and `_relevance_score`, `_distance`, `_score` for both.
            metric: `l2`, `cosine`, `dot` or `hamming`; by default that of the index. Without an index `l2`, but
                `hamming` for vectors of uint8, and `cosine` for several vectors per row.
            nprobes: how many partitions of the index to search; by default 20.
            refine_factor: compare this many times `k` rows exactly, at most 10,000,000 rows; by default 1 to 10 times,
                as the kind of the index needs.
            rerank: for both: `rrf`, reciprocal-rank fusion; or a function of the two results, each with its score,
                that returns a table with the returned columns, best row first.
            at: the name of a snapshot, the version of the base as an integer, or a time such as
                `2026-11-01T00:00:00Z`: search that state.
            consistency: `strong`, or `eventual`: the rows may be up to `max_staleness` seconds old.
            max_staleness: with `eventual`, in seconds, above 0 and below the setting `collect_interval_seconds`.

        Returns:
            The rows, best first. In a hybrid result the score of a search that did not find the row is null.

        Raises:
            Invalid: a column is unknown, has no vectors or no text index; the vector has another length; the metric is
                not that of the index; the condition is not valid; an argument belongs to a vector or a text, and there
                is none; or another argument is not valid.
            Corrupt: an object is missing or damaged; the error names it.
            Unavailable: a store or the registry did not answer.
        """
        from lancelsm.read.search.search import read_request  # noqa: PLC0415

        request = read_request(
            query,
            vector=vector,
            text=text,
            column=column,
            text_columns=text_columns,
            k=k,
            where=where,
            columns=columns,
            metric=metric,
            nprobes=nprobes,
            refine_factor=refine_factor,
            rerank=rerank,
        )
        table = self if at is None else self.at(at)
        return table._search(request, max_staleness=table._staleness(consistency, max_staleness))

    # Private

    def _search(self, request: SearchRequest, *, max_staleness: float | None) -> Rows:
        from lancelsm.read.search.search import Prepared, search  # noqa: PLC0415

        # The scores of words depend on the rows of all regions; those of a query object are of each level.
        where = None if isinstance(request.text, str) else request.where

        def read(view: View) -> Rows:
            needed = pruned_view(view, where, self.config.regions)
            self._trace.viewed(needed)
            prepared = Prepared.of(needed, self._views.kept, uri=self.uri, trace=self._trace)
            with self._trace.step("search"):
                found = search(prepared, request, expiry=view.expiry, uri=self.uri, trace=self._trace)
                return Rows(found.to_reader())

        spec = self.config.regions
        list_regions, select = regions_for(where, spec, context=self._context, schema=self._schema)
        return self._read_with_retry(read, list_regions, spec=spec, select=select, max_staleness=max_staleness)
