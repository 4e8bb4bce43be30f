"""Optimizing the base keeps its rows and counters, and its indexes catch up with merges."""

from __future__ import annotations

from pathlib import Path

import pytest

from lancelsm.compaction import optimize
from lancelsm.compaction.optimize import Optimized, optimize_base
from lancelsm.dataset.merged_generations import Markers, read_markers
from lancelsm.errors import Contended
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
    monkeypatch.setattr(optimize, "compact", lambda _: real(stale))

    with pytest.raises(Contended):
        optimize_base(uri=table.uri, small_fragments=1)

    table.check()


def test_a_merge_repeats_its_lookup_after_a_concurrent_compaction(tmp_path: Path) -> None:
    from tests.unit.merge_environment import Interrupted

    table = merged_table(tmp_path)
    table.flush(B, [row(3, 3)], deleted=[4])

    table.merge(runner=Interrupted(3, lambda: optimize_base(uri=table.uri, small_fragments=1)))

    table.check()
