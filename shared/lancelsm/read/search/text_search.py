"""Rank rows by their words over all levels, with the statistics of the whole table.

Lance scores a word by BM25 with the statistics of one dataset: a word that is rare in a small generation would count
more there than in the base. So each level returns its candidates, and their scores are computed again: for each word
the number of rows that have it is counted over all levels, and the part of the score that depends on it is replaced.
Rows of the log, and rows that no
index covers yet, are indexed in memory, once per view.

This is done for plain words. The scores of a query object of Lance (phrases, boolean, fuzzy and boosted queries) are
those of each level.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.dataset.search_reads import (
    ROW_ID,
    SCORE,
    Searched,
    blocklist,
    fragments_without_text_index,
    match_query,
    matching_text,
    rows_in_memory,
    rows_of_fragments,
    scores_of,
)
from lancelsm.read.search.levels import Levels
from lancelsm.read.search.queries import SearchOutput, TextQuery
from lancelsm.read.search.vector_search import in_threads
from lancelsm.record.casts import as_schema

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLevel:
    """A dataset with text indexes over its rows, and the list of the rows that it must not return."""

    searched: Searched
    rows: int
    hidden: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLevels:
    """The rows of a view for text queries: indexed rows by level, and all other rows indexed in memory."""

    levels: tuple[TextLevel, ...]

    @classmethod
    def of(cls, levels: Levels) -> TextLevels:
        """Index the rows of the log, and those of fragments that no text index covers yet.

        Raises:
            Corrupt, Unavailable: a level can't be read, or its rows can't be indexed.
        """
        options = {
            one.columns[0]: dict(wanted.options)
            for one in levels.indexes
            if one.kind == "INVERTED" and (wanted := one.in_generations) is not None
        }
        found, others = [], [_plain(levels.tail)]
        for level in levels.stored:
            without = fragments_without_text_index(level.searched, options)
            rows = rows_of_fragments(level.searched, without, hidden=level.hidden) if without else None
            if rows is not None:
                others.append(rows)
            left = level.rows - (0 if rows is None else rows.num_rows)
            if left > 0 and len(without) < level.searched.fragments:
                hidden = blocklist(level.stale, whole=without)
                found.append(TextLevel(searched=level.searched, rows=left, hidden=hidden))
        memory = pa.concat_tables([_plain(one) for one in others])
        if memory.num_rows or not found:
            searched = rows_in_memory(memory, levels.schema, text_indexes=options)
            found.append(TextLevel(searched=searched, rows=memory.num_rows, hidden=None))
        return cls(levels=tuple(found))


def _plain(rows: pa.Table) -> pa.Table:
    return as_schema(rows, pa.schema([pa.field(field.name, field.type) for field in rows.schema]))


@dataclass(slots=True)
class _Counts:
    """Of one word in one column: the number of rows that have it, over all levels and by level, and their scores."""

    total: int = 0
    by_level: list[dict[int, float]] = field(default_factory=list)


def best_rows(text: TextLevels, query: TextQuery, output: SearchOutput) -> pa.Table:
    """Return the `k` best rows, best first, with `_score`.

    Raises:
        Invalid: the condition fails on a row, or Lance refuses the query.
        Corrupt, Unavailable: a level can't be read.
    """
    plain = isinstance(query.query, str)
    asked: Any = match_query(query.query, query.columns) if plain else query.query
    limit = 3 * output.k + 20 if plain else output.k
    reads: list[Callable[[], pa.Table]] = [
        lambda level=level: matching_text(  # type: ignore[misc]
            level.searched, asked, limit=limit, columns=output.columns, where=output.where, hidden=level.hidden
        )
        for level in text.levels
    ]
    hits = in_threads(reads)
    if plain and len(text.levels) > 1:
        hits = _scored_again(text, query, hits)
    found = pa.concat_tables(hits).drop_columns([ROW_ID])
    return found.take(pc.sort_indices(found, [(SCORE, "descending")])[: output.k])


def _scored_again(text: TextLevels, query: TextQuery, hits: list[pa.Table]) -> list[pa.Table]:
    words = list(dict.fromkeys(_WORD.findall(query.query.lower())))
    rows = [level.rows for level in text.levels]
    ids = [one.column(ROW_ID).to_pylist() for one in hits]
    scores: list[dict[int, float]] = [dict.fromkeys(found, 0.0) for found in ids]
    for column in query.columns:
        for word in words:
            counts = _count(text, word, column)
            for number, found in enumerate(counts.by_level):
                ratio = _idf(sum(rows), counts.total) / _idf(rows[number], len(found))
                for row in ids[number]:
                    scores[number][row] += found.get(row, 0.0) * ratio
    return [
        one.set_column(
            one.schema.get_field_index(SCORE),
            SCORE,
            pa.array([scores[number][row] for row in ids[number]], pa.float32()),
        )
        for number, one in enumerate(hits)
    ]


def _count(text: TextLevels, word: str, column: str) -> _Counts:
    counts = _Counts()
    for level in text.levels:
        found = _scores(level.searched, word, column)
        counts.by_level.append(dict(found))
        counts.total += len(found)
    return counts


def _scores(searched: Searched, word: str, column: str) -> Mapping[int, float]:
    return scores_of(searched, match_query(word, (column,)))


def _idf(rows: int, having: int) -> float:
    """Return the weight of a word as Lance computes it."""
    return math.log(1 + (max(rows, having) - having + 0.5) / (having + 0.5))
