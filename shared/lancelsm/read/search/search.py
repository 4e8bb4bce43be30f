"""Search a view by vector, by text, or by both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any, Literal

import pyarrow as pa

from lancelsm.common.bounded_cache import BoundedCache
from lancelsm.common.error_text import shown
from lancelsm.common.read_trace import NO_TRACE, Trace
from lancelsm.dataset.conditions import unexpired
from lancelsm.dataset.search_reads import DISTANCE, SCORE
from lancelsm.dataset.text_queries import QueryCheck
from lancelsm.errors import Invalid
from lancelsm.read.search.levels import Levels, prepare
from lancelsm.read.search.memory_rows import MemoryRows
from lancelsm.read.search.queries import (
    RELEVANCE,
    Rerank,
    SearchOutput,
    TextQuery,
    VectorQuery,
    read_output,
    read_text,
    read_vector,
    scores,
)
from lancelsm.read.search.text_search import TextLevels, best_rows, text_options
from lancelsm.read.search.vector_search import nearest_rows
from lancelsm.read.view import View
from lancelsm.record.key import key_column
from lancelsm.record.ttl import Expiry

_RANK = 60  # of reciprocal-rank fusion, as in LanceDB


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The levels of one view, for any number of searches of it."""

    levels: Levels
    kept: BoundedCache
    _text: list[TextLevels] = field(default_factory=list)
    _text_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def memory(self, trace: Trace) -> MemoryRows:
        """The rows to compare in memory. Generations are read as a whole only if a view is searched a second time."""
        if next(self._searches) == 0:
            return MemoryRows.of_log(self.levels)
        return self.kept.get_or_make(
            ("searched rows", self.levels.view.identity),
            lambda: MemoryRows.with_generations(self.levels, trace),
            size=lambda made: made.nbytes,
        )

    @cached_property
    def _searches(self) -> Iterator[int]:
        return count()

    def text(self, trace: Trace) -> TextLevels:
        with self._text_lock:
            if not self._text:
                self._text.append(TextLevels.of(self.levels, kept=self.kept, trace=trace))
            return self._text[0]

    @cached_property
    def query_check(self) -> QueryCheck:
        return QueryCheck(self.levels.schema, text_options(self.levels))

    @classmethod
    def of(cls, view: View, kept: BoundedCache, *, uri: str, trace: Trace = NO_TRACE) -> Prepared:
        """Prepare a view, or return what is kept of a view with the same rows. Raises: see `levels.prepare`."""
        with trace.step("stale rows"):
            return kept.get_or_make(
                ("search", view.identity),
                lambda: cls(levels=prepare(view, uri=uri, trace=trace), kept=kept),
                size=lambda made: made.levels.nbytes,
            )


# Lance reserves memory for this many rows in each level, and ends the process if it gets none.
_MOST = 1_000_000
_MOST_REFINED = 10_000_000
_USED_FOR = {"vector": ("column", "metric", "nprobes", "refine_factor"), "text": ("text_columns",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """The arguments of a search as the caller gave them; see `Table.search`."""

    vector: Any = None
    text: Any = None
    column: str | None = None
    text_columns: Sequence[str] | None = None
    k: int = 10
    where: str | None = None
    columns: Sequence[str] | None = None
    metric: str | None = None
    nprobes: int | None = None
    refine_factor: int | None = None
    rerank: Literal["rrf"] | Rerank = "rrf"


def read_request(query: Any, **arguments: Any) -> SearchRequest:
    """Take the positional argument of a search for a vector or a text. Raises `Invalid` if nothing is searched."""
    request = SearchRequest(**arguments)
    if query is not None:
        name = "text" if isinstance(query, str) or type(query).__module__.startswith("lance") else "vector"
        if getattr(request, name) is not None:
            raise Invalid(f"the search has two queries of {name}", remedy="Give one of them", field=name)
        request = SearchRequest(**{**arguments, name: query})
    if request.vector is None and request.text is None:
        raise Invalid("a search needs a vector or a text", remedy="Give a query", field="query")
    _check_used(request)
    for name, number in (("k", request.k), ("refine_factor", request.refine_factor), ("nprobes", request.nprobes)):
        if number is not None and not 1 <= number <= _MOST:
            raise Invalid(f"{name} is {number}", remedy=f"Give a whole number from 1 to {_MOST:,}", field=name)
    if request.k * (request.refine_factor or 1) > _MOST_REFINED:
        what = f"k times refine_factor is {request.k * (request.refine_factor or 1)}"
        raise Invalid(what, remedy=f"Keep the product at {_MOST_REFINED:,} or less", field="refine_factor")
    if request.rerank != "rrf" and not callable(request.rerank):
        raise Invalid(
            f"unknown reranker {shown(request.rerank)}", remedy="Use 'rrf', or a function of two tables", field="rerank"
        )
    return request


def _check_used(request: SearchRequest) -> None:
    """Raise `Invalid` for an argument that this search would not use."""
    for query, names in _USED_FOR.items():
        unused = [name for name in names if getattr(request, name) is not None]
        if unused and getattr(request, query) is None:
            raise Invalid(
                f"{unused[0]} is for a {query}, and the search has none",
                remedy=f"Leave out {unused[0]}, or give a {query}",
                field=unused[0],
            )
    if request.rerank != "rrf" and (request.vector is None or request.text is None):
        remedy = "Leave it out, or give a vector and a text"
        raise Invalid("rerank is for a search by vector and text", remedy=remedy, field="rerank")


def search(
    prepared: Prepared, request: SearchRequest, *, expiry: Expiry | None, uri: str, trace: Trace = NO_TRACE
) -> pa.Table:
    """Return the best rows of a view, best first.

    Args:
        expiry: which rows have expired at the time of this search. The view may have been prepared earlier.

    Raises:
        Invalid: a column, the vector, the metric, the condition or another argument doesn't fit the table.
        Corrupt: an object is missing or damaged.
        Unavailable: a store did not answer.
    """
    levels = prepared.levels
    schema = levels.schema
    for level in levels.stored:
        trace.reads(level.searched.dataset)
    vector = _vector(levels, request, uri=uri)
    text = None
    if request.text is not None:
        text = read_text(levels.indexes, request.text, text_columns=request.text_columns, uri=uri)
        if not isinstance(text.query, str):
            prepared.query_check.check(text.query, uri=uri)
    added = scores(vector=vector is not None, text=text is not None, many=vector is not None and vector.many)
    for column in (*([vector.column] if vector is not None else []), *(text.columns if text is not None else [])):
        trace.searched(column)
    output = read_output(schema, k=request.k, columns=request.columns, where=request.where, scores=added, uri=uri)
    live = unexpired(output.where, expiry, schema.columns)
    output = replace(output, where=live)
    if vector is not None and text is not None:
        if vector.many:
            raise Invalid(
                "a hybrid search takes one vector",
                remedy="Give one vector, or leave the text out",
                table=uri,
                field="vector",
            )
        return _hybrid(prepared, vector, text, output, request.rerank, uri=uri, trace=trace)
    found = (
        nearest_rows(levels, vector, output, memory=prepared.memory(trace), uri=uri, trace=trace)
        if vector is not None
        else best_rows(prepared.text(trace), text, output)  # type: ignore[arg-type]
    )
    return found.select(list(output.names))


def _vector(levels: Levels, request: SearchRequest, *, uri: str) -> VectorQuery | None:
    if request.vector is None:
        return None
    return read_vector(
        levels.schema,
        levels.indexes,
        request.vector,
        column=request.column,
        metric=request.metric,
        nprobes=request.nprobes,
        refine_factor=request.refine_factor,
        uri=uri,
    )


def _hybrid(
    prepared: Prepared,
    vector: VectorQuery,
    text: TextQuery,
    output: SearchOutput,
    rerank: Literal["rrf"] | Rerank,
    *,
    uri: str,
    trace: Trace,
) -> pa.Table:
    schema = prepared.levels.schema
    wanted = tuple(name for name in schema.names if name in output.columns or name in schema.primary_key)
    both = SearchOutput(k=output.k, columns=wanted, names=(), where=output.where)
    near = nearest_rows(prepared.levels, vector, both, memory=prepared.memory(trace), uri=uri, trace=trace)
    best = best_rows(prepared.text(trace), text, both)
    merge: Callable[[pa.Table, pa.Table], pa.Table] = _fuser(schema.primary_key) if rerank == "rrf" else rerank
    found = merge(near, best)
    if not isinstance(found, pa.Table) or (lacking := [one for one in output.names if one not in found.column_names]):
        problem = f"without {lacking[0]!r}" if isinstance(found, pa.Table) else f"of type {type(found).__name__}"
        raise Invalid(
            f"the reranker returned a result {problem}",
            remedy=f"Return a table with the columns {', '.join(output.names)}",
            table=uri,
            field="rerank",
        )
    return found.select(list(output.names)).slice(0, output.k)


def _fuser(primary_key: tuple[str, ...]) -> Rerank:
    """Return reciprocal-rank fusion as LanceDB does it: a row gets 1 / (60 + rank) for each result that has it."""

    def fuse(near: pa.Table, best: pa.Table) -> pa.Table:
        keys = key_column(
            pa.concat_tables([near.select(list(primary_key)), best.select(list(primary_key))]).combine_chunks(),
            primary_key,
        ).to_pylist()
        relevance: dict[Any, float] = {}
        of_near = {key: number for number, key in enumerate(keys[: near.num_rows])}
        of_best = {key: number for number, key in enumerate(keys[near.num_rows :])}
        for ranked in (of_near, of_best):
            for key, number in ranked.items():
                relevance[key] = relevance.get(key, 0.0) + 1 / (_RANK + number + 1)
        order = sorted(relevance, key=lambda key: -relevance[key])
        every = pa.concat_tables([near.drop_columns([DISTANCE]), best.drop_columns([SCORE])])
        rows = every.take(
            pa.array([of_near.get(key, near.num_rows + of_best.get(key, 0)) for key in order], pa.int64())
        )
        distances, found = near.column(DISTANCE).to_pylist(), best.column(SCORE).to_pylist()
        return (
            rows.append_column(RELEVANCE, pa.array([relevance[key] for key in order], pa.float32()))
            .append_column(
                DISTANCE, pa.array([distances[of_near[key]] if key in of_near else None for key in order], pa.float32())
            )
            .append_column(
                SCORE, pa.array([found[of_best[key]] if key in of_best else None for key in order], pa.float32())
            )
        )

    return fuse
