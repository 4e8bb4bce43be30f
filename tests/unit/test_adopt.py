"""Adoption in steps that a crash may end anywhere; with Lance at work see tests/interop/test_adopt.py."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import CompactedSsTable

from lancelsm.admin.adopt import adopt, set_regions
from lancelsm.common.layout import CONFIG, Generation, Position, RegionId, published_version, wal_entry
from lancelsm.dataset.base_table import open_base
from lancelsm.errors import Corrupt, Invalid, LsmError, Unavailable
from lancelsm.region import compare_and_swap
from lancelsm.region.handle import open_table
from lancelsm.table import Table
from tests.interop import lance_oracle as oracle
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, FAIL_AFTER, FAIL_BEFORE, Call, Crash, FaultPlan
from tests.unit.tables import COLUMNS, Row, create, faulty, levels, row, rows_of

pytestmark = pytest.mark.interop


def lance_wrote(place: Path, **mem_wal: Any) -> Path:
    """One row in the base, generations 1 (merged) and 2, and rows that only the log has."""
    oracle.make_table(place, COLUMNS, ("id",), pa.Table.from_pylist([row(0)], schema=COLUMNS), **mem_wal)
    for rows in ([row(1), row(2)], [row(2, "b"), row(3)]):
        put(place, rows)
    merge(place, [row(1), row(2)], 1)
    return place


def put(place: Path, rows: list[dict[str, Any]]) -> None:
    dataset = lance.dataset(str(place))
    with dataset.mem_wal_writer(oracle.SHARD) as writer:
        writer.put(pa.Table.from_pylist(rows, schema=dataset.schema))


def merge(place: Path, rows: list[dict[str, Any]], generation: int) -> None:
    dataset = lance.dataset(str(place))
    merging = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merging.mark_sstables_as_compacted([CompactedSsTable(oracle.SHARD, generation)])
    merging.execute(pa.Table.from_pylist(rows, schema=dataset.schema))


ROWS = [row(0), row(1), row(2, "b"), row(3)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lance_wrote(tmp_path_factory.mktemp("lance") / "table", unsharded=True)


@pytest.mark.parametrize("fault", [CRASH_BEFORE, CRASH_AFTER, FAIL_BEFORE, FAIL_AFTER], ids=lambda fault: fault.kind)
def test_an_adoption_that_was_interrupted_at_any_call_is_finished_by_the_next(
    tmp_path: Path, written: Path, fault: Any
) -> None:
    place = tmp_path / "table"
    shutil.copytree(written, place)
    plan = FaultPlan()
    adopt(place, ports=faulty(plan))
    assert plan.calls[-1].key == CONFIG, "the configuration is last"
    for call in plan.calls:
        print(call)
        shutil.rmtree(place)
        shutil.copytree(written, place)
        try:
            adopt(place, ports=faulty(FaultPlan.at(call.index, fault)))
        except (Crash, LsmError) as error:
            print(f"{error!r}")
        if not (place / CONFIG).exists():
            adopt(place, ports=faulty(FaultPlan(), process="next"))
        table = Table(open_table(place))
        assert rows_of(table) == ROWS
        assert open_base(uri=str(place)).counters == {oracle.SHARD: 1}
        table.upsert([row(1, "ours"), row(4)])
        assert rows_of(table) == [row(0), row(1, "ours"), row(2, "b"), row(3), row(4)]


def test_counters_come_from_lances_marker(tmp_path: Path, written: Path) -> None:
    shutil.copytree(written, tmp_path / "table")

    table = Table(adopt(tmp_path / "table"))

    (status,) = table.status().regions
    assert (status.merged_generation, status.generations) == (1, 1)
    assert open_base(uri=table.uri).counters == {oracle.SHARD: Generation(1)}
    merged = table.merge(engine="inprocess")
    assert dict(merged.regions) == {oracle.SHARD: 2}


@pytest.mark.parametrize("rows", [[], [row(2, "b"), row(3)]], ids=["the marker alone", "rows and marker"])
def test_a_merge_of_lances_that_comes_while_its_writers_are_fenced_is_counted(
    tmp_path: Path, written: Path, rows: list[Row]
) -> None:
    place = tmp_path / "table"
    shutil.copytree(written, place)

    def merges(call: Call) -> None:
        if call.method == "create" and "/wal/" in call.key:
            merge(place, rows, 2)

    table = Table(adopt(place, ports=faulty(FaultPlan(merges))))

    assert open_base(uri=table.uri).counters == {oracle.SHARD: Generation(2)}
    (status,) = table.status().regions
    assert status.merged_generation == 2
    table.merge(engine="inprocess")
    assert rows_of(table) == (ROWS if rows else [row(0), row(1), row(2)])


def test_a_region_that_is_taken_back_goes_on_with_its_rounds(tmp_path: Path) -> None:
    """Else a pin whose maker read the floors before would be confirmed after another round with the same number."""
    table = create(tmp_path)
    for value in "ab":
        table.upsert([row(1, value)])
        table.flush()
        table.merge(engine="inprocess")
        table.collect(yes=True, interval_seconds=0)
    (region,) = table.regions()
    before = region.head()
    assert before.collector_round == 2
    dataset = lance.dataset(table.uri)
    with dataset.mem_wal_writer(region.id) as writer:
        writer.put(pa.Table.from_pylist([row(2)], schema=dataset.schema))

    taken = Table(adopt(table.uri))

    after = region.head()
    assert (after.first_position, after.collector_round) == (before.first_position, before.collector_round)
    taken.flush()
    taken.merge(engine="inprocess")
    taken.collect(yes=True, interval_seconds=0)
    assert region.head().collector_round == 3


def older_manifests(place: Path, *, than: int) -> list[Path]:
    """Where Lance's readers look, but for the newest so many."""
    return sorted(place.glob("_mem_wal/*/manifest/*.binpb"), key=lambda path: published_version(path.name) or 0)[:-than]


def test_older_manifests_of_a_table_of_lances_own_are_not_read(tmp_path: Path, written: Path) -> None:
    place = tmp_path / "table"
    shutil.copytree(written, place)
    older = older_manifests(place, than=1)
    assert len(older) > 1
    for path in older:
        path.write_bytes(b"rubbish")

    assert rows_of(Table(adopt(place))) == ROWS


def test_a_region_is_taken_back_by_its_head_though_its_newest_manifest_was_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round of a collection was committed, and its committer crashed; then Lance took the next version."""
    table = create(tmp_path)
    for value in "ab":
        table.upsert([row(1, value)])
        table.flush()
        table.merge(engine="inprocess")
    (region,) = table.regions()
    published = region.head().manifest_version

    def fails(*_: Any, **__: Any) -> None:
        raise Unavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(compare_and_swap, "publish", fails)
        with pytest.raises(Unavailable):
            table.collect(yes=True, interval_seconds=0)
    before = region.head()
    assert (before.manifest_version, before.collector_round) == (published + 1, 1)
    for key in (2, 3):
        dataset = lance.dataset(table.uri)
        with dataset.mem_wal_writer(region.id) as writer:
            writer.put(pa.Table.from_pylist([row(key)], schema=dataset.schema))
    for path in older_manifests(Path(table.uri), than=1):
        path.write_bytes(b"rubbish")

    taken = Table(adopt(table.uri))

    after = region.head()
    assert (after.first_position, after.collector_round) == (before.first_position, before.collector_round)
    assert rows_of(taken) == [row(1, "b"), row(2), row(3)]


def test_what_was_adopted_is_not_adopted_again(tmp_path: Path, written: Path) -> None:
    shutil.copytree(written, tmp_path / "table")
    adopt(tmp_path / "table")

    with pytest.raises(Invalid, match="a table of lancelsm is there"):
        adopt(tmp_path / "table")


def test_a_dataset_without_a_mem_wal_or_a_key_can_t_be_adopted(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "plain"))
    with pytest.raises(Invalid, match="no MemWAL index"):
        adopt(tmp_path / "plain")
    with pytest.raises(Invalid, match="no Lance dataset is there"):
        adopt(tmp_path / "nowhere")
    assert not (tmp_path / "plain" / "_lancelsm").exists()


@pytest.mark.parametrize("damaged", [2, 3])
def test_a_log_with_an_entry_that_can_t_be_read_is_not_adopted(tmp_path: Path, damaged: int) -> None:
    place = tmp_path / "table"
    oracle.make_table(place, COLUMNS, ("id",), unsharded=True)
    writer = lance.dataset(str(place)).mem_wal_writer(oracle.SHARD)
    for key in range(3):
        writer.put(pa.Table.from_pylist([row(key)], schema=lance.dataset(str(place)).schema))
    path = place / wal_entry(RegionId(oracle.SHARD), Position(damaged))
    path.write_bytes(path.read_bytes()[:-100])

    with pytest.raises(Corrupt) as error:
        adopt(place)

    assert error.value.where["position"] == damaged
    assert not (place / CONFIG).exists()


def lance_logged(place: Path, entries: int) -> list[Path]:
    """A log of Lance's with so many entries, by one writer that still has the region; their files in order."""
    oracle.make_table(place, COLUMNS, ("id",), unsharded=True)
    writer = lance.dataset(str(place)).mem_wal_writer(oracle.SHARD)
    for key in range(entries):
        writer.put(pa.Table.from_pylist([row(key)], schema=lance.dataset(str(place)).schema))
    del writer
    return [place / wal_entry(RegionId(oracle.SHARD), Position(n + 1)) for n in range(entries)]


@pytest.mark.parametrize("missing", [1, 2, 4])
def test_a_log_with_a_hole_is_not_adopted_and_nothing_above_it_is_touched(tmp_path: Path, missing: int) -> None:
    # Given a log of five entries, one of which is gone
    place = tmp_path / "table"
    entries = lance_logged(place, 5)
    kept = entries[missing - 1].read_bytes()
    entries[missing - 1].unlink()
    above = {path: path.read_bytes() for path in entries[missing:]}

    # When it is adopted, then the hole and the object that proves it are named
    with pytest.raises(Corrupt, match="hole") as error:
        adopt(place)

    region = RegionId(oracle.SHARD)
    assert error.value.where == {
        "table": str(place),
        "region": region,
        "position": missing,
        "object": wal_entry(region, Position(missing)),
        "above": wal_entry(region, Position(missing + 1)),
    }
    assert "Put the object back" in error.value.remedy
    assert not (place / CONFIG).exists()
    assert {path: path.read_bytes() for path in above} == above
    assert not entries[missing - 1].exists()

    # And once it is restored, every row is there
    entries[missing - 1].write_bytes(kept)
    table = Table(adopt(place))
    table.upsert([row(9)])
    assert rows_of(table) == [*(row(key) for key in range(5)), row(9)]


def test_a_region_whose_manifest_can_t_be_read_is_not_adopted(tmp_path: Path, written: Path) -> None:
    place = tmp_path / "table"
    shutil.copytree(written, place)
    for path in (place / "_mem_wal" / oracle.SHARD / "manifest").glob("*.binpb"):
        path.write_bytes(b"rubbish")

    with pytest.raises(Corrupt, match="manifest"):
        adopt(place)
    assert not (place / CONFIG).exists()


def test_a_table_whose_keys_have_no_known_region_is_read_and_folded_but_not_written(tmp_path: Path) -> None:
    table = Table(adopt(lance_wrote(tmp_path / "table")))

    for call in (lambda: table.upsert([row(1)]), lambda: table.delete([1]), table.writer):
        with pytest.raises(Invalid) as refusal:
            call()
        assert "lancelsm region adopt" in refusal.value.remedy
    for level in levels(table):
        assert rows_of(table) == ROWS, level
        assert table.get([2]).to_pylist() == [row(2, "b")], level
    for region in table.regions():
        table.seal(region)
    assert rows_of(table) == ROWS


def test_a_spec_is_set_once_by_a_call_that_can_be_repeated_after_a_crash_anywhere(tmp_path: Path) -> None:
    place = lance_wrote(tmp_path / "table")
    adopt(place)
    shutil.copytree(place, tmp_path / "adopted")
    plan = FaultPlan()
    set_regions(open_table(place, ports=faulty(plan)), "bucket(id, 2)")
    for call in [call for call in plan.calls if call.writes]:
        print(call)
        shutil.rmtree(place)
        shutil.copytree(tmp_path / "adopted", place)
        crashing = open_table(place, ports=faulty(FaultPlan.at(call.index, CRASH_AFTER)))
        with pytest.raises(Crash):
            set_regions(crashing, "bucket(id, 2)")
        later = faulty(FaultPlan(), process="next")
        later.clock.sleep(120)  # a lease of the crashed process has ended
        handle = open_table(place, ports=later)
        if handle.config.regions is None:
            set_regions(handle, "bucket(id, 2)")
        table = Table(open_table(place))
        table.upsert([row(1, "ours"), row(4)])
        assert rows_of(table) == [row(0), row(1, "ours"), row(2, "b"), row(3), row(4)]
