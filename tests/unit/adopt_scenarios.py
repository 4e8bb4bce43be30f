"""A table that Lance's own writer wrote, and what its adoption must find."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.mem_wal import CompactedSsTable

from lancelsm.admin.adopt import adopt
from lancelsm.common.layout import Generation
from lancelsm.dataset.base_table import open_base
from lancelsm.table import Table
from tests.interop import lance_oracle as oracle
from tests.unit.tables import COLUMNS, Row, row

ROWS = [row(0), row(1), row(2, "b"), row(3)]  # the rows of `lance_wrote`


def lance_wrote(location: Path, **mem_wal: Any) -> Path:
    """Let Lance write a table: one row in the base, generations 1 (merged) and 2, and rows that only the log has."""
    oracle.make_table(location, COLUMNS, ("id",), pa.Table.from_pylist([row(0)], schema=COLUMNS), **mem_wal)
    for rows in ([row(1), row(2)], [row(2, "b"), row(3)]):
        lance_puts(location, rows)
    lance_merges(location, [row(1), row(2)], 1)
    return location


def lance_puts(location: Path, rows: list[Row]) -> None:
    """Write rows through Lance's MemWAL writer."""
    dataset = lance.dataset(str(location))
    with dataset.mem_wal_writer(oracle.SHARD) as writer:
        writer.put(pa.Table.from_pylist(rows, schema=dataset.schema))


def lance_merges(location: Path, rows: list[Row], generation: int) -> None:
    """Merge rows into the base as Lance does, and mark the generation as merged."""
    dataset = lance.dataset(str(location))
    merging = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merging.mark_sstables_as_compacted([CompactedSsTable(oracle.SHARD, generation)])
    merging.execute(pa.Table.from_pylist(rows, schema=dataset.schema))


def counters_come_from_lances_marker(directory: Path, written: Path) -> None:
    """Adoption takes the merged generation of each region from Lance's marker, so a merge skips it."""
    shutil.copytree(written, directory / "table")

    table = Table(adopt(directory / "table"))

    (status,) = table.status().regions
    assert (status.merged_generation, status.generations) == (1, 1)
    assert open_base(uri=table.uri).counters == {oracle.SHARD: Generation(1)}
    merged = table.merge(engine="inprocess")
    assert dict(merged.regions) == {oracle.SHARD: 2}
