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
from tests.simulation.environment import raised
from tests.simulation.faults import Call, Crash, Fault, FaultPlan
from tests.simulation.situations import noted
from tests.simulation.table_environment import WRITING, TableEnvironment, lease
from tests.simulation.table_log import keys, rows_of
from tests.simulation.test_whole_table import READ, WRITE

LEFT, RIGHT = keys(0)[:8], keys(1)[:8]


def merged_table(place: Path) -> TableEnvironment:
    """Two regions, merged twice so that the base has files that only older versions name, and an orphan of its own."""
    environment = TableEnvironment(place)
    with environment:
        environment.create("maker", loaded=LEFT[:3])
        for number in range(2):
            environment.write("maker", upsert=[LEFT[number], *LEFT[3:5], RIGHT[number]])
            environment.flush("maker")
            environment.merge("maker")
        environment.write("maker", delete=[LEFT[0]])
        environment.write("maker", upsert=[LEFT[2], RIGHT[5]])
        environment.flush("maker")
        environment.write("maker", upsert=[RIGHT[6]])
    (place / "data" / "0000.lance").write_bytes(b"a merge that crashed")
    return environment


def collect(environment: TableEnvironment, process: str) -> Collected:
    with environment.at(process):
        return environment.table(process).collect(yes=True, interval_seconds=0)


def recover(environment: TableEnvironment, process: str) -> None:
    """A fresh process reads, folds and collects; then nothing lies in the base that no version names."""
    environment.plan.stop()
    for _ in range(2):
        environment.schedule.clock.advance(LEASE_SECONDS + 1)
        with environment.at(process):
            table = environment.table(process)
            assert environment.read(table) == environment.truth
            environment.flush(process, table)
            environment.merge(process, table)
            assert environment.read(table) == environment.truth
            collect(environment, process)
            assert environment.read(table) == environment.truth
        environment.plan.land()
    place = str(environment.place)
    named = {name for one in stored_versions(uri=place) for name in named_files(uri=place, version=one.version)}
    there = {str(path.relative_to(environment.place)) for path in environment.place.glob("data/*")}
    assert there <= named
    for version in stored_versions(uri=place):
        lance.dataset(place, version=version.version).to_table()


def test_a_collection_leaves_the_base_one_version_and_no_orphan(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as environment:
        before = len(stored_versions(uri=str(environment.place)))
        done = collect(environment, "collector")

        assert {one.kind for one in done.candidates} >= {"generation", "entry", "base_file", "base_version"}
        assert not (environment.place / "data" / "0000.lance").exists()
        assert len(stored_versions(uri=str(environment.place))) <= 2 < before
        recover(environment, "next")


def calls(start: TableEnvironment, place: Path) -> list[Call]:
    """What a collection asks of the base, and of the table's own records and objects, when all goes well."""
    with start.fork(place) as environment:
        collect(environment, "victim")
        found = [call for call in environment.plan.calls if _is_of_the_base(call)]
    assert len(found) > 20
    return found


def run(start: TableEnvironment, place: Path, call: Call, fault: Fault) -> None:
    """A collection with one fault, then the next ones."""
    with noted(call, fault), contextlib.redirect_stdout(io.StringIO()), start.fork(place) as environment:
        environment.plan = FaultPlan.at(call.index, fault, clock=environment.schedule.clock)
        heard = raised(lambda: collect(environment, "victim"))
        assert heard is None or isinstance(heard, (Crash, Contended, Unavailable)), heard
        recover(environment, "next")
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
    with merged_table(tmp_path / "table") as environment, lease(held=False):
        seen = []

        def overtaken(call: Call) -> Fault | None:
            if call.process == "slow" and call.method == at and not seen:
                seen.append(call)
                with environment.at("fast"):
                    environment.merge("fast")
                collect(environment, "collector")
            return None

        environment.plan = FaultPlan(overtaken)
        with environment.at("slow"):
            environment.merge("slow")
        assert seen
        recover(environment, "next")


def test_a_reader_that_a_collection_overtook_reads_again(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as environment:
        seen = []

        def overtaken(call: Call) -> Fault | None:
            if call.process == "reader" and call.method == "generation.read_generation" and not seen:
                seen.append(call)
                with environment.at("fast"):
                    environment.merge("fast")
                collect(environment, "collector")
            return None

        environment.plan = FaultPlan(overtaken)
        with environment.at("reader"):
            assert environment.read(environment.table("reader")) == environment.truth
        assert seen


def test_while_a_merge_holds_the_base_only_the_regions_are_collected(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as environment:
        handle = open_table(environment.place, ports=environment.ports("merger"))
        with holding(handle.context, "base"):
            done = collect(environment, "collector")

        assert "base_file" not in {one.kind for one in done.candidates}
        assert any(one.path == "data" and "lease" in one.why for one in done.kept)
        assert (environment.place / "data" / "0000.lance").exists()


def test_a_base_restored_to_before_the_fence_loses_nothing_to_a_sweep(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as environment:
        handle = open_table(environment.place, ports=environment.ports("collector"))
        version = lance.dataset(environment.place).version
        marked = collection.mark(handle)
        (key,) = [one for one in marked.rounds if one.startswith("_lancelsm/")]
        collection.verify(handle, [key])
        collection.commit(handle, [key])
        lance.dataset(environment.place, version=version).restore()

        with pytest.raises(Corrupt, match="before the fence"):
            collection.sweep(handle, [key])
        assert (environment.place / "data" / "0000.lance").exists()


def test_a_second_round_of_the_base_makes_the_first_one_harmless(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as environment:
        handle = open_table(environment.place, ports=environment.ports("slow"))
        slow = [one for one in collection.mark(handle).rounds if one.startswith("_lancelsm/")]
        collect(environment, "fast")

        with pytest.raises(Contended):
            collection.verify(handle, slow)
        assert collection.commit(handle, slow).rounds == ()
        assert collection.sweep(handle, slow).deleted == 0
        recover(environment, "next")


def test_a_snapshot_keeps_its_version_of_the_base_and_what_lance_keeps_with_it(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as environment:
        handle = open_table(environment.place, ports=environment.ports("holder"))
        pin = make_snapshot(handle, "s", ttl_seconds=None)
        pinned = environment.truth
        environment.write("writer", upsert=[LEFT[0], RIGHT[0]])
        recover(environment, "next")

        assert rows_of(scan(snapshot_view(handle, pin), uri=str(environment.place)).read_all()) == pinned
        drop_snapshot(handle, "s")
        (environment.place / "data" / "0001.lance").write_bytes(b"enough for a round")
        recover(environment, "last")
        assert pin.base_version not in {one.version for one in stored_versions(uri=str(environment.place))}


def test_the_tag_of_a_pin_that_is_gone_goes_and_another_tool_s_stays(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as environment:
        lance.dataset(environment.place).tags.create("lancelsm.pin." + "0" * 32, 2)
        lance.dataset(environment.place).tags.create("release", 3)
        collect(environment, "collector")

        assert list(lance.dataset(environment.place).tags.list()) == ["release"]
        assert 3 in {one.version for one in stored_versions(uri=str(environment.place))}
