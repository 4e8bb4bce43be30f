"""A reshard that meets a fault at any call to store, registry or Lance is finished by the next process."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lancelsm
from lancelsm.errors import LsmError
from lancelsm.region.handle import open_table
from lancelsm.table import Table
from tests.simulation import seam
from tests.simulation.faults import CRASH_AFTER, CRASH_BEFORE, FAIL_AFTER, FAIL_BEFORE, Crash, FakeClock, FaultPlan
from tests.simulation.schedule import Schedule
from tests.unit.tables import faulty

SPEC = "bucket(id, 2)"
BEFORE = {0: 0, 1: 1, 2: 1, 3: 2}
FAULTS = [CRASH_BEFORE, CRASH_AFTER, FAIL_BEFORE, FAIL_AFTER]


def _upsert(table: Table, *keys: int, v: int) -> None:
    table.upsert([{"id": key, "v": v} for key in keys])


def _values(table: Table) -> dict[int, int]:
    found = table.scan().to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found), f"a key is there twice: {found}"
    return {row["id"]: row["v"] for row in found}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with rows in its base, in a generation and in the log."""
    path = tmp_path_factory.mktemp("reshard") / "table"
    table = lancelsm.create(path, [{"id": 0, "v": 0}, {"id": 1, "v": 0}], primary_key="id")
    _upsert(table, 1, 2, v=1)
    table.flush()
    _upsert(table, 3, v=2)
    return path


def _opened(path: Path, plan: FaultPlan, process: str, clock: FakeClock) -> Table:
    return Table(open_table(path, ports=faulty(plan, process=process, clock=clock)))


def _reshard(path: Path, plan: FaultPlan, clock: FakeClock) -> None:
    environment: Any = SimpleNamespace(plan=plan, schedule=Schedule())
    with seam.through(environment), seam.at("first"):
        _opened(path, plan, "first", clock).reshard(SPEC)


def _finished_after(fault: Any, index: int, prepared: Path, path: Path) -> None:
    shutil.copytree(prepared, path)
    clock, plain = FakeClock(), FaultPlan()
    held = _opened(path, plain, "held", clock)
    _upsert(held, 3, v=2)  # it knows the head of the old region
    plan = FaultPlan.at(index, fault, clock=clock)
    try:
        _reshard(path, plan, clock)
    except (Crash, LsmError) as error:
        print(f"{plan.injected}: {error!r}")
    clock.sleep(61)  # the leases of a process that crashed are over

    assert _values(_opened(path, plain, "reader", clock)) == BEFORE
    _upsert(held, 0, 4, v=3)
    assert _values(held) == {**BEFORE, 0: 3, 4: 3}
    other = _opened(path, plain, "other", clock)
    other.reshard(SPEC)
    _upsert(other, 4, v=4)
    for table in (held, other, _opened(path, plain, "new", clock)):
        assert _values(table) == {**BEFORE, 0: 3, 4: 4}
        assert str(table.config.regions) == SPEC
    assert {region.retired is not None for region in other.list_regions() if region.number == 1} == {True}
    assert other.status().problems == ()
    other.merge()
    assert other.scrub().ok
    shutil.rmtree(path)


def _calls(prepared: Path, path: Path) -> int:
    shutil.copytree(prepared, path)
    plan = FaultPlan()
    _reshard(path, plan, FakeClock())
    shutil.rmtree(path)
    return len(plan.calls)


@pytest.mark.rest
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind)
def test_a_reshard_that_meets_a_fault_is_finished(tmp_path: Path, prepared: Path, fault: Any) -> None:
    first = FAULTS.index(fault)
    for index in range(first, _calls(prepared, tmp_path / "count"), 19):
        _finished_after(fault, index, prepared, tmp_path / "table")


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind)
def test_a_reshard_that_meets_a_fault_at_any_call_is_finished(tmp_path: Path, prepared: Path, fault: Any) -> None:
    for index in range(_calls(prepared, tmp_path / "count")):
        _finished_after(fault, index, prepared, tmp_path / "table")
