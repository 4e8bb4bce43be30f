"""Optimizing the base keeps its rows and counters, and its indexes catch up with merges."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import pytest

import lancelsm
from lancelsm.compaction import optimize
from lancelsm.compaction.maintenance import optimize_table
from lancelsm.compaction.optimize import Optimized, optimize_base
from lancelsm.compaction.pace import Pace
from lancelsm.dataset import optimize as rewriting
from lancelsm.dataset.base_rows import Base, NewFragment
from lancelsm.dataset.merged_generations import Markers, read_markers
from lancelsm.dataset.read_back import data_path
from lancelsm.errors import Contended, Corrupt
from lancelsm.region.handle import open_table
from tests.simulation.marks import without
from tests.simulation.removal import with_and_without
from tests.unit.merge_environment import A, B, Environment, row


def markers(table: Environment) -> Markers:
    found = read_markers(objects=table.objects, version=table.dataset().version)
    assert found is not None
    return found


def merged_table(path: Path) -> Environment:
    table = Environment(path, rows=[row(key, 0) for key in range(40)], per_fragment=10)
    table.dataset().create_scalar_index("id", "BTREE", name="by_id")
    table.flush(A, [row(1, 1)], deleted=range(20, 30))
    table.flush(B, [row(100, 1)])
    table.merge()
    return table


def test_optimize_keeps_counters_and_rows_and_indexes_catch_up(tmp_path: Path) -> None:
    table = merged_table(tmp_path)

    done = optimize_base(uri=table.uri, small_fragments=3)

    table.check()
    assert done.fragments_removed >= 3
    assert len(table.base().fragments) == 1
    assert done.indexes_extended
    assert table.base().counters == {A: 1, B: 1}
    assert markers(table).merged == {A: 1, B: 1}
    assert markers(table).caught_up == {"by_id": {A: 1, B: 1}}
    table.flush(A, [row(2, 2), row(25, 2)])
    table.merge()
    table.check()
    assert table.dataset().count_rows("id = 25") == 1


def test_an_index_catches_up_with_a_merge_that_only_deleted(tmp_path: Path) -> None:
    table = merged_table(tmp_path)
    optimize_base(uri=table.uri)
    table.flush(A, deleted=[5])
    table.merge()
    assert markers(table).caught_up == {"by_id": {A: 1, B: 1}}

    assert optimize_base(uri=table.uri, deleted_share=0.9).indexes_extended

    assert markers(table).caught_up == {"by_id": {A: 2, B: 1}}


def test_optimize_commits_nothing_if_there_is_nothing_to_do(tmp_path: Path) -> None:
    table = merged_table(tmp_path)
    version = optimize_base(uri=table.uri, deleted_share=0.9).base_version

    again = optimize_base(uri=table.uri, deleted_share=0.9)

    unchanged = Optimized(fragments_removed=0, fragments_added=0, indexes_extended=False, base_version=version)
    assert again == unchanged


def test_a_base_is_compacted_in_batches_with_a_commit_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Environment(tmp_path, rows=[row(key, 0) for key in range(120)], per_fragment=10)
    monkeypatch.setattr(rewriting, "TARGET_ROWS", 40)  # tasks of 4 fragments
    monkeypatch.setattr(optimize, "TARGET_ROWS", 80)
    monkeypatch.setattr(rewriting, "BATCH_FRAGMENTS", 5)

    runs = [optimize_base(uri=table.uri, small_fragments=2) for _ in range(3)]

    assert [(one.fragments_removed, one.fragments_added, one.left) for one in runs] == [
        (4, 1, True),
        (4, 1, True),
        (4, 1, False),
    ]
    table.check()


def test_a_batch_ends_before_it_exceeds_its_bytes_and_has_at_least_one_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Environment(tmp_path, rows=[row(key, 0) for key in range(120)], per_fragment=10)
    monkeypatch.setattr(rewriting, "TARGET_ROWS", 40)
    planned = rewriting.bytes_to_rewrite(table.base())  # 3 tasks of 4 fragments

    removed = []
    for most in (planned * 3 // 4, 1):
        monkeypatch.setattr(rewriting, "BATCH_BYTES", most)
        removed.append(optimize_base(uri=table.uri, small_fragments=1).fragments_removed)

    assert removed == [8, 4]
    assert rewriting.bytes_to_rewrite(table.base()) == 0 < planned


def test_an_optimize_without_time_ends_after_a_batch_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lancelsm.create(
        tmp_path / "t", [{"id": 0, "v": 0}], primary_key="id", settings={"optimize_small_fragments": 2}
    )
    for key in range(1, 9):
        table.upsert({"id": key, "v": key})
        table.flush()
        table.merge(engine="inprocess")
    monkeypatch.setattr(rewriting, "TARGET_ROWS", 3)
    monkeypatch.setattr(rewriting, "BATCH_FRAGMENTS", 1)
    handle = open_table(table.uri)

    stopped = optimize_table(handle, pace=Pace(clock=handle.context.clock, seconds=0))
    done = optimize_table(handle, pace=Pace(clock=handle.context.clock, seconds=900))

    assert (stopped.fragments_added, stopped.left, done.left) == (1, True, False)
    assert done.fragments_added > 1
    assert table.scan().to_arrow().sort_by("id").to_pylist() == [{"id": key, "v": key} for key in range(9)]
    assert table.scrub().ok


@pytest.mark.parametrize(
    ("deleted", "small_fragments", "due"), [(10, 64, True), (9, 64, False), (0, 64, False), (0, 10, True)]
)
def test_compaction_is_due_by_small_fragments_or_by_the_share_of_deleted_rows(
    tmp_path: Path, deleted: int, small_fragments: int, due: bool
) -> None:
    table = Environment(tmp_path, rows=[row(key, 0) for key in range(100)], per_fragment=10)
    table.dataset().delete(f"id < {deleted} * 10 AND id % 10 = 0")

    assert optimize.compaction_is_due(table.base(), small_fragments, 0.10) is due


def test_optimize_is_contended_and_does_no_harm_if_the_base_changes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = merged_table(tmp_path)
    real = optimize.compact
    stale = table.base()
    table.flush(A, [row(2, 2)])
    table.merge()
    monkeypatch.setattr(optimize, "compact", lambda _, **options: real(stale, **options))

    with pytest.raises(Contended):
        optimize_base(uri=table.uri, small_fragments=1)

    table.check()


def test_a_merge_repeats_its_lookup_after_a_concurrent_compaction(tmp_path: Path) -> None:
    from tests.unit.merge_environment import Interrupted

    table = merged_table(tmp_path)
    table.flush(B, [row(3, 3)], deleted=[4])

    table.merge(runner=Interrupted(3, lambda: optimize_base(uri=table.uri, small_fragments=1)))

    table.check()


def nothing_is_rewritten(table: Environment, *, named: str) -> None:
    before, rows = table.base().fragments, table.rows()
    with pytest.raises(Corrupt) as raised:
        optimize_base(uri=table.uri, small_fragments=1)
    assert str(raised.value.where["object"]).startswith(named)
    assert table.base().fragments == before
    assert table.rows() == rows


def wrong_rows_are_written(path: Path) -> None:
    """A bit flips in a new file before it is read back."""
    table = merged_table(path)
    sum_new = rewriting.sum_new

    def damaged(base: Base, written: Iterable[NewFragment]) -> tuple[NewFragment, ...]:
        written = tuple(written)
        file = Path(base.uri, data_path(written[0].metadata))
        body = bytearray(file.read_bytes())
        values = body.index((3).to_bytes(8, "little") + (4).to_bytes(8, "little"))
        body[values] ^= 64
        file.write_bytes(body)
        return sum_new(base, written)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewriting, "sum_new", damaged)
        nothing_is_rewritten(table, named="data/")
    optimize_base(uri=table.uri, small_fragments=1)
    table.check()


def old_file_is_damaged(path: Path) -> None:
    """A compaction would copy a wrong value into a new file, and state its sum."""
    table = Environment(path, rows=[row(1, 0)])
    table.flush(A, [row(key, 0x0102030405060708 + key) for key in range(2, 300)])
    table.merge()
    (key,) = [str(one.metadata.files[0].path) for one in table.dataset().get_fragments() if one.physical_rows > 1]
    file = Path(table.uri, "data", key)
    body, rows = file.read_bytes(), table.rows()
    for at in range(len(body)):
        file.write_bytes(body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])
        with contextlib.suppress(ValueError, OSError):
            if table.rows() != rows:
                break
    nothing_is_rewritten(table, named=f"data/{key}")


GUARDS = {
    "optimize reads its rows back": ([without("optimize reads its rows back")], wrong_rows_are_written),
    "copied files are the stated ones": ([without("copied files are the stated ones")], old_file_is_damaged),
}

test_a_guarded_scenario_passes, test_it_fails_without_the_guard = with_and_without(
    GUARDS, own=[scenario for _, scenario in GUARDS.values()]
)
