"""What `dispatch` reports of tables that wait: since the oldest row, also under steady writes and after pauses."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.common.clock import SystemClock
from lancelsm.common.layout import RegionId
from lancelsm.compaction.maintenance import merge_table
from lancelsm.record.normalize import upserts
from lancelsm.region.handle import open_table
from lancelsm.routing.route import route
from lancelsm.stack.backlog import Backlog, Measure, emit, measures
from lancelsm.stack.telemetry import Telemetry
from lancelsm.table import Table
from lancelsm.wal.region_writer import RegionWriters
from tests.unit.tables import create, row
from tests.unit.test_dispatch import DirtyIndex, FakeWork, run, table_opener
from tests.unit.test_rebuild import lose_registry, rebuild_and_open

LATER = table_opener(flush_rows=1_000_000, flush_age_seconds=1e9, merge_generations=1000, merge_age_seconds=1e9)


@dataclass
class Hands:
    """The time that all clocks of the process show."""

    seconds: float = 1_000_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(SystemClock, "now", lambda _: hands.seconds)
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: hands.seconds)
    return hands


def waits(table: Table) -> dict[str, float]:
    """What a run of `dispatch` reports of the table, in whole seconds."""
    registry = DirtyIndex()
    registry.add(table)
    done = run(registry, open_table=LATER, work=FakeWork())
    return {one.name: round(one.value) for one in done.waiting.get(table.uri, ())}


def merge(table: Table) -> None:
    merge_table(open_table(table.uri), engine="inprocess")


def test_under_steady_writes_the_oldest_row_is_as_young_as_the_last_flush_and_merge(
    tmp_path: Path, clock: Hands
) -> None:
    table = create(tmp_path)
    seen = []
    for minute in range(12):
        table.upsert([row(minute)])
        clock.seconds += 60
        if minute % 3 == 2:  # a flush takes what is there, and the next row follows at once
            table.flush()
        if minute % 6 == 5:
            table.upsert([row(100 + minute)])
            merge(table)
        seen.append(waits(table))

    assert all(one["oldest_unflushed_seconds"] <= 180 for one in seen if "oldest_unflushed_seconds" in one)
    assert max(one.get("merge_lag_seconds", 0) for one in seen) <= 420
    assert "oldest_unflushed_seconds" in seen[1]
    assert "merge_lag_seconds" in seen[2]


@pytest.mark.parametrize("writer", ["a new one", "the same", "a pipelined one"])
def test_a_pause_without_rows_is_no_time_of_waiting(writer: str, tmp_path: Path, clock: Hands) -> None:
    table = create(tmp_path)
    writers = RegionWriters(table._handle.target(), owner="alone", depth=2)

    def upsert(key: int) -> None:
        if writer == "a pipelined one":
            done: queue.Queue[Any] = queue.Queue()
            (part,) = route(upserts([row(key)], schema=table.config.schema), table.config.regions)
            writers.of(part.values).start(part.rows, done.put)
            done.get()
        else:
            (lancelsm.open(table.uri) if writer == "a new one" else table).upsert([row(key)])

    upsert(1)
    clock.seconds += 50
    table.flush()
    merge(table)
    clock.seconds += 1200

    upsert(2)
    clock.seconds += 30
    first = waits(table)
    table.flush()
    second = waits(table)
    if writer == "a pipelined one":
        writers.release()

    assert (first["oldest_unflushed_seconds"], "merge_lag_seconds" in first) == (30, False)
    assert (second["merge_lag_seconds"], second["pending_generations"]) == (30, 1)
    assert not {"oldest_unflushed_seconds", "log_bytes"} & second.keys()


def test_a_flush_that_stands_still_is_seen_although_rows_go_on(tmp_path: Path, clock: Hands) -> None:
    table = create(tmp_path)
    for _ in range(10):
        table.upsert([row(1)])
        clock.seconds += 300

    assert waits(table)["oldest_unflushed_seconds"] == 3000


def test_after_a_rebuild_rows_wait_since_the_rebuild(tmp_path: Path, clock: Hands) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    table.flush()
    table.upsert([row(2)])
    lose_registry(Path(table.uri))
    clock.seconds += 5000

    rebuilt = rebuild_and_open(Path(table.uri))
    clock.seconds += 100

    found = waits(rebuilt)
    assert (found["oldest_unflushed_seconds"], found["merge_lag_seconds"]) == (100, 100)


def test_the_largest_value_of_a_table_is_reported_with_its_region() -> None:
    waiting = [
        (RegionId("a"), Backlog(log_bytes=5, generations=0, log_since=900.0)),
        (RegionId("b"), Backlog(log_bytes=9, generations=2, log_since=950.0, merge_since=1001.0)),
    ]

    assert set(measures(waiting, now=1000.0)) == {
        Measure(name="oldest_unflushed_seconds", value=100.0, region=RegionId("a")),
        Measure(name="log_bytes", value=9, region=RegionId("b")),
        Measure(name="pending_generations", value=2, region=RegionId("b")),
    }


def test_metrics_have_the_largest_value_and_the_log_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(Telemetry, "log", lambda _self, message, **facts: lines.append((message, facts)))
    telemetry = Telemetry(function="dispatch")
    found = {
        table: [Measure(name="log_bytes", value=size, region=RegionId(f"region of {table}"))]
        for table, size in (("s3://a", 5.0), ("s3://b", 9.0), ("s3://c", 7.0))
    }

    emit(found, telemetry)

    assert telemetry.measured == {"": {"log_bytes": (9.0, "Bytes")}}
    where = {"measure": "log_bytes", "value": 9, "table": "s3://b", "region": "region of s3://b"}
    assert lines == [("waits", where)]
