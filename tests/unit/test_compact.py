"""The compaction of generations: what it writes, and crashes and races with everything else that commits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.admin.rebuild import rebuild
from lancelsm.common.layout import SQLITE
from lancelsm.compaction import compact, maintenance, tasks
from lancelsm.compaction.background import BackgroundRunner
from lancelsm.compaction.pace import SharedPace
from lancelsm.errors import Corrupt
from lancelsm.region.handle import Ports, open_table
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, Crash, FaultPlan
from tests.unit import compaction_scenarios as scenarios
from tests.unit.compaction_scenarios import collected, crowded, has_all, manifest_of, once_written
from tests.unit.tables import CountingStore, create, faulty, generation_paths, merged, row, rows_of


def test_a_region_with_too_many_generations_gets_one_with_the_newest_row_of_each_key(tmp_path: Path) -> None:
    table, rows = crowded(tmp_path)

    (made,) = table.compact()

    assert (made.first_generation, made.generation, made.parts) == (2, 5, 4)
    stored = lance.dataset(f"{table.uri}/{made.path}").to_table().to_pylist()
    assert len(stored) == made.rows == 9
    assert {one["id"]: one["v"] for one in stored if not one["_tombstone"]} == {one["id"]: one["v"] for one in rows}
    assert [one["id"] for one in stored if one["_tombstone"]] == [0], "the base has a row with this key"
    (status,) = table.status().regions
    assert (status.generations, status.newest_generation, status.merged_generation) == (1, 5, 1)
    assert table.list_regions()[0].head().pending_generations == 1
    assert table.compact() == []
    has_all(table, rows)


@pytest.mark.rest
def test_a_region_with_few_generations_is_left_alone(tmp_path: Path) -> None:
    table, rows = crowded(tmp_path, generations=3)

    assert table.compact() == []
    table = lancelsm.open(table.uri, settings={"max_generations": 2})
    assert [one.parts for one in table.compact()] == [3]
    has_all(table, rows)


@pytest.mark.rest
def test_a_compaction_stops_when_its_time_is_over_and_the_next_one_continues(tmp_path: Path) -> None:
    table, rows = crowded(tmp_path, generations=5)
    handle, (region,) = table._handle, [one.id for one in table.list_regions()]

    def bounded(seconds: float, *, rows_max: int) -> tuple[list[int], list[str]]:
        pace = SharedPace(clock=handle.context.clock, seconds=seconds)
        bounds = compact.Bounds(pace=pace, bytes_max=256 * rows_max)
        return [one.parts for one in compact.compact_table(handle, bounds=bounds)], bounds.left

    assert bounded(900, rows_max=1) == ([], []), "no two generations are small enough: they wait for a merge"
    assert bounded(0, rows_max=5) == ([2], [region]), "the first step is always done"
    assert bounded(900, rows_max=5) == ([2], [])
    has_all(table, rows)


def test_flushes_and_merges_continue_behind_a_compacted_generation(tmp_path: Path) -> None:
    table, rows = crowded(tmp_path)
    table.compact()
    table.upsert([row(1, "later")])
    table.delete([2])
    assert [one.generation for one in table.flush()] == [6]

    rows = merged([*(one for one in rows if one["id"] != 2), row(1, "later")])
    assert rows_of(table) == rows
    assert table.get([1, 100]).num_rows == 2
    assert rows_of(lancelsm.open(table.uri)) == rows
    has_all(table, rows)
    assert table.status().regions[0].merged_generation == 6


@pytest.mark.rest
def test_a_compaction_that_crashes_at_any_call_leaves_all_rows_and_is_done_by_the_next_one(tmp_path: Path) -> None:
    table, _ = crowded(tmp_path / "first")
    plan = FaultPlan()
    opened = lancelsm.open.on(faulty(plan))(table.uri)
    first = len(plan.calls)
    opened.compact()
    calls = plan.calls[first:]
    assert len(calls) == 15, "beside what Lance reads and writes, whatever the number of parts"

    for call in calls:
        print(call)
        table, rows = crowded(tmp_path / f"{call.index}")
        fault = CRASH_AFTER if call.writes else CRASH_BEFORE
        crashing = lancelsm.open.on(faulty(FaultPlan.at(call.index, fault), process=f"{call.index}"))(table.uri)
        with pytest.raises(Crash):
            crashing.compact()
        assert rows_of(lancelsm.open(table.uri)) == rows
        table.compact()
        assert [len(one.numbers) for one in manifest_of(table).generations] == [1, 4]
        has_all(table, rows)


@pytest.mark.rest
@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.another_compaction_of_some_parts,
        scenarios.compaction_between_mark_and_verify,
        scenarios.compaction_between_verify_and_commit,
        scenarios.index_between_write_and_commit,
        scenarios.parts_swept_during_a_merge,
        scenarios.round_between_write_and_commit,
        scenarios.round_during_a_write,
    ],
)
def test_what_commits_during_a_compaction_loses_no_row(scenario: Callable[[Path], None], tmp_path: Path) -> None:
    scenario(tmp_path)


@pytest.mark.rest
def test_a_flush_and_appends_during_a_compaction_stay(tmp_path: Path) -> None:
    table, rows = crowded(tmp_path)

    def flush() -> None:
        other = lancelsm.open(table.uri)
        other.upsert([row(1, "meanwhile")])
        other.flush()
        other.upsert([row(2, "meanwhile")])

    with once_written(flush):
        (made,) = table.compact()
    assert [(one.numbers.start, one.generation) for one in manifest_of(table).generations] == [(1, 1), (2, 5), (6, 6)]
    assert made.generation == 5
    has_all(table, merged([*rows, row(1, "meanwhile"), row(2, "meanwhile")]))


@pytest.mark.rest
def test_a_merge_of_generations_that_are_compacted_meanwhile_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its counter is then within the span of the compacted generation. That one hides what the base has of its keys."""
    table, rows = crowded(tmp_path, generations=3)
    fold = tasks.fold_delta

    def folded(*arguments: Any) -> Any:
        monkeypatch.undo()
        other = lancelsm.open(table.uri)
        other.delete([1])
        other.flush()
        assert [(one.first_generation, one.generation) for one in other.compact()] == [(3, 5)]
        return fold(*arguments)

    monkeypatch.setattr(tasks, "fold_delta", folded)
    assert table.merge().generations == 3

    rows = [one for one in rows if one["id"] != 1]
    (status,) = table.status().regions
    assert (status.merged_generation, status.generations) == (4, 1)
    assert rows_of(lancelsm.open(table.uri)) == rows
    has_all(table, rows)


@pytest.mark.rest
def test_a_region_that_is_compacted_during_its_merge_is_not_marked_as_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each schedule would read its head, until the next write."""
    table, rows = crowded(tmp_path)
    fold = tasks.fold_delta

    def folded(*arguments: Any) -> Any:
        monkeypatch.undo()
        assert lancelsm.open(table.uri).compact()
        return fold(*arguments)

    monkeypatch.setattr(tasks, "fold_delta", folded)
    assert table.merge().generations == 4

    head = table.list_regions()[0].head()
    assert (head.dirty, head.merged, head.pending_generations) == ("", 5, 0)
    has_all(table, rows)


@pytest.mark.rest
def test_a_snapshot_keeps_the_generations_that_were_compacted(tmp_path: Path) -> None:
    table, rows = crowded(tmp_path)
    table.snapshot("before")
    table.compact()
    table.upsert([row(1, "later")])
    collected(table)

    assert rows_of(lancelsm.open(table.uri, at="before")) == rows
    assert len(generation_paths(tmp_path)) >= 5
    table.drop_snapshot("before")
    collected(table)
    assert [path.name for path in generation_paths(tmp_path)] == [manifest_of(table).generations[-1].path]
    has_all(table, merged([*rows, row(1, "later")]))


@pytest.mark.rest
def test_a_reader_that_began_before_a_compaction_reads_the_old_generations(tmp_path: Path) -> None:
    table, rows = crowded(tmp_path)
    reader = lancelsm.open(table.uri)
    stream = reader.scan()
    table.compact()

    assert merged(stream.to_arrow().to_pylist()) == rows


def test_a_damaged_part_is_named_and_nothing_is_committed(tmp_path: Path) -> None:
    table, _ = crowded(tmp_path)
    before, part = manifest_of(table), manifest_of(table).generations[2]
    (file,) = next(path for path in generation_paths(tmp_path) if path.name == part.path).glob("data/*.lance")
    assert b"new" in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(b"new", b"old"))

    with pytest.raises(Corrupt) as raised:
        lancelsm.open(table.uri).compact()

    assert part.path in str(raised.value)
    assert manifest_of(table) == before


@pytest.mark.rest
def test_rows_that_are_lost_while_they_are_written_are_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, rows = crowded(tmp_path)
    before, write = manifest_of(table), maintenance.write_generation

    def truncated(*, rows: Any, **options: Any) -> Any:
        return write(rows=[batch.slice(1) for batch in rows], **options)

    monkeypatch.setattr(maintenance, "write_generation", truncated)
    with pytest.raises(Corrupt, match="8 rows, but 9 were written"):
        table.compact()

    monkeypatch.undo()
    assert manifest_of(table) == before
    has_all(table, rows)


@pytest.mark.rest
def test_a_compaction_reads_no_entry_of_the_log(tmp_path: Path) -> None:
    table, _ = crowded(tmp_path)
    store = CountingStore(Path(table.uri))

    assert lancelsm.open.on(Ports(store=lambda *_: store, threads=1))(table.uri).compact()
    assert store.entries == []


@pytest.mark.rest
def test_a_runner_compacts_while_no_merge_is_due(tmp_path: Path) -> None:
    table = create(tmp_path, settings={"merge_generations": 1000, "flush_rows": 1, "max_generations": 2})
    runner = BackgroundRunner(lancelsm.open(table.uri)._handle)
    for number in range(5):
        table.upsert([row(number)])
        for _ in range(2):
            runner.round(everything=False)

    assert runner.done.compacted_generations >= 3
    assert (runner.done.generations, runner.done.merges) == (5, 0)
    assert table.status().regions[0].generations <= 2
    assert rows_of(table) == [row(number) for number in range(5)]


@pytest.mark.rest
def test_copies_rebuilds_and_streams_of_a_compacted_table_have_all_rows(tmp_path: Path) -> None:
    table, rows = crowded(tmp_path)
    table.set_cursor("audit")
    changes = sum(one.rows.num_rows for one in table.changes(cursor="audit"))
    table.compact()
    table.snapshot("now")

    assert sum(one.rows.num_rows for one in table.changes(cursor="audit")) == changes
    clone_snapshot(open_table(table.uri), "now", tmp_path / "clone")
    assert rows_of(lancelsm.open(tmp_path / "clone")) == rows
    lancelsm.backup(table, tmp_path / "backup")
    lancelsm.restore(tmp_path / "backup", tmp_path / "restored")
    assert rows_of(lancelsm.open(tmp_path / "restored")) == rows
    for path in Path(table.uri, SQLITE).parent.glob("registry.sqlite*"):
        path.unlink()
    rebuild(open_table(table.uri))
    table = lancelsm.open(table.uri)
    assert table.list_regions()[0].head().pending_generations == 1
    has_all(table, rows)
