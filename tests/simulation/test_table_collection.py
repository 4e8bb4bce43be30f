"""Collections of a whole table and its base, with faults, and beside mergers and readers."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from collections import Counter
from pathlib import Path

import lance
import pytest

from lancelsm.dataset.cleanup import stored_versions
from lancelsm.errors import Contended, Corrupt, Unavailable
from lancelsm.gc import collect as collection
from lancelsm.gc.base import read_floor, waiting_base
from lancelsm.gc.lists import read_list
from lancelsm.history.snapshot import create_snapshot, drop_snapshot, snapshot_view
from lancelsm.read.reader import scan
from lancelsm.region.handle import open_table
from lancelsm.region.lease import lease as holding
from tests.simulation import seam
from tests.simulation.collected_table import LEFT, RIGHT, collect, merged_table, overtaken_merge, recover
from tests.simulation.environment import raised
from tests.simulation.faults import Call, Crash, Fault, FaultPlan
from tests.simulation.situations import note_on_failure
from tests.simulation.table_environment import READ_FAULTS, WRITE_FAULTS, WRITING, TableEnvironment
from tests.simulation.table_log import rows_of


def test_a_collection_leaves_at_most_two_versions_of_the_base_and_no_orphan(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as environment:
        before = len(stored_versions(uri=str(environment.path)))
        done = collect(environment, "collector")

        assert {one.kind for one in done.candidates} >= {"generation", "entry", "base_file", "base_version"}
        assert not (environment.path / "data" / "0000.lance").exists()
        assert len(stored_versions(uri=str(environment.path))) <= 2 < before
        recover(environment, "next")


def test_a_committed_round_of_the_base_waits_with_what_its_sweep_will_delete(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as environment:
        handle = open_table(environment.path, ports=environment.ports("collector"))
        (key,) = [one for one in collection.mark(handle).rounds if one.startswith("_lancelsm/")]
        listed = {item.path for item in read_list(handle.context, key).round.items}
        assert "data/0000.lance" in listed
        collection.verify(handle, [key])
        collection.commit(handle, [key])
        waiting = waiting_base(handle, ())
        assert waiting is not None
        assert (waiting.key, {item.path for item in waiting.items}) == (key, listed)
        assert read_floor(handle).version == read_list(handle.context, key).round.floor > 0

        (environment.path / "data" / "0000.lance").unlink()
        waiting = waiting_base(handle, ())
        assert waiting is not None
        assert {item.path for item in waiting.items} == listed - {"data/0000.lance"}

        collection.sweep(handle, [key])
        assert waiting_base(handle, ()) is None


def calls(start: TableEnvironment, path: Path) -> list[Call]:
    """Return the calls of a collection without faults for the base and for records and objects of the table."""
    with start.fork(path) as environment:
        collect(environment, "victim")
        found = [call for call in environment.plan.calls if _is_for_the_base(call)]
    assert len(found) > 20
    return found


def run(start: TableEnvironment, path: Path, call: Call, fault: Fault) -> None:
    """Run a collection with one fault, then recover."""
    with note_on_failure(call, fault), contextlib.redirect_stdout(io.StringIO()), start.fork(path) as environment:
        environment.plan = FaultPlan.at(call.index, fault, clock=environment.schedule.clock)
        error = raised(lambda: collect(environment, "victim"))
        assert error is None or isinstance(error, (Crash, Contended, Unavailable)), error
        recover(environment, "next")
    shutil.rmtree(path)


def faults_of(call: Call) -> tuple[Fault, ...]:
    return WRITE_FAULTS if call.method in WRITING | seam.COLLECTING_WRITES | {"delete"} else READ_FAULTS


@pytest.mark.rest
def test_after_a_fault_at_any_call_for_the_base_the_next_collection_finishes(
    tmp_path: Path,
) -> None:
    start = merged_table(tmp_path / "start")
    turns: Counter[str] = Counter()
    for call in calls(start, tmp_path / "well"):
        faults = faults_of(call)
        run(start, tmp_path / str(call.index), call, faults[turns[call.method] % len(faults)])
        turns[call.method] += 1


@pytest.mark.long
def test_after_every_fault_at_any_call_for_the_base_the_next_collection_finishes(
    tmp_path: Path,
) -> None:
    start = merged_table(tmp_path / "start")
    for call in calls(start, tmp_path / "well"):
        for number, fault in enumerate(faults_of(call)):
            run(start, tmp_path / f"{call.index} {number}", call, fault)


def _is_for_the_base(call: Call) -> bool:
    return call.port == "lance" or not re.search("_mem_wal|^H#", call.key)


@pytest.mark.one_case
@pytest.mark.parametrize("at", ["generation.read_generation", "base_rows.write_rows", "base_rows.commit"])
def test_a_merge_that_another_merge_and_a_collection_overtook_plans_again(at: str, tmp_path: Path) -> None:
    overtaken_merge(at, tmp_path)


def test_a_reader_that_a_collection_overtook_takes_a_new_view(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as environment:
        seen = []

        def overtakes(call: Call) -> Fault | None:
            if call.process == "reader" and call.method == "generation.read_generation" and not seen:
                seen.append(call)
                with environment.at("fast"):
                    environment.merge("fast")
                collect(environment, "collector")
            return None

        environment.plan = FaultPlan(overtakes)
        with environment.at("reader"):
            assert environment.read(environment.table("reader")) == environment.truth
        assert seen


def test_while_a_merge_holds_the_lease_of_the_base_only_regions_are_collected(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as environment:
        handle = open_table(environment.path, ports=environment.ports("merger"))
        with holding(handle.context, "base"):
            done = collect(environment, "collector")

        assert "base_file" not in {one.kind for one in done.candidates}
        assert any(one.path == "data" and "lease" in one.why for one in done.kept)
        assert (environment.path / "data" / "0000.lance").exists()


def test_a_sweep_deletes_nothing_of_a_base_that_was_restored_to_before_the_fence(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as environment:
        handle = open_table(environment.path, ports=environment.ports("collector"))
        version = lance.dataset(environment.path).version
        marked = collection.mark(handle)
        (key,) = [one for one in marked.rounds if one.startswith("_lancelsm/")]
        collection.verify(handle, [key])
        collection.commit(handle, [key])
        lance.dataset(environment.path, version=version).restore()

        with pytest.raises(Corrupt, match="before the fence"):
            collection.sweep(handle, [key])
        assert (environment.path / "data" / "0000.lance").exists()


def test_a_newer_round_of_the_base_stops_an_older_one(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as environment:
        handle = open_table(environment.path, ports=environment.ports("slow"))
        slow = [one for one in collection.mark(handle).rounds if one.startswith("_lancelsm/")]
        collect(environment, "fast")

        with pytest.raises(Contended):
            collection.verify(handle, slow)
        assert collection.commit(handle, slow).rounds == ()
        assert collection.sweep(handle, slow).deleted == 0
        recover(environment, "next")


def test_a_snapshot_keeps_its_version_of_the_base_until_it_is_dropped(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as environment:
        handle = open_table(environment.path, ports=environment.ports("holder"))
        pin = create_snapshot(handle, "s", ttl_seconds=None)
        pinned = environment.truth
        environment.write("writer", upsert=[LEFT[0], RIGHT[0]])
        recover(environment, "next")

        assert rows_of(scan(snapshot_view(handle, pin), uri=str(environment.path)).read_all()) == pinned
        drop_snapshot(handle, "s")
        (environment.path / "data" / "0001.lance").write_bytes(b"enough for a round")
        recover(environment, "last")
        assert pin.base_version not in {one.version for one in stored_versions(uri=str(environment.path))}


def test_a_collection_removes_the_tag_of_a_dropped_pin_and_keeps_tags_of_other_tools(tmp_path: Path) -> None:
    with merged_table(tmp_path / "table") as environment:
        lance.dataset(environment.path).tags.create("lancelsm.pin." + "0" * 32, 2)
        lance.dataset(environment.path).tags.create("release", 3)
        collect(environment, "collector")

        assert list(lance.dataset(environment.path).tags.list()) == ["release"]
        assert 3 in {one.version for one in stored_versions(uri=str(environment.path))}
