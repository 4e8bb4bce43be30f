"""Another writer comes before any call of a restore in place: what it wrote after the compared head stays."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import lancelsm
from lancelsm.common.clock import SystemClock
from lancelsm.common.layout import Position, RegionId
from lancelsm.errors import Contended
from lancelsm.history import restore
from tests.simulation.faults import Call, FaultPlan
from tests.unit.tables import by_key, faulty, three_levels

KEYS, NEWER = (0, 50), 99
STEP = 7  # between the calls that are tried; the two runs begin with different ones


@pytest.mark.rest
@pytest.mark.parametrize("collected", [False, True])
def test_what_is_written_before_any_call_is_restored_if_it_was_compared_and_kept_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collected: bool
) -> None:
    table = three_levels(tmp_path / "t", settings={"collect_share_percent": 100, "collect_floor_bytes": 1 << 40})
    compared: dict[RegionId, Position] = {}
    run = restore._Restore.run

    def noting(self: restore._Restore, target: restore.Pin) -> lancelsm.Restored:
        compared.update({region: needs.next_position for region, needs in self._compared.regions.items()})
        return run(self, target)

    monkeypatch.setattr(restore._Restore, "run", noting)
    kept = restored = 0
    at = int(collected)
    calls = at + 1
    while at < calls:
        uri = tmp_path / f"{at}"
        shutil.copytree(table.uri, uri)
        other = lancelsm.open(uri)
        plan, entries = overtaken(other, at, collected=collected)
        ours = lancelsm.open.on(faulty(plan, process=f"{at}", clock=SystemClock()))(uri)
        try:
            ours.restore(1)
        except Contended:
            ours.restore(1)
        plan.stop()
        wanted = dict.fromkeys(range(4), 0)
        for key, entry in entries.items():
            if entry.position >= compared[entry.region]:
                wanted[key] = NEWER
        assert by_key(other.scan().to_arrow()) == wanted, f"before call {at}"
        assert other.scrub().ok
        kept, restored = kept + (50 in wanted), restored + (50 not in wanted)
        at, calls = at + STEP, len(plan.calls)
        shutil.rmtree(uri)
    assert kept > 1 < restored  # both sides of the compared head were reached


def overtaken(
    other: lancelsm.Table, at: int, *, collected: bool
) -> tuple[FaultPlan, dict[int, lancelsm.CommittedEntry]]:
    """Let another writer act before the call with this number. Return also its entries by key."""
    entries: dict[int, lancelsm.CommittedEntry] = {}

    def act(call: Call) -> None:
        if call.index != at:
            return
        for key in KEYS:
            (entries[key],) = other.upsert([{"id": key, "v": NEWER}]).entries
        if collected:
            other.run()
            other.collect(yes=True, interval_seconds=0)

    return FaultPlan(act), entries
