"""The embedded loop: everything at once, or what is due, for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from lancelsm.compaction.background import Ran
from lancelsm.table import Table
from tests.simulation.faults import FAIL_BEFORE, Call, FakeClock, Fault, FaultPlan
from tests.unit.tables import create, faulty, row, rows_of


class Ended(Exception):
    """Somebody ended the loop."""


class Limited(FakeClock):
    """A clock that ends the loop once it has waited for so long."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._end = seconds

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.monotonic() >= self._end:
            raise Ended


def waited(path: Path, seconds: float, **settings: object) -> Table:
    """A table with a row in its log, kept by a loop for so long."""
    table = create(path, settings=settings, ports=faulty(FaultPlan(), clock=Limited(seconds)))
    table.upsert([row(1)])
    with pytest.raises(Ended):
        table.run(until_idle=False, engine="inprocess")
    return table


def folded(table: Table) -> tuple[int, int, int]:
    """Rows in the log, generations above the base, rows in the base."""
    (region,) = table.status().regions
    return region.wal_rows, region.generations, table._opened.read_base().rows


def test_until_idle_everything_is_folded_whether_it_is_due_or_not(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    table.upsert([row(key) for key in range(10)])

    assert table.run(engine="inprocess") == Ran(generations=2, merged_generations=2, merges=1)
    assert table.run(engine="inprocess") == Ran()
    assert rows_of(table) == [row(key) for key in range(10)]


@pytest.mark.parametrize(
    ("seconds", "expected"), [(50, (1, 0, 0)), (70, (0, 1, 0)), (1000, (0, 0, 1))], ids=["young", "flush", "merge"]
)
def test_a_loop_does_what_has_waited_long_enough(
    tmp_path: Path, seconds: float, expected: tuple[int, int, int]
) -> None:
    table = waited(tmp_path, seconds, flush_age_seconds=60, merge_age_seconds=900)

    assert folded(table) == expected
    assert rows_of(table) == [row(1)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"flush_rows": 1}, (0, 1, 0)),
        ({"flush_bytes": 1}, (0, 1, 0)),
        ({"flush_rows": 1, "merge_generations": 1}, (0, 0, 1)),
    ],
)
def test_a_loop_does_at_once_what_is_large_enough(
    tmp_path: Path, settings: dict[str, object], expected: tuple[int, int, int]
) -> None:
    assert folded(waited(tmp_path, 3, **settings)) == expected


def test_a_loop_goes_on_after_a_registry_that_did_not_answer(tmp_path: Path) -> None:
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
    assert folded(table) == (0, 1, 0)
