"""A delete by a condition deletes what matches at its own position, and holds few of the new entries at once."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.conditions import Condition, read_condition
from lancelsm.errors import Corrupt
from lancelsm.read.transact import matching_keys, rows_at_head
from lancelsm.read.transact.matching_keys import MatchingKeys
from lancelsm.read.transact.rows_at_head import ViewedRows
from lancelsm.record.rowsum import row_setsum
from lancelsm.table import Table

WHERE = "state = 'old'"


def begin(table: Table) -> MatchingKeys:
    """Keys that match now."""
    (region,) = table.list_regions()
    schema = table._handle.config.schema

    def read_view() -> ViewedRows:
        return ViewedRows(rows=table.scan(columns=["id"], where=WHERE).to_arrow(), end=region.head())

    condition = read_condition(WHERE, columns=schema.columns, table=table.uri)
    return MatchingKeys(region, schema, condition, read_view(), read_view=read_view)


def rows(*ids: int, state: str) -> list[dict[str, Any]]:
    return [{"id": one, "state": state} for one in ids]


def deleted(keys: MatchingKeys, table: Table, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    def as_they_are(tombstones: pa.Table, *, at: float, sum_of_rows: Setsum) -> pa.Table:
        assert at
        assert row_setsum(tombstones) == sum_of_rows
        return tombstones

    monkeypatch.setattr(matching_keys, "draft", as_they_are)
    (region,) = table.list_regions()
    drafted: Any = keys.delete_after(region.head())
    return [] if drafted is None else sorted(drafted["id"].to_pylist())


def matching(table: Table) -> list[int]:
    return sorted(table.scan(columns=["id"], where=WHERE).to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("seed", range(1))
def test_new_entries_are_checked_in_parts_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(f"matching keys {seed}")
    table = lancelsm.create(tmp_path / "table", rows(*range(20), state="old"), primary_key="id")
    whole, parts = begin(table), begin(table)
    checked: list[int] = []
    real = Condition.matching
    monkeypatch.setattr(
        Condition, "matching", lambda self, rows, **options: checked.append(len(rows)) or real(self, rows, **options)
    )

    for _ in range(4):
        for _ in range(4):
            ids = chance.sample(range(30), 5)
            table.upsert(rows(*ids[:3], state=chance.choice(["old", "new"])))
            table.delete(ids[3:])
        wanted = matching(table)
        assert deleted(whole, table, monkeypatch) == wanted
        checked.clear()
        with monkeypatch.context() as patch:
            patch.setattr(rows_at_head, "_ROWS_AT_ONCE", 1)
            assert deleted(parts, table, monkeypatch) == wanted
        assert len(checked) == 8
        assert max(checked) == 3


def test_entries_that_do_not_add_up_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lancelsm.create(tmp_path / "table", rows(1, 2, state="old"), primary_key="id")
    keys = begin(table)
    table.upsert(rows(1, state="new"))
    (region,) = table.list_regions()
    wrong = replace(region.head(), entry_setsum=Setsum())

    with pytest.raises(Corrupt):
        keys.delete_after(wrong)

    assert deleted(keys, table, monkeypatch) == [2]


def test_keys_are_read_again_if_the_log_was_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lancelsm.create(tmp_path / "table", rows(1, 2, state="old"), primary_key="id")
    keys = begin(table)
    table.upsert(rows(1, state="new"))
    table.run(engine="inprocess")
    for _ in range(2):
        table.collect(yes=True, interval_seconds=0)
    table.upsert(rows(3, state="old"))
    (region,) = table.list_regions()
    assert region.head().first_position > 1

    assert keys.delete_after(region.head()) == region.head(), "start again, from what was read again"
    assert deleted(keys, table, monkeypatch) == [2, 3]
