"""A merge leaves the newest row of each key in the base, once, whatever happens meanwhile."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lancelsm.common.layout import Generation, TableId
from lancelsm.compaction import merge as merge_commit
from lancelsm.compaction import tasks
from lancelsm.compaction.plan import RegionPending
from lancelsm.compaction.runner import Item, Result
from lancelsm.dataset import base_rows
from lancelsm.dataset.base_rows import CommittedVersion, Preempted
from lancelsm.dataset.base_table import BaseFacts, create_base
from lancelsm.dataset.merged_generations import read_markers
from lancelsm.errors import Ambiguous, Contended, Corrupt, Unavailable
from lancelsm.record.schema import TOMBSTONE
from tests.unit.merge_environment import A, B, Environment, Interrupted, row
from tests.unit.merge_scenarios import (
    another_tool_commits_during_a_merge,
    column_is_added_during_a_merge,
    counter_moves_during_a_merge,
    fence_is_hidden_during_a_merge,
    fence_is_raised_during_a_merge,
    flush_raw,
    generation_holds_a_key_twice,
    heads_are_older_than_the_base,
    newest_row_of_each_key_is_merged_once,
    restored_base_lacks_its_next_generation,
    table_with_generations,
)


def test_a_merge_puts_the_newest_row_of_each_key_of_every_region_into_the_base_once(tmp_path: Path) -> None:
    newest_row_of_each_key_is_merged_once(tmp_path)


def test_one_version_of_the_base_changes_both_rows_and_counters(tmp_path: Path) -> None:
    table = table_with_generations(tmp_path)

    merged = table.merge()

    before = lance.dataset(table.uri, version=merged.base_version - 1)
    assert before.count_rows() == 10
    assert not any(b"merged" in name for name in before.schema.metadata)
    after = lance.dataset(table.uri, version=merged.base_version).schema.metadata
    assert after[f"lancelsm.merged.{A}".encode()] == b"2"


def test_running_a_finished_merge_again_changes_nothing(tmp_path: Path) -> None:
    table = table_with_generations(tmp_path)
    table.merge()
    version, files = table.dataset().version, sorted(os.listdir(f"{table.uri}/data"))

    again = table.merge()

    assert (again.generations, again.rows_upserted, again.rows_deleted) == (0, 0, 0)
    assert again.regions == {A: 2, B: 1}
    assert table.dataset().version == version
    assert sorted(os.listdir(f"{table.uri}/data")) == files


def test_later_generations_are_merged_onto_earlier_ones(tmp_path: Path) -> None:
    table = table_with_generations(tmp_path)
    table.merge()
    table.flush(A, [row(1, 3)], deleted=[100, 2])

    merged = table.merge()

    table.check()
    assert (merged.generations, merged.rows_upserted, merged.rows_deleted) == (1, 1, 2)


@pytest.mark.one_case
@pytest.mark.parametrize("rows", [4, 70_000, 200_000])
def test_a_fragment_may_lose_every_row(tmp_path: Path, rows: int) -> None:
    table = Environment(tmp_path, rows=[row(key, 0) for key in range(rows + 1)], per_fragment=rows)
    table.flush(A, [row(key, 1) for key in range(0, rows, 2)], deleted=range(1, rows, 2))

    table.merge()

    table.check()
    table.dataset().optimize.compact_files()
    table.check()


def test_a_merge_may_delete_every_row_of_the_base(tmp_path: Path) -> None:
    table = Environment(tmp_path, rows=[row(key, 0) for key in range(10)], per_fragment=4)
    table.flush(A, deleted=range(10))

    merged = table.merge()

    table.check()
    assert (merged.rows_upserted, merged.rows_deleted) == (0, 10)
    table.flush(A, [row(1, 5)])
    table.merge()
    table.check()


def test_a_merge_writes_the_first_rows_of_an_empty_base(tmp_path: Path) -> None:
    table = Environment(tmp_path)
    table.flush(A, [row(1, 1)], deleted=[2])

    table.merge()

    table.check()


def test_a_merge_replaces_every_duplicate_of_a_key_that_another_tool_appended(tmp_path: Path) -> None:
    table = Environment(tmp_path, rows=[row(1, 0)])
    table.append([row(1, 7), row(1, 8)])
    table.flush(A, [row(1, 9)])

    table.merge()

    table.check()


def test_keys_of_several_columns_are_compared_by_all_of_them(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("v", pa.int64()), pa.field("day", pa.date32()), pa.field("name", pa.string())])
    days = pa.array([10, 11], pa.date32()).to_pylist()
    rows = [{"v": 0, "day": day, "name": name} for day in days for name in ("a", "b", "a\0b", "")]
    table = Environment(tmp_path, rows=rows, columns=columns, key=("name", "day"), per_fragment=3)
    table.flush(A, [{"v": 1, "day": days[0], "name": "a"}], deleted=[("a\0b", days[1]), ("b", days[0])])
    table.flush(A, [{"v": 2, "day": days[1], "name": "b"}, {"v": 2, "day": days[0], "name": "new"}])

    merged = table.merge()

    table.check()
    assert merged.rows_deleted == 2


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.timestamp("us"), pa.bool_(), pa.uint64(), pa.int8()])
def test_keys_of_any_type_are_merged(tmp_path: Path, kind: pa.DataType) -> None:
    columns = pa.schema([pa.field("id", kind), pa.field("v", pa.int64())])
    raw = pa.array([0, 1]).cast(kind) if kind != pa.binary() else pa.array([b"", b"\0"])
    first, second = raw.to_pylist()
    table = Environment(tmp_path, rows=[{"id": key, "v": 0} for key in (first, second)], columns=columns)
    table.flush(A, [{"id": first, "v": 1}], deleted=[second])

    table.merge()

    table.check()


@pytest.mark.parametrize("distance", [1, 1 << 40])
def test_integer_keys_are_merged_however_far_apart_they_are(tmp_path: Path, distance: int) -> None:
    table = Environment(tmp_path, rows=[row(key * distance, 0) for key in range(9)])
    table.flush(A, [row(key * distance, 1) for key in (0, 5, 99)], deleted=[2 * distance, 8 * distance])

    merged = table.merge()

    table.check()
    assert (merged.rows_upserted, merged.rows_deleted) == (3, 2)


def test_nested_and_vector_columns_keep_their_values(tmp_path: Path) -> None:
    columns = pa.schema([
        pa.field("id", pa.int64()),
        pa.field("point", pa.struct([pa.field("x", pa.int32(), False), pa.field("tags", pa.list_(pa.string()))])),
        pa.field("vector", pa.list_(pa.float32(), 2)),
        pa.field("ages", pa.map_(pa.string(), pa.int32())),
    ])  # fmt: skip
    full = {"point": {"x": 1, "tags": ["a", None]}, "vector": [1.0, 2.0], "ages": [("k", 1)]}
    table = Environment(tmp_path, rows=[{"id": key, **full} for key in range(3)], columns=columns)
    table.flush(A, [{"id": 1, **full, "vector": [3.0, 4.0]}, {"id": 7, "point": None, "vector": None, "ages": None}])
    table.flush(A, [], deleted=[2])

    table.merge()

    table.check()


def test_columns_are_matched_by_field_id_after_the_base_was_altered(tmp_path: Path) -> None:
    columns = pa.schema([pa.field(name, pa.int64()) for name in ("gone", "id", "v")])
    table = Environment(tmp_path, rows=[{"gone": 1, "id": key, "v": 0} for key in range(3)], columns=columns)
    table.flush(A, [{"gone": 1, "id": 1, "v": 5}])
    table.dataset().drop_columns(["gone"])
    table.dataset().alter_columns({"path": "v", "name": "w"})
    table.dataset().add_columns(pa.field("new", pa.string()))

    table.merge()

    assert table.rows() == [{"id": key, "w": 5 if key == 1 else 0, "new": None} for key in range(3)]
    assert table.base().schema.primary_key == ("id",)
    table.dataset().validate()


def test_a_base_with_stable_row_ids_is_merged(tmp_path: Path) -> None:
    table = Environment(tmp_path)
    schema = table.dataset().schema
    lance.write_dataset(
        table.table([row(key, 0) for key in range(5)]).cast(schema).replace_schema_metadata(schema.metadata),
        table.uri,
        mode="overwrite",
        enable_stable_row_ids=True,
    )
    table.dataset().initialize_mem_wal()
    table.expected = {(key,): row(key, 0) for key in range(5)}
    table.flush(A, [row(1, 1), row(50, 1)], deleted=[2])

    table.merge()

    table.check()
    ids = table.dataset().scanner(with_row_id=True).to_table()["_rowid"].to_pylist()
    assert len(set(ids)) == len(ids)


def test_a_task_that_ran_twice_counts_once(tmp_path: Path) -> None:
    class Repeating:
        parallelism = 3

        def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
            for item in items:
                function(item)
            return [function(item) for item in items]

    table = table_with_generations(tmp_path)

    merged = table.merge(runner=Repeating())

    table.check()
    assert (merged.rows_upserted, merged.rows_deleted) == (5, 1)


@pytest.mark.parametrize(("parallel", "most", "together"), [(1, 16, False), (2, 16, True), (2, 17, False)])
def test_rows_of_a_large_base_are_hidden_while_new_ones_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: int, most: int, *, together: bool
) -> None:
    monkeypatch.setattr(merge_commit, "_ROWS_FOR_THREADS", most)  # there are 10 rows and 7 keys
    table = table_with_generations(tmp_path)
    writing, hiding = threading.Event(), threading.Event()
    beside: list[bool] = []

    class Meeting:
        parallelism = 1

        def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
            name = getattr(function, "func", function).__name__
            if name == "write_live_rows":
                writing.set()
                beside.append(hiding.wait(10 if together else 0))
            if name == "hide_by_scan":
                hiding.set()
                assert writing.wait(10)
            return [function(item) for item in items]

    merged = table.merge(runner=Meeting(), parallel=parallel)

    table.check()
    assert beside == [together]
    assert (merged.rows_upserted, merged.rows_deleted) == (5, 1)


def test_a_merge_in_one_process_reads_keys_and_rows_of_each_generation_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_generation, read = tasks.read_generation, []

    def counted(**options: Any) -> Any:
        read.append((options["uri"], options["columns"]))
        return read_generation(**options)

    monkeypatch.setattr(tasks, "read_generation", counted)
    table = table_with_generations(tmp_path)

    table.merge()

    table.check()
    paths = [f"{table.uri}/{path}" for listed in table.pending.values() for _, path in listed]
    assert sorted(read, key=str) == sorted(((path, columns) for path in paths for columns in ((), None)), key=str)


def test_another_process_gets_no_keys_of_a_generation_but_reads_them(tmp_path: Path) -> None:
    class Sending:
        parallelism = 2
        sent = 0

        def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
            made: list[Result] = []
            for item in items:
                call = pickle.dumps((function, item))
                self.sent += len(call)
                own, given = pickle.loads(call)
                made.append(pickle.loads(pickle.dumps(own(given))))
            return made

    table = Environment(tmp_path, rows=[row(key, 0) for key in range(10)])
    table.flush(A, [row(key, 1) for key in range(0, 200_000, 2)], deleted=[1])

    table.merge(runner=(runner := Sending()))

    assert runner.sent < 100_000
    assert table.dataset().count_rows() == 100_004


def indexed(path: Path, *, rows: int = 100_000) -> Environment:
    """A base large enough to look a few keys up in its index, and a small fragment that the index does not cover."""
    table = Environment(path, rows=[row(key, 0) for key in range(rows)], per_fragment=rows // 2)
    table.dataset().create_scalar_index("id", "BTREE")
    table.append([row(rows, 0), row(rows + 1, 0)])
    table.expected |= {(key,): row(key, 0) for key in (rows, rows + 1)}
    return table


def test_a_few_keys_are_found_by_the_index_and_by_a_scan_of_fragments_that_it_does_not_cover(tmp_path: Path) -> None:
    table = indexed(tmp_path)
    table.flush(A, [row(7, 1)], deleted=[60_000, 100_001])
    runner = Interrupted(0, lambda: None)

    merged = table.merge(runner=runner)

    table.check()
    assert runner.names == ["fold_delta", "write_live_rows", "find_by_index", "hide_rows", "hide_by_scan"]
    assert (merged.rows_upserted, merged.rows_deleted) == (1, 2)


def test_each_key_is_looked_up_in_the_index_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look_up, looked_up = base_rows.look_up, []

    def recorded(base: Any, column: str, runs: list[pa.Array], fragments: Any) -> Any:
        looked_up.extend(run.to_pylist() for run in runs)
        return look_up(base, column, runs, fragments)

    monkeypatch.setattr(base_rows, "look_up", recorded)
    table = indexed(tmp_path)
    table.flush(A, [row(key, 1) for key in (8, 7)], deleted=[60_000])

    table.merge()

    table.check()
    assert looked_up == [[7, 8], [60_000]]


def test_many_keys_are_found_by_a_scan_even_with_an_index(tmp_path: Path) -> None:
    table = indexed(tmp_path)
    table.flush(A, [row(key, 1) for key in range(0, 100_002, 10)])
    runner = Interrupted(0, lambda: None)

    table.merge(runner=runner)

    table.check()
    assert "find_by_index" not in runner.names
    assert table.dataset().count_rows("id = 10 AND v = 1") == 1


# The tests below interrupt a merge after its rows were folded (1), written (2) or hidden (3).

Step = pytest.mark.parametrize("step", [1, 2, 3])


@Step
def test_one_of_two_racing_mergers_commits_and_the_other_finds_nothing_to_do(tmp_path: Path, step: int) -> None:
    table = table_with_generations(tmp_path)

    merged = table.merge(runner=Interrupted(step, table.merge))

    table.check()
    assert merged.generations == 0
    assert merged.regions == {A: 2, B: 1}


@Step
def test_a_merger_whose_counter_moved_plans_again_from_fresh_heads(tmp_path: Path, step: int) -> None:
    counter_moves_during_a_merge(tmp_path, step)


@Step
def test_a_slower_merger_with_older_heads_lowers_no_counter(tmp_path: Path, step: int) -> None:
    table = table_with_generations(tmp_path)
    reads = iter([[RegionPending(region=A, newest=Generation(1), generations=tuple(table.pending[A][:1]))]])

    table.merge(runner=Interrupted(step, table.merge), read_regions=lambda: next(reads, table.read_regions()))

    table.check()
    assert table.base().counters == {A: 2, B: 1}


@pytest.mark.one_case
@Step
@pytest.mark.parametrize("change", ["append", "delete", "update", "compact"])
def test_after_a_commit_of_another_tool_a_merge_repeats_the_lookup_and_keeps_its_written_rows(
    tmp_path: Path, step: int, change: str
) -> None:
    another_tool_commits_during_a_merge(tmp_path, step, change)


@Step
def test_an_index_created_during_a_merge_disturbs_nothing(tmp_path: Path, step: int) -> None:
    table = table_with_generations(tmp_path)
    runner = Interrupted(step, lambda: table.dataset().create_scalar_index("id", "BTREE"))

    table.merge(runner=runner)

    table.check()
    assert runner.names == ["fold_delta", "write_live_rows", "hide_by_scan"]
    assert table.dataset().count_rows("id = 2") == 1


@Step
def test_a_column_added_during_a_merge_makes_the_merge_start_again(tmp_path: Path, step: int) -> None:
    column_is_added_during_a_merge(tmp_path, step)


@Step
def test_rows_written_before_a_raised_fence_are_written_again(tmp_path: Path, step: int) -> None:
    fence_is_raised_during_a_merge(tmp_path, step)


@Step
def test_rows_written_before_a_raised_fence_are_written_again_even_if_a_restore_hides_the_fence(
    tmp_path: Path, step: int
) -> None:
    fence_is_hidden_during_a_merge(tmp_path, step)


class Crash(Exception):
    """The process ends here."""


def crash() -> None:
    raise Crash


@Step
def test_a_merge_that_crashed_before_its_commit_leaves_no_trace_and_can_run_again(tmp_path: Path, step: int) -> None:
    table = table_with_generations(tmp_path)
    before = table.rows()

    with pytest.raises(Crash):
        table.merge(runner=Interrupted(step, crash))

    assert table.rows() == before
    assert table.base().counters == {}
    table.merge()
    table.check()


def test_a_merge_that_crashed_after_its_commit_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_with_generations(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(merge_commit, "_merged", lambda *_: crash())
        with pytest.raises(Crash):
            table.merge()
    table.check()

    again = table.merge()

    table.check()
    assert again.generations == 0
    markers = read_markers(objects=table.objects, version=table.dataset().version)
    assert markers is not None
    assert markers.merged == {A: 2, B: 1}


def lose_first_reply(
    monkeypatch: pytest.MonkeyPatch, *, applied: bool, then: Callable[[], object] = lambda: None
) -> None:
    """Lose the reply of the first commit. Call `then` before the error is raised."""
    real, lost = base_rows.commit, []

    def commit(*args: Any, **named: Any) -> CommittedVersion | Preempted:
        if lost:
            return real(*args, **named)
        lost.append(True)
        if applied:
            real(*args, **named)
        then()
        raise Unavailable("no answer")

    monkeypatch.setattr(base_rows, "commit", commit)


@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_with_a_lost_reply_is_recognised_by_its_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    table = table_with_generations(tmp_path)
    lose_first_reply(monkeypatch, applied=applied)

    merged = table.merge()

    table.check()
    assert (merged.generations, merged.rows_upserted, merged.rows_deleted) == (3, 5, 1)


def test_a_commit_with_a_lost_reply_is_ambiguous_if_the_base_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_with_generations(tmp_path)

    def unreachable(**_: object) -> None:
        raise Unavailable("no answer")

    with monkeypatch.context() as patch:
        lose_first_reply(patch, applied=True, then=lambda: patch.setattr(merge_commit, "open_base", unreachable))
        with pytest.raises(Ambiguous, match="Merge again"):
            table.merge()

    table.merge()
    table.check()


@pytest.mark.rest
def test_a_merge_that_is_always_overtaken_is_contended_after_bounded_attempts(tmp_path: Path) -> None:
    class AlwaysOvertaken:
        parallelism = 1

        def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
            results = [function(item) for item in items]
            raise_fence(table)
            return results

    def raise_fence(table: Environment) -> None:
        base = table.base()
        metadata = {**base.metadata, "lancelsm.fence": str(base.fence + 1)}
        base_rows.commit(base_rows.Base.of(base), changed={}, new=(), metadata=metadata, properties={})

    table = table_with_generations(tmp_path)

    with pytest.raises(Contended):
        table.merge(runner=AlwaysOvertaken())

    assert table.base().counters == {}
    assert table.clock.slept > 0


def overwrite(table: Environment) -> None:
    lance.write_dataset(pa.table({"id": [1], "v": [1]}), table.uri, mode="overwrite")


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_a_base_that_another_tool_replaced_is_corrupt(tmp_path: Path, step: int) -> None:
    table = table_with_generations(tmp_path)
    if step == 0:
        overwrite(table)

    with pytest.raises(Corrupt, match="another tool replaced the base"):
        table.merge(runner=Interrupted(step, lambda: overwrite(table)))

    assert table.dataset().count_rows() == 1


def test_a_merge_leaves_the_base_alone_if_its_table_was_dropped_and_created_again_meanwhile(tmp_path: Path) -> None:
    table = Environment(tmp_path)
    table.flush(A, [row(1, 1)])
    version = table.base().version

    def recreate() -> None:
        shutil.rmtree(Path(table.uri, "_versions"))
        other = BaseFacts(
            table=TableId("7d2c0f6e-8f57-4a29-9c7c-0e6a4d1f3b11"), registry="sqlite", owner="x", regions="{}"
        )
        create_base(uri=table.uri, columns=table.columns, primary_key=table.key, facts=other)
        assert table.base().version == version

    with pytest.raises(Corrupt, match="was dropped and created again"):
        table.merge(runner=Interrupted(3, recreate))

    assert table.base().version == version
    assert table.dataset().count_rows() == 0


def test_a_base_restored_to_an_older_version_is_merged_again(tmp_path: Path) -> None:
    table = table_with_generations(tmp_path)
    merged = table.merge()
    table.flush(A, [row(2, 3)])

    lance.dataset(table.uri, version=merged.base_version - 1).restore()
    table.merge()

    table.check()
    assert table.base().counters == {A: 3, B: 1}


def test_a_restored_base_whose_next_generation_is_gone_is_corrupt(tmp_path: Path) -> None:
    restored_base_lacks_its_next_generation(tmp_path)


def test_heads_older_than_the_base_are_read_again(tmp_path: Path) -> None:
    heads_are_older_than_the_base(tmp_path)


def test_a_generation_that_holds_a_key_twice_is_corrupt(tmp_path: Path) -> None:
    generation_holds_a_key_twice(tmp_path)


def test_a_generation_with_null_in_a_required_column_is_corrupt(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64(), nullable=False)])
    table = Environment(tmp_path, rows=[row(1, 0)], columns=columns)
    flush_raw(table, [{"id": 1, "v": None, TOMBSTONE: False}], table.base().schema.stored)

    with pytest.raises(Corrupt, match="null in column 'v'"):
        table.merge()


def test_a_tombstone_deletes_a_row_of_a_table_with_required_columns(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64(), nullable=False)])
    table = Environment(tmp_path, rows=[row(1, 0), row(2, 0)], columns=columns)
    table.flush(A, [row(2, 1)], deleted=[1])

    table.merge()

    table.check()


def test_a_missing_generation_directory_is_corrupt(tmp_path: Path) -> None:
    table = Environment(tmp_path, rows=[row(1, 0)])
    table.pending[A] = [(Generation(1), f"_mem_wal/{A}/00000000_gen_1")]

    with pytest.raises(Corrupt):
        table.merge()
