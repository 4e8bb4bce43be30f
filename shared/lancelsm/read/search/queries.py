"""Check the arguments of a search against the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancelsm.common.error_text import did_you_mean, shown
from lancelsm.dataset.conditions import Condition, read_condition
from lancelsm.dataset.indexes import BaseIndex, vectors_remedy
from lancelsm.dataset.search_reads import DISTANCE, SCORE, is_text_query
from lancelsm.errors import Invalid
from lancelsm.record.schema import TableSchema, unknown_column

RELEVANCE = "_relevance_score"
METRICS = ("l2", "cosine", "dot", "hamming")
_NPROBES = 20
_SURROGATE = re.compile("[\ud800-\udfff]")
_REFINED = {"IVF_FLAT": 1, "IVF_HNSW_FLAT": 1, "IVF_SQ": 5, "IVF_HNSW_SQ": 5}  # of another kind: 10
_ROUGH = 10

Vectors = npt.NDArray[Any]
Rerank = Callable[[pa.Table, pa.Table], pa.Table]


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorQuery:
    """Nearest rows of one column. `vectors` has one row per query; several of a multi-vector query belong together."""

    column: str
    vectors: tuple[Vectors, ...]
    metric: str
    nprobes: int
    refine_factor: int | None
    of_base: str  # the kind of the index of the base; empty without one
    many: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TextQuery:
    """Words, or a query object of Lance, on columns that have a text index."""

    query: Any
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutput:
    """Which rows and columns to return. `columns` are those of the table, `scores` those of the search, in `names`."""

    k: int
    columns: tuple[str, ...]
    names: tuple[str, ...]
    where: Condition | None


def read_output(
    schema: TableSchema, *, k: int, columns: Sequence[str] | None, where: str | None, scores: Sequence[str], uri: str
) -> SearchOutput:
    """Check `k`, `columns` and `where`. Raises `Invalid`."""
    if isinstance(columns, str):
        raise Invalid(f"columns is the text {columns!r}", remedy=f"Give a list: [{columns!r}]", table=uri)
    names = [*schema.names, *scores] if columns is None else list(columns)
    known = {*schema.names, *scores}
    for name in names:
        if name not in known:
            raise unknown_column(name, [*schema.names, *scores], table=uri)
    taken = [name for name in scores if name in schema.names and (name in names or name in schema.primary_key)]
    if taken:
        raise Invalid(
            f"the table has a column {taken[0]!r}, and a search adds a column of this name",
            remedy="Search without it: name the other columns in `columns`"
            if taken[0] not in schema.primary_key
            else "Search by another kind of query, or copy the rows to a table with another name of this column",
            table=uri,
            field="columns",
        )
    if len(set(names)) != len(names) or not names:
        raise Invalid(
            "the list of columns is empty or names a column twice",
            remedy="Name each column once, or leave columns out to return all",
            table=uri,
            field="columns",
        )
    condition = None if where is None else read_condition(where, columns=schema.columns, table=uri)
    read = tuple(name for name in schema.names if name in names) or schema.primary_key[:1]  # keeps the number of rows
    return SearchOutput(k=k, columns=read, names=tuple(names), where=condition)


def read_vector(
    schema: TableSchema,
    indexes: Sequence[BaseIndex],
    value: Any,
    *,
    column: str | None,
    metric: str | None,
    nprobes: int | None,
    refine_factor: int | None,
    uri: str,
) -> VectorQuery:
    """Check a vector query.

    Raises:
        Invalid: no column or several columns fit, the dimensions or the metric don't fit, or a value is not finite.
    """
    name = _vector_column(schema, indexes, column, uri)
    kind = schema.columns.field(name).type
    width, item, multi = _vector_type(kind)
    vectors, many = _vectors(value, width, item, multi=multi, column=name, uri=uri)
    index = next((one for one in indexes if one.columns == (name,) and one.metric), None)
    default = "hamming" if pa.types.is_uint8(item) else ("cosine" if multi else "l2")
    chosen = metric.lower() if metric is not None else (index.metric if index else default)
    if chosen not in METRICS:
        raise Invalid(
            f"unknown metric {metric!r}", remedy=f"Use one of {', '.join(METRICS)}", table=uri, field="metric"
        )
    if index is not None and index.metric != chosen:
        raise Invalid(
            f"the index {index.name!r} has the metric {index.metric}, not {chosen}",
            remedy="Leave the metric out, or create the index with this metric",
            table=uri,
            field="metric",
        )
    return VectorQuery(
        column=name,
        vectors=vectors,
        metric=str(chosen),
        nprobes=nprobes or _NPROBES,
        refine_factor=refine_factor,
        of_base=index.kind if index else "",
        many=many,
    )


def refine(query: VectorQuery, kind: str) -> int | None:
    """Return by which factor to refine the hits of an index of this kind, so that distances of levels compare."""
    if query.refine_factor is not None:
        return query.refine_factor
    return _REFINED.get(kind, _ROUGH) if kind else None


def read_text(indexes: Sequence[BaseIndex], query: Any, *, text_columns: Sequence[str] | None, uri: str) -> TextQuery:
    """Check a text query.

    Raises:
        Invalid: a column has no text index, or there is none at all, or the query is empty or has another type.
    """
    if not is_text_query(query):
        remedy = "Give text, or a query object of lance.query"
        raise Invalid(
            f"the text of a search is {shown(query)}, which is not text", remedy=remedy, table=uri, field="text"
        )
    indexed = [one.columns[0] for one in indexes if one.kind == "INVERTED" and len(one.columns) == 1]
    if isinstance(text_columns, str):
        raise Invalid(
            f"text_columns is the text {text_columns!r}", remedy=f"Give a list: [{text_columns!r}]", table=uri
        )
    if text_columns is not None and not isinstance(query, str):
        remedy = "Leave out text_columns, or name the columns in the query object"
        raise Invalid("a query object names its own columns", remedy=remedy, table=uri, field="text_columns")
    if text_columns is not None and not len(text_columns):
        remedy = "Name a column with a text index, or leave out text_columns"
        raise Invalid("text_columns is an empty list", remedy=remedy, table=uri, field="text_columns")
    wanted = list(text_columns) if text_columns is not None else indexed
    missing = [name for name in wanted if name not in indexed]
    if missing or not wanted:
        raise Invalid(
            f"the column {missing[0]!r} has no text index" if missing else "the table has no text index",
            remedy='Create one: table.create_index(column, kind="INVERTED")',
            table=uri,
            field="text_columns",
        )
    if isinstance(query, str) and not query.strip():
        raise Invalid("the text is empty", remedy="Give one word or several", table=uri, field="text")
    if isinstance(query, str) and _SURROGATE.search(query):
        raise Invalid("the text has half of a character", remedy="Give valid Unicode", table=uri, field="text")
    return TextQuery(query=query, columns=tuple(wanted))


def scores(*, vector: bool, text: bool, many: bool) -> tuple[str, ...]:
    """Return the columns that a search adds."""
    if vector and text:
        return (RELEVANCE, DISTANCE, SCORE)
    return ((*([QUERY] if many else []), DISTANCE)) if vector else (SCORE,)


QUERY = "query_index"


def _vector_column(schema: TableSchema, indexes: Sequence[BaseIndex], column: str | None, uri: str) -> str:
    fitting = [field.name for field in schema.columns if _vector_type(field.type)[0]]
    if column is not None:
        if column not in schema.names:
            remedy = did_you_mean(column, schema.names, what="Its columns are")
            raise Invalid(f"the table has no column {column!r}", remedy=remedy, table=uri, field="column")
        if column not in fitting:
            remedy = vectors_remedy(schema, column) or (
                f"Name a column of vectors: {', '.join(fitting)}" if fitting else "The table has no column of vectors"
            )
            raise Invalid(f"the column {column!r} has no vectors", remedy=remedy, table=uri, field="column")
        return column
    indexed = [name for name in fitting if any(one.columns == (name,) and one.metric for one in indexes)]
    found = indexed or fitting
    if len(found) != 1:
        raise Invalid(
            f"{len(found)} columns have vectors: {', '.join(found)}" if found else "the table has no column of vectors",
            remedy="Name the column"
            if found
            else vectors_remedy(schema, *schema.names) or "Give text, or another table",
            table=uri,
            field="column",
        )
    return str(found[0])


def _vector_type(kind: pa.DataType) -> tuple[int, pa.DataType, bool]:
    """Return length and item type of the vectors in a column, and whether it has several per row; 0 if it has none."""
    multi = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    inner = kind.value_type if multi else kind
    if not pa.types.is_fixed_size_list(inner):
        return 0, pa.null(), False
    item = inner.value_type
    fits = pa.types.is_floating(item) or pa.types.is_uint8(item)
    return (inner.list_size if fits else 0), item, multi


def _vectors(
    value: Any, width: int, item: pa.DataType, *, multi: bool, column: str, uri: str
) -> tuple[tuple[Vectors, ...], bool]:
    """Return the query vectors, and whether the caller asked several queries."""
    problem = f"the query is not a vector of {width} numbers of type {item}, as the column {column!r} has"
    try:
        if isinstance(value, pa.Array | pa.ChunkedArray):
            value = value.to_pylist()
        if np.iscomplexobj(value):
            raise ValueError("a number has an imaginary part")
        given = np.asarray(value, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            array = np.asarray(value, dtype=item.to_pandas_dtype())
            if pa.types.is_uint8(item) and not np.array_equal(array, given):
                raise ValueError("a number is not a byte")
        finite = np.isfinite(given).all() and np.isfinite(array).all()
    except (TypeError, ValueError, OverflowError) as cause:
        raise Invalid(
            problem, remedy=f"Give {width} numbers, or a list of such vectors", table=uri, field="vector"
        ) from cause
    if array.ndim not in ((1, 2, 3) if multi else (1, 2)) or array.shape[-1] != width or 0 in array.shape:
        raise Invalid(
            f"{problem}; its shape is {array.shape}",
            remedy=f"Give {width} numbers, or a list of such vectors",
            table=uri,
            field="vector",
        )
    if not finite:
        raise Invalid(
            f"a number of the query is not finite as {item}", remedy="Give finite numbers", table=uri, field="vector"
        )
    if multi:
        several = array.ndim == 3
        return (tuple(array) if several else (array.reshape(-1, width),)), several
    return (tuple(array) if array.ndim > 1 else (array,)), array.ndim > 1
