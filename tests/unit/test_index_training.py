"""Optimizing extends indexes, keeps their segments few, trains them again, and gives up on those that Lance refuses."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from lancelsm.compaction import indexes as maintained
from lancelsm.compaction import maintenance
from lancelsm.dataset.index_extension import is_training_due, segments_to_merge
from lancelsm.read.index_status import promise_problem
from lancelsm.region.compare_and_swap import newest
from lancelsm.table import Table
from tests.unit.index_tables import DIMENSIONS, check_promise, create, generations, promised, rows, vector


def problem_of(table: Table) -> str:
    manifests = [newest(region, region.head())[1] for region in table.list_regions()]
    return promise_problem(table._handle.read_base(), manifests, objects=table._handle.context.objects)


@pytest.mark.parametrize(
    ("rows", "merged"),
    [
        ([], 0),
        ([5], 0),
        ([2, 1], 0),
        ([20_000, 500], 0),
        ([20_000, 500, 500], 2),
        ([20_000, 500, 251], 2),
        ([20_000, 500, 250], 0),
        ([4_000, 1_000, 500, 500], 3),
        ([1_999, 500, 500], 3),
        ([10, 100, 7], 3),
        ([0, 0], 2),
    ],
)
def test_small_new_segments_are_merged_until_each_is_twice_as_large_as_the_next(rows: list[int], merged: int) -> None:
    assert segments_to_merge(rows) == merged


@pytest.mark.parametrize(
    ("rows", "trained_rows", "due"),
    [(0, 0, False), (255, 0, False), (256, 0, True), (256, 128, True), (511, 256, False), (512, 256, True)],
)
def test_training_is_due_at_twice_the_rows(rows: int, trained_rows: int, due: bool) -> None:
    assert is_training_due(rows=rows, trained_rows=trained_rows) is due


@pytest.mark.rest
def test_segments_stay_few_and_an_index_is_trained_again_at_twice_its_rows(tmp_path: Path) -> None:
    table = create(tmp_path, range(300))
    table.create_index("vec", kind="IVF_FLAT", num_partitions=1)
    table.create_index("text", kind="INVERTED")
    segments, trained = [], []

    def add(numbers: range) -> None:
        table.upsert(rows(numbers))
        table.flush()
        table.merge()
        maintenance.optimize_table(table._handle)
        status = {one.name: one for one in table.list_indices()}
        assert {one.rows_without for one in status.values()} == {0}
        assert status["text_idx"].segments == 1
        segments.append(status["vec_idx"].segments)
        trained.append(status["vec_idx"].trained_rows)

    for start in range(300, 600, 60):
        add(range(start, start + 60))
    with (
        mock.patch.object(maintained, "retrain_index", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        add(range(600, 1200))
    with mock.patch.object(maintained, "retrain_index") as trains:  # not again: it may have taken too long
        add(range(1200, 1201))

    assert not trains.called
    assert segments == [2, 2, 3, 1, 1, 2]  # each at least twice as large as the next
    assert trained == [300, 300, 300, 300, 600, 1200]
    assert table.scrub().ok
    check_promise(table)


def test_an_index_that_lance_cannot_extend_holds_up_no_collection_and_the_status_names_it(tmp_path: Path) -> None:
    table = create(tmp_path)
    for column, kind in (("vec", "IVF_FLAT"), ("text", "INVERTED")):
        table.create_index(column, kind=kind)
    table.upsert([{"id": 1, "vec": [3e38] * DIMENSIONS, "text": ""}, *rows([2])])
    table.flush()
    table.merge()

    maintenance.optimize_table(table._handle)
    version = maintenance.optimize_table(table._handle).base_version  # tried again, to no effect

    status = {one.name: one for one in table.list_indices()}
    assert (status["vec_idx"].stalled, status["vec_idx"].rows_without) == (True, 2)
    assert (status["text_idx"].stalled, status["text_idx"].rows_without) == (False, 0)
    assert promised(table) == {"text_idx"}
    assert "Lance refuses to extend the indexes vec_idx" in problem_of(table)
    assert table.status().base_version == version
    for _ in range(2):
        table.collect(yes=True, interval_seconds=0)
    assert generations(table) == []
    assert table.search(vector(2), k=1).to_arrow()["id"].to_pylist() == [2]

    table.delete([1])
    table.flush()
    table.merge()
    maintenance.optimize_table(table._handle)

    assert promised(table) == {"text_idx", "vec_idx"}
    assert problem_of(table) == ""
