"""What must hold when another tool wrote to a shard of its own, and `adopt` takes over its rows."""

from __future__ import annotations

import warnings
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import CompactedSsTable

from lancelsm.admin.adopt import adopt
from lancelsm.errors import Invalid, LsmWarning
from lancelsm.table import Table
from tests.simulation.faults import CRASH_BEFORE, Call, Crash, Fault, FaultPlan
from tests.unit.tables import create, faulty, row, rows_of

SHARD = "5f0b2f3e-9a0a-4c4c-8f7e-0000000000a1"


def shard_puts(table: Table, *keys: int, value: str = "theirs") -> None:
    """Write rows to a shard with Lance's own writer."""
    dataset = lance.dataset(table.uri)
    with dataset.mem_wal_writer(SHARD) as writer:
        writer.put(pa.Table.from_pylist([row(key, value) for key in keys], schema=dataset.schema))


def log_is_kept(path: Path) -> None:
    """Our row is collected after the shard was written. It is still known that both wrote the key."""
    table = create(path)
    shard_puts(table, 1)
    table.upsert([row(1, "ours")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LsmWarning)
        table.run()
    table.collect(yes=True, interval_seconds=0)
    with pytest.raises(Invalid, match="both wrote 1 keys"):
        adopt(table.uri)


def collected_before_the_shard(path: Path) -> None:
    """A row that was collected before the shard existed is older than the rows of the shard."""
    table = create(path)
    table.upsert([row(1, "ours")])
    table.run()
    table.collect(yes=True, interval_seconds=0)
    assert table.list_regions()[0].head().first_position > 1
    shard_puts(table, 1)
    assert rows_of(Table(adopt(table.uri))) == [row(1, "theirs")]


def crash_before_the_shard_is_drained(path: Path) -> None:
    """The rows are appended, then the adoption crashes, and we write newer rows. The next one appends nothing again."""
    table = create(path)
    shard_puts(table, 1, 2)

    def crashes(call: Call) -> Fault | None:
        done = [one for one in plan.calls if one.method == "create" and "/manifest/" in one.key]
        return CRASH_BEFORE if call.method == "create" and SHARD in call.key and len(done) > 1 else None

    plan = FaultPlan(crashes)
    with pytest.raises(Crash):
        adopt(table.uri, ports=faulty(plan))
    assert rows_of(table) == [row(1, "theirs"), row(2, "theirs")]
    table.upsert([row(1, "newer")])
    assert rows_of(Table(adopt(table.uri))) == [row(1, "newer"), row(2, "theirs")]


def written_during_the_adoption(path: Path) -> None:
    """We write a key after its order was checked, and before the rows of the shard are appended."""
    table = create(path)
    shard_puts(table, 1, 2)

    def writes(call: Call) -> None:
        if call.method == "create" and "/wal/" in call.key and SHARD not in call.key:
            plan.stop()
            table.upsert([row(1, "ours")])

    plan = FaultPlan(writes)
    with pytest.raises(Invalid, match="both wrote 1 keys"):
        adopt(table.uri, ports=faulty(plan))
    assert rows_of(table) == [row(1, "ours")]


def merged_by_another_tool(path: Path) -> None:
    """Lance merged the first generation of the shard. Then we wrote one of its keys: that row stays."""
    table = create(path)
    shard_puts(table, 1)
    dataset = lance.dataset(table.uri)
    merging = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merging.mark_sstables_as_compacted([CompactedSsTable(SHARD, 1)])
    merging.execute(pa.Table.from_pylist([row(1, "theirs")], schema=dataset.schema))
    table.upsert([row(1, "ours")])
    shard_puts(table, 2)
    assert rows_of(Table(adopt(table.uri))) == [row(1, "ours"), row(2, "theirs")]
