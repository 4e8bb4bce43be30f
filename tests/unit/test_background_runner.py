"""The background runner: run until idle, or run forever and do what is due."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from lancelsm.compaction import background
from lancelsm.compaction.background import Ran
from lancelsm.compaction.maintenance import merge_table
from lancelsm.compaction.merge import Merged
from lancelsm.compaction.runner import Engine
from lancelsm.region.handle import TableHandle
from lancelsm.table import Table
from tests.simulation.faults import FAIL_BEFORE, Call, FakeClock, Fault, FaultPlan
from tests.unit.tables import create, faulty, row, rows_of


class Ended(Exception):
    """The test ended the background runner."""


class Limited(FakeClock):
    """A clock that ends the background runner after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._end = seconds

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.monotonic() >= self._end:
            raise Ended


def run_for(path: Path, seconds: float, **settings: object) -> Table:
    """Create a table with a row in its log, and run it in the background for `seconds`."""
    table = create(path, settings=settings, ports=faulty(FaultPlan(), clock=Limited(seconds)))
    table.upsert([row(1)])
    with pytest.raises(Ended):
        table.run(until_idle=False, engine="inprocess")
    return table


def level_counts(table: Table) -> tuple[int, int, int]:
    """Rows in the log, generations above the base, rows in the base."""
    (region,) = table.status().regions
    return region.wal_rows, region.generations, table._handle.read_base().rows


def test_until_idle_flushes_and_merges_everything_due_or_not(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    table.upsert([row(key) for key in range(10)])

    assert table.run(engine="inprocess") == Ran(generations=2, merged_generations=2, merges=1)
    assert table.run(engine="inprocess") == Ran()
    assert rows_of(table) == [row(key) for key in range(10)]


def test_a_run_ends_although_others_go_on_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, keys = create(tmp_path), count(2)
    table.upsert([row(1)])

    def merge_while_another_writes(handle: TableHandle, *, engine: Engine) -> Merged:
        table.upsert([row(key := next(keys))])
        assert key < 5, "the run goes on with what was written after it began"
        return merge_table(handle, engine=engine)

    monkeypatch.setattr(background, "merge_table", merge_while_another_writes)

    assert table.run(engine="inprocess") == Ran(generations=1, merged_generations=1, merges=1)
    assert level_counts(table) == (1, 0, 1)


def test_a_run_counts_the_compactions_of_the_base(tmp_path: Path) -> None:
    table = create(tmp_path, settings={"optimize_small_fragments": 2})
    ran = []
    for key in range(3):
        table.upsert([row(key)])
        ran.append(table.run(engine="inprocess").compactions)

    assert ran == [0, 1, 1]


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(50, (1, 0, 0)), (70, (0, 1, 0)), (1000, (0, 0, 1))],
    ids=["before the flush", "flushed", "merged"],
)
def test_the_runner_flushes_and_merges_by_age(tmp_path: Path, seconds: float, expected: tuple[int, int, int]) -> None:
    table = run_for(tmp_path, seconds, flush_age_seconds=60, merge_age_seconds=900)

    assert level_counts(table) == expected
    assert rows_of(table) == [row(1)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"flush_rows": 1}, (0, 1, 0)),
        ({"flush_bytes": 1}, (0, 1, 0)),
        ({"flush_rows": 1, "merge_generations": 1}, (0, 0, 1)),
    ],
)
def test_the_runner_flushes_and_merges_by_size_at_once(
    tmp_path: Path, settings: dict[str, object], expected: tuple[int, int, int]
) -> None:
    assert level_counts(run_for(tmp_path, 3, **settings)) == expected


def test_the_runner_goes_on_after_the_registry_did_not_answer(tmp_path: Path) -> None:
    unanswered: list[Call] = []
    written = False

    def decide(call: Call) -> Fault | None:
        if not written or call.method != "list" or len(unanswered) == 3:
            return None
        unanswered.append(call)
        return FAIL_BEFORE

    table = create(tmp_path, settings={"flush_rows": 1}, ports=faulty(FaultPlan(decide), clock=Limited(6)))
    table.upsert([row(1)])
    written = True

    with pytest.raises(Ended):
        table.run(until_idle=False)

    assert len(unanswered) == 3
    assert level_counts(table) == (0, 1, 0)
