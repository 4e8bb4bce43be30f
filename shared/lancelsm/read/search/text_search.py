"""Rank rows by their words over all levels, with the statistics of the whole table.

Lance scores a word by BM25 with the statistics of one dataset: a word that is rare in a small generation would count
more there than in the base. So each level returns its candidates, and their scores are computed again: for each word
the number of rows that have it is counted over all levels, and the part of the score that depends on it is replaced.
Rows of the log, and rows that no index covers yet, are indexed in a temporary directory, once per view.

This is done for plain words. The scores of a query object of Lance (phrases, boolean, fuzzy and boosted queries) are
those of each level.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.bounded_cache import BoundedCache
from lancelsm.common.read_trace import NO_TRACE, Trace
from lancelsm.dataset.search_reads import (
    ROW_ID,
    SCORE,
    RowIds,
    Searched,
    TextLengths,
    blocklist,
    fragments_without_text_index,
    indexed_rows,
    match_query,
    matching_text,
    rows_of_fragments,
    scores_of,
    text_lengths,
)
from lancelsm.read.search.levels import Levels, StoredLevel
from lancelsm.read.search.queries import SearchOutput, TextQuery
from lancelsm.read.search.vector_search import in_threads
from lancelsm.record.casts import as_schema

_WORD = re.compile(r"\w+")
_K1, _B = 1.2, 0.75  # of BM25, as in Lance
_MOST_KEPT = 1 << 20  # bytes of the rows with one word; those of a more frequent word are looked up for each query


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedTexts:
    """The lengths of the texts in one index, stale and deleted rows included, and the sums over live rows."""

    lengths: TextLengths
    live: int
    live_words: int

    @classmethod
    def of(cls, lengths: TextLengths, stale: RowIds, deleted: int) -> IndexedTexts:
        """Leave out stale rows. Of the deleted ones only the number is known, so they count as texts of mean length."""
        words = lengths.words[~np.isin(lengths.ids, stale)]
        live = max(len(words) - deleted, 0)
        return cls(lengths=lengths, live=live, live_words=int(words.sum() * live / max(len(words), 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLevel:
    """A dataset with text indexes over its rows, and the rows that it must not return.

    `texts` describes the index of each column; `stale` has the ids of rows that the index may still contain.
    """

    searched: Searched
    hidden: bytes | None
    texts: Mapping[str, IndexedTexts]
    stale: RowIds


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLevels:
    """The rows of a view for text queries: indexed rows by level, and all others indexed in a temporary directory."""

    levels: tuple[TextLevel, ...]
    kept: BoundedCache

    @classmethod
    def of(cls, levels: Levels, *, kept: BoundedCache, trace: Trace = NO_TRACE) -> TextLevels:
        """Index the rows of the log, and those of fragments that no text index covers yet.

        Args:
            kept: keeps the rows of each level that have a word, for the next query with this word.

        Raises:
            Corrupt, Unavailable: a level can't be read, or its rows can't be indexed.
        """
        options = text_options(levels)
        found, others = [], [_plain(levels.tail)]
        for level in levels.stored:
            without = fragments_without_text_index(level.searched, options)
            rows = rows_of_fragments(level.searched, without, hidden=level.hidden) if without else None
            if rows is not None:
                others.append(rows)
            if level.rows and len(without) < level.searched.fragments:
                found.append(_indexed(level, without, options, trace))
        memory = pa.concat_tables([_plain(one) for one in others])
        if memory.num_rows or not found:
            searched = indexed_rows(memory, levels.schema, text_indexes=options)
            found.append(_text_level(searched, options, hidden=None, stale=np.empty(0, np.uint64), deleted=0))
        return cls(levels=tuple(found), kept=kept)

    def rows_with(self, columns: Iterable[str], words: Collection[str]) -> list[WordRows]:
        """Return the rows that have a word, stale ones included: for each column, then each word, then each level.

        Raises: see `search_reads.nearest`.
        """
        wanted = [(level, column, word) for column in columns for word in words for level in self.levels]
        keys = [
            ("rows with a word", level.searched.uri, level.searched.version, column, word)
            for level, column, word in wanted
        ]
        found: list[WordRows | None] = [self.kept.get(key) for key in keys]
        missing = [number for number, one in enumerate(found) if one is None]
        for number, one in zip(missing, in_threads([partial(_read_rows, *wanted[at]) for at in missing]), strict=True):
            found[number] = one
            if one.nbytes <= _MOST_KEPT:
                self.kept.put(keys[number], one, size=one.nbytes)
        return [one for one in found if one is not None]


def _read_rows(level: TextLevel, column: str, word: str) -> WordRows:
    return WordRows.of(*scores_of(level.searched, match_query(word, (column,))), level.texts[column].lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class WordRows:
    """The rows of one index that have a word, in the order of their ids, with what the word adds to their scores.

    `weight` is the weight of the word in this index, by which each score was multiplied.
    """

    ids: RowIds
    scores: npt.NDArray[np.float32]
    weight: float

    @classmethod
    def of(cls, ids: RowIds, scores: npt.NDArray[np.float32], lengths: TextLengths) -> WordRows:
        order = np.argsort(ids)
        return cls(ids=ids[order], scores=scores[order], weight=_own_idf(ids, scores, lengths))

    @property
    def nbytes(self) -> int:
        return int(self.ids.nbytes + self.scores.nbytes)

    def counted(self, wanted: RowIds) -> Any:
        """Return the score of each wanted row without the weight; 0 for a row that does not have the word."""
        if not len(self.ids):
            return np.zeros(len(wanted))
        at = np.minimum(np.searchsorted(self.ids, wanted), len(self.ids) - 1)
        return np.where(self.ids[at] == wanted, self.scores[at], 0.0) / self.weight

    def live(self, stale: RowIds) -> int:
        """Return how many of the rows are not among the stale ones."""
        if not len(self.ids) or not len(stale):
            return len(self.ids)
        at = np.minimum(np.searchsorted(self.ids, stale), len(self.ids) - 1)
        return len(self.ids) - int(np.count_nonzero(self.ids[at] == stale))


def text_options(levels: Levels) -> dict[str, dict[str, Any]]:
    """Return the options of Lance for the text index of each column."""
    return {
        one.columns[0]: dict(wanted.options)
        for one in levels.indexes
        if one.kind == "INVERTED" and (wanted := one.in_generations) is not None
    }


def _indexed(level: StoredLevel, without: Collection[int], columns: Iterable[str], trace: Trace) -> TextLevel:
    hidden = blocklist(level.stale, whole=without)
    return _text_level(level.searched, columns, hidden=hidden, stale=level.stale, deleted=level.deleted, trace=trace)


def _text_level(
    searched: Searched,
    columns: Iterable[str],
    *,
    hidden: bytes | None,
    stale: RowIds,
    deleted: int,
    trace: Trace = NO_TRACE,
) -> TextLevel:
    texts = {column: IndexedTexts.of(text_lengths(searched, column, trace=trace), stale, deleted) for column in columns}
    return TextLevel(searched=searched, hidden=hidden, texts=texts, stale=stale)


def _plain(rows: pa.Table) -> pa.Table:
    return as_schema(rows, pa.schema([pa.field(field.name, field.type) for field in rows.schema]))


def best_rows(text: TextLevels, query: TextQuery, output: SearchOutput) -> pa.Table:
    """Return the `k` best rows, best first, with `_score`.

    Raises:
        Invalid: the condition fails on a row, or Lance refuses the query.
        Corrupt, Unavailable: a level can't be read.
    """
    plain = isinstance(query.query, str)
    asked: Any = match_query(query.query, query.columns) if plain else query.query
    is_ranked_again = plain and len(text.levels) > 1
    limit = 3 * output.k + 20 if is_ranked_again else output.k
    reads: list[Callable[[], pa.Table]] = [
        lambda level=level: matching_text(  # type: ignore[misc]
            level.searched, asked, limit=limit, columns=output.columns, where=output.where, hidden=level.hidden
        )
        for level in text.levels
    ]
    hits = in_threads(reads)
    if is_ranked_again:
        hits = _scored_again(text, query, hits)
    found = pa.concat_tables(hits).drop_columns([ROW_ID])
    return found.take(pc.sort_indices(found, [(SCORE, "descending")])[: output.k])


def _scored_again(text: TextLevels, query: TextQuery, hits: list[pa.Table]) -> list[pa.Table]:
    """Replace the weight of each word in the scores of each level by its weight over the live rows of all levels."""
    ids = [one.column(ROW_ID).to_numpy() for one in hits]
    scores = [np.zeros(len(found)) for found in ids]
    words_asked = Counter(_WORD.findall(query.query.lower()))
    rows_of_words = iter(text.rows_with(query.columns, words_asked))
    for column in query.columns:
        known = [level.texts[column] for level in text.levels]
        texts = sum(one.live for one in known)
        mean = sum(one.live_words for one in known) / max(texts, 1)
        for times in words_asked.values():
            having = list(islice(rows_of_words, len(text.levels)))
            live = sum(found.live(level.stale) for level, found in zip(text.levels, having, strict=True))
            weight = _idf(texts, live)
            for number, found in enumerate(having):
                one = known[number].lengths
                counted, words = found.counted(ids[number]), one.of(ids[number])
                scores[number] += times * weight * _with_mean(counted, words, own=one.mean, mean=mean)
    return [
        one.set_column(one.schema.get_field_index(SCORE), SCORE, pa.array(scores[number].astype(np.float32)))
        for number, one in enumerate(hits)
    ]


def _with_mean(counted: Any, words: Any, *, own: float, mean: float) -> Any:
    """Convert the part of a score that counts a word in a text, from one mean length of texts to another.

    For a word that is there `n` times it is `n * (K1 + 1) / (n + K1 * norm)`, with `norm = 1 - B + B * words / mean`.
    """
    norm, wanted = (1 - _B + _B * words / max(one, 1.0) for one in (own, mean))
    times = counted * _K1 * norm / np.maximum(_K1 + 1 - counted, 1e-6)
    return np.where(counted > 0, times * (_K1 + 1) / np.maximum(times + _K1 * wanted, 1e-6), 0.0)


def _own_idf(ids: RowIds, scores: Any, lengths: TextLengths) -> float:
    """Return the weight that a level gave to a word. It counts deleted rows, whose number with this word is not known.

    A text that has the word once shows the weight; one that has it more often would show a higher one.
    """
    if not len(ids):
        return 1.0
    once = scores * (1 + _K1 * (1 - _B + _B * lengths.of(ids) / max(lengths.mean, 1.0))) / (_K1 + 1)
    return min(float(once.min()), _idf(len(lengths.ids), len(ids)))


def _idf(rows: int, having: int) -> float:
    """Return the weight of a word as Lance computes it."""
    return math.log(1 + (max(rows, having) - having + 0.5) / (having + 0.5))
