"""Read rows across the levels: which level hides which, and what a condition sees."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.dataset import scan_options
from lancelsm.read import live_rows
from lancelsm.read.newest import NewestLevels
from lancelsm.record import batches
from tests.unit.read_scenarios import (
    LEVELS,
    newest_level_with_a_key_wins,
    write,
)
from tests.unit.tables import COLUMNS, create, row, rows_of


@pytest.mark.rest
def test_the_newest_level_that_has_a_key_wins(tmp_path: Path) -> None:
    newest_level_with_a_key_wins(tmp_path)


@pytest.mark.one_case
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("v IS NULL", [2]),
        ("v LIKE 'a%'", [1, 4]),
        ("id BETWEEN 2 AND 3", [2, 3]),
        ("id IN (1, 9) AND v <> 'x'", [1]),
        ("upper(v) = 'AB'", [4]),
        ("NOT (v = 'a')", [3, 4]),
        ("id % 2 = 0 OR v = 'a'", [1, 2, 4]),
        ("v = '''x'", [3]),
    ],
)
def test_a_condition_means_the_same_at_every_level(tmp_path: Path, level: str, where: str, expected: list[int]) -> None:
    table = create(tmp_path)
    write(table, level, upsert=[row(1), row(2, None), row(3, "'x"), row(4, "ab")])

    assert [found["id"] for found in rows_of(table, where=where)] == expected


def test_get_returns_the_requested_columns_in_their_order_and_the_key_only_on_request(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.string()), pa.field("c", pa.int64())])
    table = create(tmp_path, columns, primary_key=("b", "a"))
    table.upsert([{"a": 1, "b": "x", "c": 7}, {"a": 2, "b": "x", "c": 8}, {"a": 1, "b": "y", "c": 9}])
    for _ in range(2):
        assert table.get([{"b": "x", "a": 1}], columns=["c", "b"]).to_pylist() == [{"c": 7, "b": "x"}]
        assert table.get({"a": [1, 2, 2], "b": ["y", "y", "x"]}, columns=["c"]).sort_by("c").to_pylist() == [
            {"c": 8},
            {"c": 9},
        ]
        table.flush()
        table.merge(engine="inprocess")


def test_a_key_that_is_requested_twice_is_returned_once(tmp_path: Path) -> None:
    table = create(tmp_path, [row(1)])
    table.upsert([row(2)])

    assert sorted(table.get([1, 2, 1, 2, 3])["id"].to_pylist()) == [1, 2]


def test_get_and_scan_find_many_keys_across_levels(tmp_path: Path) -> None:
    table = create(tmp_path, [row(key, "base") for key in range(3000)])
    table.upsert([row(key, "gen") for key in range(1000, 4000)])
    table.flush()
    table.upsert([row(key, "tail") for key in range(2000, 5000)])
    table.delete(list(range(0, 5000, 5)))

    found = table.get(list(range(-10, 5010)))

    expected = {key: "base" if key < 1000 else "gen" if key < 2000 else "tail" for key in range(5000) if key % 5}
    assert dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True)) == expected
    assert found.num_rows == len(expected)
    scanned = table.scan().to_arrow()
    assert dict(zip(scanned["id"].to_pylist(), scanned["v"].to_pylist(), strict=True)) == expected


@pytest.mark.parametrize("held_bytes", [0, 64 << 20])
@pytest.mark.parametrize("primary_key", ["id", "name", ("name", "id")])
def test_a_scan_in_many_parts_finds_the_newest_row_of_each_key_and_looks_up_keys_of_the_base_alone(
    tmp_path: Path, primary_key: str | tuple[str, ...], held_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_options, "_BATCH_ROWS", 3)
    monkeypatch.setattr(batches, "_SMALL_ROWS", 0)
    monkeypatch.setattr(live_rows, "_ROWS_AT_ONCE", 5)
    monkeypatch.setattr(live_rows, "HELD_BYTES", held_bytes)
    table, expected, chosen = _with_many_levels(tmp_path, primary_key)
    looked_up: list[int] = []
    find = NewestLevels.level_of
    monkeypatch.setattr(NewestLevels, "level_of", lambda self, rows: looked_up.append(len(rows)) or find(self, rows))

    for columns in (None, ["v"]):
        looked_up.clear()
        found = lancelsm.open(table.uri).scan(columns=columns).to_arrow()
        assert sorted(found["v"].to_pylist()) == sorted(expected.values())
        assert sum(looked_up) == 40
    looked_up.clear()
    assert lancelsm.open(table.uri).count() == len(expected)
    assert sum(looked_up) == 40
    found = lancelsm.open(table.uri).scan(where=f"v >= '{chosen}'").to_arrow()
    assert sorted(found["v"].to_pylist()) == sorted(v for v in expected.values() if v >= chosen)


def _with_many_levels(tmp_path: Path, primary_key: str | tuple[str, ...]) -> tuple[lancelsm.Table, dict[int, str], str]:
    """Return a table with 40 rows in its base, three generations and a log, its rows, and a value in the middle."""
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string()), pa.field("v", pa.string())])
    generator = np.random.default_rng(1)

    def rows(keys: Iterable[int], level: str) -> list[dict[str, Any]]:
        return [{"id": key, "name": f"name {key}" * (1 + key % 3), "v": f"{key} {level}"} for key in keys]

    table = create(tmp_path, columns, primary_key=primary_key)
    table.upsert(rows(range(40), "base"))
    table.flush()
    table.merge(engine="inprocess")
    expected = {key: f"{key} base" for key in range(40)}
    for level in ("first", "second", "third", "log"):
        keys = generator.permutation(50)[:12].tolist()
        table.upsert(rows(keys, level))
        gone = generator.permutation(50)[:4].tolist()
        table.delete(pa.Table.from_pylist(rows(gone, level), columns).select(list(table.config.schema.primary_key)))
        expected |= {key: f"{key} {level}" for key in keys}
        expected = {key: v for key, v in expected.items() if key not in gone}
        if level != "log":
            table.flush()
    return table, expected, "3"


def test_a_scan_streams_batches_and_does_not_load_the_whole_table(tmp_path: Path) -> None:
    rows = pa.table({"id": range(300_000), "v": pa.repeat("x", 300_000)}, schema=COLUMNS)
    table = create(tmp_path, rows)
    table.upsert([row(1, "y")])

    batches = list(table.scan())

    assert len(batches) > 1
    assert max(batch.num_rows for batch in batches) < 300_000
    assert sum(batch.num_rows for batch in batches) == 300_000


def test_a_scan_that_is_abandoned_does_not_disturb_the_next_scan(tmp_path: Path) -> None:
    table = create(tmp_path, [row(key) for key in range(10)])
    table.upsert([row(1, "y")])
    next(iter(table.scan()))

    assert len(rows_of(table)) == 10


def test_the_schema_of_a_read_is_that_of_the_table_without_metadata(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    for read in (table.scan().to_arrow(), table.get([1]), table.get([9]), lancelsm.open(table.uri).scan().to_arrow()):
        assert read.schema.equals(pa.schema([COLUMNS.field(0).with_nullable(False), COLUMNS.field(1)]), True)
