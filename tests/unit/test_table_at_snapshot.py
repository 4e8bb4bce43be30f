"""A table opened at a snapshot shows the same rows, refuses writes, and raises once the snapshot is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest

import lancelsm
from lancelsm.errors import Invalid
from lancelsm.table import Table
from tests.simulation.faults import FakeClock, FaultPlan
from tests.unit.tables import NEWEST, by_key, faulty, three_levels


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return three_levels(tmp_path / "t", settings={"collect_floor_bytes": 1 << 40, "keep_versions_seconds": 0.001})


def values(table: Table, **how: Any) -> dict[int, int]:
    return by_key(table.scan(**how).to_arrow())


@pytest.mark.rest
def test_rows_at_a_snapshot_stay_the_same_while_the_table_is_written_merged_and_collected(table):
    table.snapshot("monday", "1h")
    at = lancelsm.open(table.uri, at="monday")
    for value in range(3, 6):
        table.upsert([{"id": n, "v": value} for n in range(9)])
        table.run()
        assert table.collect(yes=True, interval_seconds=0).deleted

        assert values(at) == values(lancelsm.open(table.uri, at="monday")) == NEWEST
        assert at.get([0, 3, 8]).to_pylist() == [{"id": 0, "v": 2}]
        assert values(at, where="v = 1", limit=1).keys() <= {1, 2}
    assert values(table) == dict.fromkeys(range(9), 5)
    assert at.at_snapshot == "monday"


def test_the_next_collection_deletes_what_only_a_dropped_snapshot_kept(table):
    table.snapshot("monday")
    table.run()
    kept = table.collect(yes=True, interval_seconds=0)
    assert any("snapshot monday needs it" in one.why for one in kept.kept)
    table.drop_snapshot("monday")
    after_drop = table.collect(yes=True, interval_seconds=0)

    assert after_drop.deleted
    assert not any("monday" in one.why for one in after_drop.kept)
    assert values(table) == NEWEST


def test_rows_at_a_snapshot_stay_the_same_after_the_base_was_restored_to_an_older_version(table):
    table.merge()
    before = table.status().base_version
    table.snapshot("monday")
    table.upsert([{"id": 0, "v": 9}])
    table.run()
    lance.dataset(table.uri, version=before).restore()

    assert values(table.at("monday")) == NEWEST


def test_a_table_at_a_snapshot_refuses_writes_and_maintenance(table):
    table.snapshot("monday")
    at = table.at("monday")
    region = table.list_regions()[0]
    acts: list[Callable[[], Any]] = [
        lambda: at.upsert([{"id": 0, "v": 9}]),
        lambda: at.delete([0]),
        lambda: at.delete(where="id = 0"),
        at.writer,
        at.flush,
        at.merge,
        at.run,
        at.collect,
        at.changes,
        lambda: at.claim(region),
        lambda: at.seal(region),
        lambda: at.snapshot("tuesday"),
        lambda: at.drop_snapshot("monday"),
        lambda: at.set_cursor("sink"),
    ]
    for act in acts:
        with pytest.raises(Invalid, match="the table is open at a snapshot") as raised:
            act()
        assert raised.value.remedy
    assert values(table) == NEWEST


def test_a_scan_whose_snapshot_is_collected_raises_instead_of_returning_fewer_rows(table):
    table.upsert([{"id": n, "v": 1} for n in range(40)])
    table.flush()
    table.snapshot("monday")
    rows = iter(table.at("monday").scan())
    assert next(rows).num_rows < 40
    table.drop_snapshot("monday")
    table.run()
    table.collect(yes=True, interval_seconds=0)

    with pytest.raises(Invalid, match="snapshot not found") as raised:
        list(rows)
    assert raised.value.where["snapshot"] == "monday"
    assert "longer time to live" in raised.value.remedy


def test_an_expired_snapshot_is_refused_and_a_refreshed_one_is_not(table):
    clock = FakeClock()
    ports = faulty(FaultPlan(), clock=clock)
    table = lancelsm.open.on(ports)(table.uri)
    table.snapshot("monday", 60)
    at = table.at("monday")
    clock.advance(59)
    assert values(at) == NEWEST
    clock.advance(1)
    with pytest.raises(Invalid, match="the snapshot has expired"):
        values(at)
    with pytest.raises(Invalid, match="the snapshot has expired") as raised:
        lancelsm.open.on(ports)(table.uri, at="monday")
    assert f"lancelsm snapshot refresh {table.uri} --name monday" in raised.value.remedy
    assert "longer time to live" in raised.value.remedy
    table.refresh_snapshot("monday", "never")

    assert values(at) == NEWEST
    assert [(pin.name, pin.expires) for pin in table.snapshots()] == [("monday", None)]


def test_a_new_snapshot_with_the_name_of_a_dropped_one_is_another_snapshot(table):
    table.snapshot("monday")
    at = table.at("monday")
    table.drop_snapshot("monday")
    table.snapshot("monday")

    with pytest.raises(Invalid, match="dropped or have expired"):
        values(at)


def test_the_time_to_live_is_text_seconds_or_the_tables_setting(table):
    pins = [table.snapshot("a"), table.snapshot("b", "2h"), table.snapshot("c", 90), table.snapshot("d", "never")]
    lives = [pin.expires and round((pin.expires - pin.created) / 60) for pin in pins]
    assert lives == [60, 120, 2, None]
    for wrong in ("soon", "-1s", 0, "1 h", "101y", "36501d", "9" * 400):
        with pytest.raises(Invalid):
            table.snapshot("e", wrong)


def test_a_held_snapshot_is_a_table_that_reads_the_same_until_the_context_ends(table):
    with table.holding_snapshot("job", "5m") as held:
        table.upsert([{"id": 0, "v": 9}])
        assert values(held) == NEWEST
        assert [pin.name for pin in table.snapshots()] == ["job"]
    assert table.snapshots() == []
    with pytest.raises(Invalid, match="dropped or have expired"):
        values(held)
