"""Collections of a whole table and its base: faults at the calls of the base's part, mergers and readers overtaken."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from collections import Counter
from pathlib import Path

import lance
import pytest

from lancelsm.dataset.cleanup import named_files, stored_versions
from lancelsm.errors import Contended, Corrupt, Unavailable
from lancelsm.gc import collect as collection
from lancelsm.gc.collect import Collected
from lancelsm.history.snapshot import drop_snapshot, make_snapshot, snapshot_view
from lancelsm.read.reader import scan
from lancelsm.region.handle import open_table
from lancelsm.region.lease import LEASE_SECONDS
from lancelsm.region.lease import lease as holding
from tests.simulation import seam
from tests.simulation.faults import Call, Crash, Fault, FaultPlan
from tests.simulation.situations import noted
from tests.simulation.table_log import keys, rows_of
from tests.simulation.table_world import WRITING, TableWorld, lease
from tests.simulation.test_whole_table import READ, WRITE
from tests.simulation.world import told

LEFT, RIGHT = keys(0)[:8], keys(1)[:8]


def merged_table(place: Path) -> TableWorld:
    """Two regions, merged twice so that the base has files that only older versions name, and an orphan of its own."""
    world = TableWorld(place)
    with world:
        world.create("maker", loaded=LEFT[:3])
        for number in range(2):
            world.write("maker", upsert=[LEFT[number], *LEFT[3:5], RIGHT[number]])
            world.flush("maker")
            world.merge("maker")
        world.write("maker", delete=[LEFT[0]])
        world.write("maker", upsert=[LEFT[2], RIGHT[5]])
        world.flush("maker")
        world.write("maker", upsert=[RIGHT[6]])
    (place / "data" / "0000.lance").write_bytes(b"a merge that crashed")
    return world


def collect(world: TableWorld, process: str) -> Collected:
    with world.at(process):
        return world.table(process).collect(yes=True, interval_seconds=0)


def recover(world: TableWorld, process: str) -> None:
    """A fresh process reads, folds and collects; then nothing lies in the base that no version names."""
    world.plan.stop()
    for _ in range(2):
        world.schedule.clock.advance(LEASE_SECONDS + 1)
        with world.at(process):
            table = world.table(process)
            assert world.read(table) == world.truth
            world.flush(process, table)
            world.merge(process, table)
            assert world.read(table) == world.truth
            collect(world, process)
            assert world.read(table) == world.truth
        world.plan.land()
    place = str(world.place)
    named = {name for one in stored_versions(uri=place) for name in named_files(uri=place, version=one.version)}
    there = {str(path.relative_to(world.place)) for path in world.place.glob("data/*")}
    assert there <= named
    for version in stored_versions(uri=place):
        lance.dataset(place, version=version.version).to_table()


def test_a_collection_leaves_the_base_one_version_and_no_orphan(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as world:
        before = len(stored_versions(uri=str(world.place)))
        done = collect(world, "collector")

        assert {one.kind for one in done.candidates} >= {"generation", "entry", "base_file", "base_version"}
        assert not (world.place / "data" / "0000.lance").exists()
        assert len(stored_versions(uri=str(world.place))) <= 2 < before
        recover(world, "next")


def calls(start: TableWorld, place: Path) -> list[Call]:
    """What a collection asks of the base, and of the table's own records and objects, when all goes well."""
    with start.fork(place) as world:
        collect(world, "victim")
        found = [call for call in world.plan.calls if _is_of_the_base(call)]
    assert len(found) > 20
    return found


def run(start: TableWorld, place: Path, call: Call, fault: Fault) -> None:
    """A collection with one fault, then the next ones."""
    with noted(call, fault), contextlib.redirect_stdout(io.StringIO()), start.fork(place) as world:
        world.plan = FaultPlan.at(call.index, fault, clock=world.schedule.clock)
        heard = told(lambda: collect(world, "victim"))
        assert heard is None or isinstance(heard, (Crash, Contended, Unavailable)), heard
        recover(world, "next")
    shutil.rmtree(place)


def faults_of(call: Call) -> tuple[Fault, ...]:
    return WRITE if call.method in WRITING | seam.COLLECTING_WRITES | {"delete"} else READ


def test_a_fault_at_any_call_of_the_base_s_part_leaves_a_table_that_the_next_collection_finishes(
    tmp_path: Path,
) -> None:
    start = merged_table(tmp_path / "start")
    turns: Counter[str] = Counter()
    for call in calls(start, tmp_path / "well"):
        faults = faults_of(call)
        run(start, tmp_path / str(call.index), call, faults[turns[call.method] % len(faults)])
        turns[call.method] += 1


@pytest.mark.long
def test_every_fault_at_any_call_of_the_base_s_part_leaves_a_table_that_the_next_collection_finishes(
    tmp_path: Path,
) -> None:
    start = merged_table(tmp_path / "start")
    for call in calls(start, tmp_path / "well"):
        for number, fault in enumerate(faults_of(call)):
            run(start, tmp_path / f"{call.index} {number}", call, fault)


def _is_of_the_base(call: Call) -> bool:
    return call.port == "lance" or not re.search("_mem_wal|^H#", call.key)


@pytest.mark.parametrize("at", ["generation.read_generation", "base_rows.write_rows", "base_rows.commit"])
def test_a_merge_that_a_merge_and_a_collection_overtook_plans_anew(at: str, tmp_path: Path) -> None:
    # slatedb 604: the collector took what a running merge was reading.
    with merged_table(tmp_path / "table") as world, lease(held=False):
        seen = []

        def overtaken(call: Call) -> Fault | None:
            if call.process == "slow" and call.method == at and not seen:
                seen.append(call)
                with world.at("fast"):
                    world.merge("fast")
                collect(world, "collector")
            return None

        world.plan = FaultPlan(overtaken)
        with world.at("slow"):
            world.merge("slow")
        assert seen
        recover(world, "next")


def test_a_reader_that_a_collection_overtook_reads_again(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as world:
        seen = []

        def overtaken(call: Call) -> Fault | None:
            if call.process == "reader" and call.method == "generation.read_generation" and not seen:
                seen.append(call)
                with world.at("fast"):
                    world.merge("fast")
                collect(world, "collector")
            return None

        world.plan = FaultPlan(overtaken)
        with world.at("reader"):
            assert world.read(world.table("reader")) == world.truth
        assert seen


def test_while_a_merge_holds_the_base_only_the_regions_are_collected(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as world:
        opened = open_table(world.place, ports=world.ports("merger"))
        with holding(opened.storage, "base"):
            done = collect(world, "collector")

        assert "base_file" not in {one.kind for one in done.candidates}
        assert any(one.path == "data" and "lease" in one.why for one in done.kept)
        assert (world.place / "data" / "0000.lance").exists()


def test_a_base_restored_to_before_the_fence_loses_nothing_to_a_sweep(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as world:
        opened = open_table(world.place, ports=world.ports("collector"))
        version = lance.dataset(world.place).version
        marked = collection.mark(opened)
        (key,) = [one for one in marked.rounds if one.startswith("_lancelsm/")]
        collection.verify(opened, [key])
        collection.commit(opened, [key])
        lance.dataset(world.place, version=version).restore()

        with pytest.raises(Corrupt, match="before the fence"):
            collection.sweep(opened, [key])
        assert (world.place / "data" / "0000.lance").exists()


def test_a_second_round_of_the_base_makes_the_first_one_harmless(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as world:
        opened = open_table(world.place, ports=world.ports("slow"))
        slow = [one for one in collection.mark(opened).rounds if one.startswith("_lancelsm/")]
        collect(world, "fast")

        with pytest.raises(Contended):
            collection.verify(opened, slow)
        assert collection.commit(opened, slow).rounds == ()
        assert collection.sweep(opened, slow).deleted == 0
        recover(world, "next")


def test_a_snapshot_keeps_its_version_of_the_base_and_what_lance_keeps_with_it(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as world:
        opened = open_table(world.place, ports=world.ports("holder"))
        pin = make_snapshot(opened, "s", ttl_seconds=None)
        pinned = world.truth
        world.write("writer", upsert=[LEFT[0], RIGHT[0]])
        recover(world, "next")

        assert rows_of(scan(snapshot_view(opened, pin), uri=str(world.place)).read_all()) == pinned
        drop_snapshot(opened, "s")
        (world.place / "data" / "0001.lance").write_bytes(b"enough for a round")
        recover(world, "last")
        assert pin.base_version not in {one.version for one in stored_versions(uri=str(world.place))}


def test_the_tag_of_a_pin_that_is_gone_goes_and_another_tool_s_stays(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as world:
        lance.dataset(world.place).tags.create("lancelsm.pin." + "0" * 32, 2)
        lance.dataset(world.place).tags.create("release", 3)
        collect(world, "collector")

        assert list(lance.dataset(world.place).tags.list()) == ["release"]
        assert 3 in {one.version for one in stored_versions(uri=str(world.place))}
