"""A table at a version of its base, by number or by time: which one it is, and that it stays while it is held."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

import lance
import pytest

import lancelsm
from lancelsm.common.clock import SystemClock
from lancelsm.common.layout import snapshots, table_key
from lancelsm.dataset.cleanup import StoredVersion, stored_versions
from lancelsm.dataset.tags import tags
from lancelsm.errors import Invalid
from lancelsm.gc.collect import collect
from lancelsm.history.at import AtSnapshot, AtTime, AtVersion, at_of_text, find_version, parse_at, version_at_time
from lancelsm.history.snapshot import create_snapshot, snapshot_view
from lancelsm.history.version_hold import hold_version, pin_version
from lancelsm.read import reader
from lancelsm.region.handle import open_table
from tests.simulation.faults import CRASH_BEFORE, Crash, FakeClock, FaultPlan
from tests.unit.tables import by_key, faulty, three_levels

OLD = {"keep_versions_seconds": 1e-3, "collect_floor_bytes": 1 << 40}


def versions(*numbers: int) -> list[StoredVersion]:
    """Versions that were committed at ten times their number."""
    return [StoredVersion(version=number, committed=10.0 * number) for number in numbers]


@pytest.fixture
def handle(tmp_path):
    table = three_levels(tmp_path / "t", settings=OLD)
    table.run()
    return open_table(table.uri)


@pytest.fixture
def table(handle):
    return lancelsm.open(handle.context.uri)


def values(table, **how):
    return by_key(table.scan(**how).to_arrow())


def pins_of(table):
    return [pin.name for pin in table.snapshots()]


def rows_of(handle, pin):
    return by_key(reader.scan(snapshot_view(handle, pin), uri=handle.context.uri).read_all())


@pytest.mark.parametrize(
    ("at", "meant"),
    [
        (7, AtVersion(version=7)),
        ("monday", AtSnapshot(name="monday")),
        ("2026-11-01", AtSnapshot(name="2026-11-01")),
        ("2026-11-01T00:00:00", AtSnapshot(name="2026-11-01T00:00:00")),
        ("The-first", AtSnapshot(name="The-first")),
        ("1970-01-01T00:01:00Z", AtTime(time=60.0)),
        ("1970-01-01T02:01:00.500+02:00", AtTime(time=60.5)),
        ("19700101T000100Z", AtTime(time=60.0)),
        (datetime(1970, 1, 1, 0, 1, tzinfo=UTC), AtTime(time=60.0)),
        (datetime(1970, 1, 1, 2, 1, tzinfo=timezone(timedelta(hours=2))), AtTime(time=60.0)),
    ],
)
def test_a_number_is_a_version_and_a_time_needs_a_zone(at, meant):
    assert parse_at(at) == meant


@pytest.mark.parametrize("at", [0, -1, True, 2**63, 1.5, None, b"monday"])
def test_what_is_neither_text_nor_a_positive_number_is_refused(at):
    with pytest.raises(Invalid, match="at is ") as refused:
        parse_at(at)
    assert refused.value.where["field"] == "at"


def test_a_datetime_without_a_zone_is_refused():
    with pytest.raises(Invalid, match="the time 2026-11-01T00:00:00 has no zone"):
        parse_at(datetime(2026, 11, 1))  # noqa: DTZ001 - what is refused


def test_a_table_opens_at_the_times_of_its_history(tmp_path):
    table = lancelsm.create(tmp_path / "orders", [{"id": 1}], primary_key="id")
    before = table.history()[-1]
    table.delete([1])
    table.run()

    assert table.at(before.time).count() == 1
    assert table.at(table.history()[-1].time).count() == 0


def test_digits_are_a_version_where_everything_is_text():
    assert [at_of_text(text) for text in ("7", "monday", "٧")] == [7, "monday", "٧"]


def test_no_snapshot_has_a_name_that_reads_as_a_version_or_a_time(handle):
    for name in ("7", "20261101", "20261101T000000Z"):
        with pytest.raises(Invalid, match="reads as a"):
            create_snapshot(handle, name, ttl_seconds=60)


@pytest.mark.parametrize(
    ("kept", "time", "version"),
    [
        (versions(1, 2, 3), 25.0, 2),
        (versions(1, 2, 3), 20.0, 2),
        (versions(1, 2, 3), 99.0, 3),
        (versions(1, 2, 3), 9.0, None),
        (versions(2, 5, 6), 55.0, 5),
        (versions(2, 5, 6), 45.0, None),  # 3 and 4 are gone: one of them was the newest then
        (versions(2, 5, 6), 15.0, None),
        ([StoredVersion(version=1, committed=30.0), StoredVersion(version=2, committed=20.0)], 25.0, 2),
    ],
)
def test_a_time_means_the_newest_version_until_then_unless_a_later_one_is_gone(kept, time, version):
    assert version_at_time(kept, time) == version


def test_a_version_has_the_rows_that_were_merged_at_its_commit(handle):
    with_rows, merged = hold_version(handle, 1), hold_version(handle, handle.read_base().version)
    try:
        assert rows_of(handle, with_rows.pin) == {0: 0, 1: 0, 2: 0, 3: 0}
        assert rows_of(handle, merged.pin) == {0: 2, 1: 1, 2: 1}
    finally:
        with_rows.close()
        merged.close()


def test_a_time_finds_the_version_of_its_commit(handle):
    for stored in stored_versions(uri=handle.context.uri):
        assert find_version(handle, AtTime(time=stored.committed)) == stored.version
    with pytest.raises(Invalid, match="no version of the base is known at 1970-01-01T00:00:01Z") as refused:
        find_version(handle, AtTime(time=1.0))
    assert "All versions from version 1 on are there" in refused.value.remedy
    with pytest.raises(Invalid, match="is in the future"):
        find_version(handle, AtTime(time=handle.context.clock.now() + 3600))


def test_a_held_version_survives_a_collection_and_goes_with_the_next_one(handle):
    hold = hold_version(handle, 1)
    assert collect(handle, yes=True, interval_seconds=0).deleted
    lance.dataset(handle.context.uri).cleanup_old_versions(
        older_than=timedelta(0), retain_versions=1, error_if_tagged_old_versions=False
    )
    assert rows_of(handle, hold.pin) == {0: 0, 1: 0, 2: 0, 3: 0}

    hold.close()
    hold.close()
    assert handle.context.registry.list(snapshots(handle.context.table)) == []
    assert tags(uri=handle.context.uri) == {}


def test_a_version_that_was_collected_or_does_not_exist_yet_is_refused_with_those_that_exist(handle):
    newest = handle.read_base().version
    assert collect(handle, yes=True, interval_seconds=0).deleted
    assert 1 not in [one.version for one in stored_versions(uri=handle.context.uri)]

    with pytest.raises(Invalid, match="version 1 of the base was collected") as refused:
        hold_version(handle, 1)
    assert f"All versions from version {newest}" in refused.value.remedy
    with pytest.raises(Invalid, match="the base has no version 999 yet"):
        hold_version(handle, 999)
    assert handle.context.registry.list(snapshots(handle.context.table)) == []


@pytest.mark.parametrize(("name", "hint"), [("2026-11-29", True), ("2026-11-29T10:00:00", True), ("monday", False)])
def test_a_time_without_its_zone_is_refused_with_the_form_of_a_time(table, name, hint):
    with pytest.raises(Invalid, match="snapshot not found") as refused:
        table.at(name)
    assert ("A time has T and a zone" in refused.value.remedy) == hint


def test_a_version_below_the_floor_is_refused_though_a_snapshot_still_has_it(handle):
    create_snapshot(handle, "monday", ttl_seconds=60)
    kept = handle.read_base().version
    context = handle.context
    context.registry.swap(table_key(context.table), expect={}, change={"base_floor": kept + 1})

    with pytest.raises(Invalid, match="no longer kept for new readers") as refused:
        hold_version(handle, kept)
    assert "The snapshot monday has it" in refused.value.remedy


def test_every_read_at_a_version_sees_its_rows_and_nothing_later(table):
    table.upsert([{"id": 0, "v": 9}, {"id": 7, "v": 9}])
    with lancelsm.open(table.uri, at=1) as old:
        assert (old.at_version, old.at_snapshot) == (1, pins_of(table)[0])
        assert values(old) == {0: 0, 1: 0, 2: 0, 3: 0}
        assert old.count() == lance.dataset(table.uri, version=1).count_rows() == 4
        assert old.get([0, 7]).to_pylist() == [{"id": 0, "v": 0}]
        assert values(old, where="id > 1", limit=9) == {2: 0, 3: 0}
        assert "at=1>" in repr(old)
        with pytest.raises(Invalid, match="the table is open at version 1 of its base"):
            old.upsert([{"id": 0, "v": 9}])
    assert pins_of(table) == []
    with pytest.raises(Invalid, match=r"version 1 of the base is no longer held.*at=1"):
        old.count()


def test_a_time_opens_the_version_of_that_time(table):
    history = table.history()
    with table.at(history[0].time.isoformat()) as first, table.at(history[-1].time.isoformat()) as last:
        assert (first.at_version, last.at_version) == (1, table.status().base_version)
        assert values(last) == values(table)


def test_a_version_is_released_when_its_table_is_freed_but_not_while_its_rows_are_read(table):
    stream = iter(table.at(1).scan())
    gc.collect()
    assert len(pins_of(table)) == 1
    assert next(stream).num_rows

    del stream
    gc.collect()
    held = table.at(1)  # its hold is created after that of the freed table has ended, or beside it
    held.close()
    wait_until(lambda: pins_of(table) == [])


def wait_until(done, *, tries=2000):
    for _ in range(tries):
        if done():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not happen")


@pytest.mark.rest
def test_a_process_that_ends_releases_its_version(table):
    code = f"import lancelsm; t = lancelsm.open({table.uri!r}, at=1); print(t.count(), len(t.snapshots()))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["4", "1"]
    assert pins_of(table) == []


@pytest.mark.rest
def test_a_forked_child_ends_and_leaves_the_version_to_its_parent(table):
    code = f"""
import os, signal, sys, lancelsm
held = lancelsm.open({table.uri!r}, at=1)
child = os.fork()
if child == 0:
    signal.alarm(30)
    sys.exit(0)
print(os.waitpid(child, 0)[1], len(held.snapshots()))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["0", "1"]


@pytest.mark.rest
def test_rows_of_a_version_expire_by_the_time_of_the_version_and_are_not_restored(tmp_path):
    """The first row lives for a second, which is over before the version is read."""
    soon = datetime.now(UTC) + timedelta(seconds=1)
    rows = [{"id": 1, "until": soon, "v": 1}, {"id": 2, "until": soon + timedelta(days=1), "v": 1}]
    made = lancelsm.create(tmp_path / "t", rows, primary_key="id", ttl="0s on until")
    wait_until(lambda: made.count() == 1)
    made.upsert([{**rows[1], "v": 2}])

    with made.at(1) as old:
        assert old.count() == 2
    assert made.restore(1) == lancelsm.Restored(written=1)
    assert values(made) == {2: 1}


@pytest.mark.rest
def test_a_crash_while_a_version_is_pinned_leaves_what_expires(table):
    clock, at, done = FakeClock(SystemClock().now()), 0, False
    while not done:
        at += 1
        ports = faulty(FaultPlan.at(at, CRASH_BEFORE), process=str(at), clock=clock)
        with suppress(Crash):
            pin_version(open_table(table.uri, ports=ports), 1, name=f"version-{at}", ttl_seconds=900)
            done = True
    assert at > 10
    clock.sleep(7200)
    later = lancelsm.open.on(faulty(FaultPlan(), process="later", clock=clock))(table.uri)
    assert later.collect(yes=True, interval_seconds=0).deleted
    assert [name for name in pins_of(later) if "version" in name] == []
    assert tags(uri=table.uri) == {}


def test_a_registry_of_objects_keeps_nothing_of_a_version_that_was_open(tmp_path):
    made = lancelsm.create(tmp_path / "t", [{"id": 1, "v": 1}], primary_key="id", registry="object")
    before = sorted((tmp_path / "t").rglob("*registry/*"))
    with made.at(1) as old:
        assert old.count() == 1
    assert sorted((tmp_path / "t").rglob("*registry/*")) == before


def test_the_history_lists_versions_with_their_rows(table):
    found = table.history()
    assert [one.version for one in found] == list(range(1, table.status().base_version + 1))
    assert found[0].rows == 4
    assert [one.version for one in table.history(limit=2)] == [one.version for one in found[-2:]]
    with pytest.raises(Invalid, match="the limit is 0"):
        table.history(limit=0)


def test_what_a_version_merged_is_unknown_if_the_version_before_is_gone(table):
    kept = table.status().base_version
    table.snapshot("monday", ttl="never")
    for value in range(2):
        table.upsert([{"id": 0, "v": value}])
        table.run()
    table.collect(yes=True, interval_seconds=0)

    first, second, third = table.history()
    assert (first.version, second.version > kept + 1, third.version) == (kept, True, second.version + 1)
    assert (first.merged, second.merged, third.merged) == (None, None, {})


def test_a_version_can_be_backed_up(table, tmp_path):
    with table.at(1) as old:
        assert lancelsm.backup(old, tmp_path / "backup").rows == 4
    lancelsm.restore(tmp_path / "backup", tmp_path / "again")
    assert values(lancelsm.open(tmp_path / "again")) == {0: 0, 1: 0, 2: 0, 3: 0}


def test_a_version_from_before_the_table_was_adopted_is_refused(table):
    base = lance.dataset(table.uri)
    base.update_schema_metadata({"lancelsm.table": "00000000-0000-0000-0000-000000000000"}, replace=False)
    foreign = base.latest_version
    base.restore() if base.version == foreign - 1 else lance.dataset(table.uri, version=foreign - 1).restore()

    with pytest.raises(Invalid, match="is not of this table"):
        table.at(foreign)
    assert pins_of(table) == []
