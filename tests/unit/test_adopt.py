"""Adoption, and crashes at each of its steps. tests/interop/test_adopt.py runs it next to Lance's own code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lancelsm.admin.adopt import adopt, set_regions
from lancelsm.common.layout import CONFIG, Generation, Position, RegionId, published_version, wal_entry
from lancelsm.dataset.base_table import open_base
from lancelsm.errors import Corrupt, Invalid, LsmError, Unavailable
from lancelsm.region import compare_and_swap
from lancelsm.region.handle import open_table
from lancelsm.table import Table
from tests.interop import lance_oracle as oracle
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, FAIL_AFTER, FAIL_BEFORE, Call, Crash, FaultPlan
from tests.unit.adopt_scenarios import ROWS, counters_come_from_lances_marker, lance_merges, lance_wrote
from tests.unit.tables import COLUMNS, Row, create, faulty, levels, row, rows_of

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lance_wrote(tmp_path_factory.mktemp("lance") / "table", unsharded=True)


@pytest.mark.one_case
@pytest.mark.parametrize("fault", [CRASH_BEFORE, CRASH_AFTER, FAIL_BEFORE, FAIL_AFTER], ids=lambda fault: fault.kind)
def test_an_adoption_interrupted_at_any_call_is_finished_by_the_next_one(
    tmp_path: Path, written: Path, fault: Any
) -> None:
    location = tmp_path / "table"
    shutil.copytree(written, location)
    plan = FaultPlan()
    adopt(location, ports=faulty(plan))
    assert plan.calls[-1].key == CONFIG, "the configuration is last"
    for call in plan.calls:
        print(call)
        shutil.rmtree(location)
        shutil.copytree(written, location)
        try:
            adopt(location, ports=faulty(FaultPlan.at(call.index, fault)))
        except (Crash, LsmError) as error:
            print(f"{error!r}")
        if not (location / CONFIG).exists():
            adopt(location, ports=faulty(FaultPlan(), process="next"))
        table = Table(open_table(location))
        assert rows_of(table) == ROWS
        assert open_base(uri=str(location)).counters == {oracle.SHARD: 1}
        table.upsert([row(1, "ours"), row(4)])
        assert rows_of(table) == [row(0), row(1, "ours"), row(2, "b"), row(3), row(4)]


def test_counters_come_from_lances_marker(tmp_path: Path, written: Path) -> None:
    counters_come_from_lances_marker(tmp_path, written)


@pytest.mark.parametrize("rows", [[], [row(2, "b"), row(3)]], ids=["marker only", "rows and marker"])
def test_a_merge_by_lance_while_its_writers_are_being_fenced_is_counted(
    tmp_path: Path, written: Path, rows: list[Row]
) -> None:
    location = tmp_path / "table"
    shutil.copytree(written, location)

    def merges(call: Call) -> None:
        if call.method == "create" and "/wal/" in call.key:
            lance_merges(location, rows, 2)

    table = Table(adopt(location, ports=faulty(FaultPlan(merges))))

    assert open_base(uri=table.uri).counters == {oracle.SHARD: Generation(2)}
    (status,) = table.status().regions
    assert status.merged_generation == 2
    table.merge(engine="inprocess")
    assert rows_of(table) == (ROWS if rows else [row(0), row(1), row(2)])


def test_a_region_adopted_again_keeps_its_floor_and_its_round_number(tmp_path: Path) -> None:
    """Otherwise a pin that read the floors before adoption would be confirmed after a second round of that number."""
    table = create(tmp_path)
    for value in "ab":
        table.upsert([row(1, value)])
        table.flush()
        table.merge(engine="inprocess")
        table.collect(yes=True, interval_seconds=0)
    (region,) = table.list_regions()
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


def older_manifests(location: Path, *, than: int) -> list[Path]:
    """The published manifests, without the newest `than`."""
    return sorted(location.glob("_mem_wal/*/manifest/*.binpb"), key=lambda path: published_version(path.name) or 0)[
        :-than
    ]


def test_adoption_reads_only_the_newest_manifest_that_lance_wrote(tmp_path: Path, written: Path) -> None:
    location = tmp_path / "table"
    shutil.copytree(written, location)
    older = older_manifests(location, than=1)
    assert len(older) > 1
    for path in older:
        path.write_bytes(b"rubbish")

    assert rows_of(Table(adopt(location))) == ROWS


def test_adopting_again_trusts_the_head_when_its_newest_manifest_was_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector commits a round and crashes before it publishes; then Lance writes that manifest version."""
    table = create(tmp_path)
    for value in "ab":
        table.upsert([row(1, value)])
        table.flush()
        table.merge(engine="inprocess")
    (region,) = table.list_regions()
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


def test_an_adopted_table_is_not_adopted_again(tmp_path: Path, written: Path) -> None:
    shutil.copytree(written, tmp_path / "table")
    adopt(tmp_path / "table")

    with pytest.raises(Invalid, match="it is a lancelsm table already"):
        adopt(tmp_path / "table")


def test_a_dataset_that_is_missing_or_has_no_mem_wal_is_not_adopted(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "plain"))
    with pytest.raises(Invalid, match="no MemWAL index"):
        adopt(tmp_path / "plain")
    with pytest.raises(Invalid, match="no Lance dataset found"):
        adopt(tmp_path / "nowhere")
    assert not (tmp_path / "plain" / "_lancelsm").exists()


@pytest.mark.parametrize("damaged", [2, 3])
def test_a_log_with_an_unreadable_entry_is_not_adopted(tmp_path: Path, damaged: int) -> None:
    location = tmp_path / "table"
    oracle.make_table(location, COLUMNS, ("id",), unsharded=True)
    writer = lance.dataset(str(location)).mem_wal_writer(oracle.SHARD)
    for key in range(3):
        writer.put(pa.Table.from_pylist([row(key)], schema=lance.dataset(str(location)).schema))
    path = location / wal_entry(RegionId(oracle.SHARD), Position(damaged))
    path.write_bytes(path.read_bytes()[:-100])

    with pytest.raises(Corrupt) as error:
        adopt(location)

    assert error.value.where["position"] == damaged
    assert not (location / CONFIG).exists()


def lance_log(location: Path, entries: int) -> list[Path]:
    """Let one Lance writer append this many entries; return their files in order."""
    oracle.make_table(location, COLUMNS, ("id",), unsharded=True)
    writer = lance.dataset(str(location)).mem_wal_writer(oracle.SHARD)
    for key in range(entries):
        writer.put(pa.Table.from_pylist([row(key)], schema=lance.dataset(str(location)).schema))
    del writer
    return [location / wal_entry(RegionId(oracle.SHARD), Position(n + 1)) for n in range(entries)]


@pytest.mark.parametrize("missing", [1, 2, 4])
def test_a_log_with_a_hole_is_not_adopted_and_objects_above_it_stay(tmp_path: Path, missing: int) -> None:
    # Given a log of five entries, one of which is gone
    location = tmp_path / "table"
    entries = lance_log(location, 5)
    kept = entries[missing - 1].read_bytes()
    entries[missing - 1].unlink()
    above = {path: path.read_bytes() for path in entries[missing:]}

    # When it is adopted, then the error names the hole and the object that proves it
    with pytest.raises(Corrupt, match="hole") as error:
        adopt(location)

    region = RegionId(oracle.SHARD)
    assert error.value.where == {
        "table": str(location),
        "region": region,
        "position": missing,
        "object": wal_entry(region, Position(missing)),
        "above": wal_entry(region, Position(missing + 1)),
    }
    assert "Restore the object" in error.value.remedy
    assert not (location / CONFIG).exists()
    assert {path: path.read_bytes() for path in above} == above
    assert not entries[missing - 1].exists()

    # And once the entry is back, adoption finds every row
    entries[missing - 1].write_bytes(kept)
    table = Table(adopt(location))
    table.upsert([row(9)])
    assert rows_of(table) == [*(row(key) for key in range(5)), row(9)]


def test_a_region_with_unreadable_manifests_is_not_adopted(tmp_path: Path, written: Path) -> None:
    location = tmp_path / "table"
    shutil.copytree(written, location)
    for path in (location / "_mem_wal" / oracle.SHARD / "manifest").glob("*.binpb"):
        path.write_bytes(b"rubbish")

    with pytest.raises(Corrupt, match="manifest"):
        adopt(location)
    assert not (location / CONFIG).exists()


def test_an_adopted_table_without_a_region_spec_is_read_flushed_and_merged_but_not_written(tmp_path: Path) -> None:
    table = Table(adopt(lance_wrote(tmp_path / "table")))

    for call in (lambda: table.upsert([row(1)]), lambda: table.delete([1]), table.writer):
        with pytest.raises(Invalid) as raised:
            call()
        assert "lancelsm region adopt" in raised.value.remedy
    for level in levels(table):
        assert rows_of(table) == ROWS, level
        assert table.get([2]).to_pylist() == [row(2, "b")], level
    for region in table.list_regions():
        table.seal(region)
    assert rows_of(table) == ROWS


@pytest.mark.rest
def test_setting_the_region_spec_can_be_repeated_after_a_crash_at_any_write(tmp_path: Path) -> None:
    location = lance_wrote(tmp_path / "table")
    adopt(location)
    shutil.copytree(location, tmp_path / "adopted")
    plan = FaultPlan()
    set_regions(open_table(location, ports=faulty(plan)), "bucket(id, 2)")
    for call in [call for call in plan.calls if call.writes]:
        print(call)
        shutil.rmtree(location)
        shutil.copytree(tmp_path / "adopted", location)
        crashing = open_table(location, ports=faulty(FaultPlan.at(call.index, CRASH_AFTER)))
        with pytest.raises(Crash):
            set_regions(crashing, "bucket(id, 2)")
        later = faulty(FaultPlan(), process="next")
        later.clock.sleep(120)  # until the lease of the crashed process has expired
        handle = open_table(location, ports=later)
        if handle.config.regions is None:
            set_regions(handle, "bucket(id, 2)")
        table = Table(open_table(location))
        table.upsert([row(1, "ours"), row(4)])
        assert rows_of(table) == [row(0), row(1, "ours"), row(2, "b"), row(3), row(4)]
