"""Compare the merge of lancelsm with Lance's own upserts, generations and markers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance.mem_wal import CompactedSsTable, LsmScanner

from lancelsm.common.layout import Generation, RegionId, generation_path
from lancelsm.compaction.plan import RegionPending
from tests.interop import lance_oracle as oracle
from tests.simulation.faults import FakeClock
from tests.unit.merge_environment import A, B, Environment, row
from tests.unit.ttl_scenarios import expiring, ids, upsert
from tests.unit.ttl_scenarios import row as ttl_row

pytestmark = pytest.mark.interop

REGION = RegionId(oracle.SHARD)


def lances_generations(uri: str) -> list[RegionPending]:
    """Return the generations that Lance flushed as a head would list them."""
    names = [path.name for path in oracle.generations(uri)]
    listed = tuple((Generation(at), generation_path(REGION, name)) for at, name in enumerate(names, 1))
    return [RegionPending(region=REGION, newest=Generation(len(names)), generations=listed)]


def test_generations_that_lance_flushed_merge_into_the_rows_that_lance_reads(tmp_path: Path) -> None:
    table = Environment(tmp_path, rows=[row(key, 0) for key in range(10)], per_fragment=4)
    schema = table.dataset().schema
    for value in (1, 2):
        with table.dataset().mem_wal_writer(oracle.SHARD) as writer:
            writer.put(pa.table({"id": [1, 2, 1, 50 + value], "v": [value, value, value + 10, 7]}, schema=schema))
            writer.delete(pa.table({"id": pa.array([3 + value], pa.int64())}))
    read = oracle.by_key(oracle.scan(table.uri).select(["id", "v"]), "id")

    merged = table.merge(read_regions=lambda: lances_generations(table.uri))

    assert table.rows() == read
    assert oracle.by_key(oracle.scan(table.uri).select(["id", "v"]), "id") == read
    assert (merged.generations, merged.rows_deleted) == (2, 2)


def test_lance_refuses_to_merge_again_what_lancelsm_merged_and_merges_the_next_generation(tmp_path: Path) -> None:
    table = Environment(tmp_path)
    table.flush(A, [row(1, 1)])
    table.flush(A, [row(1, 2)])
    table.merge()

    def mark(generation: int) -> None:
        operation = table.dataset().merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        rows = pa.table({"id": [1], "v": [3]}, schema=table.dataset().schema)
        operation.mark_sstables_as_compacted([CompactedSsTable(A, generation)]).execute(rows)

    with pytest.raises(OSError, match="Stale SSTable"):
        mark(2)
    mark(3)

    assert table.rows() == [row(1, 3)]


Steps = st.lists(
    st.tuples(
        st.sampled_from([A, B]),
        st.dictionaries(st.integers(0, 9), st.integers(0, 99), max_size=6),
        st.sets(st.integers(0, 9), max_size=4),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


def apply_with_lance(uri: str, live: list[dict[str, Any]], dead: list[int]) -> None:
    schema = lance.dataset(uri).schema
    if dead:
        keys = pa.table({"id": dead, "v": [None] * len(dead)}, schema=schema)
        lance.dataset(uri).merge_insert("id").when_matched_delete().execute(keys)
    if live:
        rows = pa.Table.from_pylist(live, schema=schema)
        lance.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)


@pytest.mark.rest
@settings(max_examples=25)
@given(Steps, st.integers(1, 4))
def test_any_sequence_of_generations_and_merges_equals_lances_own_upserts(
    steps: list[tuple[RegionId, dict[int, int], set[int], bool]], per_fragment: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        rows = [row(key, -1) for key in range(0, 20, 2)]
        table = Environment(Path(directory), rows=rows, per_fragment=per_fragment)
        peer = f"{directory}/peer"
        lance.write_dataset(table.dataset().to_table(), peer)
        for region, upserts, deletes, merge_now in steps:
            # A key belongs to one region: even ones to A, odd ones to B.
            offset = 0 if region == A else 1
            live = [row(2 * key + offset, value) for key, value in upserts.items()]
            dead = [2 * key + offset for key in deletes - upserts.keys()]
            if live or dead:
                table.flush(region, live, dead)
                apply_with_lance(peer, live, dead)
            if merge_now:
                table.merge()
        table.merge()

        table.check()
        assert table.rows() == oracle.by_key(lance.dataset(peer).to_table(), "id")


def test_lances_readers_see_an_expired_row_until_it_is_removed_and_no_older_one(tmp_path: Path) -> None:
    clock = FakeClock()
    table = expiring(tmp_path / "t", clock, settings={"skew_allowance_seconds": 300})
    upsert(table, [ttl_row(clock, 1, 100, "old"), ttl_row(clock, 2, None, "kept")])
    table.flush()
    table.merge(engine="inprocess")
    upsert(table, [ttl_row(clock, 1, -1, "expired")])
    table.flush()
    assert ids(table) == [2]
    scanned = LsmScanner.from_snapshots(*table.lance_snapshot()).to_table()
    assert sorted(scanned["v"].to_pylist()) == ["expired", "kept"]
    table.merge(engine="inprocess")  # it has not expired by every clock
    assert sorted(lance.dataset(table.uri).to_table()["v"].to_pylist()) == ["expired", "kept"]
    clock.advance(300)
    assert table.optimize().rows_expired == 1
    assert lance.dataset(table.uri).to_table()["v"].to_pylist() == ["kept"]
