"""Key bounds and key filters of generations: what they exclude, and what a lookup costs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileSession

import lancelsm
from lancelsm.common.layout import KEY_FILTER
from lancelsm.compaction import maintenance
from lancelsm.dataset import generation as generations
from lancelsm.dataset.key_filter import build_key_filter, may_have
from lancelsm.errors import Corrupt
from lancelsm.read import levels_above_base
from lancelsm.read.pruning.generation_pruning import BOUNDS, FILTER
from lancelsm.record.key_bounds import bounded, key_bounds, within
from lancelsm.record.schema import numbered
from lancelsm.region.handle import Ports
from lancelsm.table import Table
from tests.unit.read_scenarios import flipped_key_filter_hides_no_key
from tests.unit.tables import COLUMNS, create, generation_paths, row, rows_of

_ID = numbered(pa.schema([pa.field("id", pa.int64(), nullable=False)]))
_PAGE = 4096 + 16


class Opened:
    """Notes what is read of generations: whole datasets, and ranges of files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.datasets: list[str] = []
        self.ranges: list[tuple[str, int]] = []
        open_dataset, files = generations._open, generations._files

        class _Files:
            def __init__(self, inner: LanceFileSession) -> None:
                self._inner = inner

            def __getattr__(self, name: str) -> Any:
                return getattr(self._inner, name)

            def read_range(this, name: str, start: int, size: int) -> bytes:
                self.ranges.append((name, size))
                return bytes(this._inner.read_range(name, start, size))

        def opened(uri: str, *arguments: Any) -> Any:
            self.datasets.append(uri)
            return open_dataset(uri, *arguments)

        monkeypatch.setattr(generations, "_open", opened)
        monkeypatch.setattr(generations, "_files", lambda uri, options: _Files(files(uri, options)))

    def clear(self) -> None:
        self.datasets.clear()
        self.ranges.clear()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


def _filter(path: Path, keys: Any, name: str = "gen") -> tuple[LanceFileSession, int, str]:
    built = build_key_filter(keys, name=name)
    (path / name).mkdir(exist_ok=True)
    (path / name / KEY_FILTER).write_bytes(built.body)
    return LanceFileSession(str(path / name)), built.blocks, f"{path}/{name}"


def _keys(values: Any) -> pa.Table:
    return pa.table([pa.array(values, pa.int64())], schema=_ID)


def test_a_filter_of_100_000_keys_lets_every_key_through_and_at_most_1_percent_of_the_others(tmp_path: Path) -> None:
    keys = np.arange(0, 200_000, 2)
    files, blocks, uri = _filter(tmp_path, _keys(keys))

    assert may_have(files, _keys(keys), blocks=blocks, uri=uri).all()
    assert may_have(files, _keys(keys + 1), blocks=blocks, uri=uri).mean() <= 0.01  # between existing keys
    assert (tmp_path / "gen" / KEY_FILTER).stat().st_size < 1.6 * len(keys)


@pytest.mark.parametrize("rows", [1, 2, 20, 300, 2731, 2732])
def test_a_filter_of_any_size_has_its_keys(tmp_path: Path, rows: int) -> None:
    files, blocks, uri = _filter(tmp_path, _keys(range(rows)))

    assert may_have(files, _keys(range(rows)), blocks=blocks, uri=uri).all()
    assert may_have(files, _keys([rows - 1]), blocks=blocks, uri=uri).all()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.bool_(), [False, True]),
        (pa.int8(), [-128, 5, 127]),
        (pa.uint64(), [0, 7, (1 << 64) - 1]),
        (pa.date32(), [-1, 0, 20_000]),
        (pa.timestamp("ns", "UTC"), [-(1 << 63), 0, (1 << 63) - 1]),
        (pa.string(), ["", "a", "\u00e9" * 64, "\U0010ffff" * 40]),
        (pa.large_binary(), [b"", b"\xff" * 100]),
        (pa.binary(), [b"a" * 64 + b"\xff", b"a" * 63 + b"\xff" * 9]),
    ],
)
def test_bounds_allow_every_key_and_exclude_what_is_outside(kind: pa.DataType, values: list[Any]) -> None:
    column = pa.array(values, pa.int32()).cast(kind) if pa.types.is_date32(kind) else pa.array(values, kind)
    for some in (column, column[:1], column[1:2]):
        (bounds,) = key_bounds(pa.table({"k": some}))

        assert all(within(pa.chunked_array([some]), bounds).to_pylist())
        assert bounded(bounds, kind)
        assert len(bounds[0]) <= 64
        assert bounds[1] is None or len(bounds[1]) <= 64


def _generations(path: Path) -> Table:
    """Three generations: even keys from 0, from 10,000 and from 20,000."""
    table = create(path)
    for first in (0, 10_000, 20_000):
        table.upsert(pa.table({"id": range(first, first + 10_000, 2), "v": ["a"] * 5_000}, schema=COLUMNS))
        table.flush()
    return table


def test_a_lookup_reads_one_page_of_the_filters_that_its_key_needs(tmp_path: Path, opened: Opened) -> None:
    table = _generations(tmp_path)
    opened.clear()

    assert table.get([10_001]).num_rows == 0
    assert opened.datasets == []  # absent, inside the bounds of one generation
    assert opened.ranges == [(KEY_FILTER, _PAGE)]

    opened.clear()
    assert table.get([10_001]).num_rows == 0
    assert opened.ranges == []  # the page is kept

    assert table.get([30_001, -1]).num_rows == 0
    assert (opened.datasets, opened.ranges) == ([], [])  # outside of all bounds

    assert table.get([10_002]).to_pylist() == [row(10_002)]
    assert len(opened.datasets) == 1


def test_a_scan_opens_only_generations_that_may_have_its_keys(tmp_path: Path, opened: Opened) -> None:
    table = _generations(tmp_path)
    for where, found, read in [
        ("id = 10001", 0, 0),
        ("id IN (10001, 20003)", 0, 0),
        ("id = 10002 AND v = 'a'", 1, 1),
        ("id > 9990 AND id < 9999", 4, 1),
        ("id >= 9998 AND id <= 10000", 2, 2),
        ("v = 'b'", 0, 3),
        ("id = 2 OR v = 'b'", 1, 3),
        ("NOT id < 30000", 0, 0),
    ]:
        opened.clear()
        assert table.scan(where=where).to_arrow().num_rows == found, where
        assert len(set(opened.datasets)) == read, where


@pytest.mark.parametrize(
    "read", [lambda t: t.get([1, 10_001, 20_001]), lambda t: t.scan(where="id IN (1, 10001, 20001)").to_arrow()]
)
def test_in_a_bucket_the_filters_of_all_generations_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any
) -> None:
    table = lancelsm.open.on(Ports(threads=3))(_generations(tmp_path).uri)
    all_begun, possible_keys = threading.Barrier(3), levels_above_base.possible_keys
    monkeypatch.setattr(levels_above_base, "local_path", lambda _: None)

    def slow(**given: Any) -> pa.Table:
        all_begun.wait(timeout=30)
        return possible_keys(**given)

    monkeypatch.setattr(levels_above_base, "possible_keys", slow)

    assert read(table).num_rows == 0


def test_a_newer_row_or_tombstone_still_hides_an_older_one_that_meets_the_condition(tmp_path: Path) -> None:
    table = create(tmp_path, [row(key, "old") for key in range(4)])
    table.upsert([row(1, "new"), row(9, "new")])
    table.flush()
    table.delete([2])
    table.flush()
    table.upsert([row(3, "newest")])

    assert rows_of(table, where="v = 'old'") == [row(0, "old")]
    assert rows_of(table, where="id = 1 AND v = 'old'") == []
    assert rows_of(table, where="id BETWEEN 1 AND 2") == [row(1, "new")]
    assert rows_of(table, where="id = 2 OR id = 3") == [row(3, "newest")]


def test_explain_names_what_a_read_leaves_out_and_why(tmp_path: Path) -> None:
    table = _generations(tmp_path)

    for found, kept in (
        (table.explain(where="id IN (10001, 20002)"), 3),
        (table.explain([10_001, 20_002]), 3),
        (table.explain(where="id > 20000"), 3),
        (table.explain(where="id < 0"), None),
    ):
        left = [level.generation for level in found.levels if level.generation]
        assert left == ([kept] if kept else [])
        assert len(found.skipped_levels) == 3 - len(left)
        assert {one.why for one in found.skipped_levels} <= {BOUNDS, FILTER}
        assert all(one.count <= 2 for one in found.requests if one.kind == "key_filter.read")


def test_a_damaged_filter_is_corrupt_and_named_by_scrub_and_not_needed(tmp_path: Path) -> None:
    flipped_key_filter_hides_no_key(tmp_path)
    table = lancelsm.open(tmp_path / "table")

    assert [(one.path.rpartition("/")[2], one.kind) for one in table.scrub().problems] == [(KEY_FILTER, "key_filter")]

    (directory,) = generation_paths(tmp_path)
    (directory / KEY_FILTER).unlink()
    assert table.get([1]).to_pylist() == rows_of(table, where="id = 1") == [row(1)]
    assert [one.problem for one in table.scrub().problems] == ["it is gone"]


def test_a_generation_without_bounds_and_filter_may_have_any_key(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(tmp_path, [row(1, "old")])
    monkeypatch.setattr(maintenance, "GenerationKeys", lambda **_: None)  # as an earlier release flushed
    table.upsert([row(1), row(5)])
    table.flush()
    opened.clear()

    assert table.get([1, 7]).to_pylist() == rows_of(table, where="id IN (1, 7)") == [row(1)]
    assert rows_of(table, where="id < 5 AND v = 'old'") == []
    assert [name for name, _ in opened.ranges] == ["bloom_filter.bin"]


def test_a_page_of_another_generation_is_corrupt(tmp_path: Path) -> None:
    files, blocks, uri = _filter(tmp_path, _keys(range(10)))
    _filter(tmp_path, _keys(range(10, 20)), name="other")
    (tmp_path / "gen" / KEY_FILTER).write_bytes((tmp_path / "other" / KEY_FILTER).read_bytes())

    with pytest.raises(Corrupt, match="page 0"):
        may_have(files, _keys([1]), blocks=blocks, uri=uri)
