"""Query objects of Lance: each one has a result or is `Invalid`, whatever it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lance.query import (
    BooleanQuery,
    BoostQuery,
    CombinedFieldsQuery,
    DocumentGranularity,
    FullTextOperator,
    MatchQuery,
    MultiMatchQuery,
    Occur,
    PhraseQuery,
)

import lancelsm
from lancelsm.dataset import search_reads
from lancelsm.errors import Invalid
from lancelsm.table import Table
from tests.unit.index_tables import create, generations, rows

MATCH = MatchQuery("merge", "text")
PHRASE = PhraseQuery("merge tree", "text")  # the index on `text` has no positions
POSITIONS = "lacks.*with_position=True"


def all_of(*queries: Any) -> BooleanQuery:
    return BooleanQuery([(Occur.MUST, one) for one in queries])


REFUSED: list[tuple[Any, str]] = [
    (PHRASE, POSITIONS),
    (all_of(PHRASE), POSITIONS),
    (BooleanQuery([(Occur.MUST, MATCH), (Occur.MUST_NOT, PHRASE)]), POSITIONS),
    (BoostQuery(MATCH, PHRASE), POSITIONS),
    (MatchQuery("merge", "txt"), "'txt' of the query has no text index.*Did you mean 'text'"),
    (MatchQuery("merge", "plain"), "'plain' of the query has no text index"),
    (MatchQuery("merge", "id"), "'id' of the query has no text index"),
    (MatchQuery("merge", ""), "empty"),
    (MatchQuery("merge", "text.part"), "text"),
    (PhraseQuery("not indexed", "plain"), "'plain' of the query has no text index"),
    (MultiMatchQuery("merge", ["text", "plain"]), "'plain' of the query has no text index"),
    (CombinedFieldsQuery("merge", ["text", "plain"]), "'plain' of the query has no text index"),
    (all_of(all_of(MATCH, MatchQuery("merge", "plain"))), "'plain' of the query has no text index"),
    (MultiMatchQuery("merge", ["text", "title"], boosts=[1.0, -2.0]), "boost"),
    (MatchQuery("merg", "text", fuzziness=255), "fuzzy"),
    (MatchQuery("x" * 1000, "text", fuzziness=2), "fuzzy"),
    (MatchQuery("merge", "text", boost=float("nan")), "boost"),
    (MatchQuery("merge", "text", boost=-1.0), "boost"),
    (BoostQuery(MATCH, MATCH, negative_boost=float("inf")), "boost"),
    (MatchQuery("merge", "text", document_granularity=DocumentGranularity.LIST_ELEMENT), "granularity"),
    (BooleanQuery([]), "at least one"),
    (all_of(BooleanQuery([])), "at least one"),
    (BooleanQuery([(Occur.MUST_NOT, MATCH)]), "at least one"),
    (MatchQuery.__new__(MatchQuery), "_inner"),
]
FOUND: list[tuple[Any, int]] = [
    (MATCH, 6),
    (PhraseQuery("log structured", "title"), 6),
    (PhraseQuery("log structured", "title", slop=2**32 - 1), 0),
    (MatchQuery("", "text"), 0),
    (MatchQuery("\0", "text"), 0),
    (PhraseQuery("", "title"), 0),
    (MatchQuery("merge", "text", fuzziness=None), 6),
    (MatchQuery("merg", "text", fuzziness=1, max_expansions=0), 0),
    (MatchQuery("merg", "text", fuzziness=1, prefix_length=2**32 - 1, max_expansions=2**60), 6),
    (MatchQuery("merge", "text", boost=0.0), 6),
    (MatchQuery("merge 3", "text", operator=FullTextOperator.AND), 1),
    (MultiMatchQuery("merge log", ["text", "title"], boosts=[0.0, 2.0]), 6),
    (CombinedFieldsQuery("merge log", ["text", "title"]), 6),
    (all_of(MATCH, MatchQuery("log", "title")), 6),
    (BooleanQuery([(Occur.SHOULD, MATCH), (Occur.MUST_NOT, MatchQuery("3", "text"))]), 5),
    (all_of(all_of(all_of(MATCH)), BoostQuery(BoostQuery(MATCH, MATCH), MATCH)), 6),
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A table with two rows in each of the base, a generation and the log."""

    def rows(*ids: int) -> list[dict[str, Any]]:
        return [{"id": n, "text": f"merge tree {n}", "title": f"log structured {n}", "plain": "text"} for n in ids]

    table = lancelsm.create(tmp_path_factory.mktemp("text") / "table", rows(1, 2), primary_key="id")
    table.create_index("text", kind="INVERTED", stem=False)
    table.create_index("title", kind="INVERTED", with_position=True, stem=False)
    table.upsert(rows(3, 4))
    table.flush()
    table.upsert(rows(5, 6))
    return table


@pytest.mark.parametrize(("query", "problem"), REFUSED, ids=[str(number) for number, _ in enumerate(REFUSED)])
def test_a_query_object_that_can_not_be_run_is_invalid(table: Table, query: Any, problem: str) -> None:
    with pytest.raises(Invalid, match=problem) as raised:
        table.search(text=query)

    assert raised.value.where["field"] == "text"


@pytest.mark.parametrize(("query", "count"), FOUND, ids=[str(number) for number, _ in enumerate(FOUND)])
def test_a_query_object_finds_rows_of_every_level(table: Table, query: Any, count: int) -> None:
    assert table.search(text=query).to_arrow().num_rows == count


def test_a_text_index_with_other_options_does_not_serve_a_search(tmp_path: Path) -> None:
    table = lancelsm.create(tmp_path / "table", [{"id": 1, "text": "merge tree"}], primary_key="id")
    table.create_index("text", kind="INVERTED")
    searched = search_reads.searched_base(table._handle.read_base())

    assert search_reads.fragments_without_text_index(searched, {"text": {"with_position": False}}) == []
    assert search_reads.fragments_without_text_index(searched, {"text": {"with_position": True}}) == [0]


def test_what_a_search_keeps_has_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[Any, Any] = {}
    monkeypatch.setattr(search_reads, "_LENGTHS", kept)
    table = lancelsm.create(
        tmp_path / "table", [{"id": 1, "text": "merge tree"}], primary_key="id", storage_options={"secret": "x-secret"}
    )
    table.create_index("text", kind="INVERTED")

    table.search("merge").to_arrow()
    first = list(kept.values())
    table.search("tree").to_arrow()

    assert first
    assert all(one is other for one, other in zip(kept.values(), first, strict=True)), "read again"
    assert "x-secret" not in repr(kept)


def test_each_row_of_a_generation_counts_once_in_the_statistics_of_its_words(tmp_path: Path) -> None:
    """Lance leaves the parts of an index that it joined beside the index."""
    table = create(tmp_path)
    table.create_index("text", kind="INVERTED")
    table.upsert(rows(range(10)))
    table.flush()
    ((uri, generation),) = generations(table)
    assert generation.indexes is not None

    searched = search_reads.searched_generation(
        uri=uri, version=generation.indexes.version, schema=table.config.schema, storage_options=None
    )

    assert search_reads.text_lengths(searched, "text").ids.tolist() == list(range(10))


def test_words_of_code_are_split_alike_at_every_level(tmp_path: Path) -> None:
    def rows(*ids: int) -> list[dict[str, Any]]:
        return [{"id": number, "text": f"openReader{number} = parse"} for number in ids]

    table = lancelsm.create(tmp_path / "table", rows(1), primary_key="id")
    table.create_index("text", kind="INVERTED", analyzer="code", split_identifiers=True, split_on_numerics=True)
    table.upsert(rows(2))
    table.flush()
    table.upsert(rows(3))

    found = table.search("reader", columns=["id"]).to_arrow()

    assert sorted(found["id"].to_pylist()) == [1, 2, 3]
