"""How rows of a base are looked up by key: by an index, or for many keys by a scan of the key columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common.bounded_cache import NOTHING_KEPT, BoundedCache
from lancelsm.common.read_trace import Trace
from lancelsm.dataset.base_manifest import Fragment
from lancelsm.dataset.base_reads import rows_of_keys
from lancelsm.dataset.base_table import BaseTable, open_base

ROWS = 20_000
SPREAD = [n * 97 % ROWS for n in range(300)]
MISSING = [-1, ROWS + 1]


class _Plans(Trace):
    def __init__(self) -> None:
        self.plan = ""

    def planned(self, explain: Callable[[], str]) -> None:
        self.plan = explain()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseTable:
    uri = str(tmp_path_factory.mktemp("t") / "t")
    columns = {"id": range(ROWS), "name": [str(n) for n in range(ROWS)], "v": range(ROWS), "note": ["x"] * ROWS}
    table = lancelsm.create(uri, pa.table(columns), primary_key="id")
    table.create_index("id", kind="BTREE")
    lance.dataset(uri).delete(f"id = {SPREAD[7]}")
    return open_base(uri=uri)


def _uses_index(base: BaseTable, ids: list[int], kept: BoundedCache) -> bool:
    """Look keys up, and return whether the index was used."""
    trace = _Plans()
    wanted = pa.table({"id": pa.array(ids, pa.int64())})
    found = rows_of_keys(base, wanted, columns=["id", "name"], kept=kept, trace=trace)
    expected = {n for n in ids if 0 <= n < ROWS} - {SPREAD[7]}
    assert {row["id"]: row["name"] for row in found.to_pylist()} == {n: str(n) for n in expected}
    return "ScalarIndexQuery" in trace.plan


def test_only_the_first_lookup_of_many_keys_is_a_scan(base: BaseTable) -> None:
    kept = BoundedCache(1 << 20)

    assert [_uses_index(base, [*SPREAD, *MISSING], kept) for _ in range(3)] == [False, True, True]


@pytest.mark.parametrize(
    ("ids", "kept"),
    [
        (SPREAD[:200], BoundedCache(1 << 20)),
        (list(range(300)), BoundedCache(1 << 20)),
        (SPREAD, NOTHING_KEPT),
    ],
    ids=["few keys", "neighbours", "nothing is remembered"],
)
def test_keys_on_few_pages_and_repeated_lookups_use_the_index(
    base: BaseTable, ids: list[int], kept: BoundedCache
) -> None:
    assert _uses_index(base, ids, kept)


@pytest.mark.parametrize(("fragments", "rows"), [(1, 300 * 4096 + 1), (301, 60)], ids=["many rows", "many fragments"])
def test_few_keys_for_the_size_of_the_base_use_the_index(base: BaseTable, fragments: int, rows: int) -> None:
    larger = tuple(Fragment(id=0, physical_rows=rows, deleted_rows=0) for _ in range(fragments))

    assert _uses_index(replace(base, fragments=larger), SPREAD, BoundedCache(1 << 20))


@pytest.mark.parametrize(("version", "first"), [(None, "[id]"), (1, "[id, v]")], ids=["index", "no index"])
def test_a_scan_in_place_of_an_index_reads_other_columns_of_found_rows_alone(
    base: BaseTable, version: int | None, first: str
) -> None:
    trace, one = _Plans(), open_base(uri=base.uri, version=version)

    rows_of_keys(one, pa.table({"id": SPREAD}), columns=["id", "v"], kept=BoundedCache(1 << 20), trace=trace)

    assert f"projection={first}" in trace.plan
