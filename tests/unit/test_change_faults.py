"""A call that meets a fault at any request, and is repeated with the same events, applies each event once."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.errors import LsmError
from lancelsm.objects.filesystem import LocalStore
from lancelsm.region.handle import Ports
from tests.simulation.faults import (
    CRASH_AFTER,
    CRASH_BEFORE,
    DENY,
    FAIL_AFTER,
    Crash,
    FakeClock,
    Fault,
    FaultPlan,
    FaultyStore,
)

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string())])
FIRST = [{"id": key, "v": "first"} for key in range(4)]
EVENTS = [{"id": key, "v": "second"} for key in range(6)]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "table"
    table = lancelsm.create(path, COLUMNS, primary_key="id", regions="bucket(id, 2)", registry="object")
    table.apply_changes(FIRST, source="s", offset=4)
    return path


def applied_with(plan: FaultPlan, path: Path) -> lancelsm.Table:
    """Apply the events in a process with faults, then again in a healthy one after another writer."""
    ports = Ports(store=lambda *_: FaultyStore(LocalStore(path), plan, process="victim"), clock=FakeClock(), threads=1)
    with contextlib.suppress(LsmError, Crash):
        lancelsm.open.on(ports)(path).apply_changes(EVENTS, source="s", offset=10)
    plan.stop()
    table = lancelsm.open(path)
    offset = table.source_offset("s")
    assert offset == 4 or [region.head().applied("source:s") for region in table.list_regions()] == [10, 10]
    table.apply_changes(EVENTS, source="s", offset=10)
    table.upsert([{"id": 0, "v": "third"}])
    assert table.apply_changes(EVENTS, source="s", offset=10).skipped == len(EVENTS)
    return table


@pytest.mark.rest
@pytest.mark.parametrize("fault", [DENY, FAIL_AFTER, CRASH_BEFORE, CRASH_AFTER], ids=lambda fault: fault.kind)
def test_each_event_is_applied_once_after_a_fault_at_any_request(template: Path, tmp_path: Path, fault: Fault) -> None:
    at, injected = -1, True
    while injected:
        at += 1
        path = tmp_path / str(at)
        shutil.copytree(template, path)
        plan = FaultPlan.at(at, fault)
        table = applied_with(plan, path)
        injected = bool(plan.injected)
        rows = table.scan().to_arrow().sort_by("id").to_pylist()
        assert rows == [{"id": 0, "v": "third"}, *EVENTS[1:]], at
        assert sum(region.head().wal_rows for region in table.list_regions()) == len(FIRST) + len(EVENTS) + 1, at
        assert table.source_offset("s") == 10
    assert at > 8
