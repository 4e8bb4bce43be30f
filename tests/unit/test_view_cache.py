"""An open table uses parts of earlier views again: while nothing has changed, or while they are young enough."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common.bounded_cache import BoundedCache
from lancelsm.dataset.base_table import BaseTable
from lancelsm.errors import Invalid
from lancelsm.read import live_rows, tail, view_cache
from lancelsm.read.newest import NewestLevels
from lancelsm.table import Table
from tests.simulation.faults import FakeClock, FaultPlan
from tests.unit.tables import NEWEST, by_key, faulty, three_levels

READS: dict[str, Callable[..., Any]] = {
    "scan": lambda table, **options: table.scan(**options).to_arrow(),
    "count": lambda table, **options: pa.table({"id": range(table.count(**options)), "v": [2, 1, 1]}),
    "condition": lambda table, **options: table.scan(where="v >= 0", **options).to_arrow(),
    "get": lambda table, **options: table.get([0, 1, 2, 3], **options),
}


class Reader:
    """A table of two regions, with rows in all levels, that another process holds open."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.writing = three_levels(path)
        self.clock, self.plan = FakeClock(), FaultPlan()
        self.table: Table = lancelsm.open.on(faulty(self.plan, clock=self.clock))(self.writing.uri, settings=settings)

    def calls(self, read: Callable[[], Any]) -> Counter[str]:
        """Count the calls of store and registry that a read makes."""
        self.plan.calls.clear()
        read()
        return Counter(f"{call.port}.{call.method}" for call in self.plan.calls)


@pytest.mark.parametrize("name", READS)
def test_a_repeated_read_costs_only_the_catalog_the_heads_and_the_newest_version(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, read = Reader(tmp_path / "table"), READS[name]
    assert by_key(read(reader.table)) == NEWEST
    opened: list[str] = []
    for module, call in (("base_table", "open_dataset"), ("generation", "_open")):
        target = f"lancelsm.dataset.{module}.{call}"
        original = pytest.importorskip(f"lancelsm.dataset.{module}").__dict__[call]
        monkeypatch.setattr(target, lambda *a, _call=original, _name=call, **o: opened.append(_name) or _call(*a, **o))

    found = reader.calls(lambda: read(reader.table))

    catalog = {"registry.list": 1} if name != "get" else {}
    assert found == {**catalog, "registry.read": 2}
    assert opened.count("open_dataset") == 0
    assert by_key(read(reader.table)) == NEWEST


def test_a_repeated_scan_looks_no_key_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(tmp_path / "table")
    first = reader.table.scan(columns=["v"]).to_arrow()
    looked_up: list[int] = []
    find = NewestLevels.level_of
    monkeypatch.setattr(NewestLevels, "level_of", lambda self, rows: looked_up.append(len(rows)) or find(self, rows))

    assert reader.table.scan(columns=["v"]).to_arrow() == first
    assert by_key(reader.table.scan().to_arrow()) == NEWEST
    assert looked_up == []
    reader.writing.upsert([{"id": 1, "v": 9}])
    assert by_key(reader.table.scan().to_arrow()) == NEWEST | {1: 9}
    assert looked_up


def test_a_repeated_count_reads_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(tmp_path / "table")
    assert reader.table.count() == len(NEWEST)
    monkeypatch.setattr(lancelsm.read.reader, "live_rows", None)
    assert reader.table.count() == len(NEWEST)


def test_kept_flags_of_a_part_are_those_of_its_rows() -> None:
    flags = np.random.default_rng(1).random(70) < 0.5
    cache = BoundedCache(1 << 20)
    assert judged_rows(flags, cache) == sum(flags)
    kept = cache.get("level")
    for start in range(70):
        for rows in range(70 - start + 1):
            assert (kept.part(start, rows) == flags[start : start + rows]).all()


def test_flags_are_held_only_as_bits_and_only_while_the_cache_takes_them() -> None:
    flags = np.ones(8000, np.bool_)
    for most, kept in ((1024 + 1001, 1), (1024 + 1000, 0)):
        cache = BoundedCache(most)
        assert judged_rows(flags, cache) == len(flags)
        assert len(cache) == kept


def judged_rows(flags: npt.NDArray[np.bool_], cache: BoundedCache) -> int:
    """Judge rows by these flags, 33 at a time; return how many are live. Of what the judge returned, little is held."""
    tables = (pa.table({"at": pa.array(range(at, min(at + 33, len(flags))))}) for at in range(0, len(flags), 33))
    count, made = 0, list[weakref.ref[npt.NDArray[np.bool_]]]()

    def judge(_start: int, rows: pa.Table) -> npt.NDArray[np.bool_]:
        found = flags[rows["at"].to_numpy()]
        made.append(weakref.ref(found))
        return found

    for live in live_rows.judged(tables, judge, live_rows.Candidates.count, known=None, kept=cache, key="level"):
        count += live
        assert sum(ref() is not None for ref in made) <= 2
    return count


def test_of_a_log_that_grew_only_the_new_entries_are_read(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "table")
    reader.table.scan()
    for version in (3, 4):
        reader.writing.upsert([{"id": 1, "v": version}])
        reader.writing.delete([0])

        again = reader.calls(reader.table.scan)

        assert again == {"registry.list": 1, "registry.read": 2, "objects.get": 2}
        assert by_key(reader.table.scan().to_arrow()) == {1: version, 2: 1}
    reader.clock.advance(10_000)
    assert by_key(reader.table.scan().to_arrow()) == {1: 4, 2: 1}


def test_a_log_of_which_only_the_keys_are_held_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(tmp_path / "table")
    reader.writing.upsert([{"id": key, "v": 1} for key in range(100)])
    size = sum(region.wal_bytes for region in reader.writing.status().regions) // 2
    monkeypatch.setattr(tail, "_HELD_BYTES", 3 * size // 2)
    reader.table.scan()  # of two regions, each may hold half of it
    reader.writing.upsert([{"id": 0, "v": 3}])

    assert by_key(reader.table.get([0])) == {0: 3}


def test_only_the_region_that_changed_is_read_again(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "table")
    first = reader.calls(reader.table.scan)
    for version in (2, 3):
        reader.writing.upsert([{"id": 1, "v": version}])
    reader.writing.flush()
    reader.writing.upsert([{"id": 1, "v": 4}])

    again = reader.calls(reader.table.scan)

    assert first["objects.get"] == 4, "a manifest and an entry of each region"
    assert again == {"registry.list": 1, "registry.read": 2, "objects.get": 3}, "two manifests and an entry"
    assert by_key(reader.table.scan().to_arrow()) == {**NEWEST, 1: 4}


def test_a_merge_leaves_what_is_known_of_the_logs(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "table")
    reader.table.scan()
    reader.writing.merge(engine="inprocess")

    found = reader.calls(reader.table.scan)

    assert found == {"registry.list": 1, "registry.read": 2}
    assert by_key(reader.table.scan().to_arrow()) == NEWEST


def test_parts_are_read_again_after_half_of_the_interval(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "table", collect_interval_seconds=100)
    reader.table.scan()
    reader.clock.advance(40)
    assert reader.calls(reader.table.scan)["objects.get"] == 0
    reader.clock.advance(11)

    assert reader.calls(reader.table.scan)["objects.get"] == 4


def test_parts_are_that_old_even_if_a_merge_opened_the_base_again(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "table", collect_interval_seconds=100)
    reader.table.scan()
    reader.clock.advance(40)
    reader.writing.merge(engine="inprocess")
    assert reader.calls(reader.table.scan)["objects.get"] == 0
    reader.clock.advance(20)

    assert reader.calls(reader.table.scan)["objects.get"] == 4


def test_the_age_of_a_view_counts_from_the_begin_of_its_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(tmp_path / "table")
    reader.table.scan()
    newest_version = view_cache.newest_version

    def slowly(base: BaseTable) -> int:
        reader.clock.advance(30)
        return newest_version(base)

    monkeypatch.setattr(view_cache, "newest_version", slowly)
    reader.table.scan()

    assert reader.calls(lambda: reader.table.scan(consistency="eventual", max_staleness=29))["registry.read"] == 2


def test_nothing_is_kept_beyond_the_limit(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "table", view_cache_bytes=1)
    reader.table.scan()

    assert reader.calls(reader.table.scan)["objects.get"] == 4


def test_an_eventual_read_reads_nothing_while_the_view_is_young_enough(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "table")
    for read in READS.values():
        assert by_key(read(reader.table)) == NEWEST
    reader.writing.upsert([{"id": 0, "v": 3}])
    eventual: dict[str, Any] = {"consistency": "eventual", "max_staleness": 60}
    reader.clock.advance(60)
    for read in READS.values():
        assert reader.calls(lambda read=read: read(reader.table, **eventual)) == {}  # type: ignore[misc]
        assert by_key(read(reader.table, **eventual)) == NEWEST
    reader.clock.advance(1)

    assert by_key(reader.table.get([0], **eventual)) == {0: 3}
    assert by_key(reader.table.scan(**eventual).to_arrow()) == {**NEWEST, 0: 3}


def test_a_strong_read_makes_the_view_young_again(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "table")
    reader.table.scan()
    reader.clock.advance(100)
    reader.table.scan()
    reader.clock.advance(10)

    assert reader.calls(lambda: reader.table.scan(consistency="eventual", max_staleness=20)) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"consistency": "eventual"}, "needs to know how old"),
        ({"max_staleness": 5}, "a strong read has no staleness"),
        ({"consistency": "eventual", "max_staleness": 0}, "max_staleness is 0, not above 0 and below 3,600"),
        ({"consistency": "eventual", "max_staleness": 3600}, "max_staleness is 3600, not above 0"),
        ({"consistency": "weak"}, "consistency is 'weak'"),
    ],
)
def test_a_consistency_that_means_nothing_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    table = lancelsm.create(tmp_path, [{"id": 1, "vec": [1.0]}], primary_key="id")
    for read in (table.scan, table.count, lambda **o: table.get(1, **o), lambda **o: table.search([1.0], **o)):
        with pytest.raises(Invalid, match=message) as error:
            read(**options)
        assert error.value.where["table"] == table.uri


def test_a_snapshot_has_no_consistency(tmp_path: Path) -> None:
    table = lancelsm.create(tmp_path, [{"id": 1, "vec": [1.0]}], primary_key="id")
    table.snapshot("monday")
    eventual: dict[str, Any] = {"consistency": "eventual", "max_staleness": 5}
    for read in (
        lambda: table.at("monday").scan(**eventual),
        lambda: table.at("monday").get(1, **eventual),
        lambda: table.search([1.0], at="monday", **eventual),
    ):
        with pytest.raises(Invalid, match="a snapshot always has the same rows"):
            read()


@pytest.mark.rest
def test_a_read_in_one_of_several_threads_has_everything_that_was_acknowledged_before_it(tmp_path: Path) -> None:
    writing = lancelsm.create(tmp_path, [{"id": 0, "v": 0}], primary_key="id", regions="bucket(id, 2)")
    table = lancelsm.open(writing.uri)
    acknowledged, over = [0], threading.Event()

    def read() -> int:
        reads = 0
        while not over.is_set():
            least = acknowledged[0]
            found = by_key(table.scan().to_arrow() if reads % 2 else table.get([0]))
            assert found[0] >= least
            reads += 1
        return reads

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        try:
            for number in range(1, 13):
                writing.upsert([{"id": 0, "v": number}])
                acknowledged[0] = number
                if number % 4 == 0:
                    writing.flush()
                    writing.merge(engine="inprocess")
        finally:
            over.set()
        assert all(reader.result() for reader in readers)


def test_the_value_that_was_used_longest_ago_goes_first() -> None:
    cache = BoundedCache(3 * 1024 + 300)
    for name in "abc":
        cache.put(name, name, size=100)
    assert cache.get("a") == "a"
    cache.put("d", "d", size=100)

    assert [cache.get(name) for name in "abcd"] == ["a", None, "c", "d"]
    cache.put("e", "e", size=1 << 20)
    assert cache.get("e") is None
    assert cache.kept_bytes == 3 * 1124
