"""A table with generations, and merges that other actors interrupt."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lancelsm.common.layout import Generation
from lancelsm.compaction.plan import RegionPending
from lancelsm.dataset import base_rows
from lancelsm.dataset.base_rows import CommittedVersion
from lancelsm.dataset.generation_writer import write_generation
from lancelsm.errors import Corrupt
from lancelsm.record.schema import TOMBSTONE
from tests.unit.merge_environment import A, B, Environment, Interrupted, row


def table_with_generations(path: Path, **others: Any) -> Environment:
    """Create ten rows in fragments of four, and generations of two regions that upsert, insert and delete."""
    table = Environment(path, rows=[row(key, 0) for key in range(10)], per_fragment=4, **others)
    table.flush(A, [row(1, 1), row(2, 1), row(100, 1)], deleted=[3, 999])
    table.flush(A, [row(2, 2), row(3, 2)], deleted=[1])
    table.flush(B, [row(8, 9), row(200, 9)])
    return table


def raise_fence_and_sweep(table: Environment) -> None:
    """Do what the collector does with files of the base that no version names."""
    data = f"{table.uri}/data"
    listed = set(os.listdir(data))
    base = table.base()
    fenced = base_rows.commit(
        base_rows.Base.of(base), changed={}, new=(), metadata={**base.metadata, "lancelsm.fence": "1"}, properties={}
    )
    assert isinstance(fenced, CommittedVersion)
    dataset = table.dataset()
    used = {file.path for fragment in dataset.get_fragments() for file in fragment.metadata.files}
    for name in listed - used:
        os.unlink(f"{data}/{name}")


def flush_raw(table: Environment, rows: list[dict[str, object]], schema: pa.Schema) -> None:
    """Write a generation that no flush would write."""
    path = f"_mem_wal/{A}/0000000f_gen_1"
    written = pa.Table.from_pylist(rows, schema=schema)
    write_generation(
        uri=f"{table.uri}/{path}",
        keys=written,
        rows=written.to_batches(),
        schema=table.base().schema,
        data_storage_version="2.2",
    )
    table.pending[A] = [(Generation(1), path)]


def newest_row_of_each_key_is_merged_once(directory: Path) -> None:
    """The base then has the newest row of each key of every region, once."""
    table = table_with_generations(directory)

    merged = table.merge()

    table.check()
    assert merged.regions == {A: 2, B: 1}
    assert merged.generations == 3
    assert merged.rows_upserted == 5  # keys 2, 3, 100, 8, 200
    assert merged.rows_deleted == 1  # key 1; 999 was never there
    assert lance.dataset(table.uri, version=merged.base_version).count_rows() == len(table.expected)


def counter_moves_during_a_merge(directory: Path, step: int) -> None:
    """Another merge moves a counter; the first merger plans again from fresh heads."""
    table = table_with_generations(directory)
    older = [RegionPending(region=A, newest=Generation(1), generations=tuple(table.pending[A][:1]))]

    def other() -> None:
        table.merge(read_regions=lambda: older)
        table.flush(A, [row(2, 3)], deleted=[8])

    merged = table.merge(runner=Interrupted(step, other))

    assert merged.regions == {A: 3, B: 1}
    table.expected.pop((8,), None)
    found = {one["id"]: one["v"] for one in table.rows()}
    assert found[2] == 3
    assert len(found) == table.dataset().count_rows()


def another_tool_commits_during_a_merge(directory: Path, step: int, change: str) -> None:
    """Another tool commits; the merge repeats its lookup and keeps the rows that it wrote."""
    table = table_with_generations(directory)
    files: set[str] = set()

    def other() -> None:
        files.update(os.listdir(f"{table.uri}/data"))
        if change == "append":
            table.append([row(2, -1), row(300, -1)])
            table.expected[(300,)] = row(300, -1)
        elif change == "delete":
            table.dataset().delete("id IN (2, 9)")
            del table.expected[(9,)]
        elif change == "update":
            table.dataset().update({"v": "77"}, where="id IN (2, 9)")
            table.expected[(9,)] = row(9, 77)
        else:
            table.dataset().optimize.compact_files()

    runner = Interrupted(step, other)
    merged = table.merge(runner=runner)

    table.check()
    assert runner.names == ["fold_delta", "write_live_rows", "hide_by_scan", "hide_by_scan"]
    assert (merged.rows_upserted, merged.rows_deleted) == (5, 1)


def column_is_added_during_a_merge(directory: Path, step: int) -> None:
    """Another tool adds a column; the merge starts again."""
    table = table_with_generations(directory)
    runner = Interrupted(step, lambda: table.dataset().add_columns(pa.field("w", pa.string())))

    table.merge(runner=runner)

    assert runner.names == ["fold_delta", "write_live_rows", "hide_by_scan"] * 2
    table.expected = {key: {**one, "w": None} for key, one in table.expected.items()}
    table.check()


def fence_is_raised_during_a_merge(directory: Path, step: int) -> None:
    """A collector raises the fence and sweeps; the merge writes its rows again."""
    table = table_with_generations(directory)
    runner = Interrupted(step, lambda: raise_fence_and_sweep(table))

    table.merge(runner=runner)

    table.check()
    assert table.base().fence == 1
    assert runner.names == ["fold_delta", "write_live_rows", "hide_by_scan"] * 2


def fence_is_hidden_during_a_merge(directory: Path, step: int) -> None:
    """A collector raises the fence, and a restore of the base hides it; the merge writes its rows again."""
    table = table_with_generations(directory)

    def raise_fence_and_restore() -> None:
        before = table.base().version
        raise_fence_and_sweep(table)
        lance.dataset(table.uri, version=before).restore()

    table.merge(runner=(runner := Interrupted(step, raise_fence_and_restore)))

    table.check()
    assert table.base().fence == 0
    assert runner.names == ["fold_delta", "write_live_rows", "hide_by_scan"] * 2


def heads_are_older_than_the_base(directory: Path) -> None:
    """The merge reads heads again that are older than the base; heads that stay older are corrupt."""
    table = table_with_generations(directory)
    table.merge()
    old = [RegionPending(region=A, newest=Generation(1), generations=tuple(table.pending[A][:1]))]
    reads = iter([old])

    assert table.merge(read_regions=lambda: next(reads, table.read_regions())).generations == 0

    with pytest.raises(Corrupt, match="more generations than the region's head has"):
        table.merge(read_regions=lambda: old)


def restored_base_lacks_its_next_generation(directory: Path) -> None:
    """A base is restored to a version whose next generation no longer exists."""
    table = table_with_generations(directory)
    merged = table.merge()
    del table.pending[A][0]
    lance.dataset(table.uri, version=merged.base_version - 1).restore()

    with pytest.raises(Corrupt, match="manifest does not list"):
        table.merge()


def generation_holds_a_key_twice(directory: Path) -> None:
    """The merge refuses a generation in which a key occurs twice."""
    table = Environment(directory, rows=[row(1, 0)])
    flush_raw(table, [{**row(1, value), TOMBSTONE: False} for value in (1, 2)], table.base().schema.stored)

    with pytest.raises(Corrupt, match="twice"):
        table.merge()

    assert table.rows() == [row(1, 0)]
