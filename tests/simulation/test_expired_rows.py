"""Rows that expire, while merges and removals meet a fault at each call to the store, the registry and Lance.

No older row of an expired key reappears, and no row disappears that has not expired.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.compaction.maintenance import merge_table, optimize_table
from lancelsm.objects.filesystem import LocalStore
from lancelsm.region.handle import Ports, TableHandle
from lancelsm.region.lease import LEASE_SECONDS
from lancelsm.table import Table
from tests.simulation import seam
from tests.simulation.environment import PASSING, raised
from tests.simulation.faults import Call, Crash, Fault, FaultPlan, FaultyStore
from tests.simulation.schedule import Schedule
from tests.simulation.situations import note_on_failure
from tests.simulation.table_environment import READ_FAULTS, WRITE_FAULTS, WRITING
from tests.unit.ttl_scenarios import HOUR, expiring, ids, row, upsert

STEPS: dict[str, Callable[[TableHandle], object]] = {"merge": merge_table, "optimize": optimize_table}
SHARE = {"merge": 2, "optimize": 4}  # one of so many calls meets a fault


@dataclass
class Process:
    """A process that works on the table in a directory under a plan of faults."""

    path: Path
    plan: FaultPlan
    schedule: Schedule = field(default_factory=Schedule)

    def run(self, step: str, *, at: float) -> BaseException | None:
        self.schedule.clock.reach(at)
        ports = Ports(store=self.store, clock=self.schedule.clock, threads=1)
        with seam.through(self), seam.at("victim"):
            return raised(lambda: STEPS[step](lancelsm.open.on(ports)(self.path)._handle))

    def store(self, *_: Any) -> FaultyStore:
        return FaultyStore(LocalStore(self.path, fsync=lambda descriptor: None), self.plan, process="victim")


def healthy(path: Path, clock: Any) -> Table:
    return lancelsm.open.on(Ports(clock=clock, threads=1))(path)


def prepare(path: Path, step: str) -> float:
    """Write a key that has expired above a row that lives, a row that has expired alone, and a row that lives.

    Returns:
        A monotonic time at which they have expired by every clock.
    """
    clock = Schedule().clock
    table = expiring(path, clock, registry="object")
    upsert(table, [row(clock, 1, 100, "old"), row(clock, 2, 100)])
    table.flush()
    table.merge(engine="inprocess")
    upsert(table, [row(clock, 1, 0, "expired"), row(clock, 3, 0)])
    table.flush()
    if step == "optimize":
        table.merge(engine="inprocess")
    return clock.monotonic() + 2 * HOUR


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore::lancelsm.LsmWarning")  # of an optimize that was interrupted
@pytest.mark.parametrize("step", STEPS)
def test_a_fault_at_a_call_neither_revives_nor_loses_a_row(step: str, tmp_path: Path) -> None:
    at = prepare(tmp_path / "start", step)
    shutil.copytree(tmp_path / "start", tmp_path / "well")
    well = Process(tmp_path / "well", FaultPlan())
    assert well.run(step, at=at) is None
    calls = well.plan.calls
    assert "base_rows.commit" in [call.method for call in calls]
    assert ("base_rows.expired_rows" in [call.method for call in calls]) == (step == "optimize")
    turns: dict[str, int] = {}
    for call in calls[:: SHARE[step]]:
        faults = WRITE_FAULTS if call.method in WRITING else READ_FAULTS
        turns[call.method] = turns.get(call.method, -1) + 1
        check(tmp_path, step, call, faults[turns[call.method] % len(faults)], at=at)


def check(directory: Path, step: str, call: Call, fault: Fault, *, at: float) -> None:
    path = directory / f"{call.index}"
    shutil.copytree(directory / "start", path)
    schedule = Schedule()
    victim = Process(path, FaultPlan.at(call.index, fault, clock=schedule.clock), schedule)
    with note_on_failure(step, call, fault), contextlib.redirect_stdout(io.StringIO()):
        error = victim.run(step, at=at)
        assert error is None or isinstance(error, (Crash, *PASSING)), error
        victim.plan.stop()
        for _ in range(2):  # the second recovery comes after a write that lands late
            victim.schedule.clock.advance(LEASE_SECONDS + 1)
            table = healthy(path, victim.schedule.clock)
            assert ids(table) == [2]
            STEPS[step](table._handle)
            assert ids(table) == [2]
            assert table._handle.read_base().rows == 1
            victim.plan.land()
    assert table.scrub().problems == ()
    shutil.rmtree(path)
