"""A slow append among fast ones of the same owner: notes, and writers that hold back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import lancelsm
from lancelsm.common.clock import SystemClock
from lancelsm.objects import Body, PreconditionFailed, WriteUnknown, Written
from lancelsm.objects.filesystem import LocalStore
from lancelsm.region import head as heads
from lancelsm.region.handle import Ports
from lancelsm.table import Table
from tests.unit.tables import create, row, rows_of


class Slow(LocalStore):
    """A store in which another writer appends before each put of an entry, as long as it does not hold back."""

    def __init__(self, table: Table) -> None:
        super().__init__(Path(table.uri))
        self.other = lancelsm.open.on(Ports(clock=Pauses()))(table.uri)
        self.appends = 0

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        if "/wal/" in key and not self.holds_back():
            self.other.upsert([row(self.appends + 100)])
            self.appends += 1
        return super().create(key, body)

    def holds_back(self) -> bool:
        writers = self.other._region_writers
        return writers is not None and any(one._held and one._held.waiting for one in writers._writers.values())


class Pauses(SystemClock):
    """A clock that notes pauses and does not make them."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.passed = 0.0

    def monotonic(self) -> float:
        return self.passed

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.passed += seconds


def head_of(table: Table) -> heads.Head:
    (region,) = table.list_regions()
    return region.head()


def leave_note(table: Table, milliseconds: int = 500) -> None:
    (region,) = table.list_regions()
    assert isinstance(region.swap(heads.noted(region.head(), milliseconds=milliseconds)), heads.Head)


def test_a_slow_append_gets_its_turn_after_a_note(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(0)])
    store = Slow(table)

    lancelsm.open.on(Ports(store=lambda *_: store))(table.uri).upsert([row(1)])

    assert store.appends == 4, "two lost positions, one with the note unseen, and one whose reply shows the note"
    assert head_of(table).waiting == "", "the append removes the note"
    assert {found["id"] for found in rows_of(table)} == {0, 1, 100, 101, 102, 103}


def test_an_append_after_a_dead_writers_note_waits_once(tmp_path: Path) -> None:
    table = create(tmp_path)
    leave_note(table)
    clock = Pauses()
    writer = lancelsm.open.on(Ports(clock=clock))(table.uri)

    for key in range(3):
        writer.upsert([row(key)])

    assert sum(clock.pauses) == pytest.approx(0.5)
    assert head_of(table).waiting == ""


def test_a_pause_ends_when_the_note_is_removed(tmp_path: Path) -> None:
    table = create(tmp_path)
    leave_note(table, milliseconds=9_000)
    other = lancelsm.open(table.uri)

    class Appends(Pauses):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if len(self.pauses) == 2:
                (region,) = other.list_regions()
                region.swap(heads.Swap(expect={}, change={"waiting": None}))

    clock = Appends()
    lancelsm.open.on(Ports(clock=clock))(table.uri).upsert([row(1)])

    assert len(clock.pauses) == 2


@pytest.mark.parametrize("note", ["", "x", "-1", "1.5", "9" * 40, "٣x"])
def test_a_note_that_is_no_number_is_ignored(tmp_path: Path, note: str) -> None:
    table = create(tmp_path)
    (region,) = table.list_regions()
    region.swap(heads.Swap(expect={}, change={"waiting": note}))
    clock = Pauses()

    lancelsm.open.on(Ports(clock=clock))(table.uri).upsert([row(1)])

    assert clock.pauses == []


def test_a_note_asks_for_ten_seconds_at_most(tmp_path: Path) -> None:
    table = create(tmp_path)
    leave_note(table, milliseconds=3_600_000)
    clock = Pauses()

    lancelsm.open.on(Ports(clock=clock))(table.uri).upsert([row(1)])

    assert sum(clock.pauses) == pytest.approx(10)


@pytest.mark.rest
def test_a_large_upsert_succeeds_next_to_a_busy_writer(tmp_path: Path) -> None:
    table = create(tmp_path, settings={"retry_budget_seconds": 20})
    busy, ended = lancelsm.open(table.uri), threading.Event()

    def write() -> None:
        number = 0
        while not ended.is_set():
            busy.upsert([row(number)])
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        table.upsert([row(key, "large") for key in range(1_000_000, 1_100_000)])
    finally:
        ended.set()
        thread.join()
    assert len(rows_of(table, where="v = 'large'")) == 100_000
