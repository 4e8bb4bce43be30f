"""Snapshots: one view of a table, kept while its pin exists."""

from __future__ import annotations

import _thread
import threading
from collections import Counter
from types import SimpleNamespace

import pytest

import lancelsm
from lancelsm.common.layout import pin_key, snapshots, table_key
from lancelsm.dataset.tags import tags
from lancelsm.errors import Contended, Invalid, Unavailable
from lancelsm.history import pins
from lancelsm.history import snapshot as snapshot_module
from lancelsm.history.pins import read_pins
from lancelsm.history.snapshot import (
    create_snapshot,
    drop_snapshot,
    find_snapshot,
    holding_snapshot,
    list_snapshots,
    refresh_snapshot,
    snapshot_view,
    tag_of,
)
from lancelsm.read import reader
from lancelsm.region.catalog import regions
from lancelsm.region.handle import open_table
from lancelsm.region.head import Head
from tests.simulation.faults import DENY, FaultPlan
from tests.unit.tables import NEWEST, by_key, faulty, three_levels

TIMEOUT = 60.0  # seconds until a failing test gives up


@pytest.fixture
def table(tmp_path):
    return three_levels(tmp_path / "t")


@pytest.fixture
def handle(table):
    return open_table(table.uri)


def values(handle, pin):
    return by_key(reader.scan(snapshot_view(handle, pin), uri=handle.context.uri).read_all())


def test_a_snapshot_shows_base_generations_and_tail_as_they_were(table, handle):
    pin = create_snapshot(handle, "monday", ttl_seconds=60)

    table.upsert([{"id": 0, "v": 9}, {"id": 7, "v": 9}])
    table.run()
    table.upsert([{"id": 1, "v": 9}])

    assert values(handle, pin) == values(handle, find_snapshot(handle.context, "monday")) == NEWEST


def test_a_snapshot_pins_every_region_and_tags_the_version_of_the_base(handle):
    pin = create_snapshot(handle, "monday", ttl_seconds=None)

    assert read_pins(handle.context) == [pin]
    assert set(pin.regions) == {region.id for region in regions(handle.context)}
    assert pin.expires is None
    assert tags(uri=handle.context.uri) == {tag_of(pin.nonce): handle.read_base().version}


def test_an_existing_or_invalid_name_is_refused(handle):
    create_snapshot(handle, "monday", ttl_seconds=60)

    with pytest.raises(Invalid, match="a snapshot of this name exists"):
        create_snapshot(handle, "monday", ttl_seconds=60)
    with pytest.raises(Invalid, match="is not a valid name"):
        create_snapshot(handle, "mon day", ttl_seconds=60)


def test_a_dropped_snapshot_leaves_nothing_and_its_name_is_free(handle):
    create_snapshot(handle, "monday", ttl_seconds=60)
    drop_snapshot(handle, "monday")

    assert handle.context.registry.list(snapshots(handle.context.table)) == []
    assert tags(uri=handle.context.uri) == {}
    create_snapshot(handle, "monday", ttl_seconds=60)


def test_a_renewed_snapshot_expires_later(handle):
    pin = create_snapshot(handle, "monday", ttl_seconds=60)
    renewed = refresh_snapshot(handle, "monday", ttl_seconds=3600)

    assert renewed.expires > pin.expires
    assert list_snapshots(handle.context) == [renewed]


def test_a_snapshot_that_the_collector_removed_cannot_be_renewed_dropped_or_read(handle):
    pin = create_snapshot(handle, "monday", ttl_seconds=60)
    key = pin_key(snapshots(handle.context.table), "monday")
    handle.context.registry.delete(key, expect={"version": pin.version})
    for item in handle.context.objects.list("_mem_wal/"):
        handle.context.objects.delete([item.key])

    for act in (
        lambda: refresh_snapshot(handle, "monday", ttl_seconds=60),
        lambda: drop_snapshot(handle, "monday"),
        lambda: snapshot_view(handle, pin),
    ):
        with pytest.raises(Invalid, match="dropped or have expired"):
            act()


def test_a_snapshot_that_a_floor_has_passed_is_taken_again(handle, monkeypatch):
    """A collection round is committed between the reads of the snapshot and its confirmation."""
    region = regions(handle.context)[0]
    tag_version = lancelsm.history.snapshot.tag_version
    overtaken = []

    def tag_then_raise_floor(**arguments):
        tag_version(**arguments)
        if not overtaken:
            overtaken.append(raise_floor(region))

    monkeypatch.setattr("lancelsm.history.snapshot.tag_version", tag_then_raise_floor)
    pin = create_snapshot(handle, "monday", ttl_seconds=60)

    assert pin.regions[region.id].collector_round == 1
    assert read_pins(handle.context) == [pin]
    assert list(tags(uri=handle.context.uri)) == [tag_of(pin.nonce)]


def test_a_snapshot_that_is_always_overtaken_is_contended_and_leaves_nothing(handle, monkeypatch):
    handle.context.registry.swap(table_key(handle.context.table), expect={}, change={"base_floor": 1_000})

    with pytest.raises(Contended, match="collections kept overtaking"):
        create_snapshot(handle, "monday", ttl_seconds=60)

    assert handle.context.registry.list(snapshots(handle.context.table)) == []
    assert tags(uri=handle.context.uri) == {}


def test_records_that_an_older_snapshot_of_the_same_name_left_do_not_count(handle):
    pin = create_snapshot(handle, "monday", ttl_seconds=60)
    context = handle.context
    context.registry.delete(pin_key(snapshots(context.table), "monday"), expect={"version": pin.version})
    assert read_pins(context) == []

    again = create_snapshot(handle, "monday", ttl_seconds=60)
    assert read_pins(context) == [again]


class FakeLock:
    """Replaces the lock that ends a heartbeat: the first waits end at once, the next one when the lock is released."""

    def __init__(self, beats: int) -> None:
        self.waits: list[float] = []
        self.over = threading.Event()
        self._beats = beats
        self._end = threading.Event()

    def acquire(self, *, timeout: float | None = None) -> bool:
        if timeout is None:
            return True
        self.waits.append(timeout)
        if len(self.waits) <= self._beats:
            return False
        self.over.set()
        return self._end.wait(TIMEOUT)

    def locked(self) -> bool:
        return not self._end.is_set()

    def release(self) -> None:
        self._end.set()


def fake_heartbeat(monkeypatch, times: int) -> FakeLock:
    lock = FakeLock(times)
    threads = SimpleNamespace(allocate_lock=lambda: lock, start_new_thread=_thread.start_new_thread)
    monkeypatch.setattr("lancelsm.common.renewal._thread", threads)
    return lock


@pytest.fixture
def beats(monkeypatch):
    return fake_heartbeat(monkeypatch, 3)


def test_a_held_snapshot_is_renewed_after_each_third_of_its_time_to_live_and_dropped_at_the_end(handle, beats):
    with holding_snapshot(handle, "job", ttl_seconds=60) as pin:
        assert beats.over.wait(TIMEOUT), "no beat came"
        held = find_snapshot(handle.context, "job")
        assert held.version == pin.version + 3
        assert held.expires > pin.expires
        assert beats.waits == [20.0] * 4
        assert values(handle, pin) == NEWEST
    assert list_snapshots(handle.context) == []


def test_a_heartbeat_reads_one_record_and_writes_one_and_touches_no_object(table, monkeypatch):
    def calls(times: int) -> Counter[tuple[str, str]]:
        beats, plan = fake_heartbeat(monkeypatch, times), FaultPlan()
        with holding_snapshot(open_table(table.uri, ports=faulty(plan)), "job", ttl_seconds=60):
            assert beats.over.wait(TIMEOUT), "no beat came"
        return Counter((call.port, call.method) for call in plan.calls)

    assert calls(100) - calls(0) == {("registry", "list"): 100, ("registry", "swap"): 100}


def test_a_heartbeat_goes_on_after_a_failure(table, beats):
    plan = FaultPlan(lambda call: DENY if beats.waits and not plan.injected else None)
    handle = open_table(table.uri, ports=faulty(plan))
    with holding_snapshot(handle, "job", ttl_seconds=60) as pin:
        assert beats.over.wait(TIMEOUT), "no beat came"
        assert find_snapshot(handle.context, "job").version == pin.version + 2
    assert len(plan.injected) == 1


def raise_floor(region) -> Head:
    head = region.head()
    key = lancelsm.common.layout.head_key(region.context.table, region.id)
    region.context.registry.swap(key, expect={}, change={"collector_round": head.collector_round + 1})
    return region.head()


def test_an_error_of_the_tag_is_raised_unchanged_and_leaves_no_snapshot(handle, monkeypatch):
    """Only a missing version makes the snapshot start again. A denied write is not retried."""

    def denied(**_):
        raise Invalid("access denied", remedy="Allow it")

    monkeypatch.setattr(snapshot_module, "tag_version", denied)

    with pytest.raises(Invalid, match="access denied"):
        create_snapshot(handle, "monday", ttl_seconds=60)
    assert read_pins(handle.context) == []


def test_a_snapshot_whose_confirmation_lost_its_reply_stays_with_its_tag(handle, monkeypatch):
    confirm = pins.confirm

    def lose_reply(*args, **kwargs):
        confirm(*args, **kwargs)
        raise Unavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(pins, "confirm", lose_reply)
        with pytest.raises(Unavailable, match="no answer"):
            create_snapshot(handle, "monday", ttl_seconds=60)

    pin = find_snapshot(handle.context, "monday")
    assert values(handle, pin) == NEWEST
    assert tag_of(pin.nonce) in tags(uri=handle.context.uri)
