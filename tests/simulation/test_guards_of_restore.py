"""Each guard of a restore in place is needed: without it, its scenario fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import lancelsm
from lancelsm import Restored
from lancelsm.errors import Contended
from lancelsm.history import restore
from tests.simulation.marks import changed, without
from tests.simulation.removal import with_and_without
from tests.unit.tables import by_key, three_levels

COLLECTED_AT_ONCE = {"collect_share_percent": 100, "collect_floor_bytes": 1 << 40}


def restored_after(path: Path, meanwhile: Callable[[lancelsm.Table], object]) -> tuple[lancelsm.Table, Restored]:
    """Restore version 1, with the rows 0 to 3, and do something right after the rows were compared."""
    table = three_levels(path / "t", settings=COLLECTED_AT_ONCE)
    other = lancelsm.open(table.uri)
    run = restore._Restore.run

    def after_comparison(self: restore._Restore, target: restore.Pin) -> Restored:
        meanwhile(other)
        return run(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restore._Restore, "run", after_comparison)
        return table, lancelsm.open(table.uri).restore(1)


def values(table: lancelsm.Table) -> dict[int, int]:
    return by_key(table.scan().to_arrow())


def rows_are_written_after_the_comparison(path: Path) -> None:
    """Another writer changes, adds and deletes rows, and what it wrote is merged and collected."""

    def write(other: lancelsm.Table) -> None:
        other.upsert([{"id": 0, "v": 99}, {"id": 50, "v": 99}])
        other.delete([1])
        other.run()
        other.collect(yes=True, interval_seconds=0)

    table, done = restored_after(path, write)
    assert done == Restored(written=2, kept=2)
    assert values(table) == {0: 99, 2: 0, 3: 0, 50: 99}


def rows_are_compared_when_the_log_is_empty(path: Path) -> None:
    """The snapshot itself needs no entry of the log, but the restore needs those after it."""
    table = three_levels(path / "t", settings=COLLECTED_AT_ONCE)
    table.run()
    put = restore._Restore._put

    def write_then_put(self: restore._Restore, rows: restore.pa.Table) -> int:
        patch.undo()
        other = lancelsm.open(table.uri)
        other.upsert([{"id": 0, "v": 99}])
        other.run()
        other.collect(yes=True, interval_seconds=0)
        return put(self, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restore._Restore, "_put", write_then_put)
        done = lancelsm.open(table.uri).restore(1)
    assert done == Restored(written=3, kept=1)
    assert values(table) == {0: 99, 1: 0, 2: 0, 3: 0}


def rows_are_written_before_a_reshard(path: Path) -> None:
    """New regions have keys that old regions got after the comparison."""

    def write(other: lancelsm.Table) -> None:
        other.upsert([{"id": 0, "v": 99}, {"id": 50, "v": 99}])
        other.reshard("bucket(id, 5)")
        other.upsert([{"id": 1, "v": 99}])

    table, done = restored_after(path, write)
    assert done == Restored(written=2, kept=2)
    assert values(table) == {0: 99, 1: 99, 2: 0, 3: 0, 50: 99}


def rows_are_written_to_a_region_that_began_after_the_comparison(path: Path) -> None:
    """The first write to new values creates a region, which a reshard seals before the restore goes on."""
    rows = [{"id": n, "v": 0} for n in range(2)]
    table = lancelsm.create(path / "t", rows, primary_key="id", regions="identity(id)")
    run = restore._Restore.run

    def write_then_run(self: restore._Restore, target: restore.Pin) -> Restored:
        other = lancelsm.open(table.uri)
        other.upsert([{"id": 0, "v": 99}])
        other.reshard("bucket(id, 2)")
        return run(self, target)

    with pytest.MonkeyPatch.context() as patch:
        table.upsert([{"id": 0, "v": 1}])
        table.reshard("identity(id), bucket(id, 1)")
        table.delete([1])
        patch.setattr(restore._Restore, "run", write_then_run)
        assert table.restore(1).written == 1
    assert values(table) == {0: 99, 1: 0}


def the_log_after_the_comparison_is_collected(path: Path) -> None:
    """A call stalls; meanwhile another call finishes its restore, and newer rows are merged and collected."""
    table = three_levels(path / "t", settings=COLLECTED_AT_ONCE)
    put = restore._Restore._put

    def stalled(self: restore._Restore, rows: restore.pa.Table) -> int:
        patch.undo()
        other = lancelsm.open(table.uri)
        other.restore(1)
        other.upsert([{"id": n, "v": 99} for n in range(4)])
        other.run()
        other.collect(yes=True, interval_seconds=0)
        return put(self, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restore._Restore, "_put", stalled)
        with pytest.raises(Contended, match="log was collected since the rows were compared"):
            lancelsm.open(table.uri).restore(1)
    assert values(table) == dict.fromkeys(range(4), 99)


GUARDS = {
    "a row that was written after the comparison is not restored": (
        [changed("newer row is not restored", "left = part")],
        rows_are_written_after_the_comparison,
    ),
    "the log after the comparison is kept": (
        [without("snapshot of a restore keeps the later log")],
        rows_are_compared_when_the_log_is_empty,
    ),
    "a row of a region that a reshard sealed is not restored": (
        [without("newer row of a sealed region is not restored")],
        rows_are_written_before_a_reshard,
    ),
    "a restore stops if the log after the comparison is gone": (
        [changed("restore stops if the log after the comparison is gone", "pass")],
        the_log_after_the_comparison_is_collected,
    ),
}
OWN = (
    rows_are_written_after_the_comparison,
    rows_are_compared_when_the_log_is_empty,
    rows_are_written_before_a_reshard,
    rows_are_written_to_a_region_that_began_after_the_comparison,
    the_log_after_the_comparison_is_collected,
)

test_a_scenario_passes_with_all_guards, test_the_scenario_fails_without_its_guard = with_and_without(GUARDS, own=OWN)
