"""`Table.explain` does a read, and says what it read, what it left out, and what it cost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.errors import Invalid
from lancelsm.read.explain import Explanation
from lancelsm.table import Table
from tests.unit.tables import three_levels

VECTORS = pa.schema([("id", pa.int64()), ("text", pa.string()), ("vec", pa.list_(pa.float32(), 2))])


def levels(found: Explanation) -> Counter[str]:
    """Count the rows by level; the regions together."""
    rows: Counter[str] = Counter()
    for level in found.levels:
        name = "base" if level.region is None else "log" if level.generation is None else "generations"
        rows[name] += level.rows or 0
    return rows


def counts(found: Explanation) -> dict[str, int]:
    return {one.kind: one.count for one in found.requests if one.kind != "lance.read"}


def searchable(path: Path) -> Table:
    """100 rows in the base, 10 of them again in a generation and 5 in the log, with two indexes."""

    def rows(numbers: range) -> pa.Table:
        return pa.Table.from_pylist(
            [{"id": n, "text": f"word{n % 7}", "vec": [n, 1.0]} for n in numbers], schema=VECTORS
        )

    table = lancelsm.create(path, rows(range(100)), primary_key="id")
    table.create_index("vec", kind="IVF_FLAT", num_partitions=1)
    table.create_index("text", kind="INVERTED")
    table.upsert(rows(range(10)))
    table.flush()
    table.upsert(rows(range(5)))
    return table


def test_a_scan_names_its_levels_and_counts_its_requests(tmp_path: Path) -> None:
    table = lancelsm.open(three_levels(tmp_path / "table").uri)

    cold, warm = table.explain(), table.explain()

    opens = {"generation.open": 2}
    assert cold.rows == warm.rows == 3
    assert levels(cold) == levels(warm) == {"base": 4, "generations": 3, "log": 2}
    assert counts(cold) == {"registry.list": 1, "registry.read": 2, "objects.get": 4, "base.open": 1, **opens}
    assert counts(warm) == {"registry.list": 1, "registry.read": 2, "base.newest_version": 1, **opens}
    size = {one.kind: one.bytes for one in cold.requests}
    stored = Path(table.uri).glob("_mem_wal/*/wal/*.arrow")
    assert size["objects.get"] > sum(path.stat().st_size for path in stored) // 2
    assert size["lance.read"] > 0
    assert [step.name for step in cold.steps] == ["view", "keys above the base", "log", "generations", "base"]
    assert sum(step.seconds for step in cold.steps) > 0


def test_the_cost_is_that_of_the_read_itself(tmp_path: Path) -> None:
    """What `explain` reads to explain does not count, and it leaves what it read to later reads."""
    table = lancelsm.open(three_levels(tmp_path / "table").uri)
    table.scan().to_arrow()

    assert counts(table.explain(consistency="eventual", max_staleness=60)) == {"generation.open": 2}


def test_a_condition_names_the_regions_that_it_skips(tmp_path: Path) -> None:
    table = three_levels(tmp_path / "table")

    found = table.explain(where="id = 0")

    assert found.rows == 1
    assert len({level.region for level in found.levels} - {None}) == 1
    ((skipped),) = found.skipped_regions
    assert skipped.region not in {level.region for level in found.levels}
    assert skipped.why == "no key of the region meets the condition"
    assert f"skipped regions: 1\n  1: {skipped.why}" in str(found)


def test_a_get_names_the_levels_that_it_need_not_read(tmp_path: Path) -> None:
    table = three_levels(tmp_path / "table")

    found = table.explain([0])

    assert found.rows == 1
    assert [level.generation for level in found.levels] == [None]
    assert [one.why for one in found.skipped_regions] == ["none of the keys is in the region"]
    assert {one.level.split()[-2:][0] for one in found.skipped_levels} == {"generation", "base"}
    assert {one.why for one in found.skipped_levels} == {"newer levels have all keys"}


def test_a_limit_that_the_log_reaches_skips_the_generations(tmp_path: Path) -> None:
    found = three_levels(tmp_path / "table").explain(limit=1)

    assert found.rows == 1
    assert {one.why for one in found.skipped_levels} == {"the log has enough rows"}


def test_a_search_names_its_indexes_and_the_rows_without_one(tmp_path: Path) -> None:
    table = searchable(tmp_path / "table")

    by_vector, both = table.explain(vector=[1.0, 1.0], k=3), table.explain(vector=[1.0, 1.0], text="word1", k=3)

    assert by_vector.rows == both.rows == 3
    assert by_vector.indexes == ("vec_idx",)
    assert by_vector.rows_without_index == {"vec": 5}
    assert both.indexes == ("text_idx", "vec_idx")
    assert both.rows_without_index == {"vec": 5, "text": 5}
    table.drop_index("vec_idx")
    assert table.explain(vector=[1.0, 1.0], k=3).rows_without_index == {"vec": 115}


def test_a_scan_and_a_get_name_the_index_that_lance_uses(tmp_path: Path) -> None:
    table = searchable(tmp_path / "table")
    table.create_index("id", kind="BTREE", name="keys")

    assert table.explain(where="id = 50").indexes == ("keys",)
    assert table.explain([50]).indexes == ("keys",)
    assert table.explain(where="text = 'word1'").indexes == ()


def test_a_count_of_a_merged_table_reads_no_rows(tmp_path: Path) -> None:
    table = three_levels(tmp_path / "table")
    assert (table.count(), table.count(where="v > 1")) == (3, 1)
    assert table.explain(count=True).rows == 3
    table.flush()
    table.merge(engine="inprocess")

    found = table.explain(count=True)

    assert (table.count(), table.count(where="v > 1"), found.rows) == (3, 1, 3)
    assert {one.kind: one.bytes for one in found.requests}["lance.read"] == 0


def test_a_snapshot_is_explained(tmp_path: Path) -> None:
    table = three_levels(tmp_path / "table")
    table.snapshot("monday")
    table.upsert([{"id": 9, "v": 9}])

    found = table.at("monday").explain()

    assert found.rows == 3
    assert levels(found) == {"base": 4, "generations": 3, "log": 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": [1], "where": "id = 1"}, "get has no argument where .*Leave it out, or leave out keys"),
        ({"keys": [1], "vector": [1.0]}, "get has no argument vector"),
        ({"vector": [1.0], "limit": 3}, "search has no argument limit .*or leave out vector"),
        ({"count": True, "columns": ["id"]}, "count has no argument columns"),
    ],
)
def test_arguments_of_different_reads_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    table = lancelsm.create(tmp_path, [{"id": 1, "vec": [1.0]}], primary_key="id")

    with pytest.raises(Invalid, match=message):
        table.explain(**options)
