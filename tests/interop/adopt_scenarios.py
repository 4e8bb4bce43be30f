"""Tables that Lance's own writer wrote, and scenarios of their adoption that several test modules run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.adopt import adopt
from lancelsm.table import Table
from tests.interop import lance_oracle as oracle

COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64())])


def write_with_lance(location: Path | str, *rows: dict[str, Any], region: str = oracle.SHARD) -> None:
    """Append rows with Lance's writer. When it closes, it flushes what it has replayed and written."""
    dataset = lance.dataset(str(location))
    with dataset.mem_wal_writer(region) as writer:
        writer.put(pa.Table.from_pylist(list(rows), schema=dataset.schema))


def rows_of(table: Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])


def adoption_turns_automatic_cleanup_off(directory: Path) -> None:
    dataset = oracle.make_table(directory, COLUMNS, ("id",), unsharded=True)
    dataset.update_config({"lance.auto_cleanup.interval": "1", "lance.auto_cleanup.older_than": "0s"})

    adopt(directory)

    assert not [name for name in lance.dataset(str(directory)).config() if "cleanup" in name]


def lance_is_fenced_before_its_entries_count(directory: Path) -> None:
    oracle.make_table(directory, COLUMNS, ("id",), unsharded=True)
    dataset = lance.dataset(str(directory))
    before, after = (pa.Table.from_pylist([{"id": key, "v": key}], schema=dataset.schema) for key in (1, 2))

    def adopt_between_two_puts() -> None:
        with dataset.mem_wal_writer(oracle.SHARD) as writer:
            writer.put(before)
            adopt(directory)
            writer.put(after)

    with pytest.raises(OSError, match="fenced"):
        adopt_between_two_puts()
    assert rows_of(lancelsm.open(directory)) == [{"id": 1, "v": 1}]
